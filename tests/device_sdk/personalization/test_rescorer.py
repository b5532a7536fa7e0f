import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.hypothesis import Hypothesis, Scores, Word
from device_sdk.personalization.rescorer import Rescorer
from rescoring.combination import CombinationWeights, combine
from rescoring.marginals import PersonalMarginal, adaptation
from tests.speech import packaged

WEIGHTS = CombinationWeights(
    language_model=0.7, ngram_share=0.4, word_bonus=0.2, unlisted_bonus=-0.5, marginal=0.8, smoothing=1.0
)


def hypothesis(text: str, acoustic: float, hotword: float = 0.0) -> Hypothesis:
    words = tuple(Word(word, 0.0, 0.1) for word in text.split())
    return Hypothesis((1, 2), text, words, Scores(acoustic, hotword=hotword), acoustic)


NBEST = (
    hypothesis("turn on the light", -3.0),
    hypothesis("turn on zog light", -2.5),
    hypothesis("", -9.0),
    hypothesis("call my sister on her phone", -4.0, hotword=1.5),
)


@pytest.fixture(scope="module")
def rescorer(tiny_bundle: Bundle) -> Rescorer:
    return Rescorer(tiny_bundle, WEIGHTS)


def test_parts_and_total(rescorer: Rescorer, tiny_bundle: Bundle) -> None:
    marginal = np.random.default_rng(0).dirichlet(np.ones(len(tiny_bundle.words)))
    factors = adaptation(marginal, tiny_bundle.background, WEIGHTS.marginal)
    found = rescorer.rescore(NBEST, PersonalMarginal(((1.0, marginal),), tiny_bundle.background, WEIGHTS.marginal))
    assert [entry.score for entry in found] == sorted((entry.score for entry in found), reverse=True)
    assert len(found) == len(NBEST) and rescorer.neural is not None
    for entry in found:
        before = next(other for other in NBEST if other.text == entry.text)
        ids, scores = tiny_bundle.words.ids(entry.text), entry.scores
        assert replace(entry, scores=before.scores, score=before.score) == before
        assert (scores.acoustic, scores.hotword) == (before.scores.acoustic, before.scores.hotword)
        assert scores.neural == pytest.approx(rescorer.neural([ids])[0].sum(), abs=1e-4)
        assert scores.personal == pytest.approx(sum(factors[word] for word in ids))
        ngram = None if rescorer.ngram is None else scores.ngram
        assert rescorer.ngram is None or ngram == pytest.approx(rescorer.ngram([ids])[0].sum())
        parts = {"neural": scores.neural, "ngram": ngram, "personal": scores.personal, "hotword": scores.hotword}
        counts = {"words": len(ids), "unlisted": ids.count(0)}
        assert entry.score == pytest.approx(combine(WEIGHTS, acoustic=scores.acoustic, **counts, **parts))


def test_no_marginal_no_adaptation(rescorer: Rescorer, tiny_bundle: Bundle) -> None:
    plain = rescorer.rescore(NBEST)
    assert all(entry.scores.personal == 0.0 for entry in plain)
    background = tiny_bundle.background
    unchanged = rescorer.rescore(NBEST, PersonalMarginal(((1.0, background),), background, 1.0))
    assert [entry.text for entry in unchanged] == [entry.text for entry in plain] and rescorer.rescore([]) == ()


def test_a_favourite_word_moves_up(rescorer: Rescorer, tiny_bundle: Bundle) -> None:
    one, two = hypothesis("play some jazz", -3.0), hypothesis("play some news", -3.0)
    for favourite in ("jazz", "news"):
        marginal = tiny_bundle.background * 0.01
        marginal[tiny_bundle.words.id(favourite)] += 0.99
        adapted = PersonalMarginal(((1.0, marginal),), tiny_bundle.background, WEIGHTS.marginal)
        assert rescorer.rescore([one, two], adapted)[0].text == f"play some {favourite}"


def test_without_models_the_first_pass_and_the_words_remain(monkeypatch, tiny_bundle):
    monkeypatch.setattr(Bundle, "has", lambda bundle, name: False)
    found = Rescorer(tiny_bundle, CombinationWeights()).rescore(NBEST)
    assert [entry.text for entry in found] == [NBEST[1].text, NBEST[3].text, NBEST[0].text, NBEST[2].text]
    assert [entry.score for entry in found] == pytest.approx([-2.5, -2.5, -3.0, -9.0])
    assert all(entry.scores.neural == entry.scores.ngram == 0.0 for entry in found)


HEARS = """
import sys, warnings
import numpy as np
from device_sdk import Bundle, Device
sys.modules["kenlm"] = None
bundle = Bundle.open(sys.argv[1])
print(bundle.combination.ngram_share)
with warnings.catch_warnings(record=True) as said, Device.open(sys.argv[2], key=bytes(32), bundle=bundle) as device:
    warnings.simplefilter("always")
    device.recognize(np.random.default_rng(0).normal(0.0, 0.1, 16_000).astype(np.float32), 16_000)
print(*{str(each.message).partition(":")[0] for each in said})"""


@pytest.mark.parametrize(
    ("which", "told"), [("packaged", ["0.0", ""]), ("tiny", ["0.5", "kenlm is not installed"])], ids=["none", "half"]
)
def test_a_process_without_kenlm_hears_of_it_only_where_the_ngram_has_a_share(tiny_bundle, tmp_path, which, told):
    bundle = packaged() if which == "packaged" else tiny_bundle
    command = [sys.executable, "-c", HEARS, str(bundle.path), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == told


@pytest.mark.parametrize(("share", "neural", "asked"), [(0.0, True, False), (0.1, True, True), (0.0, False, True)])
def test_an_ngram_is_loaded_where_it_counts(monkeypatch, tiny_bundle, share: float, neural: bool, asked: bool) -> None:
    pytest.importorskip("kenlm")
    has = Bundle.has
    monkeypatch.setattr(Bundle, "has", lambda bundle, name: has(bundle, name) and (neural or "language" not in name))
    assert (Rescorer(tiny_bundle, replace(WEIGHTS, ngram_share=share)).ngram is not None) == asked
