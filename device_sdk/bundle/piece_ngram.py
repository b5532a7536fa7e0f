"""A back-off n-gram over sentence pieces, which the first pass follows, as the states of an automaton.

N: contexts, shorter ones first; 0 is the empty one, which knows every piece. A: arcs, the pieces that a context knows.
V: pieces, blank 0."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import weights as weight_files
from device_sdk.errors import BundleError

PIECE_NGRAM_FILE = "pieces.ngram.safetensors"
START = 1
"""The context of an utterance's begin."""

_TYPES = {"first": "i4", "pieces": "u2", "nats": "f4", "following": "i4", "backoff": "f4", "shorter": "i4"}


@dataclass(frozen=True, slots=True)
class PieceNgram:
    """first: [N + 1] int32, context n has the arcs from first[n] to first[n + 1], by rising piece. pieces: [A] uint16;
    nats: [A] float32, log p(piece | context); following: [A] int32, the context after the piece. backoff: [N] float32,
    what a piece gets besides, in nats, where a context does not know it and the context ``shorter`` is asked: [N]
    int32, below n."""

    first: NDArray[np.int32]
    pieces: NDArray[np.uint16]
    nats: NDArray[np.float32]
    following: NDArray[np.int32]
    backoff: NDArray[np.float32]
    shorter: NDArray[np.int32]


def serialize(ngram: PieceNgram) -> bytes:
    """safetensors bytes: a tensor a field; probabilities take half of their width there."""
    tensors = {each.name: getattr(ngram, each.name) for each in fields(ngram)}
    return weight_files.serialize(tensors | {name: tensors[name].astype(np.float16) for name in ("nats", "backoff")})


def read(content: bytes, pieces: int, source: str) -> PieceNgram:
    """The n-gram over so many pieces. Raises :class:`BundleError` that names the tensor: a search that follows what is
    read here ends, and stays inside of it."""
    tensors = weight_files.read(content, source)
    if tensors.keys() != _TYPES.keys():
        different = sorted(tensors.keys() ^ _TYPES.keys())
        raise BundleError(f"{source}: tensors {different} are missing or unknown, expected {', '.join(_TYPES)}")
    contexts, arcs = tensors["backoff"].size, tensors["pieces"].size
    sizes = {"first": contexts + 1, "shorter": contexts, "backoff": contexts}
    for name, kind in _TYPES.items():
        value, size = tensors[name], sizes.get(name, arcs)
        if value.dtype != np.dtype(kind) or value.shape != (size,):
            held = f"{value.dtype} {list(value.shape)}"
            raise BundleError(f"{source}: tensor {name!r} is {held}, expected {np.dtype(kind)} [{size}]")
    found = PieceNgram(**tensors)  # type: ignore[arg-type]
    known: NDArray[np.int64] = found.first[1:].astype(np.int64) - found.first[:-1]
    first = contexts > 1 and found.first[0] == 0 and found.first[-1] == arcs >= pieces > 0 and (known >= 0).all()
    if not first:  # nothing is made of these sizes before they are known to fit the rest
        raise _broken(source, "first", pieces)
    order: NDArray[np.int64] = np.repeat(np.arange(contexts, dtype=np.int64), known) * pieces + found.pieces
    rising = order[1:] > order[:-1]
    right = {
        "pieces": np.all(rising) and found.pieces.max() < pieces and found.first[1] == pieces,
        "nats": bool(np.isfinite(found.nats).all()) and found.nats.max() <= 0.0,
        "following": found.following.min() >= 0 and found.following.max() < contexts,
        "backoff": bool(np.isfinite(found.backoff).all()) and found.backoff.max() <= 0.0,
        "shorter": (found.shorter[1:] < np.arange(1, contexts)).all() and found.shorter.min() >= 0,
    }
    for name, holds in right.items():
        if not holds:
            raise _broken(source, name, pieces)
    return found


def _broken(source: str, name: str, pieces: int) -> BundleError:
    return BundleError(f"{source}: tensor {name!r} is that of no n-gram over {pieces} pieces; take it again")
