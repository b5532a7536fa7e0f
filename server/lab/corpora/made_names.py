"""Made names, and any words of English in the place of what the grammar lists: a model that heard two hundred names
spells none but these.

A few made names are somebody's by chance: one in sixty is on the lists of real names that vocabularies are measured
with, one in a hundred of which it is there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import numpy as np

from device_sdk.errors import MissingExtraError
from server.lab.corpora import grammar

_ORDER = 2
_LETTERS = 4, 10
_END = "."
_COUNT = 4000
_LISTED = 20_000
_WORDS = {
    "item": (1, 2), "city": (1, 1), "song": (1, 3), "artist": (1, 2), "playlist": (1, 2), "event": (1, 2),
    "list": (1, 1), "message": (2, 5), "task": (2, 4),
}  # fmt: skip
"""Types of slots that may hold any words, and how many."""


@cache
def made_names() -> tuple[str, ...]:
    """Names of 4 to 10 letters, one letter after two others as in the names of the grammar's people, artists and
    cities; the same in every run."""
    generator, found = np.random.default_rng(0), dict[str, None]()
    while len(found) < _COUNT:
        found[_drawn(generator)] = None
    return tuple(found)


def _drawn(generator: np.random.Generator) -> str:
    follows = _follows()
    while True:
        name = "." * _ORDER
        while len(name) < _ORDER + _LETTERS[1] + 1 and (len(name) == _ORDER or name[-1] != _END):
            letters = follows[name[-_ORDER:]]
            name += letters[generator.integers(len(letters))]
        found = name[_ORDER:].rstrip(_END)
        if name[-1] == _END and _LETTERS[0] <= len(found):
            return found


@cache
def english_words() -> tuple[str, ...]:
    """The most frequent words of English, without those of values that base training never hears. Raises
    MissingExtraError without wordfreq."""
    try:
        from wordfreq import top_n_list
    except ImportError as error:
        raise MissingExtraError(f"{error}; run: pip install 'idiolect-server[train]'") from error
    heard, unheard = set[str](), set[str]()
    for kind, values in grammar.COMMANDS.values.items():
        for value in values:
            (unheard if grammar.hidden(kind, value) else heard).update(value.split())
    listed = [word for word in top_n_list("en", _LISTED) if re.fullmatch("[a-z][a-z']+", word)]
    return tuple(word for word in listed if word not in unheard - heard)


def renamed(command: grammar.Command, generator: np.random.Generator) -> str:
    """The text of a command with a made name in place of its contact, and words of English in place of its other values
    of open types, as a sentence of base training."""
    text = command.text
    replaced = {kind: value for kind, value in command.slots.items() if kind == "contact" or kind in _WORDS}
    while replaced:
        text = f" {command.text} "
        for kind, value in replaced.items():
            text = text.replace(f" {value} ", f" {_other(kind, generator)} ", 1)
        text = text.strip()
        if grammar.split_of(text) == "base":
            break
    return text


def _other(kind: str, generator: np.random.Generator) -> str:
    if kind == "contact":
        return made_names()[generator.integers(_COUNT)]
    words, (least, most) = english_words(), _WORDS[kind]
    drawn = [words[index] for index in generator.integers(len(words), size=generator.integers(least, most + 1))]
    return " ".join([*drawn, "list"] if kind == "list" else drawn)


@cache
def _follows() -> Mapping[str, str]:
    """The letters that follow two others, as often as they do; a name begins after ``..`` and ends with a dot."""
    found: defaultdict[str, str] = defaultdict(str)
    values = grammar.COMMANDS.values
    names = {word for kind in ("contact", "artist", "city") for value in values[kind] for word in value.split()}
    for name in sorted(name for name in names if name.isalpha() and len(name) >= _LETTERS[0]):
        letters = f"{'.' * _ORDER}{name}{_END}"
        for place in range(_ORDER, len(letters)):
            found[letters[place - _ORDER : place]] += letters[place]
    return found
