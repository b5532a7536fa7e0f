"""Phrases that are looked for once more: the best of all texts that a plain enumeration weighs."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk import Bundle, Device, Hotword
from device_sdk.decoding import Hotwords, second_look
from device_sdk.decoding.forward import Double, Float, Tokens, log_likelihoods
from device_sdk.decoding.nbest import word_times
from device_sdk.decoding.second_look import (
    CROWD,
    DOUBT,
    FEW,
    HEARD,
    KNOWN,
    KNOWN_UNSAID,
    SHORT,
    SPANS,
    SPELLING,
    TRUST,
    UNSAID,
    UNWEIGHED,
    EncodedUtterance,
    Phrase,
    Sought,
    look_again,
)
from device_sdk.decoding.spotting import Spot
from device_sdk.hypothesis import Hypothesis, Scores, Word
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.protocol import Transducer
from tests.device_sdk.devices import KEY
from tests.signals import noise

NAMES, FAMILIAR = ("jazz", "zoe ann", "fizz", "abe"), ("fizz", "abe")
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
    """text -> its best score, of every phrase in every place, and in the first text of every phrase with words before
    it, but where these stand already: whole texts, one after the other."""
    found: dict[str, float] = {}
    encode = bundle.tokenizer.encode
    for each, (number, words) in zip(hypotheses, enumerate(each.text.split() for each in hypotheses), strict=True):
        (without,) = log_likelihoods(transducer, encoded, [each.tokens])
        count, cases = len(words), list[tuple[int, int, tuple[str, ...], float]]()
        for first, last in product(range(count + 1), range(count + 1)):
            follows = words[first - 1 : first] == ["call"] or words[max(first - 2, 0) : first] == ["talk", "to"]
            if follows and (first < last <= first + 3 or first == last == count):
                cases.append((first, last, (), CROWD))
            said_there = words[first : first + 1] == ["call"] or words[first : first + 2] == ["talk", "to"]
            if number == 0 and first < last <= first + 5 and not said_there:
                cases += [(first, last, tuple(carrier.split()), CROWD + UNSAID) for carrier in AFTER]
        for (first, last, carrier, cost), name in product(cases, NAMES):
            said = (*words[:first], *carrier)
            left, right = tuple(encode(" ".join(said))), tuple(encode(" ".join(words[last:])))
            tokens = tuple(encode(name))
            (with_it,) = log_likelihoods(transducer, encoded, [(*left, *tokens, *right)])
            before, instead = (tuple(encode(" ".join(some))) for some in (words[:first], words[first:last]))
            expected = spelling(before, instead, encoded, transducer)
            expected -= spelling(before, tuple(encode(" ".join(carrier))), encoded, transducer)
            spelled = SPELLING * spelling(left, tokens, encoded, transducer) - HEARD * max(0, expected)
            gain = with_it - without + spelled + 5 + TRUST - UNWEIGHED - cost * np.log(4)
            gain -= (KNOWN + KNOWN_UNSAID * bool(carrier)) * (name in FAMILIAR)
            text = " ".join((*said, name, *words[last:]))
            if gain > 0:
                found[text] = max(found.get(text, -np.inf), each.score + gain)
    return found


def again(
    hypotheses: Sequence[Hypothesis],
    wanted: Sequence[Sought],
    encoded: Float,
    transducer: Any,
    bundle: Bundle,
    rescore: Callable[[Sequence[Hypothesis]], Sequence[Hypothesis]] | None = None,
) -> tuple[Hypothesis, ...]:
    return look_again(
        hypotheses, wanted, EncodedUtterance(encoded, FRAME, SECONDS), transducer, bundle.tokenizer, rescore
    )


def test_the_best_texts_are_those_of_an_enumeration(
    encoded: Float, transducer: Transducer, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_look, "TEXTS", 1000)
    monkeypatch.setattr(second_look, "WEIGHED", 1000)
    monkeypatch.setattr(second_look, "HOPELESS", -1000.0)
    monkeypatch.setattr(second_look, "BEHIND", 1000.0)
    monkeypatch.setattr(second_look, "ENDS", 1000)
    monkeypatch.setattr(second_look, "BEFORE", 100)
    monkeypatch.setattr(second_look, "AFTER", 100)
    given = [("you call me again", -3.0), ("talk to him", -4.0), ("call", -9.0), ("recall it", -9.5)]
    hypotheses = [heard(text, score, tiny_bundle) for text, score in given]
    phrases = [Hotword(name, 5.0, (), AFTER, name in FAMILIAR) for name in NAMES]
    wanted = Hotwords.build(phrases).sought(tiny_bundle.tokenizer)
    found = again(hypotheses, wanted, encoded, transducer, tiny_bundle)
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


def test_a_few_of_many_prefixes_find_the_best(
    encoded: Float, transducer: Transducer, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three hundred phrases, of which few are followed to their ends, in noise, where all are far behind."""
    monkeypatch.setattr(second_look, "BEHIND", 1000.0)
    letters = sorted(tiny_bundle.tokenizer.letters & set("abcdefghijklmnopqrstuvwxyz"))
    generator = np.random.default_rng(5)
    names = sorted({"".join(generator.choice(letters, 5)) for _ in range(300)})
    hypotheses = [heard("call me", -3.0, tiny_bundle)]

    def best() -> Hypothesis:
        wanted = Hotwords.build([Hotword(name, 30.0, (), AFTER) for name in names]).sought(tiny_bundle.tokenizer)
        return again(hypotheses, wanted, encoded, transducer, tiny_bundle)[0]

    pruned = best()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_look, "PREFIXES", 10_000)
        patch.setattr(second_look, "ENDS", 10_000)
        assert best().score - pruned.score < 1.0 and pruned.text != "call me"


