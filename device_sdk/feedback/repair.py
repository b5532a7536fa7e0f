"""Hypotheses that the beam missed, proposed from the labelled slots and the n-best alone.

Where every entry of the n-best gets a slot wrong, the expected cost (Rao et al. 2023, eq. 1) can only shift probability
between wrong entries. With the slots known, an entry can be *repaired*: the words that stand where a value should be
are replaced by the value, values that were not asked for are taken out. No transcript is looked at. Which repair is
right is for the acoustics to say: the training graph scores each candidate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from device_sdk.feedback.distance import similarity
from device_sdk.feedback.slots import SlotLexicon, slot_cost

_WINDOWS = 3
_STATES = 6
BASES = 4
_INSERTION = 0.3
"""Similarity that an insertion counts as: below replacing words that sound alike, above replacing unlike ones."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """words: the text so far. fixed: per word, whether it belongs to a right value. merit: summed similarity."""

    words: tuple[str, ...]
    fixed: tuple[bool, ...]
    merit: float


def repair(texts: Sequence[str], truth: Mapping[str, str], lexicon: SlotLexicon, *, limit: int = 16) -> tuple[str, ...]:
    """Candidates without slot errors, made from the first :data:`BASES` texts; at most ``limit``, none twice. texts:
    n-best, best first. truth: slot type -> value. Texts that are right already are not returned. Earlier candidates
    come from better entries and need smaller changes."""
    columns = [_repairs(text, truth, lexicon) for text in texts[:BASES] if slot_cost(text, truth, lexicon)]
    rows = chain.from_iterable(zip_longest(*columns))
    return tuple(dict.fromkeys(text for text in rows if text is not None and text not in texts))[:limit]


def _repairs(text: str, truth: Mapping[str, str], lexicon: SlotLexicon) -> list[str]:
    drafts, missing = _start(text, truth, lexicon)
    for value in missing:
        drafts = sorted(chain.from_iterable(_with_value(draft, value) for draft in drafts), key=lambda d: -d.merit)
        drafts = drafts[:_STATES]
    finished = [_without_extras(draft, lexicon) for draft in drafts]
    return [candidate for candidate in dict.fromkeys(finished) if slot_cost(candidate, truth, lexicon) == 0]


def _start(text: str, truth: Mapping[str, str], lexicon: SlotLexicon) -> tuple[list[_Draft], list[tuple[str, ...]]]:
    """The text with its right values fixed, and the values it lacks."""
    words, missing, start = tuple(text.split()), list(truth.values()), 0
    fixed = [False] * len(words)
    while start < len(words):
        length, _ = lexicon.match(words, start)
        value = " ".join(words[start : start + length])
        if length and value in missing:
            missing.remove(value)
            fixed[start : start + length] = [True] * length
        start += max(length, 1)
    return [_Draft(words, tuple(fixed), 0.0)], [tuple(value.split()) for value in missing]


def _with_value(draft: _Draft, value: tuple[str, ...]) -> list[_Draft]:
    """Drafts in which ``value`` stands in the most similar windows of words that are free, or is inserted."""
    spoken = " ".join(value)
    options: list[tuple[float, int, int]] = []
    for start in range(len(draft.words) + 1):
        for length in range(min(len(value) + 2, len(draft.words) - start) + 1):
            if any(draft.fixed[start : start + length]):
                break
            inside = 0 < start < len(draft.words) and draft.fixed[start - 1] and draft.fixed[start]
            alike = similarity(spoken, " ".join(draft.words[start : start + length])) if length else _INSERTION
            options.append((alike - (0.1 if inside and not length else 0.0), start, length))
    options.sort(key=lambda option: (-option[0], option[2], -option[1]))
    return [
        _Draft(
            draft.words[:start] + value + draft.words[start + length :],
            draft.fixed[:start] + (True,) * len(value) + draft.fixed[start + length :],
            draft.merit + merit,
        )
        for merit, start, length in options[:_WINDOWS]
    ]


def _without_extras(draft: _Draft, lexicon: SlotLexicon) -> str:
    """The draft without the values that were not asked for."""
    kept: list[str] = []
    start = 0
    while start < len(draft.words):
        length, _ = lexicon.match(draft.words, start)
        end = start + max(length, 1)
        if not length or any(draft.fixed[start:end]):
            kept.extend(draft.words[start:end])
        start = end
    return " ".join(kept)
