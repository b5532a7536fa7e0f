"""n-best lists of meetings, cached so that everything after the first pass reruns in minutes, and ready to be rescored.

A list holds what the device has of an utterance, and how many word errors each entry makes. What was really said is
there for yardsticks alone: nothing else of it can come into a simulation but by being recognized. A cache folder holds
the lists in ``development/`` and ``test/``, those of general speech in ``general/``, ``words.txt`` and
``background.safetensors`` of the bundle, and ``about.json``, on how the lists came about.

N: hypotheses of an utterance; n: words on the list."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors.numpy import load_file

from device_sdk.errors import DataError
from rescoring.combination import CombinationWeights, combine
from rescoring.marginals import reliability, unigram, weighted_counts
from rescoring.words import WordList

Array = NDArray[np.float64]
CORRECTED = 0.2
"""Share of all utterances, heard rightly or not, whose words a user who corrects tells the device afterwards; drawn by
the client's name."""
_SUFFIX = ".jsonl.gz"


@dataclass(frozen=True, slots=True)
class NBest:
    """One utterance: N hypotheses, the first pass' best first, no text twice. speaker: who said it. texts: [N].
    acoustic: log p(tokens | audio) of the transducer and, by its weight, of the CTC head [N], nats. neural, ngram:
    log p(words, end) of the second pass' language models [N], nats, if scored. errors: word errors [N]. words: of what
    was said. meeting: where, unless that is the client. said: the words themselves, where they are known."""

    speaker: str
    texts: tuple[str, ...]
    acoustic: tuple[float, ...]
    errors: tuple[int, ...]
    words: int
    neural: tuple[float, ...] | None = None
    ngram: tuple[float, ...] | None = None
    meeting: str | None = None
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the server: what it recognized, in the order of time."""

    name: str
    utterances: tuple[NBest, ...]


def write_client(folder: Path, client: Client) -> None:
    """Write ``NAME.jsonl.gz``, an utterance a line, atomically; the same bytes for the same lists."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ({name: found for name, found in asdict(nbest).items() if found is not None} for nbest in client.utterances)
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    temporary = folder / f"{client.name}.part"
    temporary.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    temporary.replace(folder / f"{client.name}{_SUFFIX}")


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
    found, row = [], TypeAdapter(NBest)
    for number, line in enumerate(lines, 1):
        try:
            nbest = row.validate_json(line)
            scores = (nbest.acoustic, nbest.neural, nbest.ngram)
            lengths = {len(nbest.texts), len(nbest.errors), *(len(each) for each in scores if each is not None)}
            if len(lengths) != 1 or not nbest.texts:
                raise ValueError(f"lengths {sorted(lengths)}, expected one above 0")
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; expected an n-best list") from error
        found.append(nbest)
    return found


