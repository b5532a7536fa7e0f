"""Frame-synchronous beam search for a transducer: batched, merging the alignments of equal prefixes.

Shape legend: K: frames of a block; B: hypotheses; V: pieces, blank 0; J: joiner size.

The joiner runs on all frames of a block at once for every prefix that enters the beam, and the predictor once for every
prefix; both in batches. Most frames of speech extend no hypothesis: on these the search only adds a blank to each, a
few additions of plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from math import exp, inf, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding.prefixes import Joint, Prefix, PrefixTree
from device_sdk.decoding.settings import DecodingSettings

__all__ = ["Alignments", "Beam", "Path", "advance", "greedy", "paths", "start"]

Float = NDArray[np.float32]
Emissions = tuple[int, "Emissions"] | None
"""Frames of the emitted tokens, last first, as a linked list that alignments share."""

BLANK = 0
_BLOCK = 12  # frames that the joiner looks ahead for a prefix that may be dropped on the next one
_CACHED_PREFIXES = 512


class Alignments(NamedTuple):
    """The alignments of one prefix that the search kept.

    score: log of the sum of their probabilities; gap: what the best one lies below it; emissions: of the best one.
    """

    score: float
    gap: float = 0.0
    emissions: Emissions = None


@dataclass(frozen=True, slots=True)
class Beam:
    """Hypotheses after ``frame`` frames, best first: distinct prefixes of ``tree``, and the alignments of each."""

    tree: PrefixTree
    prefixes: tuple[Prefix, ...]
    alignments: tuple[Alignments, ...]
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
    return Beam(tree, (tree.root,), (Alignments(0.0),))


def paths(beam: Beam) -> tuple[Path, ...]:
    """The hypotheses of a beam, best first."""
    found = []
    for prefix, alignments in zip(beam.prefixes, beam.alignments, strict=True):
        frames: list[int] = []
        emission = alignments.emissions
        while emission is not None:
            frame, emission = emission
            frames.append(frame)
        found.append(Path(prefix.tokens(), alignments.score, tuple(reversed(frames))))
    return tuple(found)


def advance(beam: Beam, encoded: Float, joint: Joint, settings: DecodingSettings) -> Beam:
    """The beam after the next frames.

    encoded: [K, J] float32, encoder outputs with the joiner's projection.

    Scores are exact sums over the alignments with at most ``settings.symbols_per_frame`` tokens a frame, as long as
    neither ``beam`` nor ``threshold`` removes one of them.
    """
    for at in range(0, len(encoded), _BLOCK):
        beam = _advance(beam, encoded[at : at + _BLOCK], joint, settings)
    return beam


def _advance(beam: Beam, encoded: Float, joint: Joint, settings: DecodingSettings) -> Beam:
    """:func:`advance` over one block."""
    if len(beam.tree) > _CACHED_PREFIXES + 16 * settings.beam:
        beam.tree.compact(beam.prefixes)
    block = _Block(beam.tree, joint, encoded)
    prefixes, alignments = beam.prefixes, beam.alignments
    scores, gaps = [each.score for each in alignments], [each.gap for each in alignments]
    emissions = [each.emissions for each in alignments]
    rows = block.rows(prefixes)
    for here in range(len(encoded)):
        ended = [score + row.blank[here] for score, row in zip(scores, rows, strict=True)]
        limit = _limit(ended, settings)
        extensions = _extensions(scores, rows, here, limit, settings.beam)
        if not extensions:
            scores = ended
            continue
        level = [Alignments(*each) for each in zip(scores, gaps, emissions, strict=True)]
        done = _extend(block, prefixes, level, ended, extensions, here, beam.frame + here, settings)
        prefixes = tuple(done)
        scores, gaps, emissions = map(list, zip(*done.values(), strict=True))
        rows = block.rows(prefixes)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return Beam(
        beam.tree,
        tuple([prefixes[index] for index in order]),
        tuple([Alignments(scores[index], gaps[index], emissions[index]) for index in order]),
        beam.frame + len(encoded),
    )


class _Row(NamedTuple):
    """Log-probabilities of one prefix on the frames of a block, from ``first`` on; before it, nothing is known.

    blank, peak: [K], of blank and of the best label; labels: [K - first, V - 1] float32, without blank.
    """

    first: int
    blank: list[float]
    peak: list[float]
    labels: Float


class _Block:
    """The joiner's outputs on one block, for the prefixes that needed them."""

    __slots__ = ("encoded", "joint", "known", "tree")

    def __init__(self, tree: PrefixTree, joint: Joint, encoded: Float) -> None:
        self.tree, self.joint, self.encoded = tree, joint, encoded
        self.known: dict[Prefix, _Row] = {}

    def rows(self, prefixes: Sequence[Prefix], first: int = 0) -> list[_Row]:
        """One row a prefix; the joiner runs once for those that have none yet, on the frames from ``first`` on."""
        known = self.known
        new = [prefix for prefix in prefixes if prefix not in known]
        if new:
            frames = self.encoded[first:]
            shape = (len(new), *frames.shape)
            encoded, predicted = np.empty(shape, np.float32), np.empty(shape, np.float32)
            encoded[:] = frames
            predicted[:] = self.tree.predicted(new)[:, None]
            scores = self.joint.join(encoded.reshape(-1, shape[2]), predicted.reshape(-1, shape[2]))
            scores = scores.reshape(shape[0], shape[1], -1)
            labels, padding = scores[:, :, BLANK + 1 :], [0.0] * first
            blank, peak = scores[:, :, BLANK].tolist(), labels.max(axis=2).tolist()
            for index, prefix in enumerate(new):
                known[prefix] = _Row(first, padding + blank[index], padding + peak[index], labels[index])
        return [known[prefix] for prefix in prefixes]


