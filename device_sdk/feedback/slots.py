"""Slots read from a hypothesis, and what it costs to read them wrongly (Rao et al. 2023, section 2.3.1).

A *slot* is a (type, value) pair such as ``("milk", "soy milk")``; its value is one or more words. What an app knows
after it has acted is the slots of the request; a hypothesis is judged by the slots that its text yields. The paper
counts a slot as wrong "if the tokens within the slot are not all present in the hypothesis". Taken alone, that makes
one constant hypothesis that lists every value free of cost, so the default here also counts slots not asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from device_sdk.errors import FeedbackError
from device_sdk.transcripts import transcripts

Slot = tuple[str, str]
"""(type, value)."""

CostMode = Literal["strict", "paper"]
"""strict: wrong + missing + extra slots. paper: slots whose tokens are not all in the hypothesis."""


@dataclass(frozen=True, slots=True)
class SlotLexicon:
    """The values that each slot type may take.

    values: slot type -> its values, each one or more words, which are kept in their one form
        (:mod:`device_sdk.transcripts`). A value may belong to several types; a reading gives it to the first of them,
        in this mapping's order, that the text has not filled yet ("three five" is then digit1 = three, digit2 = five).
    """

    values: Mapping[str, Sequence[str]]
    _types: Mapping[tuple[str, ...], tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _longest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept = {
            slot_type: tuple(dict.fromkeys(transcripts(values, f"lexicon[{slot_type!r}]", FeedbackError)))
            for slot_type, values in named_slots(self.values, "lexicon").items()
        }
        types: dict[tuple[str, ...], tuple[str, ...]] = {}
        for slot_type, values in kept.items():
            for words in (tuple(value.split()) for value in values):
                types[words] = (*types.get(words, ()), slot_type)
        object.__setattr__(self, "values", kept)
        object.__setattr__(self, "_types", types)
        object.__setattr__(self, "_longest", max((len(words) for words in types), default=0))

    @classmethod
    def from_labels(cls, labels: Iterable[Mapping[str, str]]) -> SlotLexicon:
        """The lexicon of every value that occurs in some labelled utterances' slots, sorted."""
        values: dict[str, set[str]] = {}
        for slots in labels:
            for slot_type, value in slots.items():
                values.setdefault(slot_type, set()).add(value)
        return cls({slot_type: tuple(sorted(values[slot_type])) for slot_type in sorted(values)})

    def holds(self, slot_type: str, value: str) -> bool:
        """Whether a type may take a value."""
        return slot_type in self._types.get(tuple(value.split()), ())

    def match(self, words: Sequence[str], start: int) -> tuple[int, tuple[str, ...]]:
        """(length, types) of the longest value that begins at words[start]; (0, ()) where none does."""
        for length in range(min(self._longest, len(words) - start), 0, -1):
            types = self._types.get(tuple(words[start : start + length]))
            if types is not None:
                return length, types
        return 0, ()


def named_slots(slots: object, field: str) -> Mapping[str, object]:
    """What is given for each slot type. FeedbackError, which names the field: no mapping of slot types."""
    if not isinstance(slots, Mapping):
        raise FeedbackError(f"{field}: found {type(slots).__name__}, expected slot types, each with what it takes")
    for name in slots:
        if not isinstance(name, str) or not name:
            raise FeedbackError(f"{field}: found {name!r} for a slot type, expected its name")
    return slots


def read_slots(text: str, lexicon: SlotLexicon) -> tuple[Slot, ...]:
    """The slots that a text yields, in its order: from left to right, always the longest value that matches. A type may
    occur more than once (a hypothesis that names two drinks): every occurrence is returned."""
    words = text.split()
    found: list[Slot] = []
    start = 0
    while start < len(words):
        length, types = lexicon.match(words, start)
        if types:
            filled = {name for name, _ in found}
            slot_type = next((name for name in types if name not in filled), types[0])
            found.append((slot_type, " ".join(words[start : start + length])))
        start += max(length, 1)
    return tuple(found)


def slot_errors(truth: Mapping[str, str], found: Iterable[Slot]) -> int:
    """Wrong + missing + extra slots. A true slot whose type was found only with other values is wrong (one error);
    whose type was not found is missing (one error); everything found beyond them is extra (one each)."""
    remaining: dict[str, list[str]] = {}
    for slot_type, value in found:
        remaining.setdefault(slot_type, []).append(value)
    errors = 0
    for slot_type, value in truth.items():
        values = remaining.get(slot_type, [])
        if value in values:
            values.remove(value)
        else:
            errors += 1
            del values[:1]
    return errors + sum(len(values) for values in remaining.values())


def slot_cost(text: str, truth: Mapping[str, str], lexicon: SlotLexicon, mode: CostMode = "strict") -> int:
    """Number of slot errors of a hypothesis' text; divide by ``len(truth)`` for a rate. mode "paper" follows section
    2.3.1 of Rao et al. 2023 to the letter: a slot is right if all its tokens are present in the hypothesis, wherever
    they stand, and extra slots cost nothing."""
    if mode == "strict":
        return slot_errors(truth, read_slots(text, lexicon))
    words = set(text.split())
    return sum(not words.issuperset(value.split()) for value in truth.values())


def semantic_cost(text: str, truth: Mapping[str, str], lexicon: SlotLexicon, mode: CostMode = "strict") -> float:
    """M(z, y) of Rao et al. 2023, section 2.3.1: slot errors as a fraction of the true slots. In ``strict`` mode extra
    slots can bring it above 1. Where nothing was asked for (no true slots), every slot found costs 1."""
    return slot_cost(text, truth, lexicon, mode) / max(len(truth), 1)
