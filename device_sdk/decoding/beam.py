"""Frame-synchronous beam search for a transducer: batched, merging the alignments of equal prefixes.

Shape legend: K: frames of a block; B: hypotheses; V: pieces, blank 0; J: joiner size.

The joiner runs on all frames of a block at once for every prefix that enters the beam, and the predictor once for every
prefix; both in batches. Most frames of speech extend no hypothesis: on these the search only adds a blank to each, a
few additions of plain numbers. Hypotheses too far behind to be extended are set aside: their blanks are added when
somebody asks for their scores, which for most of them, dropped by then, nobody does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding.guides import NOTHING, Guide
from device_sdk.decoding.prefixes import Joint, Prefix, PrefixTree
from device_sdk.decoding.settings import DecodingSettings

__all__ = ["Alignments", "Beam", "Path", "advance", "greedy", "paths", "start"]

Float = NDArray[np.float32]
Emissions = tuple[int, "Emissions"] | None
"""Frames of the emitted tokens, last first, as a linked list that alignments share."""

BLANK = 0
_BLOCK = 12  # frames that the joiner looks ahead for a prefix that may be dropped on the next one
_CACHED_PREFIXES = 512
_ASIDE = 1.0  # nats below what is extended; the best hypothesis seldom loses that much on the others at once


class Alignments(NamedTuple):
    """The alignments of one prefix that the search kept.

    score: log of the sum of their probabilities; gap: what the best one lies below it; emissions: of the best one.
    """

    score: float
    gap: float = 0.0
    emissions: Emissions = None


_Kept = tuple[float, float, Emissions]
"""The same as :class:`Alignments`, quicker to make; the loops below make many."""


class _Aside(NamedTuple):
    """A hypothesis that was ``behind`` nats behind the best one, guide and all, after ``since`` frames.

    alignments: after these frames. It is ranked as if it had stayed that far behind.
    """

    behind: float
    since: int
    alignments: Alignments


@dataclass(frozen=True, slots=True)
class Beam:
    """Hypotheses after ``frame`` frames, best first: distinct prefixes of ``tree``, and the alignments of each.

    aside: those of ``prefixes``, its last ones, whose last blanks are still to be added; their scores in ``alignments``
    are estimates. heard: ``(first frame, encoder outputs [K, J])`` of the blocks that they need for it.
    """

    tree: PrefixTree
    prefixes: tuple[Prefix, ...]
    alignments: tuple[Alignments, ...]
    frame: int = 0
    aside: Mapping[Prefix, _Aside] = field(default_factory=dict)
    heard: tuple[tuple[int, Float], ...] = ()


@dataclass(frozen=True, slots=True)
class Path:
    """One prefix of a beam.

    score: nats, of the transducer; frames: the frame that emitted each token, in the best alignment; hotword, ngram:
    what the search's guide says of the tokens, nats; bonus: what both together add to its rank.
    """

    tokens: tuple[int, ...]
    score: float
    frames: tuple[int, ...]
    hotword: float = 0.0
    ngram: float = 0.0
    bonus: float = 0.0

    @property
    def rank(self) -> float:
        """What paths are sorted by, nats."""
        return self.score + self.bonus


def start(joint: Joint, guide: Guide | None = None) -> Beam:
    """The beam before the first frame: the empty prefix. guide: what else than the transducer the search follows."""
    tree = PrefixTree(joint, guide=guide)
    return Beam(tree, (tree.root,), (Alignments(0.0),))


def paths(beam: Beam) -> tuple[Path, ...]:
    """The hypotheses of a beam, best first, with all of their scores."""
    tree = beam.tree
    found = []
    aside = _settled(tree, beam.aside, beam.heard, beam.frame) if beam.aside else {}
    for prefix, alignments in zip(beam.prefixes, beam.alignments, strict=True):
        score, _, emissions = aside.get(prefix, alignments)
        frames: list[int] = []
        while emissions is not None:
            frame, emissions = emissions
            frames.append(frame)
        frames.reverse()
        parts = NOTHING if tree.guide is None else tree.guide.parts(prefix.guided)
        found.append(Path(prefix.tokens(), score, tuple(frames), *parts))
    return tuple(sorted(found, key=lambda path: -path.rank))


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
    tree = beam.tree
    if len(tree) > _CACHED_PREFIXES + 16 * settings.beam:
        tree.compact(beam.prefixes)
    block = _Block(tree, joint, encoded, beam.frame, (*beam.heard, (beam.frame, encoded)))
    aside = dict(beam.aside)
    live = len(beam.prefixes) - len(aside)
    prefixes: Sequence[Prefix] = beam.prefixes[:live]
    level: Sequence[_Kept] = beam.alignments[:live]
    here, count = 0, len(encoded)
    while here < count:
        rows = block.rows(prefixes)
        scores = [each[0] for each in level]
        here, scores, extensions = _blanks(block, prefixes, rows, scores, here, len(aside), settings)
        if extensions:
            done = _extend(block, prefixes, rows, scores, level, extensions, here, aside, settings)
            here += 1
            prefixes, level = _sorted_out(done, aside, beam.frame + here, settings)
        else:
            level = [(score, each[1], each[2]) for score, each in zip(scores, level, strict=True)]
    return _beam(block, prefixes, level, aside)


def _blanks(
    block: _Block,
    prefixes: Sequence[Prefix],
    rows: Sequence[_Row],
    scores: list[float],
    here: int,
    aside: int,
    settings: DecodingSettings,
) -> tuple[int, list[float], list[_Extension]]:
    """Blanks, up to the next frame that extends a hypothesis, or to the block's end.

    aside: how many hypotheses are. Returns (that frame, scores before it, what extends them there).
    """
    guide = block.tree.guide
    bonuses = [prefix.bonus for prefix in prefixes]
    hopes = bonuses if guide is None else [prefix.bonus + guide.gain(prefix.guided) for prefix in prefixes]
    blanks, peaks = [row[1] for row in rows], [row[2] for row in rows]
    full, threshold = len(prefixes) + aside >= settings.beam, settings.threshold
    crowded, limit = full and not aside, -inf
    for frame in range(here, len(block.encoded)):
        ended = [score + blank[frame] for score, blank in zip(scores, blanks, strict=True)]
        if guide is None:
            ranks, hoped = ended, scores
        else:
            ranks = [score + bonus for score, bonus in zip(ended, bonuses, strict=True)]
            hoped = [score + hope for score, hope in zip(scores, hopes, strict=True)]
        if full:
            limit = max(ranks) - threshold
        for hope, peak in zip(hoped, peaks, strict=True):
            if hope + peak[frame] > limit:
                break
        else:
            scores = ended
            continue
        if crowded:
            limit = max(limit, _worst(ranks, settings.beam))
        sources = [at for at, hope in enumerate(hoped) if hope + peaks[at][frame] > limit]
        if sources:
            extensions = _extensions(prefixes, scores, rows, sources, frame, limit, settings.beam, guide)
            if extensions:
                return frame, scores, extensions
        scores = ended
    return len(block.encoded), scores, []


_Row = tuple[int, list[float], list[float], Float]
"""Log-probabilities of one prefix on the frames of a block, from the first of the four on; before it, nothing is known.

