"""Spoken commands with their intents and slots: what base models are trained on and simulated devices hear.

A stable hash of the sentence decides whether it belongs to base training (80 %), to the devices (10 %) or is held out
(10 %), so no sentence is in two of them. The same hash of a sentence's form (types of slots for their values), and of
its values of open types, has to send it to base training, too: devices and held-out people also say what base training
never hears said in this way, and names that it never hears. What of the 80 % base training may not hear, development
people say, and nobody else."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from device_sdk.checks import check_choice
from device_sdk.errors import ConfigurationError
from device_sdk.feedback.slots import SlotLexicon, read_slots
from server.lab.corpora.patterns import expand, parsed, read_grammar
from server.lab.corpora.roles import ROLES, Role

Name = TypeVar("Name", bound=str)


COMMANDS = read_grammar(Path(__file__).with_name("grammar.toml"))
"""Coffee orders, digits, and the rest as people say it at home."""

_SHARES: Mapping[Role, float] = {"base": 0.8, "devices": 0.1, "heldout": 0.1}
_PERSONAL = 0.85  # how often a profile's owner says one of the favourite values
_ATTEMPTS = 2_000


@dataclass(frozen=True, slots=True)
class Command:
    """text: lower-case words; slots: type -> value, exactly what the longest matches of the text yield."""

    text: str
    intent: str
    slots: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Profile:
    """What one person tends to say. favourites: slot type -> the few values that this person mostly uses, most used
    first. intents: intent -> probability."""

    favourites: Mapping[str, tuple[str, ...]]
    intents: Mapping[str, float]

    def draw(self, slot_type: str, generator: np.random.Generator) -> str | None:
        """A favourite value (the first twice as often as the second, and so on), or None for any value."""
        values = self.favourites.get(slot_type)
        if not values or generator.random() >= _PERSONAL:
            return None
        weights = [1.0 / rank for rank in range(1, len(values) + 1)]
        return values[generator.choice(len(values), p=[weight / sum(weights) for weight in weights])]


def split_of(text: str) -> Role:
    """The only split that may use a sentence, base if base or development may: a hash of its text, the same on every
    machine and in every version."""
    return assign(text, _SHARES, b"idiolect split")


def assign(text: str, shares: Mapping[Name, float], person: bytes) -> Name:
    """The only set that may use a text, by a hash of it.

    shares: set -> its share of all texts; they sum to 1. person: keeps this assignment apart from others, at most 16
        bytes."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=person).digest()
    position, bound = int.from_bytes(digest, "big") / 2**64, 0.0
    for name, share in shares.items():
        bound += share
        if position < bound:
            return name
    return name  # the shares' sum was rounded down


@cache
def lexicon() -> SlotLexicon:
    """Every slot value of the grammar."""
    return SlotLexicon(COMMANDS.values)


@cache
def vocabulary() -> tuple[str, ...]:
    """Every word that the grammar can say, sorted."""
    words = {word for values in COMMANDS.values.values() for value in values for word in value.split()}
    patterns = [*COMMANDS.rules.values(), *(each for intent in COMMANDS.intents.values() for each in intent.patterns)]
    for pattern in patterns:
        words.update(re.sub(r"<\w+>|\{\w+\}|[()\[\]|]", " ", pattern).split())
    return tuple(sorted(words))


def profile(generator: np.random.Generator) -> Profile:
    """A person's own few contacts, songs, drinks, rooms and so on, and the two to four things mostly asked for."""
    favourites = {}
    for slot_type, values in COMMANDS.values.items():
        if not slot_type.startswith("digit"):
            count = generator.integers(2, 5)
            favourites[slot_type] = tuple(values[index] for index in generator.permutation(len(values))[:count])
    names = list(COMMANDS.intents)
    chosen = set(generator.permutation(len(names))[: generator.integers(2, 5)].tolist())
    common = [COMMANDS.intents[name].weight for name in names]
    weights = np.array([weight * (12.0 if index in chosen else 1.0) for index, weight in enumerate(common)])
    shares = weights / weights.sum()
    return Profile(favourites, {name: float(share) for name, share in zip(names, shares, strict=True)})


def sample(generator: np.random.Generator, split: Role | None = None, profile: Profile | None = None) -> Command:
    """A command of a split (None: of any), said by anyone or by the owner of a profile. Raises ConfigurationError for
    an unknown split, or for a profile so narrow that the split has none of its sentences."""
    if split is not None:
        check_choice("split", split, ROLES)
    names, shares = _intents() if profile is None else (tuple(profile.intents), tuple(profile.intents.values()))
    for _ in range(_ATTEMPTS):
        command = _draw(names[generator.choice(len(names), p=shares)], generator, profile)
        if command.text and (split is None or split == _split(command)):
            return command
    raise ConfigurationError(f"no sentence of split {split!r} in {_ATTEMPTS} attempts; widen the profile's favourites")


def _draw(intent: str, generator: np.random.Generator, profile: Profile | None) -> Command:
    """Any command of an intent; without text where a type of slot occurs twice in it."""

    def fill(slot_type: str) -> str:
        values = COMMANDS.values[slot_type]
        return (profile and profile.draw(slot_type, generator)) or values[generator.integers(len(values))]

    patterns = COMMANDS.intents[intent].patterns
    pattern = parsed(COMMANDS, patterns[generator.integers(len(patterns))])
    text = " ".join(expand(COMMANDS, pattern, generator, fill))
    slots = read_slots(text, lexicon())
    return Command(text if len(dict(slots)) == len(slots) else "", intent, dict(slots))


def _split(command: Command) -> Role:
    """The only split that may say a command."""
    split = split_of(command.text)
    return "development" if split == "base" and not _taught(command) else split


def _taught(command: Command) -> bool:
    """Whether base training may hear a sentence's form, unless that is nothing but slots, and its values."""
    form = f" {command.text} "
    for slot_type, value in command.slots.items():
        form = form.replace(f" {value} ", f" {{{slot_type}}} ", 1)
    if any(hidden(slot_type, value) for slot_type, value in command.slots.items()):
        return False
    return split_of(form) == "base" or not re.search(r" \w", form)


def hidden(slot_type: str, value: str) -> bool:
    """Whether base training never hears a value."""
    return slot_type in COMMANDS.open and split_of(value) != "base"


@cache
def _intents() -> tuple[tuple[str, ...], tuple[float, ...]]:
    total = sum(intent.weight for intent in COMMANDS.intents.values())
    return tuple(COMMANDS.intents), tuple(intent.weight / total for intent in COMMANDS.intents.values())
