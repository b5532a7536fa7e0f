"""One block of frames of the beam search.

K: frames of a block; B: hypotheses; V: pieces, blank 0; J: joiner size.

These loops run on plain numbers, a few of them for every frame and hypothesis, so that where an install can compile
them (see CONTRIBUTING.md) they cost next to nothing. What is written here runs as it stands, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.decoding.contextual_biasing import Guide
from device_sdk.decoding.prefixes import Alignments, Aside, Emission, Prefix, PrefixTree, merge
from device_sdk.runtimes.native_kernels import native_module

Float = NDArray[np.float32]

_native: Any = native_module()
_quick = _native is not None and _native.LEVEL > 0
_VECTOR = 16  # pieces that native code reads at once


def edges(scores: Float) -> tuple[list[float], list[float]]:
    """Log-probabilities [B, K, V] of blank and of the best label: two lists of B * K."""
    prefixes, frames, pieces = scores.shape
    if _quick and pieces >= _VECTOR and scores.flags.c_contiguous:
        found: tuple[list[float], list[float]] = _native.edges(prefixes, frames, pieces, scores)
        return found
    return scores[:, :, 0].ravel().tolist(), np.maximum.reduce(scores[:, :, 1:], axis=2).ravel().tolist()


def above(
    scores: list[Float], places: list[int], bases: list[float], limits: list[float], most: int
) -> tuple[list[int], list[int], list[float], list[float]]:
    """Labels whose log-probability is above a limit. scores: an array [N, V] for each of S rows, which is at its place
    there; bases, limits: [S]. Of more than ``most`` labels in all, those whose log-probability is the highest with the
    row's base, best first. Returns (rows, labels, log-probabilities, the same with the bases)."""
    if _quick:
        chosen: tuple[list[int], list[int], list[float], list[float]]
        chosen = _native.above(scores, places, bases, limits, most)
        return chosen
    found: list[tuple[float, int, int, float]] = []
    for at in range(len(scores)):
        row = scores[at][places[at], 1:]
        labels = (row > limits[at]).nonzero()[0]
        values: list[float] = row[labels].tolist()
        tokens: list[int] = labels.tolist()
        found += [(bases[at] + values[each], at, tokens[each] + 1, values[each]) for each in range(len(values))]
    if len(found) > most:
        found = sorted(found, reverse=True)[:most]
    return (
        [each[1] for each in found],
        [each[2] for each in found],
        [each[3] for each in found],
        [each[0] for each in found],
    )


Heard = tuple[tuple[int, Float], ...]
"""``(first frame, encoder outputs [K, J])`` of blocks, in their order."""

BLANK = 0
_FEW = 15  # rows that cost the joiner hardly more than starting it
_ASIDE = 1.0  # nats below what is extended; the best hypothesis seldom loses that much on the others at once


class Row:
    """Log-probabilities of one prefix on frames of a block, from ``first`` to before ``end``. blank, and peak, of the
    best label: [N] floats; scores: [N, V] float32; a frame is ``place`` further in each of them, which prefixes that
    were worked out together share."""

    __slots__ = ("blank", "end", "first", "peak", "place", "scores")

    def __init__(self, first: int, end: int, blank: list[float], peak: list[float], scores: Float, place: int) -> None:
        self.first = first
        self.end = end
        self.blank = blank
        self.peak = peak
        self.scores = scores
        self.place = place


Extensions = tuple[list[float], list[int], list[int], list[float]]
"""Hypotheses with one more token: scores with it, before the blank (nats), which hypotheses they were, the tokens, what
they are ranked by (nats)."""