(first, blank [K], best label [K], labels without blank [K - first, V - 1] float32)
"""


class _Block:
    """The joiner's outputs on one block, for the prefixes that needed them. frame: its first one."""

    __slots__ = ("encoded", "frame", "heard", "joint", "known", "tree")

    def __init__(
        self, tree: PrefixTree, joint: Joint, encoded: Float, frame: int, heard: tuple[tuple[int, Float], ...]
    ) -> None:
        self.tree, self.joint, self.encoded, self.frame, self.heard = tree, joint, encoded, frame, heard
        self.known: dict[Prefix, _Row] = {}

    def rows(self, prefixes: Sequence[Prefix], first: int = 0) -> list[_Row]:
        """One row a prefix; the joiner runs once for those that have none yet, on the frames from ``first`` on."""
        known = self.known
        new = [prefix for prefix in prefixes if prefix not in known]
        if new:
            scores = _join(self.tree, new, self.encoded[first:])
            labels, padding = scores[:, :, BLANK + 1 :], [0.0] * first
            blank, peak = scores[:, :, BLANK].tolist(), np.maximum.reduce(labels, axis=2).tolist()
            for index, prefix in enumerate(new):
                known[prefix] = (first, padding + blank[index], padding + peak[index], labels[index])
        return [known[prefix] for prefix in prefixes]


def _join(tree: PrefixTree, prefixes: Sequence[Prefix], encoded: Float) -> Float:
    """Every prefix with every frame. encoded: [K, J]. Returns log-probabilities [B, K, V]."""
    return tree.predictor.join(encoded[None], tree.predicted(prefixes)[:, None])


