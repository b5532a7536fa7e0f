from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.bundle.piece_ngram import START, read, serialize
from device_sdk.decoding import contextual_biasing
from device_sdk.decoding.contextual_biasing import Ngram
from device_sdk.errors import BundleError
from device_sdk.runtimes.native_kernels import native_module
from rescoring.words import WordList
from server.lab.training.ngram import estimate, log_probabilities, over_pieces

SENTENCES = [[1, 2, 3], [1, 2, 3, 4], [2, 2, 1], [4, 1, 2, 3], [1, 2]]
WORDS = WordList(("<unk>", "1", "2", "3", "4"))
MODEL = estimate(SENTENCES, WORDS, 4, (1, 1, 2))
GIVEN = over_pieces(MODEL)


@settings(max_examples=60, deadline=None)
@given(sentence=st.lists(st.integers(1, 4), max_size=9))
def test_the_automaton_gives_what_the_model_does(sentence):
    ngram, context, found = Ngram(GIVEN, 1.0, 0.0), START, []
    for piece in sentence:
        context, nats = ngram.read(context, piece)
        found.append(nats)
    assert found == pytest.approx(log_probabilities(MODEL, sentence)[:-1], abs=0.01)
    _, nats = Ngram(GIVEN, 0.5, 0.75).read(START, 2)
    assert nats == pytest.approx(0.5 * log_probabilities(MODEL, [2])[0] + 0.75, abs=0.01)


@pytest.mark.parametrize("native", [False, True])
def test_what_lies_ahead_is_what_is_read_then(native, monkeypatch):
    found = native_module()
    if native and found is None:
        pytest.skip("this tree holds no native kernels of these sources; `make native` compiles them")
    monkeypatch.setattr(contextual_biasing, "_native", found if native else None)
    for ngram in (Ngram(GIVEN, 1.0, 0.0), Ngram(GIVEN, 0.3, 0.7)):
        for context in range(GIVEN.backoff.size):
            pieces = [4, 0, 2, 1, 3, 3]
            assert ngram.ahead(context, pieces) == [ngram.read(context, piece)[1] for piece in pieces]
            assert ngram.ahead(context, []) == []


@pytest.mark.parametrize("arguments", [(-1, [1]), (10_000, [1]), (0, [5]), (0, [-1]), (0, ["a"])])
def test_what_no_ngram_knows_is_refused_natively(arguments):
    found = native_module()
    if found is None:
        pytest.skip("this tree holds no native kernels of these sources; `make native` compiles them")
    arrays = (GIVEN.first, GIVEN.pieces, GIVEN.nats, GIVEN.backoff, GIVEN.shorter)
    with pytest.raises((ValueError, TypeError), match=r"n-gram: found|integer"):
        found.ahead(*arguments, 1.0, 0.0, *arrays)
    with pytest.raises(ValueError, match="too short"):
        found.ahead(0, [1], 1.0, 0.0, GIVEN.first, GIVEN.pieces[:-1], *arrays[2:])


def test_it_survives_the_file():
    again = read(serialize(GIVEN), 5, "here")
    for each in fields(GIVEN):
        np.testing.assert_allclose(getattr(again, each.name), getattr(GIVEN, each.name), rtol=1e-3)


ARCS = ("pieces", "nats", "following")


def changed(name, place, value):
    array = getattr(GIVEN, name).copy()
    array[place] = value
    return replace(GIVEN, **{name: array})


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (replace(GIVEN, nats=GIVEN.nats[:-1]), r"tensor 'nats' is float32 \[\d+\], expected float32"),
        (replace(GIVEN, first=GIVEN.first.astype(np.int64)), "tensor 'first' is int64"),
        (changed("first", 1, 4), "tensor 'pieces' is that of no n-gram over 5 pieces"),
        (changed("first", 2, 1_000), "tensor 'first' is that of no"),
        (changed("first", 2, 2**31 - 1), "tensor 'first' is that of no"),  # 16 GiB, were it believed
        (replace(GIVEN, **{name: getattr(GIVEN, name)[:0] for name in ARCS}), "tensor 'first' is that of no"),
        (changed("pieces", 3, 9), "tensor 'pieces' is that of no"),
        (changed("pieces", 3, 2), "tensor 'pieces' is that of no"),
        (changed("nats", 0, np.nan), "tensor 'nats' is that of no"),
        (changed("following", 0, -1), "tensor 'following' is that of no"),
        (changed("following", 0, GIVEN.backoff.size), "tensor 'following' is that of no"),
        (changed("backoff", 1, 1.0), "tensor 'backoff' is that of no"),
        (changed("shorter", 2, 2), "tensor 'shorter' is that of no"),
    ],
)
def test_what_would_lead_a_search_astray_is_refused(damaged, message):
    with pytest.raises(BundleError, match=f"here: {message}"):
        read(serialize(damaged), 5, "here")


def test_of_other_pieces_or_no_tensors_it_is_refused():
    with pytest.raises(BundleError, match="over 7 pieces"):
        read(serialize(GIVEN), 7, "here")
    with pytest.raises(BundleError, match="are missing or unknown"):
        read(serialize(GIVEN).replace(b'"nats"', b'"cats"'), 5, "here")