@dataclass(frozen=True, slots=True)
class Heard:
    """Utterances as a device has them after its first pass, the lists of all one after the other. U: utterances; H:
    hypotheses; W: words of all hypotheses. first: where each list begins, and where the last one ends [U + 1].
    acoustic, neural, ngram: scores [H], nats. words, unlisted: counts [H]. flat: word ids [W], 0 for unlisted words.
    owner: the hypothesis that each is of [W]. errors: word errors [H], for whoever judges; no device sees them, nor
    ``said``, the ids of what was said in each utterance, where that is known, but where its user tells it: corrected
    [U], for methods that count it."""

    first: NDArray[np.int64]
    acoustic: Array
    neural: Array
    ngram: Array
    words: Array
    unlisted: Array
    flat: NDArray[np.int64]
    owner: NDArray[np.int64]
    errors: NDArray[np.int64]
    said: tuple[NDArray[np.int64] | None, ...]
    corrected: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.said)

    def part(self, numbers: slice) -> Self:
        """Some utterances one after the other."""
        start, stop, _ = numbers.indices(len(self))
        begin, end = int(self.first[start]), int(self.first[stop])
        words = slice(*np.searchsorted(self.owner, (begin, end)).tolist())
        held = ("acoustic", "neural", "ngram", "words", "unlisted", "errors")
        return replace(
            self,
            first=self.first[start : stop + 1] - begin,
            flat=self.flat[words],
            owner=self.owner[words] - begin,
            said=self.said[start:stop],
            corrected=self.corrected[start:stop],
            **{name: getattr(self, name)[begin:end] for name in held},
        )

    def personal(self, factors: Array) -> Array:
        """What eq. 1 of Liu & Peng 2020 adds to each hypothesis [H]: the sum of its words' factors. factors: [n],
        nats."""
        return np.bincount(self.owner, factors[self.flat], minlength=len(self.acoustic)).astype(np.float64)

    def total(self, weights: CombinationWeights, personal: Array | float = 0.0) -> Array:
        """Scores of the second pass [H]. personal: beside the neural score, nats."""
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

    def best(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The hypothesis of each utterance with the highest value, the first of equal ones [U]. values: [H]."""
        begins = self.first[:-1]
        highest = np.flatnonzero(values == np.repeat(np.maximum.reduceat(values, begins), np.diff(self.first)))
        return highest[np.searchsorted(highest, begins)]

    def ranks(self, scores: Array | None = None) -> NDArray[np.int64]:
        """The place of each hypothesis in its list, 1 for the best [H]. scores: by which the lists are ordered [H];
        otherwise as they are."""
        sizes = np.diff(self.first)
        places = np.arange(1, len(self.acoustic) + 1) - np.repeat(self.first[:-1], sizes)
        if scores is None:
            return places
        found = np.empty_like(places)
        found[np.lexsort((-scores, np.repeat(np.arange(len(sizes)), sizes)))] = places
        return found


@dataclass(frozen=True, slots=True)
class Listener:
    """A client with what it heard, in the order of time. said: words that were said in each utterance [U]. meetings:
    where [U]."""

    name: str
    heard: Heard
    said: NDArray[np.int64]
    meetings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.heard)


def listeners(clients: Iterable[Client], words: WordList) -> list[Listener]:
    """Clients over a word list. Raises DataError for lists that no language model has scored."""
    return [
        Listener(
            client.name,
            _heard(client, words),
            np.array([nbest.words for nbest in client.utterances], np.int64),
            tuple(nbest.meeting or client.name for nbest in client.utterances),
        )
        for client in clients
    ]


def _heard(client: Client, words: WordList) -> Heard:
    utterances = client.utterances
    if any(nbest.neural is None or nbest.ngram is None for nbest in utterances):
        raise DataError(f"{client.name}: n-best lists without scores of language models; run the second pass")
    ids = [words.ids(text) for nbest in utterances for text in nbest.texts]
    counts = np.array([len(row) for row in ids])
    drawn = np.random.default_rng(list(client.name.encode())).random(len(utterances)) < CORRECTED
    said = tuple(None if nbest.said is None else np.array(words.ids(nbest.said), np.int64) for nbest in utterances)

    def together(name: str, kind: type) -> NDArray[Any]:
        return np.array([value for nbest in utterances for value in getattr(nbest, name)], kind)

    return Heard(
        first=np.cumsum([0, *(len(nbest.texts) for nbest in utterances)]),
        acoustic=together("acoustic", np.float64),
        neural=together("neural", np.float64),
        ngram=together("ngram", np.float64),
        words=counts.astype(np.float64),
        unlisted=np.array([row.count(0) for row in ids], np.float64),
        flat=np.array([word for row in ids for word in row], np.int64),
        owner=np.repeat(np.arange(len(ids)), counts),
        errors=together("errors", np.int64),
        said=said,
        corrected=drawn & np.array([text is not None for text in said]),
    )


BANDWIDTH = 1.0
"""Sigma of eq. 3 where it is known how a recognizer hears: the best of Liu & Peng's table 3."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """How the recognizer of all clients hears: of general speech whose words are known, what it heard, as a device
    counts it (:data:`BANDWIDTH`), and what was said, [n] each."""

    heard: Array
    said: Array

    @classmethod
    def of(cls, clients: Iterable[Client], words: WordList) -> Self:
        heard, said = np.zeros(len(words)), np.zeros(len(words))
        for nbest in (nbest for client in clients for nbest in client.utterances):
            if nbest.said is not None:
                heard += weighted_counts([words.ids(text) for text in nbest.texts], BANDWIDTH, len(words))
                said += weighted_counts([words.ids(nbest.said)], BANDWIDTH, len(words))
        return cls(heard, said)

    def reliability(self, pseudo: float) -> Array:
        """What each heard word counts [n]: :func:`rescoring.marginals.reliability`."""
        return reliability(self.heard, self.said, pseudo)


def over_heard(
    clients: Sequence[Listener], background: Array, hearing: Hearing | None = None
) -> tuple[list[Listener], Array, Hearing | None]:
    """The same clients, u, and how they are heard, over the words of their lists alone: all others join the bucket of
    the unlisted, which has no factor, so that nothing is rescored otherwise, and faster. Not where noise falls on every
    listed word."""
    said = [words for client in clients for words in client.heard.said if words is not None]
    kept = np.unique(np.concatenate([[0], *(client.heard.flat for client in clients), *said]))
    numbers = np.zeros(len(background), np.int64)
    numbers[kept] = np.arange(len(kept))

    def together(values: Array) -> Array:
        found = values[kept]
        found[0] += values.sum() - found.sum()
        return found

    def renumbered(heard: Heard) -> Heard:
        said = tuple(None if words is None else numbers[words] for words in heard.said)
        return replace(heard, flat=numbers[heard.flat], said=said)

    fewer = [replace(client, heard=renumbered(client.heard)) for client in clients]
    known = None if hearing is None else Hearing(together(hearing.heard), together(hearing.said))
    return fewer, together(background), known


@dataclass(frozen=True, slots=True)
class Cached:
    """What a cache folder holds. background: u of eq. 1, positive [n]. development: empty where the clients of the test
    are so few that settings for one half of them are chosen on the other. hearing: None where no general speech was
    recognized."""

    background: Array
    development: tuple[Listener, ...]
    test: tuple[Listener, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    hearing: Hearing | None = None


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
    held = (folder / "development").is_dir()
    development = listeners(read_clients(folder / "development"), words) if held else []
    test = listeners(read_clients(folder / "test"), words)
    both = {client.name for client in development} & {client.name for client in test}
    if both:
        raise DataError(f"{folder}: {sorted(both)} in development and test; expected meetings of one set only")
    general = folder / "general"
    hearing = Hearing.of(read_clients(general), words) if general.is_dir() else None
    return Cached(background, tuple(development), tuple(test), about, hearing)
