"""The command grammar: labels, splits, profiles."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from device_sdk.feedback.slots import read_slots
from server.lab.corpora import grammar
from server.lab.corpora.grammar import COMMANDS, Profile, lexicon, profile, sample, split_of, vocabulary
from server.lab.corpora.patterns import expand, parsed, read_grammar


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["base", "development", "devices", "heldout", None]),
    st.booleans(),
)
def test_labels_are_what_the_longest_matches_read(seed: int, split, personal: bool) -> None:
    generator = np.random.default_rng(seed)
    command = sample(generator, split, profile(generator) if personal else None)
    assert dict(read_slots(command.text, lexicon())) == command.slots
    assert len(read_slots(command.text, lexicon())) == len(command.slots)
    assert split is None or split_of(command.text) == ("base" if split == "development" else split)
    assert split is None or split not in ("base", "development") or grammar._taught(command) == (split == "base")
    assert set(command.text.split()) <= set(vocabulary()) and command.intent in COMMANDS.intents


def test_words_are_plain_values_belong_to_one_type_and_every_pattern_can_be_said() -> None:
    said = COMMANDS
    values = [value for name, held in said.values.items() if not name.startswith("digit") for value in held]
    assert len(set(values)) == len(values) and set(said.open) <= set(said.values)
    words = vocabulary()
    assert 900 <= len(words) <= 1_700 and all(set(word) <= set("abcdefghijklmnopqrstuvwxyz'") for word in words)
    generator = np.random.default_rng(0)
    for pattern in (pattern for intent in said.intents.values() for pattern in intent.patterns):
        assert any([*expand(said, parsed(said, pattern), generator, lambda name: said.values[name][0])] for _ in "123")


def test_labels_are_mostly_what_was_drawn() -> None:
    """A sentence whose words read as two slots of one type is not said; it should be rare."""
    generator = np.random.default_rng(0)
    drawn = [grammar._draw(intent, generator, None).text for intent in COMMANDS.intents for _ in range(60)]
    assert drawn.count("") < 0.01 * len(drawn) and len(set(drawn)) > 0.6 * len(drawn)


def test_other_splits_also_say_forms_and_values_that_base_training_never_hears() -> None:
    generator = np.random.default_rng(0)
    base, other = ([sample(generator, split) for _ in range(3_000)] for split in ("base", "heldout"))
    for slot_type in ("contact", "item"):
        heard = {command.slots.get(slot_type) for command in base}
        assert all(value is None or split_of(value) == "base" for value in heard)
        said = [command.slots[slot_type] for command in other if slot_type in command.slots]
        assert 0.05 < sum(split_of(value) != "base" for value in said) / len(said) < 0.4
    forms = {grammar._taught(command) for command in base}, [grammar._taught(c) for c in other]
    assert forms[0] == {True} and 0.4 < np.mean(forms[1]) < 0.9
    assert any(len(command.slots) == len(command.text.split()) == 4 for command in base), "strings of digits stay whole"


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
    assert len(words) < 0.75 * len(usual)
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
        parsed(COMMANDS, pattern)


def test_values_are_all_that_their_patterns_say(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'open = ["hour"]\n[rules]\nhalf = "(half|quarter)"\n[intents.stop]\nweight = 1\npatterns = ["stop"]\n'
        '[values]\nhour = ["[<half> past] (one|two)", "one", "noon"]\n'
    )
    own = read_grammar(path)
    hours = ("one", "two", "half past one", "half past two", "quarter past one", "quarter past two", "noon")
    assert own.values == {"hour": hours} and own.open == ("hour",) and own.intents.keys() == {"stop"}
