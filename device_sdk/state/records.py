"""What the values in the store mean: models, local weights, marginals, reported counts, texts and numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from device_sdk.checks import reading
from device_sdk.errors import StateError
from device_sdk.state.store import AFRESH, Store

_HALF = np.float32(np.finfo(np.float16).max)

Arrays = Mapping[str, NDArray[np.float32]]

PublishedName = Literal["published", "published_teacher"]
"""The published model, and the teacher that the server publishes beside it."""


@dataclass(frozen=True, slots=True)
class Published:
    """A model from the server. content: its safetensors bytes, as published."""

    version: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Local:
    """What steps made of the base. base: version it started from; steps, utterances: since then. start: the weights
    then, None for the base's own. teacher: None where the server's labels, which is stored as it was published."""

    base: str
    weights: Arrays
    teacher: Arrays | None
    steps: int
    utterances: int
    start: Arrays | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """Gradients at the weights of ``base``, summed over ``utterances``; ``limit`` is how many are wanted at most."""

    base: str
    sum: Arrays
    utterances: int
    limit: int


def read_published(store: Store, name: PublishedName = "published") -> Published | None:
    version, content = read_text(store, name), store.get("weights", name)
    return None if version is None or content is None else Published(version, content)


def write_published(store: Store, published: Published | None, name: PublishedName = "published") -> None:
    """Replaces the published model or teacher; None takes it out."""
    with store.transaction():
        if published is None:
            drop(store, name)
        else:
            store.put("weights", name, published.content)
            write_text(store, name, published.version)


def read_gradients(store: Store) -> Collected | None:
    """The gradients that are due, None where none are collected. StateError: unreadable."""
    head, content = store.get("settings", "gradients"), store.get("weights", "gradients")
    if head is None:
        return None
    with reading("weights/gradients"):
        fields, arrays = json.loads(head), {} if content is None else _load(content)
        utterances, limit = int(fields["utterances"]), int(fields["limit"])
        collected = Collected(str(fields["base"]), arrays, utterances, limit)
    if utterances < 0 or limit < 1 or (utterances > 0) != (content is not None):
        raise StateError(
            f"settings/gradients: found {utterances} utterances of {limit}, expected a count with its sum; {AFRESH}"
        )
    return collected


def write_gradients(store: Store, collected: Collected) -> None:
    """Replaces the gradients that are due; a sum over none is not stored."""
    with store.transaction():
        head = {"base": collected.base, "utterances": collected.utterances, "limit": collected.limit}
        _put_json(store, "gradients", head)
        if collected.utterances:
            store.put("weights", "gradients", _bytes(collected.sum, {}))
        else:
            store.delete("weights", "gradients")


def read_local(store: Store, base: Arrays) -> Local | None:
    """The local weights, None where none are. StateError: unreadable. base: what stands where steps changed nothing."""
    head = store.get("settings", "local")
    weights, teacher, start = (store.get("weights", name) for name in ("local", "teacher", "start"))
    if head is None or weights is None:
        return None
    with reading("weights/local"):
        fields, began = json.loads(head), None if start is None else {**base, **_load(start)}
        unchanged = base if began is None else began
        steps, utterances = int(fields["steps"]), int(fields["utterances"])
        labels = None if teacher is None else {**unchanged, **_load(teacher)}
        return Local(str(fields["base"]), {**unchanged, **_load(weights)}, labels, steps, utterances, began)


def write_local(store: Store, local: Local, base: Arrays) -> None:
    """All of it in one transaction, but the start, which does not change: see :func:`write_start`. base: the parameters
    of the base; only arrays that differ, in any bit, from the start, or from these, are written."""
    unchanged = base if local.start is None else local.start
    with store.transaction():
        _put_json(store, "local", {"base": local.base, "steps": local.steps, "utterances": local.utterances})
        store.put("weights", "local", _bytes(local.weights, unchanged))
        if local.teacher is None:
            store.delete("weights", "teacher")
        else:
            store.put("weights", "teacher", _bytes(local.teacher, unchanged))


def write_start(store: Store, weights: Arrays, base: Arrays) -> None:
    """The weights that steps on a base set out from, where they are not the base's own."""
    store.put("weights", "start", _bytes(weights, base))


def drop_local(store: Store) -> None:
    with store.transaction():
        for name in ("proven", "start", "local", "teacher"):
            drop(store, name)


def read_proven(store: Store, base: Arrays) -> tuple[Arrays, int] | None:
    """(weights, utterances that made them) to fall back on before the base, if proven. StateError: unreadable."""
    head, content = store.get("settings", "proven"), store.get("weights", "proven")
    if head is None or content is None:
        return None
    with reading("weights/proven"):
        changes, utterances = _load(content), int(json.loads(head)["utterances"])
        if any(change.shape != base[name].shape for name, change in changes.items()):
            raise ValueError("found arrays of other shapes than the base's")
    return {name: array + changes[name] if name in changes else array for name, array in base.items()}, utterances


