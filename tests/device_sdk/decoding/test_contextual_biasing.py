"""The first-pass n-gram and length normalization: the same scores as the exhaustive search and the second pass give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Hotwords, Recognizer
from device_sdk.decoding.beam import Path, paths
from device_sdk.decoding.contextual_biasing import Guide
from device_sdk.decoding.nbest import distinct
from device_sdk.errors import ConfigurationError
from device_sdk.runtimes.ngram import NgramModel, load_ngram
from rescoring.words import WordList
from tests.device_sdk.decoding.lattices import RandomLattice, exhaustive, search
from tests.device_sdk.decoding.test_hotwords import Pieces, hotword_of, scanned

PIECES = Pieces("ab", 1)
ARPA = """\\data\\
ngram 1=5
ngram 2=4

\\1-grams:
-1.2\t<unk>
-99\t<s>\t-0.3
-0.9\t</s>
-0.5\ta\t-0.2
-0.8\tb\t-0.4

\\2-grams:
-0.2\t<s> a
-0.6\ta b
-0.3\tb </s>
-1.4\tb b

\\end\\
"""


@pytest.fixture(scope="module")
def ngram(tmp_path_factory):
    pytest.importorskip("kenlm")
    path = tmp_path_factory.mktemp("ngram") / "ngram.arpa"
    path.write_text(ARPA)
    return NgramModel(path, WORDS)


WORDS = WordList(("<unk>", "a", "b"))


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    weight=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    hotwords=st.sampled_from([[], ["ab"], ["a", "b a"]]) | st.lists(hotword_of("ab"), max_size=3),
    symbols=st.integers(1, 2),
    cut=st.integers(0, 2),
)
def test_a_wide_beam_is_the_exhaustive_search(ngram, seed, weight, hotwords, symbols, cut):
    """weight: 0 is a search without an n-gram."""
    lattice, built = RandomLattice(seed, PIECES.size, 2.0), Hotwords.build(hotwords)
    expected = exhaustive(lattice, 2, symbols)
    guide = Guide(PIECES, built, ngram, weight) if weight else Guide(PIECES, built)
    decoding = DecodingSettings(beam=100_000, symbols_per_frame=symbols, threshold=np.inf)
    found = paths(search(lattice, 2, decoding, [cut], guide))
    assert {path.tokens for path in found} == set(expected)
    assert all(better.rank >= worse.rank for better, worse in itertools.pairwise(found))
    texts = [PIECES.decode(path.tokens) for path in found]
    secondly = ngram([WORDS.ids(text) for text in texts])
    for path, text, values in zip(found, texts, secondly, strict=True):
        assert path.score == pytest.approx(expected[path.tokens][0], abs=1e-9)
        assert path.ngram == pytest.approx(values.sum() if weight else 0.0)  # what the second pass finds
        assert path.hotword == pytest.approx(scanned(built.phrases, text))
        assert path.rank == pytest.approx(path.score + path.hotword + weight * path.ngram)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 20), max_size=5), bias=st.floats(0.0, 4.0))
def test_blocks_do_not_change_the_search_with_an_ngram(ngram, seed, cuts, bias):
    lattice, decoding = RandomLattice(seed, PIECES.size, 2.0, bias), DecodingSettings(beam=4, nbest=4)
    guide = Guide(PIECES, Hotwords.build(["ab"]), ngram, 0.4)
    assert paths(search(lattice, 20, decoding, (), guide)) == paths(search(lattice, 20, decoding, cuts, guide))


def test_what_a_token_changes_is_what_the_bonus_gains(ngram):
    guide, ids = Guide(PIECES, None, ngram, 0.5), range(1, PIECES.size)
    guided = guide.start()
    assert guide.gain(guided) == 0.0
    for token in (4, 2, 1, 5, 3, 4, 4):
        changes = guide.ahead(guided, ids)
        for each, change in zip(ids, changes, strict=True):
            assert guide.step(guided, each).bonus - guided.bonus == pytest.approx(change)
        guided = guide.step(guided, token)


def test_the_second_pass_weighs_the_ngram_anew():
    from device_sdk.personalization.rescorer import Rescorer
    from export.benchmarks.decode import shipped_speech

    default_bundle = Bundle.open()
    if load_ngram(default_bundle) is None:
        pytest.skip("kenlm is not installed")
    rescorer = Rescorer(default_bundle)
    first = Recognizer(default_bundle, DecodingSettings(ngram_weight=0.1))
    both = Recognizer(default_bundle, DecodingSettings(ngram_weight=0.1), rescorer.rescore)
    clip = shipped_speech()[1]
    once = {each.text: each for each in first.recognize(clip, 16_000).nbest}
    for each in both.recognize(clip, 16_000).nbest:
        assert each.scores.ngram == pytest.approx(once[each.text].scores.ngram)
        scores = once[each.text].scores
        assert once[each.text].score == pytest.approx(scores.acoustic + 0.1 * scores.ngram)
        (again,) = rescorer.rescore([once[each.text]])
        assert each.score == pytest.approx(again.score)


def test_an_ngram_that_is_not_there_is_named(tiny_bundle, monkeypatch):
    monkeypatch.setattr("device_sdk.runtimes.ngram.FILES", ())
    with pytest.raises(ConfigurationError, match=r"ngram_weight: .*no n-gram"):
        Recognizer(tiny_bundle, DecodingSettings(ngram_weight=0.2))


def test_length_normalization_ranks_by_the_share_of_a_piece():
    listed = [Path((4,), -2.0, (1,)), Path((4, 5, 3), -3.0, (1, 2, 3)), Path((), -9.0, ())]
    plain, half, whole = (distinct(listed, PIECES, 0.03, 1.0, power) for power in (0.0, 0.5, 1.0))
    assert [each.score for each in plain] == [-2.0, -3.0, -9.0]
    assert [each.score for each in half] == pytest.approx([-3.0 / 3**0.5, -2.0, -9.0])
    assert [each.score for each in whole] == [-1.0, -2.0, -9.0]
    assert {each.scores.acoustic for each in whole} == {-2.0, -3.0, -9.0}
