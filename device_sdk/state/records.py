"""What the values in the store mean: models, local weights, marginals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from device_sdk.errors import StateError
from device_sdk.state.store import Store

__all__ = [
    "Collected",
    "Local",
    "Published",
    "drop_gradients",
    "drop_kept",
    "drop_local",
    "has_learned",
    "read_gradients",
    "read_local",
    "read_marginals",
    "read_number",
    "read_proven",
    "read_published",
    "read_published_teacher",
    "read_text",
    "write_gradients",
    "write_local",
    "write_marginals",
    "write_number",
    "write_proven",
    "write_published",
    "write_published_teacher",
    "write_start",
    "write_text",
]

_AFRESH = "delete the state folder to start afresh"

_HALF = np.float32(np.finfo(np.float16).max)

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Published:
    """A model from the server that is newer than the bundle. content: its safetensors bytes, as published."""

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


def read_published(store: Store) -> Published | None:
    return _read_published(store, "published")


def write_published(store: Store, published: Published | None) -> None:
    """Replaces the published model; None takes it out (the bundle's own weights are the base again)."""
    _write_published(store, "published", published)


def read_published_teacher(store: Store) -> Published | None:
    return _read_published(store, "published_teacher")


def write_published_teacher(store: Store, published: Published | None) -> None:
    """Replaces the teacher that the server publishes beside its model; None takes it out."""
    _write_published(store, "published_teacher", published)


def _read_published(store: Store, name: str) -> Published | None:
    version, content = read_text(store, name), store.get("weights", name)
    return None if version is None or content is None else Published(version, content)


def _write_published(store: Store, name: str, published: Published | None) -> None:
    with store.transaction():
        if published is None:
            store.delete("weights", name)
            store.delete("settings", name)
        else:
            store.put("weights", name, published.content)
            write_text(store, name, published.version)


def read_gradients(store: Store) -> Collected | None:
    """The gradients that are due, None where none are collected. StateError: unreadable."""
    head, content = store.get("settings", "gradients"), store.get("weights", "gradients")
    if head is None:
        return None
    try:
        fields = json.loads(head)
        found = Collected(
            str(fields["base"]),
            {} if content is None else load(content),
            int(fields["utterances"]),
            int(fields["limit"]),
        )
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateError(f"weights/gradients: found unreadable gradients ({error}); {_AFRESH}") from error
    if found.utterances < 0 or found.limit < 1 or (found.utterances > 0) != (content is not None):
        raise StateError(
            f"settings/gradients: found {found.utterances} utterances of {found.limit}, expected a count with its sum; "
            f"{_AFRESH}"
        )
    return found


def write_gradients(store: Store, collected: Collected) -> None:
    """Replaces the gradients that are due; a sum over none is not stored."""
    head = {"base": collected.base, "utterances": collected.utterances, "limit": collected.limit}
    with store.transaction():
        store.put("settings", "gradients", json.dumps(head).encode())
        if collected.utterances:
            store.put("weights", "gradients", _bytes(collected.sum, {}))
        else:
            store.delete("weights", "gradients")


def drop_gradients(store: Store) -> None:
    """No gradients are collected any more."""
    with store.transaction():
        store.delete("settings", "gradients")
        store.delete("weights", "gradients")


def drop_kept(store: Store, names: Iterable[str]) -> None:
    """These utterances wait for learning no more; those that do not are left out."""
    with store.transaction():
        for name in names:
            store.delete("kept", name)


def has_learned(store: Store) -> bool:
    """Whether there are local weights or a published model, which another bundle would take the place of."""
    return store.get("settings", "local") is not None or store.get("settings", "published") is not None


def read_local(store: Store, base: Arrays) -> Local | None:
    """The local weights, None where nothing was learned since the base came. StateError: unreadable.

    base: the parameters of the base, which stand wherever steps changed nothing.
    """
    head = store.get("settings", "local")
    weights, teacher, start = (store.get("weights", name) for name in ("local", "teacher", "start"))
    if head is None or weights is None:
        return None
    try:
        fields = json.loads(head)
        began = None if start is None else {**base, **load(start)}
        unchanged = began if began is not None and fields.get("from_start", False) else base
        return Local(
            fields["base"],
            {**unchanged, **load(weights)},
            None if teacher is None else {**unchanged, **load(teacher)},
            int(fields["steps"]),
            int(fields["utterances"]),
            began,
        )
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateError(f"weights/local: found unreadable local weights ({error}); {_AFRESH}") from error


def write_local(store: Store, local: Local, base: Arrays) -> None:
    """All of it in one transaction, but the start, which does not change: see :func:`write_start`.

    base: the parameters of the base; only arrays that differ, in any bit, from the start, or from these where they are
    the start, are written.
    """
    head = {"base": local.base, "steps": local.steps, "utterances": local.utterances}
    unchanged = base if local.start is None else local.start
    if local.start is not None:
        head["from_start"] = True
    weights = _bytes(local.weights, unchanged)
    with store.transaction():
        store.put("settings", "local", json.dumps(head).encode())
        store.put("weights", "local", weights)
        if local.teacher is None:
            store.delete("weights", "teacher")
        else:
            store.put("weights", "teacher", _bytes(local.teacher, unchanged))


def write_start(store: Store, weights: Arrays, base: Arrays) -> None:
    """The weights that steps on a base set out from, where they are not the base's own."""
    store.put("weights", "start", _bytes(weights, base))


def read_proven(store: Store, base: Arrays) -> tuple[Arrays, int] | None:
    """(weights, utterances that made them) to fall back on before the base, None where none are proven yet.

    StateError: unreadable.
    """
    head, content = store.get("settings", "proven"), store.get("weights", "proven")
    if head is None or content is None:
        return None
    try:
        changes, utterances = load(content), int(json.loads(head)["utterances"])
        if any(change.shape != base[name].shape for name, change in changes.items()):
            raise ValueError("found arrays of other shapes than the base's")
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateError(f"weights/proven: found unreadable weights ({error}); {_AFRESH}") from error
    return {name: array + changes[name] if name in changes else array for name, array in base.items()}, utterances


def write_proven(store: Store, proven: tuple[Arrays, int] | None, base: Arrays) -> None:
    """Replaces the proven weights, by what changed of the base, in half the precision; None takes them out."""
    with store.transaction():
        if proven is None:
            store.delete("settings", "proven")
            store.delete("weights", "proven")
            return
        weights, utterances = proven
        changed = {name: array - base[name] for name, array in weights.items() if not _same(array, base[name])}
        halves = {name: np.clip(change, -_HALF, _HALF).astype(np.float16) for name, change in changed.items()}
        store.put("settings", "proven", json.dumps({"utterances": utterances}).encode())
        store.put("weights", "proven", save(halves))


def drop_local(store: Store) -> None:
    with store.transaction():
        write_proven(store, None, {})
        store.delete("weights", "start")
        store.delete("settings", "local")
        store.delete("weights", "local")
        store.delete("weights", "teacher")


def read_marginals(store: Store) -> tuple[int, str, npt.NDArray[np.float64]] | None:
    """(version, digest of the word list, probabilities [n] float64) of the global distribution, if one was pulled.

    StateError: unreadable, or no distribution.
    """
    head, content = store.get("settings", "marginals"), store.get("marginals", "global")
    if head is None or content is None:
        return None
    try:
        fields = json.loads(head)
        found = int(fields["version"]), str(fields["words_digest"]), np.frombuffer(content, "<f8").astype(np.float64)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StateError(f"marginals/global: found unreadable marginals ({error}); {_AFRESH}") from error
    values = found[2]
    if not (
        values.size and np.isfinite(values).all() and values.min() >= 0.0 and abs(float(values.sum()) - 1.0) < 1e-6
    ):
        raise StateError(
            f"marginals/global: found {values.size} values that are no distribution, expected values of at least 0 "
            f"that sum to 1; {_AFRESH}"
        )
    return found


def write_marginals(store: Store, version: int, words_digest: str, values: npt.NDArray[np.float64]) -> None:
    with store.transaction():
        store.put("settings", "marginals", json.dumps({"version": version, "words_digest": words_digest}).encode())
        store.put("marginals", "global", values.astype("<f8").tobytes())


def read_text(store: Store, name: str) -> str | None:
    content = store.get("settings", name)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise StateError(f"settings/{name}: found an unreadable text ({error}); {_AFRESH}") from error


def write_text(store: Store, name: str, value: str) -> None:
    store.put("settings", name, value.encode())


def read_number(store: Store, name: str) -> float:
    """A counter; 0 where it was never written. StateError: unreadable."""
    content = store.get("settings", name)
    try:
        number = 0.0 if content is None else float(content)
    except ValueError as error:
        raise StateError(f"settings/{name}: found an unreadable number ({error}); {_AFRESH}") from error
    if not (math.isfinite(number) and number >= 0.0):
        raise StateError(f"settings/{name}: found {number}, expected a count of at least 0; {_AFRESH}")
    return number


def write_number(store: Store, name: str, value: float) -> None:
    store.put("settings", name, repr(value).encode())


def _bytes(arrays: Arrays, unchanged: Arrays) -> bytes:
    names = (name for name in sorted(arrays) if not _same(arrays[name], unchanged.get(name)))
    return save({name: np.ascontiguousarray(arrays[name]) for name in names})


def _same(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32] | None) -> bool:
    """Bit for bit: zeros of either sign are two values."""
    if one is other:
        return True
    if other is None or one.shape != other.shape or not one.dtype == other.dtype == np.float32:
        return False
    return np.array_equal(np.ascontiguousarray(one).view(np.uint32), np.ascontiguousarray(other).view(np.uint32))
