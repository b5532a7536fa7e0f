"""What is counted when users correct: by hand on texts, and a small run of every way on real devices."""

from types import SimpleNamespace

import numpy as np
import pytest

from device_sdk import Bundle
from device_sdk.feedback.distance import edit_distance
from server.lab.benchmarks import corrections
from server.lab.benchmarks.corrections import WAYS, Said, Tally, User, figures, tally
from server.lab.corpora.names import draw_names, neighbours, unlisted_names
from tests.signals import noise
from tests.speech import packaged


def user(*texts: str, names: tuple[str, ...] = ()) -> User:
    def of(text: str) -> Said:
        return Said(text, lambda: noise(9_600, 1), next((name for name in names if name in text.split()), None))

    return User(tuple(map(of, texts)), names)


def test_recurrence_harm_and_cures_by_hand() -> None:
    """Niamh is wrong, wrong again, then right; "lights" is wrong once, where the frozen device has it right."""
    said = user("call niamh", "lights on", "text niamh", "phone niamh", "lights off", names=("niamh",))
    frozen = ["call neve", "lights on", "text neve", "phone neve", "lights off"]
    heard = ["call neve", "light on", "text knee", "phone niamh", "lights off please"]
    found = tally(said, heard, frozen)
    assert (found.again, found.corrected) == (1, 3), "niamh the second time; the third time it and lights are right"
    assert found.cures == [2, 1]
    assert (found.first, found.after) == ({"niamh": False}, {"niamh": False})
    # Everything else is what frozen had not to be told: 8 of 10 words; "light" is wrong of these, "please" too much.
    assert (found.wrong, found.words) == (3, 8)
    same = tally(said, frozen, frozen)
    assert (same.again, same.corrected, same.cures, same.wrong) == (2, 2, [], 1)


def test_text_replacement_puts_the_longest_right_first() -> None:
    replaced = corrections._replaced("call sir sha on speaker", {"sir": "sire", "sir sha": "saoirse"})
    assert replaced == "call saoirse on speaker"
    assert corrections._replaced("sirs", {"sir": "sire"}) == "sirs", "whole words alone"


def test_intervals_resample_users() -> None:
    """Every user recurs half as often: the interval has no width, and lies below zero."""
    before, after = ([Tally(again=count, corrected=10) for _ in range(5)] for count in (8, 4))
    assert corrections._high(before, after, "again", "corrected") == pytest.approx(-0.4)
    found = {each.metric: each for each in figures({"frozen": before, "both": after})}
    assert found["recurrence, both"].holds and found["recurrence, both"].ratio == pytest.approx(0.5)
    assert found["the same, upper end of the difference, both"].holds


def test_names_are_those_that_the_list_lacks() -> None:
    pytest.importorskip("faker", reason="Faker is not installed (idiolect-server[simulate])")
    words = Bundle.open().words
    drawn = draw_names(words, 80, np.random.default_rng(1))
    assert len(set(drawn)) == 80 and not any(name in words for name in drawn)
    assert drawn == draw_names(words, 80, np.random.default_rng(1)) != draw_names(words, 80, np.random.default_rng(2))
    assert all(name.isalpha() and name.isascii() for name in unlisted_names(words))


def test_every_way_runs_on_a_real_device(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    said = user("call zugzwang", "call zugzwang", names=("zugzwang",))
    monkeypatch.setattr(corrections, "users", lambda bundle, seed: [said])
    for size, few in (("PEOPLE", 2), ("CONTACTS", 12), ("PAIRS", 4), ("PLAIN", 1)):
        monkeypatch.setattr(corrections, size, few)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    monkeypatch.setattr(corrections.Bundle, "open", lambda *_: tiny_bundle)
    found = corrections.benchmark()
    for way in WAYS:
        assert any(each.metric == f"recurrence, {way}" for each in found)
    replaced = SimpleNamespace(**{each.metric: each.ours for each in found})
    assert vars(replaced)["recurrence, text replacement"] == 0.0, "the same sound, put right by the same text"
    assert vars(replaced)["recurrence, frozen"] == 100.0
    assert any(each.metric.startswith("commands without a name, 12 contacts") for each in found)
    assert any(each.metric.startswith("names with a near one among the contacts") for each in found)


def test_near_names_are_near() -> None:
    bundle = packaged()
    pairs = neighbours(bundle.words, 40, np.random.default_rng(1))
    assert len({known for known, _ in pairs}) == 40
    for known, other in pairs:
        assert known in bundle.words and other not in bundle.words
        assert known[0] == other[0] and 0 < edit_distance(known, other) <= 2