def _settled(
    tree: PrefixTree, aside: Mapping[Prefix, _Aside], heard: Sequence[tuple[int, Float]], frame: int
) -> dict[Prefix, _Kept]:
    """Hypotheses that were aside, with the blanks of all frames before ``frame`` added."""
    scores = {prefix: each.alignments.score for prefix, each in aside.items()}
    for first, encoded in heard:
        behind = [prefix for prefix, each in aside.items() if each.since < first + len(encoded)]
        if behind and first < frame:
            begin = max(min([aside[prefix].since for prefix in behind]) - first, 0)
            if begin >= frame - first:
                continue
            blanks = _join(tree, behind, encoded[begin : frame - first])[:, :, BLANK].tolist()
            for prefix, each in zip(behind, blanks, strict=True):
                score = scores[prefix]
                for blank in each[max(aside[prefix].since - first - begin, 0) :]:
                    score += blank
                scores[prefix] = score
    return {prefix: (scores[prefix], each.alignments.gap, each.alignments.emissions) for prefix, each in aside.items()}


_Extension = tuple[float, float, int, int]
"""(rank, score with the token but before the blank, number of the hypothesis, the token)"""


def _worst(scores: Sequence[float], beam: int) -> float:
    return min(scores) if len(scores) == beam else sorted(scores, reverse=True)[beam - 1]


def _extensions(
    prefixes: Sequence[Prefix],
    scores: Sequence[float],
    rows: Sequence[_Row],
    sources: Sequence[int],
    here: int,
    limit: float,
    width: int,
    guide: Guide | None,
) -> list[_Extension]:
    """The at most ``width`` best one-token extensions whose rank is above ``limit``, grouped by hypothesis."""
    found: list[_Extension] = []
    for source in sources:
        first, _, _, every = rows[source]
        labels, score = every[here - first], scores[source]
        if guide is None:
            tokens = (labels > limit - score).nonzero()[0]
            if len(tokens) > width:
                tokens = np.argpartition(labels, -width)[-width:]
            for token in tokens.tolist():
                reached = score + labels.item(token)
                found.append((reached, reached, source, token + BLANK + 1))
        else:
            rank, guided = score + prefixes[source].bonus, prefixes[source].guided
            tokens = (labels > limit - guide.gain(guided) - rank).nonzero()[0]
            gained = labels[tokens].tolist()
            ids = (tokens + (BLANK + 1)).tolist()
            for token, label, change in zip(ids, gained, guide.ahead(guided, ids), strict=True):
                if rank + label + change > limit:
                    found.append((rank + label + change, score + label, source, token))
    return found if len(found) <= width else sorted(found, reverse=True)[:width]


def _extend(
    block: _Block,
    prefixes: Sequence[Prefix],
    rows: Sequence[_Row],
    scores: Sequence[float],
    level: Sequence[_Kept],
    extensions: list[_Extension],
    here: int,
    aside: dict[Prefix, _Aside],
    settings: DecodingSettings,
) -> dict[Prefix, _Kept]:
    """One frame: up to ``symbols_per_frame`` tokens for every hypothesis worth it, then a blank.

    level: the hypotheses before the frame, whose scores are ``scores``; ``extensions`` those with one token. Those of
    ``aside`` that gain alignments are taken out of it. Returns the hypotheses after the frame.
    """
    tree, frame = block.tree, block.frame + here
    done: dict[Prefix, _Kept] = {
        prefix: (score + row[1][here], each[1], each[2])
        for prefix, row, score, each in zip(prefixes, rows, scores, level, strict=True)
    }
    emitted = 0
    while True:
        emitted += 1
        prefixes = tree.extend([prefixes[each[2]] for each in extensions], [each[3] for each in extensions])
        level = [(each[1], level[each[2]][1], (frame, level[each[2]][2])) for each in extensions]
        rows = block.rows(prefixes, here)
        if aside:
            back = {prefix: aside.pop(prefix) for prefix in prefixes if prefix in aside}
            if back:
                done |= _settled(tree, back, block.heard, frame + 1)
        for prefix, each, row in zip(prefixes, level, rows, strict=True):
            new = (each[0] + row[1][here], each[1], each[2])
            other = done.get(prefix)
            done[prefix] = new if other is None else _merge(other, new)
        if emitted == settings.symbols_per_frame:
            return done
        ranks = [each[0] + prefix.bonus for prefix, each in done.items()]
        full, limit = len(ranks) + len(aside) >= settings.beam, -inf
        if full:
            limit = max(ranks) - settings.threshold
        scores = [each[0] for each in level]
        hopes = [score + prefix.bonus for score, prefix in zip(scores, prefixes, strict=True)]
        if tree.guide is not None:
            hopes = [hope + tree.guide.gain(prefix.guided) for hope, prefix in zip(hopes, prefixes, strict=True)]
        reached = [hope + row[2][here] for hope, row in zip(hopes, rows, strict=True)]
        if max(reached) <= limit:
            return done
        if full and len(ranks) >= settings.beam:
            limit = max(limit, _worst(ranks, settings.beam))
        sources = [at for at, most in enumerate(reached) if most > limit]
        if not sources:
            return done
        extensions = _extensions(prefixes, scores, rows, sources, here, limit, settings.beam, tree.guide)
        if not extensions:
            return done