class _Extension(NamedTuple):
    """Hypothesis number ``source`` with one more token. score: with that token, before the blank."""

    score: float
    source: int
    token: int


def _limit(scores: Sequence[float], settings: DecodingSettings) -> float:
    """What an extension must exceed. A beam that is not full takes whatever exists: the n-best has its n entries."""
    if len(scores) < settings.beam:
        return -inf
    worst = min(scores) if len(scores) == settings.beam else nlargest(settings.beam, scores)[-1]
    return max(max(scores) - settings.threshold, worst)


def _extensions(scores: Sequence[float], rows: Sequence[_Row], here: int, limit: float, width: int) -> list[_Extension]:
    """The at most ``width`` best one-token extensions above ``limit``, grouped by source."""
    found: list[_Extension] = []
    for source, (score, row) in enumerate(zip(scores, rows, strict=True)):
        if score + row.peak[here] > limit:
            labels = row.labels[here - row.first]
            tokens = (labels >= limit - score).nonzero()[0]
            if len(tokens) > width:
                tokens = np.argpartition(labels, -width)[-width:]
            for token, label in zip(tokens.tolist(), labels[tokens].tolist(), strict=True):
                found.append(_Extension(score + label, source, token + BLANK + 1))
    return found if len(found) <= width else nlargest(width, found)


def _extend(
    block: _Block,
    prefixes: Sequence[Prefix],
    level: list[Alignments],
    ended: list[float],
    extensions: list[_Extension],
    here: int,
    frame: int,
    settings: DecodingSettings,
) -> dict[Prefix, Alignments]:
    """One frame: up to ``symbols_per_frame`` tokens for every hypothesis worth it, then a blank.

    level: the hypotheses before the frame, ``ended`` their scores after its blank, ``extensions`` those with one token.
    Returns the best hypotheses after the frame.
    """
    done = {
        prefix: Alignments(score, each.gap, each.emissions)
        for prefix, score, each in zip(prefixes, ended, level, strict=True)
    }
    for emitted in range(1, settings.symbols_per_frame + 1):
        prefixes = block.tree.extend([prefixes[e.source] for e in extensions], [e.token for e in extensions])
        level = [Alignments(e.score, level[e.source].gap, (frame, level[e.source].emissions)) for e in extensions]
        rows = block.rows(prefixes, here)
        for prefix, each, row in zip(prefixes, level, rows, strict=True):
            new = Alignments(each.score + row.blank[here], each.gap, each.emissions)
            other = done.get(prefix)
            done[prefix] = new if other is None else _merge(other, new)
        if emitted < settings.symbols_per_frame:
            limit = _limit([each.score for each in done.values()], settings)
            extensions = _extensions([each.score for each in level], rows, here, limit, settings.beam)
            if not extensions:
                break
    if len(done) <= settings.beam:
        return done
    return dict(nlargest(settings.beam, done.items(), key=lambda item: item[1].score))


def _merge(a: Alignments, b: Alignments) -> Alignments:
    """Two sets of alignments of one prefix: probabilities add up, the better of the two best alignments stays."""
    high, low = max(a.score, b.score), min(a.score, b.score)
    score = high + log1p(exp(low - high))
    best_a, best_b = a.score - a.gap, b.score - b.gap
    if best_a >= best_b:
        return Alignments(score, score - best_a, a.emissions)
    return Alignments(score, score - best_b, b.emissions)


def greedy(beam: Beam, encoded: Float, joint: Joint, settings: DecodingSettings) -> Beam:
    """The beam of one hypothesis after the next frames: the most probable symbol, until it is blank.

    encoded: [K, J] float32. At most ``settings.symbols_per_frame`` tokens a frame. The score is that of the one
    alignment.
    """
    prefix, (score, _, emissions) = beam.prefixes[0], beam.alignments[0]
    tree, here, total, emitted = beam.tree, 0, len(encoded), 0
    if len(tree) > _CACHED_PREFIXES:
        tree.compact([prefix])
    while here < total:
        rest = encoded[here : here + _BLOCK]
        scores = joint.join(rest, np.repeat(tree.predicted([prefix]), len(rest), axis=0))
        best = scores.argmax(axis=1)
        if emitted == settings.symbols_per_frame:
            best[0] = BLANK
        jump = int((best != BLANK).argmax())
        if best[jump] == BLANK:
            score += float(scores[:, BLANK].sum(dtype=np.float64))
            here, emitted = here + len(rest), 0
            continue
        score += float(scores[:jump, BLANK].sum(dtype=np.float64)) + float(scores[jump, best[jump]])
        emitted = emitted + 1 if jump == 0 else 1
        here += jump
        emissions = (beam.frame + here, emissions)
        prefix = tree.extend([prefix], [int(best[jump])])[0]
    return replace(beam, prefixes=(prefix,), alignments=(Alignments(score, 0.0, emissions),), frame=beam.frame + total)
