"""Frame-synchronous beam search for a transducer: batched, merging the alignments of equal prefixes.

Shape legend: K: frames of a block; B: hypotheses; V: pieces, blank 0; J: joiner size.

Between two frames that extend some hypothesis nothing happens but blanks, so the joiner runs on all frames of a block
at once for every prefix that enters the beam, and the search jumps from one extending frame to the next. The jump is
exact: it gives what a loop over frames would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log1p

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding.prefixes import Joint, Prefix, PrefixTree
from device_sdk.decoding.settings import DecodingSettings

__all__ = ["Beam", "Path", "advance", "greedy", "paths", "start"]

Float = NDArray[np.float32]
Double = NDArray[np.float64]
Emissions = tuple[int, "Emissions"] | None
"""Frames of the emitted tokens, last first, as a linked list that alignments share."""

BLANK = 0
_CACHED_PREFIXES = 512


@dataclass(frozen=True, slots=True)
class Beam:
    """Hypotheses after ``frame`` frames, best first.

    prefixes: B distinct prefixes of ``tree``.
    scores: [B] float64, log of the sum over the alignments kept of each prefix.
    gaps: [B] float64, what the best alignment of each prefix lies below ``scores``.
    emissions: where that best alignment emitted each token.
    """

    tree: PrefixTree
    prefixes: tuple[Prefix, ...]
    scores: Double
    gaps: Double
    emissions: tuple[Emissions, ...]
    frame: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """One prefix of a beam. score: nats; frames: the frame that emitted each token, in the best alignment."""

    tokens: tuple[int, ...]
    score: float
    frames: tuple[int, ...]


def start(joint: Joint) -> Beam:
    """The beam before the first frame: the empty prefix."""
    tree = PrefixTree(joint)
    return Beam(tree, (tree.root,), np.zeros(1), np.zeros(1), (None,))


def paths(beam: Beam) -> tuple[Path, ...]:
    """The hypotheses of a beam, best first."""
    found = []
    for prefix, score, emission in zip(beam.prefixes, beam.scores.tolist(), beam.emissions, strict=True):
        frames: list[int] = []
        while emission is not None:
            frame, emission = emission
            frames.append(frame)
        found.append(Path(prefix.tokens(), score, tuple(reversed(frames))))
    return tuple(found)


def advance(beam: Beam, encoded: Float, joint: Joint, settings: DecodingSettings) -> Beam:
    """The beam after the next frames.

    encoded: [K, J] float32, encoder outputs with the joiner's projection.

    Scores are exact sums over the alignments with at most ``settings.symbols_per_frame`` tokens a frame, as long as
    neither ``beam`` nor ``threshold`` removes one of them.
    """
    if len(encoded) == 0:
        return beam
    if len(beam.tree) > _CACHED_PREFIXES + 16 * settings.beam:
        beam.tree.compact(beam.prefixes)
    table = _Table(beam.tree, joint, encoded)
    table.add(beam.prefixes, 0)
    here, total = 0, len(encoded)
    while here < total:
        jump, beam = _blanks(beam, table, here, settings)
        here += jump
        if here < total:
            beam = _extend(beam, table, here, settings)
            here += 1
    return beam


class _Table:
    """Log-probabilities of one block, for the prefixes that needed them.

    labels: [slots, K, V] float32 with -inf at blank; peak: [slots, K] float32, its largest; blank: [slots, K] float64.
    """

    __slots__ = ("blank", "encoded", "joint", "labels", "peak", "slot", "tree")

    def __init__(self, tree: PrefixTree, joint: Joint, encoded: Float) -> None:
        self.tree, self.joint, self.encoded = tree, joint, encoded
        self.slot: dict[Prefix, int] = {}
        self.labels = np.empty((0, len(encoded), 0), np.float32)
        self.peak = np.empty((0, len(encoded)), np.float32)
        self.blank = np.empty((0, len(encoded)), np.float64)

    def add(self, prefixes: tuple[Prefix, ...] | list[Prefix], first: int) -> None:
        """Run the joiner for those of ``prefixes`` that have no slot, on the frames from ``first`` on."""
        new = [prefix for prefix in prefixes if prefix not in self.slot]
        if not new:
            return
        predicted = self.tree.predicted(new)
        frames = self.encoded[first:]
        rows, columns = len(new), len(frames)
        tiled = np.broadcast_to(frames, (rows, *frames.shape)).reshape(rows * columns, -1)
        scores = self.joint.join(tiled, np.repeat(predicted, columns, axis=0)).reshape(rows, columns, -1)
        begin, end = len(self.slot), len(self.slot) + rows
        if end > len(self.peak):
            self._grow(end, scores.shape[2])
        labels = self.labels[begin:end, first:]
        labels[...] = scores
        labels[:, :, BLANK] = -np.inf
        self.blank[begin:end, first:] = scores[:, :, BLANK]
        labels.max(axis=2, out=self.peak[begin:end, first:])
        for slot, prefix in enumerate(new, begin):
            self.slot[prefix] = slot

    def slots(self, prefixes: tuple[Prefix, ...] | list[Prefix]) -> list[int]:
        slot = self.slot
        return [slot[prefix] for prefix in prefixes]

    def _grow(self, needed: int, pieces: int) -> None:
        size, columns, used = max(16, 2 * needed), len(self.encoded), len(self.slot)
        labels = np.empty((size, columns, pieces), np.float32)
        peak, blank = np.empty((size, columns), np.float32), np.empty((size, columns), np.float64)
        if used:
            labels[:used], peak[:used], blank[:used] = self.labels[:used], self.peak[:used], self.blank[:used]
        self.labels, self.peak, self.blank = labels, peak, blank


def _blanks(beam: Beam, table: _Table, here: int, settings: DecodingSettings) -> tuple[int, Beam]:
    """Pass over the frames that extend no hypothesis. Returns (how many they are, the beam after them)."""
    slots = table.slots(beam.prefixes)
    running = np.empty((len(slots), len(table.encoded) - here + 1))
    running[:, 0] = beam.scores
    running[:, 1:] = table.blank[slots, here:]
    np.cumsum(running, axis=1, out=running)
    before, after = running[:, :-1], running[:, 1:]
    if len(slots) < settings.beam:
        jump = 0  # A beam that is not full takes whatever exists, so that the n-best list has its n entries.
    else:
        limit = np.maximum(after.max(axis=0) - settings.threshold, after.min(axis=0))
        extending = (before + table.peak[slots, here:] > limit).any(axis=0)
        jump = int(extending.argmax())
        if not extending[jump]:
            jump = len(extending)
    if jump == 0:
        return 0, beam
    order = np.argsort(-running[:, jump], kind="stable").tolist()
    return jump, Beam(
        beam.tree,
        tuple([beam.prefixes[i] for i in order]),
        running[order, jump],
        beam.gaps[order],
        tuple([beam.emissions[i] for i in order]),
        beam.frame + jump,
    )


def _extend(beam: Beam, table: _Table, here: int, settings: DecodingSettings) -> Beam:
    """One frame: up to ``symbols_per_frame`` tokens, then a blank, for every hypothesis worth it."""
    width, frame = settings.beam, beam.frame
    prefixes: tuple[Prefix, ...] | list[Prefix] = beam.prefixes
    scores, gaps = beam.scores, beam.gaps.tolist()
    emissions: tuple[Emissions, ...] | list[Emissions] = beam.emissions
    done: dict[Prefix, tuple[float, float, Emissions]] = {}
    for level in range(settings.symbols_per_frame + 1):
        slots = table.slots(prefixes)
        ended = (scores + table.blank[slots, here]).tolist()
        for prefix, score, gap, emission in zip(prefixes, ended, gaps, emissions, strict=True):
            other = done.get(prefix)
            done[prefix] = (score, gap, emission) if other is None else _merge(other, (score, gap, emission))
        if level == settings.symbols_per_frame:
            break
        limit = -np.inf
        if len(done) >= width:
            ranked = sorted([item[0] for item in done.values()], reverse=True)
            limit = max(ranked[0] - settings.threshold, ranked[width - 1])
        sources, tokens, scores = _best_extensions(scores[:, None] + table.labels[slots, here], limit, width)
        if not sources:
            break
        prefixes = beam.tree.extend([prefixes[source] for source in sources], tokens)
        gaps = [gaps[source] for source in sources]
        emissions = [(frame, emissions[source]) for source in sources]
        table.add(prefixes, here)
    kept = sorted(done.items(), key=lambda item: -item[1][0])[:width]
    return Beam(
        beam.tree,
        tuple([prefix for prefix, _ in kept]),
        np.array([item[0] for _, item in kept]),
        np.array([item[1] for _, item in kept]),
        tuple([item[2] for _, item in kept]),
        frame + 1,
    )


def _best_extensions(totals: Double, limit: float, width: int) -> tuple[list[int], list[int], Double]:
    """The at most ``width`` largest of ``totals`` [B, V] above ``limit``: (rows, tokens, scores)."""
    flat = totals.ravel()
    chosen = np.flatnonzero(flat > limit)
    if len(chosen) > width:
        chosen = chosen[np.argpartition(flat[chosen], -width)[-width:]]
    rows, tokens = np.divmod(chosen, totals.shape[1])
    return rows.tolist(), tokens.tolist(), flat[chosen]


def _merge(a: tuple[float, float, Emissions], b: tuple[float, float, Emissions]) -> tuple[float, float, Emissions]:
    """Two sets of alignments of one prefix: scores add up, the better of the two best alignments stays."""
    high, low = max(a[0], b[0]), min(a[0], b[0])
    score = high + log1p(exp(low - high))
    best_a, best_b = a[0] - a[1], b[0] - b[1]
    return (score, score - best_a, a[2]) if best_a >= best_b else (score, score - best_b, b[2])


def greedy(beam: Beam, encoded: Float, joint: Joint, settings: DecodingSettings) -> Beam:
    """The beam of one hypothesis after the next frames: the most probable symbol, until it is blank.

    encoded: [K, J] float32. At most ``settings.symbols_per_frame`` tokens a frame. The score is that of the one
    alignment.
    """
    prefix, score, emission = beam.prefixes[0], float(beam.scores[0]), beam.emissions[0]
    tree, here, total, emitted = beam.tree, 0, len(encoded), 0
    if len(tree) > _CACHED_PREFIXES:
        tree.compact([prefix])
    while here < total:
        rest = encoded[here:]
        scores = joint.join(rest, np.repeat(tree.predicted([prefix]), len(rest), axis=0))
        best = scores.argmax(axis=1)
        if emitted == settings.symbols_per_frame:
            best[0] = BLANK
        jump = int((best != BLANK).argmax())
        if best[jump] == BLANK:
            score += float(scores[:, BLANK].sum(dtype=np.float64))
            break
        score += float(scores[:jump, BLANK].sum(dtype=np.float64)) + float(scores[jump, best[jump]])
        emitted = emitted + 1 if jump == 0 else 1
        here += jump
        emission = (beam.frame + here, emission)
        prefix = tree.extend([prefix], [int(best[jump])])[0]
    return replace(beam, prefixes=(prefix,), scores=np.array([score]), emissions=(emission,), frame=beam.frame + total)