def _sorted_out(
    done: dict[Prefix, _Kept], aside: dict[Prefix, _Aside], frame: int, settings: DecodingSettings
) -> tuple[Sequence[Prefix], Sequence[_Kept]]:
    """The best ``settings.beam`` hypotheses of ``done`` and ``aside``, after ``frame`` frames.

    Puts those that fell too far behind aside, and removes from there what is dropped. Returns the others.
    """
    ranks = [each[0] + prefix.bonus for prefix, each in done.items()]
    top = max(ranks)
    least = top - settings.threshold - _ASIDE
    prefixes, level = list(done), list(done.values())
    if min(ranks) < least and len(prefixes) + len(aside) >= settings.beam:  # before that, all are extended
        for prefix, each, rank in zip(prefixes, level, ranks, strict=True):
            if rank < least:
                aside[prefix] = _Aside(top - rank, frame, Alignments(*each))
                del done[prefix]
        prefixes, level = list(done), list(done.values())
    excess = len(prefixes) + len(aside) - settings.beam
    while excess > 0 and aside:
        del aside[max(aside, key=lambda prefix: aside[prefix].behind)]
        excess -= 1
    if excess > 0:
        ranks = [each[0] + prefix.bonus for prefix, each in zip(prefixes, level, strict=True)]
        order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)[: settings.beam]
        prefixes, level = [prefixes[at] for at in order], [level[at] for at in order]
    return prefixes, level


def _beam(block: _Block, prefixes: Sequence[Prefix], level: Sequence[_Kept], aside: dict[Prefix, _Aside]) -> Beam:
    """The beam at the end of a block."""
    ranks = [each[0] + prefix.bonus for prefix, each in zip(prefixes, level, strict=True)]
    order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
    alignments = [Alignments(*level[at]) for at in order]
    first = tuple([prefixes[at] for at in order])
    frame = block.frame + len(block.encoded)
    if not aside:
        return Beam(block.tree, first, tuple(alignments), frame)
    for prefix, (behind, since, (score, gap, emissions)) in aside.items():
        row = block.known.get(prefix)
        if row is not None and since >= block.frame + row[0]:  # its blanks are known up to here
            for blank in row[1][since - block.frame :]:
                score += blank
            aside[prefix] = _Aside(behind, frame, Alignments(score, gap, emissions))
    top, needed = max(ranks), min([each.since for each in aside.values()])
    last = sorted(aside, key=lambda prefix: aside[prefix].behind)
    for prefix in last:
        behind, _, (_, gap, emissions) = aside[prefix]
        alignments.append(Alignments(top - behind - prefix.bonus, gap, emissions))
    heard = tuple([each for each in block.heard if needed < each[0] + len(each[1])])
    return Beam(block.tree, (*first, *last), tuple(alignments), frame, aside, heard)


def _merge(a: _Kept, b: _Kept) -> _Kept:
    """Two sets of alignments of one prefix: probabilities add up, the better of the two best alignments stays."""
    high, low = (a[0], b[0]) if a[0] >= b[0] else (b[0], a[0])
    score = high + log1p(exp(low - high))
    best_a, best_b = a[0] - a[1], b[0] - b[1]
    if best_a >= best_b:
        return score, score - best_a, a[2]
    return score, score - best_b, b[2]


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
        scores = joint.join(rest[None], tree.predicted([prefix])[None])[0]
        best, blanks = scores.argmax(axis=1).tolist(), scores[:, BLANK].tolist()
        if emitted == settings.symbols_per_frame:
            best[0] = BLANK
        for jump, token in enumerate(best):
            if token != BLANK:
                score += scores.item(jump, token)
                emitted = emitted + 1 if jump == 0 else 1
                here += jump
                emissions = (beam.frame + here, emissions)
                prefix = tree.extend([prefix], [token])[0]
                break
            score += blanks[jump]
        else:
            here, emitted = here + len(rest), 0
    return replace(beam, prefixes=(prefix,), alignments=(Alignments(score, 0.0, emissions),), frame=beam.frame + total)
