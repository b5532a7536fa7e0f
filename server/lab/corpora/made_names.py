"""Made names, for commands about people: a model that heard two hundred names spells none but these.

A few are somebody's by chance: one in sixty is on the lists of real names that vocabularies are measured with, one in a
hundred of which it is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import numpy as np

from server.lab.corpora import grammar

_ORDER = 2
_LETTERS = 4, 10
_END = "."
_COUNT = 4000


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


def renamed(command: grammar.Command, generator: np.random.Generator) -> str:
    """The text of a command with a made name in place of its contact, where it has one, as a sentence of base
    training."""
    contact, text = command.slots.get("contact"), command.text
    while contact is not None:
        name = made_names()[generator.integers(_COUNT)]
        text = f" {command.text} ".replace(f" {contact} ", f" {name} ").strip()
        if grammar.split_of(text) == "base":
            break
    return text


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
