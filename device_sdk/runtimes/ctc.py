"""A bundle's CTC head on plain onnxruntime, and what it says of given texts: exact sums over their alignments (Graves
et al. 2006, eq. 6 to 8).

The transducer knows which pieces came before, and little speech teaches it to rely on that. A CTC head knows nothing
that was said before, and hears phones, not spelling, which little speech teaches best. T: encoder frames; J: joiner
size; C: phones, and blank 0; N: texts.

How words sound, rules of spelling say: what each letter stands for, by the letters around it. A rule with more of them
goes before one with fewer, so that what is irregular (*one*, *people*) is a rule of its own, and a word that nobody
listed sounds like those that are spelled alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import BLANK
from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import metadata, open_session, run

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from device_sdk.bundle import Bundle

FILE = "ctc.onnx"
PRONUNCIATION_KEY = "idiolect.pronunciation"

Float = NDArray[np.float32]
Double = NDArray[np.float64]
Integers = NDArray[np.int64]

IMPOSSIBLE = -1e5
"""Nats, in place of an infinity, which would not leave a sum again."""
_LEAST, _VANISHED = 1e-300, 1e-60
_KNOWN = 2000
_SCALED = 8  # frames after which sums are scaled: what is possible does not vanish in so few

WINDOWS = ((0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (4, 4), (6, 6))
"""Letters before and after a letter that rules may look at, fewest first. An end of the word is one."""
EDGE = "#"
_NONE = "-"

Context = tuple[str, str, str]
"""A letter, those before it and those after it."""


def context(word: str, place: int, window: tuple[int, int]) -> Context:
    """Of one letter of a word, within one of ``WINDOWS``; the last ones may be the same where the word is short."""
    framed, at = f"{EDGE}{word}{EDGE}", place + 1
    before, after = window
    return word[place], framed[max(0, at - before) : at], framed[at + 1 : at + 1 + after]


def rule(
    rules: Mapping[Context, tuple[int, ...]], word: str, place: int, windows: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """What the rule with most letters around says of a letter; None where there is none."""
    known = (rules.get(context(word, place, window)) for window in reversed(windows))
    return next((phones for phones in known if phones is not None), None)


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """symbols: names of phones; the first is 1, since 0 is blank. rules: phones of a letter in a context."""

    symbols: tuple[str, ...]
    rules: Mapping[Context, tuple[int, ...]]

    def encode(self, text: str) -> list[int]:
        """The phones of a text, word by word. A letter that no rule knows is silent."""
        return [phone for word in text.split() for phone in self.word(word)]

    def word(self, word: str) -> tuple[int, ...]:
        """The phones of one word."""
        letters = (rule(self.rules, word, place, WINDOWS) or () for place in range(len(word)))
        return tuple(phone for phones in letters for phone in phones)

    def write(self) -> str:
        """A line of the symbols, then one a rule: letter, before, after, phones; ``-`` for none."""
        lines = [" ".join(self.symbols)]
        for around, phones in self.rules.items():
            lines.append(" ".join([*(part or _NONE for part in around), *(self.symbols[one - 1] for one in phones)]))
        return "\n".join(lines)

    @classmethod
    def read(cls, written: str) -> Pronunciation:
        """What :meth:`write` gave. Raises ValueError, which names the line, for what it never gives."""
        first, *lines = written.split("\n")
        symbols = tuple(first.split())
        numbers = {name: number for number, name in enumerate(symbols, 1)}
        if not symbols or len(numbers) < len(symbols):
            raise ValueError(f"line 1: found {first[:40]!r}, expected names of phones, each once")
        rules: dict[Context, tuple[int, ...]] = {}
        for number, line in enumerate(lines, 2):
            parts = line.split(" ")
            if len(parts) < 3 or len(parts[0]) != 1 or not numbers.keys() >= set(parts[3:]):
                raise ValueError(f"line {number}: found {line[:40]!r}, expected a letter, those around it, and phones")
            letter, before, after = (part if part != _NONE else "" for part in parts[:3])
            rules[letter, before, after] = tuple(numbers[name] for name in parts[3:])
        return cls(symbols, rules)


class CtcHead:
    """What the encoder heard, as phones, each frame by itself (Graves et al. 2006). The graph (``ctc.onnx``) takes
    encoded [T, J] float32, of a whole utterance, and gives log_probs [T, C] float32. Owns an onnxruntime session; safe
    to call from several threads. pronunciation: how texts are said in these phones."""

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        path = bundle.file(FILE)
        self._session, self.pronunciation = open_graph(path.read_bytes(), bundle.architecture, str(path), threads)
        self._word = lru_cache(maxsize=_KNOWN)(self.pronunciation.word)

    def __call__(self, encoded: Float) -> Float:
        """Log-probabilities [T, C] of an utterance's encoding [T, J]. Raises BundleError for a graph that gives what
        are none."""
        phones = 1 + len(self.pronunciation.symbols)
        if not len(encoded):
            return np.zeros((0, phones), np.float32)
        log_probs: Float = run(self._session, {"encoded": encoded}, FILE)[0]
        if log_probs.shape != (len(encoded), phones) or not np.isfinite(log_probs).all():
            raise BundleError(f"{FILE}: found values that are no log-probabilities; export the bundle again")
        return log_probs

    def scores(self, log_probs: Float, texts: Sequence[str]) -> Double:
        """log p(phones of each text | audio), nats, [N]. log_probs: [T, C], of the utterance."""
        return log_likelihoods(log_probs, [self.phones(text) for text in texts])

    def phones(self, text: str) -> list[int]:
        """The phones of a text, word by word; words that were asked for lately are known."""
        return [phone for word in text.split() for phone in self._word(word)]


def log_likelihoods(log_probs: Float, hypotheses: Sequence[Sequence[int]]) -> Double:
    """log p(phones | audio) over all alignments, nats -> float64 [N]. log_probs: [T, C], of a frame's phones by
    themselves, which float64 takes as far as they lie within some hundred nats. hypotheses: N sequences of phones
    without blank. One that no alignment has room for is all but impossible."""
    if not len(log_probs) or not len(hypotheses):
        return np.array([IMPOSSIBLE if len(phones) else 0.0 for phones in hypotheses])
    probabilities = np.exp(log_probs.astype(np.float64))
    sums, scale = _sums(probabilities, hypotheses)
    ended: Double = np.log(np.maximum(sums, _LEAST)) + scale
    if len(hypotheses) > 1:
        for row in np.flatnonzero(sums < _VANISHED).tolist():  # too far behind the likeliest: by itself, then
            ended[row] = log_likelihoods(log_probs, [hypotheses[row]])[0]
    return np.maximum(ended, IMPOSSIBLE)


def _sums(probabilities: Double, hypotheses: Sequence[Sequence[int]]) -> tuple[Double, float]:
    """Graves' forward variable after the last frame, over all alignments of each hypothesis [N], and the log of what
    all are scaled with: what is likeliest is 1 now and then. It is of a beginning whatever follows, so those that begin
    alike share theirs: a tree of M beginnings, each with one phone more than its parent."""
    parents, phones, ends = _beginnings(hypotheses)
    alike = np.flatnonzero(phones == phones[parents])  # without a blank between: not to the same phone
    before = parents[alike]
    spoken, silent = np.zeros(len(parents)), np.zeros(len(parents))  # ending in its phone, and in a blank after it
    silent[0], scale = 1.0, 0.0
    both, entered = np.empty_like(spoken), np.empty_like(spoken)
    for begin in range(0, len(probabilities), _SCALED):
        frames = probabilities[begin : begin + _SCALED]
        for given, blank in zip(frames.take(phones, axis=1), frames[:, BLANK].tolist(), strict=True):
            np.add(spoken, silent, out=both)
            both.take(parents, out=entered, mode="clip")
            entered[alike] = silent[before]
            entered += spoken
            np.multiply(entered, given, out=spoken)
            spoken[0] = 0.0  # of nothing
            np.multiply(both, blank, out=silent)
        most = max(float(spoken.max()), float(silent.max()), _LEAST)
        scale += math.log(most)
        spoken /= most
        silent /= most
    return (spoken + silent)[ends], scale


def _beginnings(hypotheses: Sequence[Sequence[int]]) -> tuple[Integers, Integers, Integers]:
    """The tree of what hypotheses begin with, parents first: of each beginning its parent and its last phone [M], the
    first being empty; and which of them each hypothesis is [N]."""
    numbers: dict[tuple[int, int], int] = {}
    parents, phones, ends = [0], [BLANK], []
    for sequence in hypotheses:
        at = 0
        for phone in sequence:
            longer = numbers.get((at, phone))
            if longer is None:
                longer = numbers[at, phone] = len(parents)
                parents.append(at)
                phones.append(phone)
            at = longer
        ends.append(at)
    return np.array(parents), np.array(phones), np.array(ends)


def open_graph(
    graph: bytes, architecture: AnyArchitecture, source: str, threads: int = 1
) -> tuple[InferenceSession, Pronunciation]:
    """The session of a CTC head's graph, and how texts are said in its phones. Raises BundleError for what is no such
    graph, and for one that listens to another architecture."""
    session = open_session(graph, source, architecture=architecture, threads=threads)
    if [each.name for each in session.get_inputs()] != ["encoded"]:
        raise BundleError(f"{source}: found other inputs than encoded [T, J]; expected a CTC head's graph")
    try:
        return session, _read(metadata(session, source).get(PRONUNCIATION_KEY, ""))
    except ValueError as error:
        raise BundleError(f"{source}: metadata {PRONUNCIATION_KEY}, {error}; train the head again") from error


@lru_cache(maxsize=4)
def _read(written: str) -> Pronunciation:
    """Once for all models of a device: it takes longer than all else that a head is loaded for."""
    return Pronunciation.read(written)