def write_proven(store: Store, proven: tuple[Arrays, int] | None, base: Arrays) -> None:
    """Replaces the proven weights, by what changed of the base, in half the precision; None takes them out."""
    with store.transaction():
        if proven is None:
            drop(store, "proven")
            return
        weights, utterances = proven
        changed = {name: array - base[name] for name, array in weights.items() if not _same(array, base[name])}
        halves = {name: np.clip(change, -_HALF, _HALF).astype(np.float16) for name, change in changed.items()}
        _put_json(store, "proven", {"utterances": utterances})
        store.put("weights", "proven", save(halves))


def read_marginals(store: Store, words_digest: str, size: int) -> tuple[int, NDArray[np.float64] | None]:
    """(version, probabilities float64 [size]) of the global distribution; (0, None) for none. StateError: damaged."""
    head, content = store.get("settings", "marginals"), store.get("marginals", "global")
    if head is None or content is None:
        return 0, None
    with reading("marginals/global"):
        fields, values = json.loads(head), np.frombuffer(content, "<f8").astype(np.float64)
        version, digest = int(fields["version"]), str(fields["words_digest"])
    if not (values.size and np.isfinite(values).all() and values.min() >= 0.0 and abs(values.sum() - 1.0) < 1e-6):
        raise StateError(
            f"marginals/global: found {values.size} values that are no distribution, expected values of at least 0 "
            f"that sum to 1; {AFRESH}"
        )
    if digest != words_digest:
        return 0, None
    if values.size != size:
        raise StateError(
            f"marginals/global: found {values.size} probabilities, expected one for each word, {size}; {AFRESH}"
        )
    return version, values


def write_marginals(store: Store, version: int, words_digest: str, values: NDArray[np.float64]) -> None:
    with store.transaction():
        _put_json(store, "marginals", {"version": version, "words_digest": words_digest})
        store.put("marginals", "global", values.astype("<f8").tobytes())


def read_reported(store: Store, words_digest: str, size: int) -> NDArray[np.float64]:
    """All counts that went into reports of mode ``paper``, float64 [size]; 0 for another list. StateError: damaged."""
    counts, content = np.zeros(size), store.get("counts", "reported")
    with reading("counts/reported"):
        if content is not None and (fields := json.loads(content))["words_digest"] == words_digest:
            for word, weight in fields["counts"].items():
                counts[int(word)] = float(weight)
        if not np.isfinite(counts).all() or (counts < 0).any():
            raise ValueError("found a weight that is negative or not finite")
    return counts


def add_reported(store: Store, words_digest: str, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stores and gives the counts so far with these, negative for a refused report, in the report's transaction."""
    total = np.maximum(read_reported(store, words_digest, counts.size) + counts, 0.0)
    weights = {str(word): float(total[word]) for word in np.flatnonzero(total)}
    store.put("counts", "reported", json.dumps({"words_digest": words_digest, "counts": weights}).encode())
    return total


def read_text(store: Store, name: str) -> str | None:
    content = store.get("settings", name)
    with reading(f"settings/{name}"):
        return None if content is None else content.decode()


def write_text(store: Store, name: str, value: str) -> None:
    store.put("settings", name, value.encode())


def read_number(store: Store, name: str) -> float:
    """A counter; 0 where it was never written. StateError: unreadable."""
    content = store.get("settings", name)
    with reading(f"settings/{name}"):
        number = 0.0 if content is None else float(content)
    if not (math.isfinite(number) and number >= 0.0):
        raise StateError(f"settings/{name}: found {number}, expected a count of at least 0; {AFRESH}")
    return number


def write_number(store: Store, name: str, value: float) -> None:
    store.put("settings", name, repr(value).encode())


def drop(store: Store, name: str) -> None:
    """Takes weights out, and what is said of them."""
    with store.transaction():
        store.delete("settings", name)
        store.delete("weights", name)


def _put_json(store: Store, name: str, fields: Mapping[str, Any]) -> None:
    store.put("settings", name, json.dumps(fields).encode())


def _load(content: bytes) -> dict[str, NDArray[np.float32]]:
    try:
        arrays: dict[str, NDArray[np.float32]] = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return arrays


def _bytes(arrays: Arrays, unchanged: Arrays) -> bytes:
    names = (name for name in sorted(arrays) if not _same(arrays[name], unchanged.get(name)))
    return save({name: np.ascontiguousarray(arrays[name]) for name in names})


def _same(one: NDArray[np.float32], other: NDArray[np.float32] | None) -> bool:
    """Bit for bit: zeros of either sign are two values."""
    if one is other:
        return True
    if other is None or one.shape != other.shape or not one.dtype == other.dtype == np.float32:
        return False
    return np.array_equal(np.ascontiguousarray(one).view(np.uint32), np.ascontiguousarray(other).view(np.uint32))
