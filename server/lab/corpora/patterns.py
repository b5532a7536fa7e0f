"""Grammars of sentences: a small language for patterns, and the files that are written in it.

``(a|b)`` chooses, ``[a]`` may be left out, ``{type}`` is a slot whose value is one of the type's, ``<name>`` is a rule
of the file. Values are patterns, too: a type's values are all that they can say."""

import re
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Intent:
    """weight: how often it is drawn, relative to the others; patterns: drawn uniformly."""

    weight: float
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """rules: name -> pattern. values: slot type -> its public values. open: types whose values, too, are split."""

    rules: Mapping[str, str]
    intents: Mapping[str, Intent]
    values: Mapping[str, tuple[str, ...]]
    open: tuple[str, ...] = ()


def read_grammar(path: Path) -> Grammar:
    """The grammar of a file. Raises ConfigurationError for a value that is no pattern."""
    file = tomllib.loads(path.read_text("utf-8"))
    intents = {name: Intent(given["weight"], tuple(given["patterns"])) for name, given in file["intents"].items()}
    found = Grammar(file["rules"], intents, {}, tuple(file.get("open", ())))
    values = {
        name: tuple(dict.fromkeys(" ".join(words) for each in patterns for words in _every(found, parsed(found, each))))
        for name, patterns in file["values"].items()
    }
    return replace(found, values=values)


Pattern = list[list[tuple[str, Any]]]
"""Alternatives, each a sequence of words (kind ""), rules ("<"), slots ("{"), groups ("(") and what may be left out
("[")."""


def expand(
    grammar: Grammar, pattern: Pattern, generator: np.random.Generator, fill: Callable[[str], str]
) -> Iterator[str]:
    """Draw the words of a pattern. fill: slot type -> its value."""
    for kind, value in pattern[generator.integers(len(pattern)) if len(pattern) > 1 else 0]:
        if kind == "{":
            yield from fill(value).split()
        elif kind == "<":
            yield from expand(grammar, parsed(grammar, grammar.rules[value]), generator, fill)
        elif not kind:
            yield value
        elif kind == "(" or generator.random() < 0.5:
            yield from expand(grammar, value, generator, fill)


def _every(grammar: Grammar, pattern: Pattern) -> Iterator[tuple[str, ...]]:
    """All that a pattern without slots can say, in its order."""
    for sequence in pattern:
        parts: list[list[tuple[str, ...]]] = []
        for kind, value in sequence:
            inner = parsed(grammar, grammar.rules[value]) if kind == "<" else value
            parts.append([(value,)] if not kind else [*([()] if kind == "[" else []), *_every(grammar, inner)])
        yield from (tuple(word for part in chosen for word in part) for chosen in product(*parts))


@cache
def parsed(grammar: Grammar, pattern: str) -> Pattern:
    """Raises ConfigurationError for a pattern that is not well formed, or names a rule or a type that is not there."""
    tokens = deque(re.findall(r"<\w+>|\{\w+\}|[()\[\]|]|[a-z']+", pattern))
    found = _alternatives(grammar, tokens)
    if tokens:
        raise ConfigurationError(f"grammar pattern {pattern!r}: unexpected {tokens[0]!r}")
    return found


def _alternatives(grammar: Grammar, tokens: deque[str]) -> Pattern:
    """What stands before the next closing bracket, which is left where it is."""
    options: Pattern = [[]]
    while tokens and tokens[0] not in ")]":
        token = tokens.popleft()
        if token == "|":
            options.append([])
        elif token in "([":
            options[-1].append((token, _alternatives(grammar, tokens)))
            if not tokens or tokens.popleft() != {"(": ")", "[": "]"}[token]:
                raise ConfigurationError(f"grammar pattern: {token!r} is not closed")
        elif token[0] in "<{":
            if token[1:-1] not in (grammar.rules if token[0] == "<" else grammar.values):
                raise ConfigurationError(f"grammar pattern: {token} is not defined")
            options[-1].append((token[0], token[1:-1]))
        else:
            options[-1].append(("", token))
    return options
