"""Words that a user confirmed are heard better, are counted by what feedback confirms, and stay on the device."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk import Bundle, Device, Result
from device_sdk.decoding.hotwords import Hotword, Hotwords
from device_sdk.feedback import Accepted, Alternate, Cancelled, Corrected, Rating, Repeated, Semantics, SlotLexicon
from device_sdk.feedback.signals import Signal, Together
from device_sdk.personalization import cache as caches
from device_sdk.personalization.cache import confirmed_phrases, word_counts
from device_sdk.personalization.expected import EVIDENCE, MOST, SAID, SURPRISE, expecting, own_words, said_before
from device_sdk.settings import DeviceSettings
from rescoring.words import WordList
from tests.device_sdk.devices import KEY
from tests.signals import noise

LEXICON = SlotLexicon(
    {"drink": ("mocha", "latte", "iced chai latte"), "size": ("small", "large"), "note": ("do not make it too hot",)}
)
SMALL = {"drink": "mocha", "size": "small"}
HEARD = ("get me a large latte", "get me a small mocha")


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Corrected("get me a mocha"), {"get", "me", "a", "mocha"}),
        (Accepted(), {"get", "me", "a", "large", "latte"}),
        (Semantics(SMALL, LEXICON), {"small", "mocha"}),
        (Together((Semantics(SMALL, LEXICON), Accepted())), {"small", "mocha"}),
        (Semantics({"drink": "iced chai latte"}, LEXICON), {"iced chai latte"}),
        (Semantics({"note": "do not make it too hot"}, LEXICON), {"do", "not", "make", "it", "too", "hot"}),
        (Together((Accepted(), Corrected("a mocha"))), {"a", "mocha"}),
        (Together((Accepted(), Cancelled())), set()),
        (Cancelled(), set()),
        (Repeated(("get me",)), set()),
        (Rating(1.0), set()),
        (Alternate("get me a tea"), set()),
    ],
)
def test_what_feedback_confirms(signal: Signal, expected: set[str]) -> None:
    """A correction, values of slots, or what was gone on with; what was only heard is no evidence."""
    assert confirmed_phrases(HEARD, signal) == expected


class Stub:
    """As much of a bundle as the choice of words looks at."""

    def __init__(self, probabilities: dict[str, float]) -> None:
        rest = 1.0 - sum(probabilities.values())
        self.words = WordList(("<unk>", *probabilities))
        self.background = np.array([rest, *probabilities.values()])
        self.tokenizer = type("Pieces", (), {"letters": frozenset("abcdefghijklmnopqrstuvwxyz")})()


def chosen(confirmed: dict[str, float], probabilities: dict[str, float], least: float = 1.5) -> dict[str, float]:
    bundle: Any = Stub(probabilities)
    return own_words(confirmed, bundle, least)


def test_words_that_surprise_by_hand() -> None:
    """q = count / (sum + EVIDENCE). Ten in all and EVIDENCE 20: said twice is 1/15, once 1/30. With 1.5 nats for the
    least surprising, words earn half of their surprise."""
    assert (EVIDENCE, SURPRISE) == (20.0, 3.0)
    background = {"the": 0.05, "mocha": math.exp(-6) / 15, "often": math.exp(-2.9) / 30, "seldom": math.exp(-3.1) / 30}
    confirmed = {"the": 6.0, "mocha": 2.0, "often": 1.0, "seldom": 1.0}
    assert list(chosen(confirmed, background).items()) == [("mocha", 3.0), ("seldom", 1.5)], "2.9 is too little"
    assert chosen(confirmed, background, 3.0) == {"mocha": 6.0, "seldom": 3.0}
    assert chosen(confirmed, background, 0.0) == {}


def test_unlisted_words_count_as_rare_and_what_no_piece_spells_is_left_out() -> None:
    assert list(chosen({"zoë": 1.0, "xanthe": 1.0}, {"the": 0.5, "rare": 1e-4})) == ["xanthe"]
    assert list(chosen({"x" * 201: 1.0, "x" * 200: 1.0}, {"the": 0.5, "rare": 1e-4})) == ["x" * 200], "none is longer"


def test_more_evidence_is_more() -> None:
    """A word said once is no habit of somebody who has said little else; said again and again it is."""
    background = {"coffee": 0.003}
    assert chosen({"coffee": 1.0}, background) == {}, "1 / 21 is 16 times as often, log 2.8"
    assert chosen({"coffee": 9.0}, background) == {"coffee": 2.5}, "9 / 29 is 103 times as often, log 4.6"
    assert chosen({"coffee": 900.0}, background) == {"coffee": 3.0}, "log 5.8"


def test_no_more_words_are_expected_than_a_search_bears() -> None:
    said = {f"x{letter}{'y' * more}": 1.0 for letter in "abcdefghijklmnopqrstuvwxyz" for more in range(50)}
    assert len(chosen(said | {"often": 9.0}, {"the": 0.5, "rare": 1e-9})) == MOST
    assert next(iter(chosen(said | {"often": 9.0}, {"the": 0.5, "rare": 1e-9}))) == "often"


def test_the_apps_phrases_stay_as_they_are(tiny_bundle: Bundle) -> None:
    given = Hotwords.build([Hotword("jazz", 4.0, ("chess",))])
    assert expecting(given, (), {}, {}, {}, tiny_bundle) is given
    assert expecting(given, (), {}, {"jazz": 5.0, "chess": 5.0}, {}, tiny_bundle) is given, "both are the app's"
    assert expecting(None, (), {"mocha": 50.0}, {}, {}, tiny_bundle) is None
    both = expecting(given, (), {}, {"mocha": 5.0, "jazz": 5.0}, {}, tiny_bundle)
    assert both is not None and [(each.phrase, each.boost) for each in both.phrases] == [("jazz", 4.0), ("mocha", 5.0)]
    assert expecting(given, (), {}, {"mocha": 5.0}, {}, tiny_bundle, both) is both, (
        "no other automaton for the same phrases"
    )


def test_a_device_expects_what_was_confirmed_also_when_opened_again(tmp_path: Path, tiny_bundle: Bundle) -> None:
    def heard(device: Device) -> Result:
        return device.recognize(noise(32_000, 3), 16_000)

    def earned(result: Result) -> float:
        return max(each.scores.hotword for each in result.nbest)

    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(learn=False)) as device:
        first = heard(device)
        assert earned(first) == 0.0
        word = next(word for each in first.nbest for word in each.text.split())
        for _ in range(8):
            device.feedback(heard(device), Corrected(word))
        assert device._model_state.cache.confirmed == {word: 8.0}
        assert earned(heard(device)) >= 1.5 and device.learned().expected == 1
        device.feedback(result := heard(device), Accepted())
        device.feedback(result, Cancelled())
        assert device._model_state.cache.confirmed == {word: 8.0}, "feedback that is taken back confirms nothing"
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(learn=False)) as device:
        assert earned(heard(device)) >= 1.5
        device.forget()
        assert earned(heard(device)) == 0.0
    with Device.open(tmp_path / "off", KEY, tiny_bundle, DeviceSettings(learn=False, use_marginals=False)) as device:
        for _ in range(8):
            device.feedback(heard(device), Corrected(word))
        assert earned(heard(device)) == 0.0


def test_what_was_said_before_by_hand() -> None:
    """A slot's value is one phrase; q = count / (words confirmed + EVIDENCE); only what has a word of the user's own,
    and pieces for all of it, is looked for."""
    bundle: Any = Stub({"the": 0.5, "rare": 1e-4})
    confirmed = {"diego santana": 3.0, "the": 4.0, "zoë santana": 9.0, "santana": 1.0, "y" * 201: 1.0}
    assert word_counts(confirmed) == {"diego": 3.0, "santana": 13.0, "the": 4.0, "zoë": 9.0, "y" * 201: 1.0}
    found = said_before(confirmed, {"santana", "y" * 201}, bundle)
    assert list(found) == ["diego santana", "santana"]
    assert found["diego santana"] == pytest.approx(math.log(3 / (6 + 4 + 18 + 1 + 1 + EVIDENCE)))
    assert said_before(confirmed, (), bundle) == said_before({}, {"santana"}, bundle) == {}
    many = {f"{first}{second} santana": 1.0 for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"}
    assert len(said_before(many | {"santana": 2.0}, {"santana"}, bundle)) == SAID
    assert next(iter(said_before(many | {"santana": 2.0}, {"santana"}, bundle))) == "santana"


def test_other_counts_of_the_same_words_keep_the_automaton(tiny_bundle: Bundle) -> None:
    first = expecting(None, (), {}, {"mocha": 5.0}, {"mocha": -1.0}, tiny_bundle)
    later = expecting(None, (), {}, {"mocha": 5.0}, {"mocha": -2.0}, tiny_bundle, first)
    assert first is not None and later is not None and (first.said, later.said) == ({"mocha": -1.0}, {"mocha": -2.0})
    assert later.automaton is first.automaton and later.in_pieces(tiny_bundle.tokenizer) is first.in_pieces(
        tiny_bundle.tokenizer
    )


def test_what_is_removed_is_not_looked_for(tiny_bundle: Bundle) -> None:
    """Nor is a value that the removed word is in."""
    cache = replace(caches.empty(tiny_bundle.words), confirmed={"play some jazz": 2.0, "jazz": 1.0, "some chess": 1.0})
    assert caches.without(cache, ["jazz"]).confirmed == {"some chess": 1.0}
