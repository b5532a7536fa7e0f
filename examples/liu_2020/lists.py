"""n-best lists of meetings, cached so that everything after the first pass reruns in minutes, and ready to be rescored.

A list holds what the device has of an utterance, and how many word errors each entry makes. The transcript itself is
not in it: no count, weight or word of it can come into a simulation by any other way than being recognized. A cache
folder holds the meetings' lists in ``development/`` and ``test/``, ``words.txt`` and ``background.safetensors`` of the
bundle, and ``about.json``, which says how the lists came about.

N: hypotheses of an utterance; U: utterances of a client; n: words on the list.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from device_sdk.errors import DataError
from rescoring.combination import CombinationWeights, combine
from rescoring.marginals import unigram
from rescoring.words import WordList

__all__ = [
    "Cached",
    "Client",
    "Heard",
    "Listener",
    "NBest",
    "listeners",
    "open_cache",
    "read_clients",
    "write_client",
    "write_whole",
]

Array = NDArray[np.float64]
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


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance as a device has it after its first pass.

    ids: word ids of each hypothesis, 0 for unlisted words. acoustic, neural, ngram: scores [N], nats. words, unlisted:
    counts [N]. flat, owner: all word ids after one another, and the hypothesis that each is of.
    errors: word errors of each hypothesis, for whoever judges; no device sees them.
    """

    ids: tuple[tuple[int, ...], ...]
    acoustic: Array
    neural: Array
    ngram: Array
    words: Array
    unlisted: Array
    flat: NDArray[np.int64]
    owner: NDArray[np.int64]
    errors: NDArray[np.int64]

    def personal(self, factors: Array) -> Array:
        """What eq. 1 of Liu & Peng 2020 adds to each hypothesis [N]: the sum of its words' factors. factors: [n],
        nats."""
        found: Array = np.bincount(self.owner, factors[self.flat], minlength=len(self.ids)).astype(np.float64)
        return found

    def total(self, weights: CombinationWeights, personal: Array | float = 0.0) -> Array:
        """Scores of the second pass [N]. personal: beside the neural score, nats."""
        scores = combine(
            weights,
            acoustic=self.acoustic,
            words=self.words,
            unlisted=self.unlisted,
            neural=self.neural,
            ngram=self.ngram,
            personal=personal,
        )
        return np.asarray(scores, np.float64)


@dataclass(frozen=True, slots=True)
class Listener:
    """A client with what it heard, in the order of time. said: words that were said in each utterance [U]."""

    name: str
    heard: tuple[Heard, ...]
    said: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.heard)


def listeners(clients: Iterable[Client], words: WordList) -> list[Listener]:
    """Clients over a word list. Raises DataError for lists that no language model has scored."""
    return [
        Listener(client.name, tuple(_heard(nbest, words, client.name) for nbest in client.utterances), client.words)
        for client in clients
    ]


def _heard(nbest: NBest, words: WordList, name: str) -> Heard:
    if nbest.neural is None or nbest.ngram is None:
        raise DataError(f"{name}: n-best lists without scores of language models; run the second pass")
    ids = tuple(tuple(words.ids(text)) for text in nbest.texts)
    return Heard(
        ids=ids,
        acoustic=np.array(nbest.acoustic),
        neural=np.array(nbest.neural),
        ngram=np.array(nbest.ngram),
        words=np.array([len(row) for row in ids], np.float64),
        unlisted=np.array([row.count(0) for row in ids], np.float64),
        flat=np.array([word for row in ids for word in row], np.int64),
        owner=np.repeat(np.arange(len(ids)), [len(row) for row in ids]),
        errors=np.array(nbest.errors, np.int64),
    )


@dataclass(frozen=True, slots=True)
class Cached:
    """What a cache folder holds. background: u of eq. 1, positive [n]. clients: as they were read; development, test:
    ready to be rescored."""

    background: Array
    clients: Mapping[str, tuple[Client, ...]]
    development: tuple[Listener, ...]
    test: tuple[Listener, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


def open_cache(folder: Path) -> Cached:
    """Read a cache. Raises DataError naming what is missing or damaged, and where a meeting is in both sets."""
    words_file, background_file = folder / "words.txt", folder / "background.safetensors"
    for path in (words_file, background_file):
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a folder of cached n-best lists")
    try:
        words = WordList.parse(words_file.read_text(encoding="utf-8"))
        background = unigram(load_file(background_file)["unigram"])
        if background.shape != (len(words),):
            raise ValueError(f"found {background.shape[0]} probabilities for {len(words)} words, expected one each")
        described = folder / "about.json"
        about = json.loads(described.read_text("utf-8")) if described.exists() else {}
    except Exception as error:  # safetensors has no common error type
        raise DataError(f"{folder}: not a cache of n-best lists ({error}); delete it to have it made again") from error
    clients = {stage: tuple(read_clients(folder / stage)) for stage in ("development", "test")}
    both = {client.name for client in clients["development"]} & {client.name for client in clients["test"]}
    if both:
        raise DataError(f"{folder}: {sorted(both)} in development and test; expected meetings of one set only")
    ready = {stage: tuple(listeners(held, words)) for stage, held in clients.items()}
    return Cached(background, clients, ready["development"], ready["test"], about)