class Block:
    """The search over one block: hypotheses, and the joiner's outputs for the prefixes that needed them. After
    :meth:`search`, ``prefixes`` and ``alignments`` are the hypotheses at its end, best first; ``aside`` those of them,
    the last ones, that were set aside, and ``heard`` the blocks that their blanks are still to be taken from."""

    __slots__ = ("_ahead", "_known", "alignments", "aside", "encoded", "frame", "heard", "prefixes", "tree")

    def __init__(
        self,
        tree: PrefixTree,
        prefixes: Sequence[Prefix],
        alignments: Sequence[Alignments],
        aside: Mapping[Prefix, Aside],
        heard: Heard,
        frame: int,
        encoded: Float,
    ) -> None:
        """frame: the block's first one; encoded: [K, J]. The others as a beam has them."""
        self.tree = tree
        self.aside = dict(aside)
        live = len(prefixes) - len(aside)
        self.prefixes = list(prefixes[:live])
        self.alignments = list(alignments[:live])
        self.heard: Heard = (*heard, (frame, encoded))
        self.frame = frame
        self.encoded = encoded
        self._ahead = 1
        self._known: dict[Prefix, Row] = {}

    def search(self, width: int, threshold: float, symbols: int, modified: bool = False) -> None:
        """width: of the beam; threshold: nats; symbols: tokens that a frame may emit before its blank, 0: one
        instead. modified: by the rules of sherpa-onnx."""
        here, count, aside = 0, len(self.encoded), self.aside
        while here < count:
            prefixes, level = self.prefixes, self.alignments
            rows = self._rows(prefixes, here)
            scores = [each.score for each in level]
            here, scores, extensions = self._blanks(prefixes, rows, scores, here, width, threshold)
            if extensions is not None:
                done = self._extend(
                    prefixes, rows, scores, level, extensions, here, width, threshold, symbols, modified
                )
                here += 1
                self._ahead = 1
                self._sort_out(done, self.frame + here, width, threshold)
            else:
                self.alignments = [
                    Alignments(scores[at], level[at].gap, level[at].emissions) for at in range(len(level))
                ]
        self._order()
        if aside:
            self._append_aside()
        else:
            self.heard = ()

    def _rows(self, prefixes: list[Prefix], here: int) -> list[Row]:
        """One row a prefix, that knows frame ``here``; the joiner runs once for those that have none. It looks ahead
        the further, the longer nothing was extended: what replaces a prefix makes its frames useless."""
        known = self._known
        new = [prefix for prefix in prefixes if prefix not in known or known[prefix].end <= here]
        if new:
            encoded: Any = self.encoded[here : here + max(self._ahead, _FEW // len(new))]
            self._ahead *= 2
            scores = _join(self.tree, new, encoded)
            blanks, peaks = edges(scores)
            frames = len(encoded)
            flat = np.ascontiguousarray(scores.reshape(-1, scores.shape[2]))
            for at in range(len(new)):
                known[new[at]] = Row(here, here + frames, blanks, peaks, flat, at * frames - here)
        return [known[prefix] for prefix in prefixes]

    def _blanks(
        self, prefixes: list[Prefix], rows: list[Row], scores: list[float], here: int, width: int, threshold: float
    ) -> tuple[int, list[float], Extensions | None]:
        """Blanks, up to the next frame that extends a hypothesis, or to one that a row does not know. Returns (that
        frame, scores before, what extends them)."""
        guide, count = self.tree.guide, len(prefixes)
        bonuses = [prefix.bonus for prefix in prefixes]
        hopes = bonuses if guide is None else [prefix.bonus + guide.gain(prefix.guided) for prefix in prefixes]
        full, limit = count + len(self.aside) >= width, -inf
        crowded = full and not self.aside
        stop = min([row.end for row in rows])
        blanks, peaks, places = [row.blank for row in rows], [row.peak for row in rows], [row.place for row in rows]
        for frame in range(here, stop):
            ended = [scores[at] + blanks[at][places[at] + frame] for at in range(count)]
            if full:
                limit = max([ended[at] + bonuses[at] for at in range(count)]) - threshold
            hoped = [scores[at] + hopes[at] + peaks[at][places[at] + frame] for at in range(count)]
            if max(hoped) > limit:
                if crowded:
                    limit = max(limit, _worst([ended[at] + bonuses[at] for at in range(count)], width))
                sources = [at for at in range(count) if hoped[at] > limit]
                if sources:
                    extensions = _extensions(prefixes, scores, rows, sources, frame, limit, width, guide)
                    if extensions[0]:
                        return frame, scores, extensions
            scores = ended
        return stop, scores, None

    def _extend(
        self,
        prefixes: list[Prefix],
        rows: list[Row],
        scores: list[float],
        level: list[Alignments],
        extensions: Extensions,
        here: int,
        width: int,
        threshold: float,
        symbols: int,
        modified: bool,
    ) -> dict[Prefix, Alignments]:
        """One frame: up to ``symbols`` tokens for every hypothesis worth it, then a blank; or one token in its place.
        level: the hypotheses before the frame, whose scores are ``scores``; ``extensions`` those with one token. Those
        set aside that gain alignments are taken from there. What the beam will have no room for is not predicted. Where
        ``modified``, the ``width`` best of hypotheses with a blank and with a token go on, and equal ones add up only
        where tokens take the place of blanks. Returns the hypotheses after the frame."""
        tree, guide, aside, frame = self.tree, self.tree.guide, self.aside, self.frame + here
        done: dict[Prefix, Alignments] = {}
        for at in range(len(prefixes)):
            row = rows[at]
            blank = row.blank[row.place + here]
            done[prefixes[at]] = Alignments(scores[at] + blank, level[at].gap, level[at].emissions)
        emitted, ranks = 0, [each.score + prefix.bonus for prefix, each in done.items()]
        while True:
            emitted += 1
            scores, sources, tokens, reached = extensions
            if len(done) + len(tokens) > width:
                if modified:
                    least = _worst(ranks + reached, width)
                    done = {prefix: each for prefix, each in done.items() if each.score + prefix.bonus >= least}
                    chosen = [at for at in range(len(reached)) if reached[at] >= least]
                else:
                    unknown: list[int] = []
                    for at in range(len(tokens)):
                        child = tree.child(prefixes[sources[at]], tokens[at])
                        if child is None or not (child in done or child in aside):
                            unknown.append(at)
                    outside = _outside(unknown, reached, ranks, width)
                    chosen = [at for at in range(len(tokens)) if at not in outside]
                if not chosen:
                    return done
                scores, tokens = [scores[at] for at in chosen], [tokens[at] for at in chosen]
                sources = [sources[at] for at in chosen]
            prefixes = tree.extend([prefixes[source] for source in sources], tokens)
            emissions = {source: Emission(frame, level[source].emissions) for source in set(sources)}
            level = [
                Alignments(scores[at], level[sources[at]].gap, emissions[sources[at]]) for at in range(len(sources))
            ]
            if symbols:
                rows = self._rows(prefixes, here)
            if aside:
                back = {prefix: aside.pop(prefix) for prefix in prefixes if prefix in aside}
                if back:
                    done.update(settled(tree, back, self.heard, frame + 1))
            for at in range(len(prefixes)):
                prefix, new = prefixes[at], level[at]
                if symbols:
                    row = rows[at]
                    new = Alignments(new.score + row.blank[row.place + here], new.gap, new.emissions)
                other = done.get(prefix)
                if other is not None and modified and symbols:
                    done[prefix] = other if other.score >= new.score else new
                else:
                    done[prefix] = new if other is None else merge(other, new)
            if emitted >= symbols:
                return done
            ranks = [each.score + prefix.bonus for prefix, each in done.items()]
            full, limit = len(ranks) + len(aside) >= width, -inf
            if full:
                limit = max(ranks) - threshold
            hoped = [level[at].score + prefixes[at].bonus for at in range(len(prefixes))]
            if guide is not None:
                hoped = [hoped[at] + guide.gain(prefixes[at].guided) for at in range(len(prefixes))]
            hoped = [hoped[at] + rows[at].peak[rows[at].place + here] for at in range(len(prefixes))]
            if max(hoped) <= limit:
                return done
            if full and len(ranks) >= width:
                limit = max(limit, _worst(ranks, width))
            sources = [at for at in range(len(hoped)) if hoped[at] > limit]
            if not sources:
                return done
            scores = [each.score for each in level]
            extensions = _extensions(prefixes, scores, rows, sources, here, limit, width, guide)
            if not extensions[0]:
                return done

    def _sort_out(self, done: dict[Prefix, Alignments], frame: int, width: int, threshold: float) -> None:
        """Keeps the best ``width`` hypotheses of ``done`` and of those aside, after ``frame`` frames; puts aside what
        fell too far behind, and removes from there what is dropped."""
        aside = self.aside
        ranks = [each.score + prefix.bonus for prefix, each in done.items()]
        top = max(ranks)
        least = top - threshold - _ASIDE
        prefixes, level = list(done), list(done.values())
        if min(ranks) < least and len(prefixes) + len(aside) >= width:  # before that, all are extended
            for at in range(len(ranks)):
                if ranks[at] < least:
                    aside[prefixes[at]] = Aside(top - ranks[at], frame, level[at])
            kept = [at for at in range(len(ranks)) if not ranks[at] < least]
            prefixes, level = [prefixes[at] for at in kept], [level[at] for at in kept]
            ranks = [ranks[at] for at in kept]
        excess = len(prefixes) + len(aside) - width
        while excess > 0 and aside:
            behind, farthest = -inf, None
            for prefix, away in aside.items():
                if away.behind > behind:
                    behind, farthest = away.behind, prefix
            assert farthest is not None
            del aside[farthest]
            excess -= 1
        if excess > 0:
            order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)[:width]
            prefixes, level = [prefixes[at] for at in order], [level[at] for at in order]
        self.prefixes, self.alignments = prefixes, level

    def _order(self) -> None:
        """Best first."""
        prefixes, level = self.prefixes, self.alignments
        ranks = [level[at].score + prefixes[at].bonus for at in range(len(prefixes))]
        order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
        self.prefixes, self.alignments = [prefixes[at] for at in order], [level[at] for at in order]

    def _append_aside(self) -> None:
        """Those aside follow the others, with estimates of their scores, and with their blanks as far as these are
        known."""
        aside = self.aside
        for prefix, each in list(aside.items()):
            row, begin = self._known.get(prefix), each.since - self.frame
            if row is not None and row.first <= begin < row.end:
                score = each.alignments.score
                for blank in row.blank[row.place + begin : row.place + row.end]:
                    score += blank
                kept = Alignments(score, each.alignments.gap, each.alignments.emissions)
                aside[prefix] = Aside(each.behind, self.frame + row.end, kept)
        top, needed = self.alignments[0].score + self.prefixes[0].bonus, min([each.since for each in aside.values()])
        prefixes = list(aside)
        behind = [aside[prefix].behind for prefix in prefixes]
        for at in sorted(range(len(behind)), key=behind.__getitem__):
            prefix = prefixes[at]
            before = aside[prefix].alignments
            self.prefixes.append(prefix)
            self.alignments.append(Alignments(top - behind[at] - prefix.bonus, before.gap, before.emissions))
        self.heard = tuple([each for each in self.heard if needed < each[0] + len(each[1])])


def settled(tree: PrefixTree, aside: Mapping[Prefix, Aside], heard: Heard, frame: int) -> dict[Prefix, Alignments]:
    """Hypotheses that were aside, with the blanks of all frames before ``frame`` added."""
    scores = {prefix: each.alignments.score for prefix, each in aside.items()}
    for first, encoded in heard:
        behind = [prefix for prefix, each in aside.items() if each.since < first + len(encoded)]
        if behind and first < frame:
            begin = max(min([aside[prefix].since for prefix in behind]) - first, 0)
            if begin >= frame - first:
                continue
            joined: Any = _join(tree, behind, encoded[begin : frame - first])
            blanks: list[list[float]] = joined[:, :, BLANK].tolist()
            for at in range(len(behind)):
                prefix = behind[at]
                score = scores[prefix]
                for blank in blanks[at][max(aside[prefix].since - first - begin, 0) :]:
                    score += blank
                scores[prefix] = score
    return {
        prefix: Alignments(scores[prefix], each.alignments.gap, each.alignments.emissions)
        for prefix, each in aside.items()
    }


def _join(tree: PrefixTree, prefixes: list[Prefix], encoded: Float) -> Float:
    """Every prefix with every frame. encoded: [K, J]. Returns log-probabilities [B, K, V]."""
    return tree.transducer.join(encoded[None], tree.predicted(prefixes)[:, None])


def _outside(new: list[int], reached: list[float], ranks: list[float], width: int) -> set[int]:
    """Which of some hypotheses, by their places in ``reached``, the beam has no room for: they are behind the ``width``
    best of them and of those that have their blank, before they get theirs. ranks: of these."""
    order, best, better = sorted(new, key=reached.__getitem__, reverse=True), sorted(ranks, reverse=True), 0
    for at in range(len(order)):
        while better < len(best) and best[better] > reached[order[at]]:
            better += 1
        if at + better >= width:
            return set(order[at:])
    return set()


def _worst(ranks: list[float], width: int) -> float:
    return min(ranks) if len(ranks) == width else sorted(ranks, reverse=True)[width - 1]


def _extensions(
    prefixes: list[Prefix],
    scores: list[float],
    rows: list[Row],
    sources: list[int],
    here: int,
    limit: float,
    width: int,
    guide: Guide | None,
) -> Extensions:
    """The at most ``width`` best one-token extensions whose rank is above ``limit``."""
    own = [rows[source].scores for source in sources]
    places = [rows[source].place + here for source in sources]
    bases = [scores[source] for source in sources]
    if guide is None:
        chosen, tokens, labels, reached = above(own, places, bases, [limit - base for base in bases], width)
        return reached, [sources[each] for each in chosen], tokens, reached
    ranks = [scores[source] + prefixes[source].bonus for source in sources]
    limits = [limit - guide.gain(prefixes[sources[at]].guided) - ranks[at] for at in range(len(sources))]
    ngram = guide.alone
    if _quick and ngram is not None:
        contexts = [prefixes[source].guided.context for source in sources]
        chosen, tokens, labels, reached = _native.above(
            own, places, ranks, limits, width, contexts, limit, *ngram.native
        )
        sums = [bases[chosen[at]] + labels[at] for at in range(len(chosen))]
        return sums, [sources[each] for each in chosen], tokens, reached
    chosen, tokens, labels, reached = above(own, places, ranks, limits, len(own) * own[0].shape[1])
    found: list[tuple[float, float, int, int]] = []
    stop = 0
    for each in range(len(sources)):
        begin = stop
        while stop < len(chosen) and chosen[stop] == each:
            stop += 1
        changes = guide.ahead(prefixes[sources[each]].guided, tokens[begin:stop])
        for at in range(begin, stop):
            rank = reached[at] + changes[at - begin]
            if rank > limit:
                found.append((rank, bases[each] + labels[at], sources[each], tokens[at]))
    if len(found) > width:
        found = sorted(found, reverse=True)[:width]
    return (
        [each[1] for each in found],
        [each[2] for each in found],
        [each[3] for each in found],
        [each[0] for each in found],
    )
