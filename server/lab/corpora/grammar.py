"""Spoken commands with their intents and slots: what base models are trained on and simulated devices hear.

A pattern is written in a small language: ``(a|b)`` chooses, ``[a]`` may be left out, ``{type}`` is a slot whose value
is drawn from ``VALUES``, ``<name>`` is another rule; ``grammar.toml`` holds them. A stable hash of the sentence decides
whether it belongs to base training (80 %), to the devices (10 %) or is held out (10 %), so no sentence is in two of
them."""

import hashlib
import re
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from device_sdk.errors import ConfigurationError
from device_sdk.feedback.slots import SlotLexicon

Split = Literal["base", "devices", "heldout"]
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True, slots=True)
class Intent:
    """weight: how often it is drawn, relative to the others; patterns: drawn uniformly."""

    weight: float
    patterns: tuple[str, ...]


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
RULES: Mapping[str, str] = _FILE["rules"]
INTENTS: Mapping[str, Intent] = {
    name: Intent(intent["weight"], tuple(intent["patterns"])) for name, intent in _FILE["intents"].items()
}
VALUES: Mapping[str, tuple[str, ...]] = {name: tuple(values) for name, values in _FILE["values"].items()}
"""Slot type -> its public values."""

_SHARES: Mapping[Split, float] = {"base": 0.8, "devices": 0.1, "heldout": 0.1}
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


def split_of(text: str) -> Split:
    """The only split that may use a sentence: a hash of its text, the same on every machine and in every version."""
    return assign(text, _SHARES, b"idiolect split")


def assign(text: str, shares: Mapping[Name, float], person: bytes) -> Name:
    """The only set that may use a text, by a hash of it.

    shares: set -> its share of all texts; they sum to 1. person: keeps this assignment apart from others, at most 16
        bytes.
    """
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
    return SlotLexicon(VALUES)


@cache
def vocabulary() -> tuple[str, ...]:
    """Every word that the grammar can say, sorted."""
    words = {word for values in VALUES.values() for value in values for word in value.split()}
    patterns = [*RULES.values(), *(pattern for intent in INTENTS.values() for pattern in intent.patterns)]
    for pattern in patterns:
        words.update(re.sub(r"<\w+>|\{\w+\}|[()\[\]|]", " ", pattern).split())
    return tuple(sorted(words))


def profile(generator: np.random.Generator) -> Profile:
    """A person's own few contacts, songs, drinks, rooms and so on, and the two to four things mostly asked for."""
    favourites = {}
    for slot_type, values in VALUES.items():
        if not slot_type.startswith("digit"):
            count = generator.integers(2, 5)
            favourites[slot_type] = tuple(values[index] for index in generator.permutation(len(values))[:count])
    names = list(INTENTS)
    chosen = set(generator.permutation(len(names))[: generator.integers(2, 5)].tolist())
    weights = np.array([INTENTS[name].weight * (12.0 if index in chosen else 1.0) for index, name in enumerate(names)])
    shares = weights / weights.sum()
    return Profile(favourites, {name: float(share) for name, share in zip(names, shares, strict=True)})


def sample(generator: np.random.Generator, split: Split | None = None, profile: Profile | None = None) -> Command:
    """A command of a split (None: of any), said by anyone or by the owner of a profile. Raises ConfigurationError for
    an unknown split, or for a profile so narrow that the split has none of its sentences."""
    if split is not None and split not in _SHARES:
        raise ConfigurationError(f"split {split!r} is unknown; expected one of {', '.join(_SHARES)}")
    names, shares = _intents() if profile is None else (tuple(profile.intents), tuple(profile.intents.values()))
    for _ in range(_ATTEMPTS):
        intent = names[generator.choice(len(names), p=shares)]
        patterns = INTENTS[intent].patterns
        slots: dict[str, str] = {}
        words = _expand(_parsed(patterns[generator.integers(len(patterns))]), generator, profile, slots)
        text = " ".join(words)
        if text and (split is None or split_of(text) == split):
            return Command(text, intent, slots)
    raise ConfigurationError(f"no sentence of split {split!r} in {_ATTEMPTS} attempts; widen the profile's favourites")


@cache
def _intents() -> tuple[tuple[str, ...], tuple[float, ...]]:
    total = sum(intent.weight for intent in INTENTS.values())
    return tuple(INTENTS), tuple(intent.weight / total for intent in INTENTS.values())


_Pattern = list[list[tuple[str, Any]]]
"""Alternatives, each a sequence of words (kind ""), rules ("<"), slots ("{"), groups ("(") and what may be left out
("[")."""


def _expand(
    pattern: _Pattern, generator: np.random.Generator, profile: Profile | None, slots: dict[str, str]
) -> list[str]:
    """Draw the words of a pattern and fill the slots."""
    words: list[str] = []
    for kind, value in pattern[generator.integers(len(pattern)) if len(pattern) > 1 else 0]:
        if kind == "{":
            favourite = None if profile is None else profile.draw(value, generator)
            slots[value] = favourite or VALUES[value][generator.integers(len(VALUES[value]))]
            words += slots[value].split()
        elif kind == "<":
            words += _expand(_parsed(RULES[value]), generator, profile, slots)
        elif not kind:
            words.append(value)
        elif kind == "(" or generator.random() < 0.5:
            words += _expand(value, generator, profile, slots)
    return words


@cache
def _parsed(pattern: str) -> _Pattern:
    tokens = deque(re.findall(r"<\w+>|\{\w+\}|[()\[\]|]|[a-z']+", pattern))
    found = _alternatives(tokens)
    if tokens:
        raise ConfigurationError(f"grammar pattern {pattern!r}: unexpected {tokens[0]!r}")
    return found


def _alternatives(tokens: deque[str]) -> _Pattern:
    """What stands before the next closing bracket, which is left where it is."""
    options: _Pattern = [[]]
    while tokens and tokens[0] not in ")]":
        token = tokens.popleft()
        if token == "|":
            options.append([])
        elif token in "([":
            options[-1].append((token, _alternatives(tokens)))
            if not tokens or tokens.popleft() != {"(": ")", "[": "]"}[token]:
                raise ConfigurationError(f"grammar pattern: {token!r} is not closed")
        elif token[0] in "<{":
            if token[1:-1] not in (RULES if token[0] == "<" else VALUES):
                raise ConfigurationError(f"grammar pattern: {token} is not defined")
            options[-1].append((token[0], token[1:-1]))
        else:
            options[-1].append(("", token))
    return options
