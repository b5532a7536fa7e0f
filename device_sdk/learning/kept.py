"""Utterances that wait on the disk for feedback or learning, where app and user allow it.

Text, n-best list, feedback and log-mel features; never audio. They are sealed as all of the state is, and are erased
once they were learned from, after a day, or when the user agrees no longer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from device_sdk.bundle import Bundle
from device_sdk.checks import reading
from device_sdk.decoding.hotwords import Hotword, Hotwords
from device_sdk.errors import IdiolectError, StateError
from device_sdk.feedback.signals import (
    Accepted,
    Alternate,
    Corrected,
    Repeated,
    Semantics,
    Signal,
    Single,
    Together,
    parts,
)
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.hypothesis import Hypothesis, Scores, Word
from device_sdk.learning.memory import Example, Recent, utterances
from device_sdk.personalization.cache import UtteranceCounts
from device_sdk.state import Store

log = logging.getLogger(__name__)

_SIGNALS: Mapping[str, type[Single]] = {each.__name__: each for each in get_args(Single)}


class Kept:
    """Owns the copies on the disk of utterances in memory, under the store's guard. heard: of unconfirmed ones too."""

    def __init__(self, store: Store, recent: Recent, *, heard: bool) -> None:
        self._store, self._recent, self._heard = store, recent, heard
        self._lost = 0

    def update(self, utterance_id: str, allowed: bool, handed_on: float) -> None:
        """An utterance just recognized, or whose feedback has just come, is on the disk from here on, or no more.
        handed_on: as of :func:`to_bytes`. StateError: it cannot be written, and stays in memory only."""
        example = self._recent.get(utterance_id)
        if example is None:
            return
        if allowed and (self._heard or confirmed(example.signal)) and len(example.features):
            try:
                self._store.put("kept", utterance_id, to_bytes(self._recent.keep(utterance_id), handed_on))
            except StateError:
                if example.kept is None:
                    self._recent.release([utterance_id])
                raise
            log.debug("kept 1 utterance for learning")
            self.tidy()
        elif example.kept is not None:
            self._recent.release([utterance_id])
            self.drop([utterance_id])

    def restore(
        self,
        bundle: Bundle,
        allowed: bool,
        count: Callable[[Sequence[Hypothesis]], UtteranceCounts] | None,
        handed_on: float,
    ) -> None:
        """What was kept is in memory again, or erased where that is not allowed. count: as of :func:`from_bytes`."""
        names = self._store.names("kept")
        for name in names if allowed else ():
            try:
                example = from_bytes(self._store.get("kept", name) or b"", name, bundle, count, handed_on)
                if self._heard or confirmed(example.signal):
                    self._recent.restore(example)
            except StateError as error:
                log.warning("a kept utterance is left out: %s", error)
        if names and not allowed:
            log.warning("erased %s with feedback, kept before: no longer allowed", utterances(len(names)))
        restored = self._recent.kept()
        self._try_to_drop([name for name in names if name not in restored])
        self.tidy()

    def tidy(self) -> None:
        """What went from memory is erased from the disk too, and counted."""
        if count := self._recent.lost():
            self._lost += count
            log.warning(
                "lost %s with feedback, not learned from: too old, or too many; learn() sooner, see memory_seconds "
                "and memory_utterances of DeviceSettings, or set learn=False there",
                utterances(count),
            )
        self._try_to_drop(self._recent.gone())

    def lost(self) -> int:
        """How many utterances with feedback went since the last call, with nothing learned from them."""
        self.tidy()
        lost, self._lost = self._lost, 0
        return lost

    def drop(self, names: Sequence[str]) -> None:
        """Erases them from the disk."""
        if names:
            self._store.delete("kept", *names)
            self._store.settle()

    def _try_to_drop(self, names: Sequence[str]) -> None:
        try:
            self.drop(names)
        except StateError as error:
            log.warning("what was kept is not erased yet: %s", error)


