"""n-best lists of meetings, cached so that everything after the first pass reruns in minutes.

A list holds what the device has of an utterance, and how many word errors each entry makes. The transcript itself is
not in it: no count, weight or word of it can come into a simulation by any other way than being recognized.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import DataError

__all__ = ["Client", "NBest", "read_clients", "write_client", "write_whole"]

_SUFFIX = ".jsonl.gz"
_SCORES = ("acoustic", "neural", "ngram")


@dataclass(frozen=True, slots=True)
class NBest:
    """One utterance: N hypotheses, the first pass' best first, no text twice.

    speaker: who said it. texts: [N]. acoustic: log p(tokens | audio) [N], nats. neural, ngram: log p(words, end) of the
    second pass' language models [N], nats; None before they have scored. errors: word errors [N]. words: of what was
    said.
    """

    speaker: str
    texts: tuple[str, ...]
    acoustic: tuple[float, ...]
    errors: tuple[int, ...]
    words: int
    neural: tuple[float, ...] | None = None
    ngram: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def scored(self, neural: Sequence[float], ngram: Sequence[float]) -> NBest:
        return replace(self, neural=_rounded(neural), ngram=_rounded(ngram))


@dataclass(frozen=True, slots=True)
class Client:
    """A meeting as a client of the server: what it recognized, in the order of time."""

    name: str
    utterances: tuple[NBest, ...]

    @property
    def words(self) -> NDArray[np.int64]:
        """Words said [U]."""
        return np.array([nbest.words for nbest in self.utterances], np.int64)

    @property
    def first_errors(self) -> NDArray[np.int64]:
        """Word errors of the first pass [U]."""
        return np.array([nbest.errors[0] for nbest in self.utterances], np.int64)

    @property
    def least_errors(self) -> NDArray[np.int64]:
        """Word errors of the best entries [U]: what no rescoring can fall below."""
        return np.array([min(nbest.errors) for nbest in self.utterances], np.int64)


def write_client(folder: Path, client: Client) -> Path:
    """Write ``NAME.jsonl.gz``, an utterance a line, atomically; the same bytes for the same lists."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_as_row(nbest), separators=(",", ":")) for nbest in client.utterances]
    path = folder / f"{client.name}{_SUFFIX}"
    write_whole(path, gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    return path


def write_whole(path: Path, content: bytes) -> None:
    """All of the file or nothing of it."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_bytes(content)
    temporary.replace(path)


def read_clients(folder: Path, names: Iterable[str] | None = None) -> list[Client]:
    """The clients in a folder, by name; ``names``: only these. Raises DataError naming file and line."""
    chosen = sorted(folder.glob(f"*{_SUFFIX}")) if names is None else [folder / f"{name}{_SUFFIX}" for name in names]
    if not chosen:
        raise DataError(f"{folder}: no n-best lists, expected NAME{_SUFFIX}; run the first pass")
    return [Client(path.name.removesuffix(_SUFFIX), tuple(_read(path))) for path in chosen]


def _read(path: Path) -> list[NBest]:
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no readable n-best lists ({error}); delete the file to have it made again") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            scores = {name: None if row.get(name) is None else tuple(map(float, row[name])) for name in _SCORES}
            nbest = NBest(
                speaker=str(row["speaker"]),
                texts=tuple(map(str, row["texts"])),
                errors=tuple(map(int, row["errors"])),
                words=int(row["words"]),
                **scores,  # type: ignore[arg-type]
            )
            lengths = {len(nbest.texts), len(nbest.errors), *(len(s) for s in scores.values() if s is not None)}
            if len(lengths) != 1 or not nbest.texts:
                raise ValueError(f"lengths {sorted(lengths)}, expected one above 0")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: {error!r}; expected an n-best list") from error
        found.append(nbest)
    return found


def _as_row(nbest: NBest) -> dict[str, Any]:
    row: dict[str, Any] = {
        "speaker": nbest.speaker,
        "words": nbest.words,
        "texts": nbest.texts,
        "errors": nbest.errors,
        "acoustic": _rounded(nbest.acoustic),
    }
    for name, values in (("neural", nbest.neural), ("ngram", nbest.ngram)):
        if values is not None:
            row[name] = _rounded(values)
    return row


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    """A thousandth of a nat is far below what decides between hypotheses, and keeps files small."""
    return tuple(round(float(value), 3) for value in values)