class Deaf:
    """A transducer that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("heard anew")


LONG = "play some jazz " * SHORT


@pytest.mark.parametrize("text", [LONG.strip(), f"{LONG}recall it", f"{LONG}to talk", ""])
def test_nothing_is_heard_anew_where_no_name_may_stand(text: str, encoded: Float, tiny_bundle: Bundle) -> None:
    """In more words than a command has, none of which a name follows, and in silence."""

    wanted = Hotwords.build([Hotword("abe", 50.0, (), ("call", "talk to"))]).sought(tiny_bundle.tokenizer)
    given = (heard(text, -1.0, tiny_bundle),)
    assert again(given, wanted, encoded, Deaf(), tiny_bundle) == given


def test_a_name_among_many_follows_words_that_were_heard(encoded: Float, tiny_bundle: Bundle) -> None:
    letters = sorted(tiny_bundle.tokenizer.letters & set("abcdefghijklmnopqrstuvwxyz"))
    names = ["".join(pair) for pair in product(letters, repeat=3)][: FEW + 1]

    given = (heard("play some jazz", -1.0, tiny_bundle),)
    for count, ends in ((FEW, pytest.raises(AssertionError, match="heard anew")), (FEW + 1, nullcontext())):
        wanted = Hotwords.build([Hotword(name, 0.0, (), AFTER) for name in names[:count]]).sought(tiny_bundle.tokenizer)
        with ends:
            assert again(given, wanted, encoded, Deaf(), tiny_bundle) == given


def test_language_models_decide(
    encoded: Float, transducer: Transducer, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they weigh joins the list with the score that they give, where it is above that of what it came from."""
    monkeypatch.setattr(second_look, "BEHIND", 1000.0)
    given = (heard("call me", -3.0, tiny_bundle),)
    wanted = Hotwords.build([Hotword(name, 30.0, (), AFTER) for name in NAMES]).sought(tiny_bundle.tokenizer)
    asked: list[str] = []

    def rescore(against: str, hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        asked.extend(each.text for each in hypotheses)
        kept = [replace(each, score=-4.0 if against in each.text.split() else -2.0) for each in hypotheses]
        return kept[::-1]

    found = again(given, wanted, encoded, transducer, tiny_bundle, partial(rescore, "nobody"))
    first = found[0]
    assert first.score == -2.0 and first.text in asked and "call me" in {each.text for each in found}
    other = again(given, wanted, encoded, transducer, tiny_bundle, partial(rescore, first.text.split()[-1]))
    assert first.text not in {each.text for each in other}

    def refuse(hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        return [replace(each, score=-4.0) for each in hypotheses]

    assert given == again(given, wanted, encoded, transducer, tiny_bundle, refuse)


def test_a_phrase_that_was_found_by_a_spelling_stays(encoded: Float, tiny_bundle: Bundle) -> None:
    """Its words are not those of its tokens."""

    given = heard("call eve in", -1.0, tiny_bundle)
    given = replace(given, text="call yves", words=(given.words[0], Word("yves", 0.1, 0.3)))
    wanted = Hotwords.build([Hotword("yves", 50.0, ("eve in",), ("call",))]).sought(tiny_bundle.tokenizer)
    assert again([given], wanted, encoded, Deaf(), tiny_bundle) == (given,)


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


def test_what_was_said_before_is_weighed_where_it_was_spotted(
    encoded: Float, transducer: Transducer, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the words of about the same time, by the same exact likelihoods, and how often it is said."""
    for name, value in (("TEXTS", 1000), ("WEIGHED", 1000), ("HOPELESS", -1000.0), ("BEHIND", 1000.0)):
        monkeypatch.setattr(second_look, name, value)
    monkeypatch.setattr(second_look, "BEFORE", 100)
    monkeypatch.setattr(second_look, "AFTER", 100)
    given = heard("you call me again", -3.0, tiny_bundle)
    encode, said = tiny_bundle.tokenizer.encode, given.text.split()
    begin, end = given.words[1].start, given.words[2].end
    place, tokens, nats = Spot(-1.0, round(begin / FRAME), round(end / FRAME)), tuple(encode("zoe ann")), 60.0
    spotted = [(Phrase("zoe ann", tokens, nats), place)]
    utterance = EncodedUtterance(encoded, FRAME, SECONDS)
    found = look_again([given], (), utterance, transducer, tiny_bundle.tokenizer, None, spotted)
    new = {each.text: each for each in found if each is not given}
    assert 1 <= len(new) <= SPANS and "you zoe ann again" in new, "the likest places alone"
    (without,) = log_likelihoods(transducer, encoded, [given.tokens])
    for text, each in new.items():
        first = text.split().index("zoe")
        last = len(said) - (len(text.split()) - first - 2)
        left, instead = tuple(encode(" ".join(said[:first]))), tuple(encode(" ".join(said[first:last])))
        whole = (*left, *tokens, *encode(" ".join(said[last:])))
        (with_it,) = log_likelihoods(transducer, encoded, [whole])
        gain = with_it - without + SPELLING * spelling(left, tokens, encoded, transducer) + nats - DOUBT
        gain -= HEARD * max(0.0, spelling(left, instead, encoded, transducer))
        assert each.score == pytest.approx(given.score + gain, abs=1e-6) and each.tokens == whole
    nowhere = [(Phrase("zoe ann", tokens, nats), Spot(-1.0, 10_000, 10_100))]
    assert look_again([given], (), utterance, transducer, tiny_bundle.tokenizer, None, nowhere) == (given,)
