"""Phrases that are looked for once more: the best of all texts that a plain enumeration weighs."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Device, Hotword
from device_sdk.decoding import Hotwords, second_look
from device_sdk.decoding.forward import Double, Float, Tokens, log_likelihoods
from device_sdk.decoding.nbest import word_times
from device_sdk.decoding.second_look import SPELLING, TRUST, look_again
from device_sdk.hypothesis import Hypothesis, Scores, Word
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.protocol import Transducer
from tests.device_sdk.devices import KEY
from tests.signals import noise

NAMES = ("jazz", "zoe ann", "fizz", "abe")
AFTER = ("call", "talk to")
FRAME, SECONDS = 0.03, 0.9


@pytest.fixture(scope="module")
def transducer(tiny_bundle: Bundle) -> Transducer:
    return OnnxTransducer(tiny_bundle)


@pytest.fixture(scope="module")
def encoded(transducer: Transducer) -> Float:
    features = np.random.default_rng(3).normal(-6.0, 3.0, (90, 64)).astype(np.float32)
    return transducer.encode(features)[0]


def heard(text: str, score: float, bundle: Bundle) -> Hypothesis:
    tokens = tuple(bundle.tokenizer.encode(text))
    words = word_times(tokens, range(len(tokens)), bundle.tokenizer, FRAME, SECONDS)
    assert " ".join(word.text for word in words) == text
    return Hypothesis(tokens, text, words, Scores(score - 1.0, neural=-2.0, hotword=0.5), score)


def spelling(left: Tokens, name: Tokens, encoded: Float, transducer: Transducer) -> float:
    """s of a phrase, piece by piece."""
    cost, mean = 0.0, encoded.mean(0, keepdims=True)
    predicted, state = transducer.predict(np.zeros(1, np.int64))
    for place, token in enumerate((*left, *name)):
        if place >= len(left):
            scores: Double = transducer.join(mean, predicted).astype(np.float64)[0]
            cost -= scores[token] - np.logaddexp.reduce(scores[1:])
        predicted, state = transducer.predict(np.array([token]), state)
    return cost


def enumerated(
    hypotheses: list[Hypothesis], encoded: Float, transducer: Transducer, bundle: Bundle
) -> dict[str, float]:
    """text -> its best score, of every phrase in every place: whole texts, one after the other."""
    found: dict[str, float] = {}
    encode = bundle.tokenizer.encode
    for each in hypotheses:
        words = each.text.split()
        (without,) = log_likelihoods(transducer, encoded, [each.tokens])
        for first, last in product(range(1, len(words) + 1), range(len(words) + 1)):
            follows = words[first - 1] == "call" or words[max(first - 2, 0) : first] == ["talk", "to"]
            if follows and (first < last <= first + 3 or first == last == len(words)):
                left, right = tuple(encode(" ".join(words[:first]))), tuple(encode(" ".join(words[last:])))
                for name in NAMES:
                    tokens = tuple(encode(name))
                    (with_it,) = log_likelihoods(transducer, encoded, [(*left, *tokens, *right)])
                    gain = (
                        with_it
                        - without
                        + SPELLING * spelling(left, tokens, encoded, transducer)
                        + 5
                        + TRUST
                        - np.log(4)
                    )
                    text = " ".join((*words[:first], name, *words[last:]))
                    if gain > 0:
                        found[text] = max(found.get(text, -np.inf), each.score + gain)
    return found


def test_the_best_texts_are_those_of_an_enumeration(
    encoded: Float, transducer: Transducer, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_look, "TEXTS", 1000)
    monkeypatch.setattr(second_look, "HOPELESS", -1000.0)
    monkeypatch.setattr(second_look, "BEFORE", 100)
    monkeypatch.setattr(second_look, "AFTER", 100)
    given = [("you call me again", -3.0), ("talk to him", -4.0), ("call", -9.0), ("recall it", -9.5)]
    hypotheses = [heard(text, score, tiny_bundle) for text, score in given]
    wanted = Hotwords.build([Hotword(name, 5.0, (), AFTER) for name in NAMES]).sought(tiny_bundle.tokenizer)
    found = look_again(hypotheses, wanted, lambda: encoded, transducer, tiny_bundle.tokenizer, FRAME, SECONDS)
    expected = enumerated(hypotheses, encoded, transducer, tiny_bundle)
    assert len(expected) > 4, "phrases gain here"
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    new = {each.text: each for each in found if each not in hypotheses}
    assert new.keys() == expected.keys() and {each.text for each in found} >= {text for text, _ in given}
    for text, each in new.items():
        assert each.score == pytest.approx(expected[text], abs=1e-6)
        assert " ".join(word.text for word in each.words) == text == tiny_bundle.tokenizer.decode(each.tokens)
        times = [moment for word in each.words for moment in (word.start, word.end)]
        assert (np.diff(times) > -1e-9).all() and times[-1] <= SECONDS + 1e-9
        parts = each.scores
        assert parts.acoustic + parts.hotword - 0.5 == pytest.approx(each.score - 1.0) and parts.neural == -2.0


def test_a_few_of_many_prefixes_find_the_best(encoded: Float, transducer: Transducer, tiny_bundle: Bundle) -> None:
    """Of three hundred phrases, of which few are followed to their ends."""
    letters = sorted(tiny_bundle.tokenizer.letters & set("abcdefghijklmnopqrstuvwxyz"))
    generator = np.random.default_rng(5)
    names = sorted({"".join(generator.choice(letters, 5)) for _ in range(300)})
    hypotheses = [heard("call me", -3.0, tiny_bundle)]

    def best() -> Hypothesis:
        wanted = Hotwords.build([Hotword(name, 30.0, (), AFTER) for name in names]).sought(tiny_bundle.tokenizer)
        return look_again(hypotheses, wanted, lambda: encoded, transducer, tiny_bundle.tokenizer, FRAME, SECONDS)[0]

    pruned = best()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_look, "PREFIXES", 10_000)
        patch.setattr(second_look, "ENDS", 10_000)
        assert best().score - pruned.score < 1.0 and pruned.text != "call me"


@pytest.mark.parametrize("text", ["play some jazz", "recall it", "to talk", ""])
def test_nothing_is_heard_anew_where_no_name_may_stand(text: str, transducer: Transducer, tiny_bundle: Bundle) -> None:
    def encode() -> Float:
        raise AssertionError(text)

    wanted = Hotwords.build([Hotword("abe", 50.0, (), ("call", "talk to"))]).sought(tiny_bundle.tokenizer)
    given = (heard(text, -1.0, tiny_bundle),)
    assert look_again(given, wanted, encode, transducer, tiny_bundle.tokenizer, FRAME, SECONDS) == given


def test_a_phrase_that_was_found_by_a_spelling_stays(transducer: Transducer, tiny_bundle: Bundle) -> None:
    """Its words are not those of its tokens."""

    def encode() -> Float:
        raise AssertionError("heard anew")

    given = heard("call eve in", -1.0, tiny_bundle)
    given = replace(given, text="call yves", words=(given.words[0], Word("yves", 0.1, 0.3)))
    wanted = Hotwords.build([Hotword("yves", 50.0, ("eve in",), ("call",))]).sought(tiny_bundle.tokenizer)
    assert look_again([given], wanted, encode, transducer, tiny_bundle.tokenizer, FRAME, SECONDS) == (given,)


def test_sessions_look_again(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """By the first word that noise is heard as, in place of what comes then; in the vocabulary, after what people say
    before names."""
    audio = noise(16_000, 3)
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        plain = device.recognize(audio, 16_000)
        first = plain.text.split()[0]
        found = device.recognize(audio, 16_000, hotwords=[Hotword("fizz", 200.0, (), (first,))])
        assert "fizz" in found.text and plain.text != found.text
        assert found.nbest[0].confidence <= 1.0 and found.nbest[0].words[0].confidence <= 1.0
        silent = device.recognize(audio, 16_000, hotwords=[Hotword("fizz", 0.0)])
        assert silent.nbest == plain.nbest, "a boost of nothing changes nothing"
        device.vocabulary.add("fizz")
        assert device.session(16_000)._expected is not None
        assert device.recognize(audio, 16_000).nbest == plain.nbest, "nobody is called here"
