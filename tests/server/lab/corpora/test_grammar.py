"""The command grammar: labels, splits, profiles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from device_sdk.feedback.slots import read_slots
from server.lab.corpora import grammar
from server.lab.corpora.grammar import INTENTS, VALUES, Profile, lexicon, profile, sample, split_of, vocabulary


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["base", "devices", "heldout", None]), st.booleans())
def test_labels_are_what_the_longest_matches_read(seed: int, split: grammar.Split | None, personal: bool) -> None:
    generator = np.random.default_rng(seed)
    command = sample(generator, split, profile(generator) if personal else None)
    assert dict(read_slots(command.text, lexicon())) == command.slots
    assert len(read_slots(command.text, lexicon())) == len(command.slots)
    assert split is None or split_of(command.text) == split
    assert set(command.text.split()) <= set(vocabulary()) and command.intent in INTENTS


def test_words_are_plain_and_many_values_distinct_and_every_pattern_can_be_said() -> None:
    assert all(len(set(values)) == len(values) for values in VALUES.values())
    words = vocabulary()
    assert 600 <= len(words) <= 1_100 and all(set(word) <= set("abcdefghijklmnopqrstuvwxyz'") for word in words)
    for pattern in (pattern for intent in INTENTS.values() for pattern in intent.patterns):
        assert grammar._expand(grammar._parsed(pattern), np.random.default_rng(0), None, {})


def test_splits_keep_their_shares_and_never_change() -> None:
    generator = np.random.default_rng(1)
    texts = {sample(generator).text for _ in range(6_000)}
    shares = {split: sum(split_of(text) == split for text in texts) / len(texts) for split in grammar._SHARES}
    assert shares["base"] == pytest.approx(0.8, abs=0.03) and shares["devices"] == pytest.approx(0.1, abs=0.02)
    # Frozen on purpose: a sentence that moved to another split would leak from base training to the devices.
    fixed = {"make me a small latte": split_of("make me a small latte"), "one two three": split_of("one two three")}
    assert fixed == {"make me a small latte": "heldout", "one two three": "devices"}


def test_a_profile_makes_speech_repeat_itself_and_repeats_with_its_seed() -> None:
    generator = np.random.default_rng(2)
    person = profile(generator)
    own = [sample(generator, "devices", person) for _ in range(300)]
    anyone = [sample(generator, "devices") for _ in range(300)]
    words, usual = ({word for command in each for word in command.text.split()} for each in (own, anyone))
    assert len(words) < 0.7 * len(usual)
    said = [value for command in own for name, value in command.slots.items() if name in person.favourites]
    favourites = {value for values in person.favourites.values() for value in values}
    assert sum(value in favourites for value in said) > 0.5 * len(said)
    assert sum(person.intents.values()) == pytest.approx(1.0)
    assert profile(np.random.default_rng(3)) == profile(np.random.default_rng(3))
    assert profile(np.random.default_rng(3)) != profile(np.random.default_rng(4))


def test_a_profile_with_nothing_to_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "_ATTEMPTS", 5)
    monkeypatch.setattr(grammar, "split_of", lambda text: "base")
    with pytest.raises(ConfigurationError, match="5 attempts"):
        sample(np.random.default_rng(0), "devices", Profile({}, {"timer": 1.0}))
    with pytest.raises(ConfigurationError, match="heldout"):
        sample(np.random.default_rng(0), "test")  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["(a|b", "a)", "[a", "<nothing>", "{nothing}", "(a]"])
def test_broken_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="grammar"):
        grammar._parsed(pattern)