def confirmed(signal: Signal | None) -> bool:
    """Whether the user has said which words are right."""
    return any(isinstance(each, Accepted | Corrected) for each in parts(signal))


def to_bytes(example: Example, handed_on: float) -> bytes:
    """Safetensors of its features and of a head in JSON. Of what it adds to counts only that it does is in it, of the
    phrases that it was heard with only those that it may hold. handed_on: how often what was due has been handed on."""
    assert example.kept is not None
    head = {
        "heard": example.kept,
        "counted": example.counts is not None and example.signal is None,
        "due": None if example.reported else handed_on,
        "probability": example.probability,
        "nbest": [asdict(hypothesis) for hypothesis in example.nbest],
        "expected": _expected(example),
        "signals": [[type(each).__name__, _fields(each)] for each in parts(example.signal)],
    }
    written = np.frombuffer(json.dumps(head).encode(), np.uint8)
    return save({"features": np.ascontiguousarray(example.features, np.float32), "head": written})


def from_bytes(
    content: bytes,
    name: str,
    bundle: Bundle,
    count: Callable[[Sequence[Hypothesis]], UtteranceCounts] | None = None,
    handed_on: float | None = None,
) -> Example:
    """The utterance as it was. count: gives what it adds to the counts, which feedback mends where there was none
    before; None leaves them. handed_on: how often what was due has been handed on by now; if more often than when it
    was written, nothing of it is due. StateError: unreadable, or of another bundle."""
    with reading(f"kept/{name}"):
        try:
            arrays = load(content)
            features, head = arrays["features"], json.loads(arrays["head"].tobytes())
            nbest = tuple(_hypothesis(fields) for fields in head["nbest"])
            signals = tuple(_signal(kind, fields) for kind, fields in head["signals"])
        except (SafetensorError, IdiolectError) as error:
            raise ValueError from error
        expected = [Hotword(phrase, boost, spellings) for phrase, boost, spellings in head.get("expected", ())]
        counted, due = head["counted"] is True, head["due"] is not None and head["due"] == handed_on
        heard, probability = float(head["heard"]), float(head["probability"])
        shape = features.ndim == 2 and features.shape[1] == bundle.features.mel_bins
        if not (shape and features.dtype == np.float32 and np.isfinite(features).all() and nbest):
            raise ValueError
    signal = Together(signals) if len(signals) > 1 else signals[0] if signals else None
    counts = count(nbest) if counted and count is not None else None
    phrases = Hotwords.build(expected) if expected else None
    return Example(name, features, nbest, counts, 0.0, signal, not due, probability, expected=phrases, kept=heard)


def _expected(example: Example) -> list[tuple[str, float, Sequence[str]]]:
    if example.expected is None:
        return []
    said = [hypothesis.text for hypothesis in example.nbest]
    said += [each.text for each in parts(example.signal) if isinstance(each, Alternate | Corrected)]
    return [
        (each.phrase, each.boost, each.spellings)
        for each in example.expected.phrases
        if any(f" {each.phrase} " in f" {text} " for text in said)
    ]


def _fields(signal: Single) -> dict[str, Any]:
    if isinstance(signal, Semantics):
        values = {slot: list(each) for slot, each in signal.lexicon.values.items()}
        return {"slots": dict(signal.slots), "lexicon": values, "mode": signal.mode}
    return asdict(signal)


def _signal(kind: str, fields: dict[str, Any]) -> Single:
    if kind == "Semantics":
        values = {slot: tuple(each) for slot, each in fields["lexicon"].items()}
        return Semantics(fields["slots"], SlotLexicon(values), fields["mode"])
    return Repeated(tuple(fields["texts"])) if kind == "Repeated" else _SIGNALS[kind](**fields)


def _hypothesis(fields: dict[str, Any]) -> Hypothesis:
    words, tokens = tuple(Word(**word) for word in fields["words"]), tuple(map(int, fields["tokens"]))
    return Hypothesis(**{**fields, "tokens": tokens, "words": words, "scores": Scores(**fields["scores"])})
