from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.bundle.piece_ngram import START, read, serialize
from device_sdk.decoding.contextual_biasing import Ngram
from device_sdk.errors import BundleError
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
