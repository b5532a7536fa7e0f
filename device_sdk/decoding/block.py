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
_FEW = 512  # pieces; of more, lists of all that are above take longer than numpy does


def edges(scores: Float) -> tuple[list[list[float]], list[list[float]]]:
    """Log-probabilities [B, K, V] of blank and of the best label: two lists of B lists of K."""
    prefixes, frames, pieces = scores.shape
    if _quick and pieces % _VECTOR == 0 and scores.flags.c_contiguous:
        found: tuple[list[list[float]], list[list[float]]] = _native.edges(prefixes, frames, pieces, scores)
        return found
    return scores[:, :, 0].tolist(), np.maximum.reduce(scores[:, :, 1:], axis=2).tolist()


def above(scores: Float, prefix: int, frame: int, limit: float, most: int) -> tuple[list[int], list[float]]:
    """Labels of one row of [B, K, V] whose log-probability is above ``limit``, the ``most`` best of them, and these."""
    if _quick and scores.shape[2] <= _FEW and scores.flags.c_contiguous:
        _, frames, pieces = scores.shape
        labels, values = _native.above(prefix * frames + frame, pieces, scores, limit)
        if len(labels) > most:
            best = sorted(range(len(labels)), key=values.__getitem__)[-most:]
            labels, values = [labels[at] for at in best], [values[at] for at in best]
        return labels, values
    row = scores[prefix, frame, 1:]
    places = (row > limit).nonzero()[0]
    if len(places) > most:
        places = np.argpartition(row, -most)[-most:]
    return (places + 1).tolist(), row[places].tolist()


Heard = tuple[tuple[int, Float], ...]
"""``(first frame, encoder outputs [K, J])`` of blocks, in their order."""

BLANK = 0
_ASIDE = 1.0  # nats below what is extended; the best hypothesis seldom loses that much on the others at once


class Row:
    """Log-probabilities of one prefix on the frames of a block, from the ``first`` on; before it, nothing is known.
    blank: [K]; peak: [K], of the best label; scores: [B, K - first, V] float32, of prefixes, this one at ``place``."""

    __slots__ = ("blank", "first", "peak", "place", "scores")

    def __init__(self, first: int, blank: list[float], peak: list[float], scores: Float, place: int) -> None:
        self.first = first
        self.blank = blank
        self.peak = peak
        self.scores = scores
        self.place = place


class Extension:
    """A hypothesis with one more token. rank: with its bonus; score: with the token, before the blank; both in nats."""

    __slots__ = ("rank", "score", "source", "token")

    def __init__(self, rank: float, score: float, source: int, token: int) -> None:
        self.rank = rank
        self.score = score
        self.source = source
        self.token = token


def _rank(extension: Extension) -> tuple[float, float, int, int]:
    return extension.rank, extension.score, extension.source, extension.token


class Block:
    """The search over one block: hypotheses, and the joiner's outputs for the prefixes that needed them. After
    :meth:`search`, ``prefixes`` and ``alignments`` are the hypotheses at its end, best first; ``aside`` those of them,
    the last ones, that were set aside, and ``heard`` the blocks that their blanks are still to be taken from."""

    __slots__ = ("_known", "alignments", "aside", "encoded", "frame", "heard", "prefixes", "tree")

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
        self._known: dict[Prefix, Row] = {}

    def search(self, width: int, threshold: float, symbols: int) -> None:
        """width: of the beam; threshold: nats; symbols: tokens that a frame may emit before its blank, 0: one
        instead."""
        here, count, aside = 0, len(self.encoded), self.aside
        while here < count:
            prefixes, level = self.prefixes, self.alignments
            rows = self._rows(prefixes, 0)
            scores = [each.score for each in level]
            here, scores, extensions = self._blanks(prefixes, rows, scores, here, width, threshold)
            if extensions:
                done = self._extend(prefixes, rows, scores, level, extensions, here, width, threshold, symbols)
                here += 1
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

    def _rows(self, prefixes: list[Prefix], first: int) -> list[Row]:
        """One row a prefix; the joiner runs once for those that have none yet, on the frames from ``first`` on."""
        known = self._known
        new = [prefix for prefix in prefixes if prefix not in known]
        if new:
            encoded: Any = self.encoded[first:] if first else self.encoded
            scores = _join(self.tree, new, encoded)
            blanks, peaks = edges(scores)
            for at in range(len(new)):
                blank, peak = blanks[at], peaks[at]
                if first:
                    blank, peak = [0.0] * first + blank, [0.0] * first + peak
                known[new[at]] = Row(first, blank, peak, scores, at)
        return [known[prefix] for prefix in prefixes]

    def _blanks(
        self, prefixes: list[Prefix], rows: list[Row], scores: list[float], here: int, width: int, threshold: float
    ) -> tuple[int, list[float], list[Extension]]:
        """Blanks, up to the next frame that extends a hypothesis, or to the block's end. Returns (that frame, scores
        before, what extends them)."""
        guide, count = self.tree.guide, len(prefixes)
        bonuses = [prefix.bonus for prefix in prefixes]
        hopes = bonuses if guide is None else [prefix.bonus + guide.gain(prefix.guided) for prefix in prefixes]
        full, limit = count + len(self.aside) >= width, -inf
        crowded = full and not self.aside
        for frame in range(here, len(self.encoded)):
            ended = [scores[at] + rows[at].blank[frame] for at in range(count)]
            if full:
                limit = max([ended[at] + bonuses[at] for at in range(count)]) - threshold
            hoped = [scores[at] + hopes[at] + rows[at].peak[frame] for at in range(count)]
            if max(hoped) > limit:
                if crowded:
                    limit = max(limit, _worst([ended[at] + bonuses[at] for at in range(count)], width))
                sources = [at for at in range(count) if hoped[at] > limit]
                if sources:
                    extensions = _extensions(prefixes, scores, rows, sources, frame, limit, width, guide)
                    if extensions:
                        return frame, scores, extensions
            scores = ended
        return len(self.encoded), scores, []

    def _extend(
        self,
        prefixes: list[Prefix],
        rows: list[Row],
        scores: list[float],
        level: list[Alignments],
        extensions: list[Extension],
        here: int,
        width: int,
        threshold: float,
        symbols: int,
    ) -> dict[Prefix, Alignments]:
        """One frame: up to ``symbols`` tokens for every hypothesis worth it, then a blank; or one token in its place.
        level: the hypotheses before the frame, whose scores are ``scores``; ``extensions`` those with one token. Those
        set aside that gain alignments are taken from there. Returns the hypotheses after the frame."""
        tree, guide, aside, frame = self.tree, self.tree.guide, self.aside, self.frame + here
        done: dict[Prefix, Alignments] = {}
        for at in range(len(prefixes)):
            done[prefixes[at]] = Alignments(scores[at] + rows[at].blank[here], level[at].gap, level[at].emissions)
        emitted = 0
        while True:
            emitted += 1
            prefixes = tree.extend([prefixes[each.source] for each in extensions], [each.token for each in extensions])
            level = [
                Alignments(each.score, level[each.source].gap, Emission(frame, level[each.source].emissions))
                for each in extensions
            ]
            rows = self._rows(prefixes, here)
            if aside:
                back = {prefix: aside.pop(prefix) for prefix in prefixes if prefix in aside}
                if back:
                    done.update(settled(tree, back, self.heard, frame + 1))
            for at in range(len(prefixes)):
                prefix, each = prefixes[at], level[at]
                score = each.score + rows[at].blank[here] if symbols else each.score
                new = Alignments(score, each.gap, each.emissions)
                other = done.get(prefix)
                done[prefix] = new if other is None else merge(other, new)
            if emitted >= symbols:
                return done
            ranks = [each.score + prefix.bonus for prefix, each in done.items()]
            full, limit = len(ranks) + len(aside) >= width, -inf
            if full:
                limit = max(ranks) - threshold
            reached = [level[at].score + prefixes[at].bonus for at in range(len(prefixes))]
            if guide is not None:
                reached = [reached[at] + guide.gain(prefixes[at].guided) for at in range(len(prefixes))]
            reached = [reached[at] + rows[at].peak[here] for at in range(len(prefixes))]
            if max(reached) <= limit:
                return done
            if full and len(ranks) >= width:
                limit = max(limit, _worst(ranks, width))
            sources = [at for at in range(len(reached)) if reached[at] > limit]
            if not sources:
                return done
            scores = [each.score for each in level]
            extensions = _extensions(prefixes, scores, rows, sources, here, limit, width, guide)
            if not extensions:
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
        """Those aside follow the others, with estimates of their scores, or with these where their blanks are known."""
        frame, aside = self.frame + len(self.encoded), self.aside
        for prefix, each in list(aside.items()):
            row = self._known.get(prefix)
            if row is not None and each.since >= self.frame + row.first:  # its blanks are known up to here
                score = each.alignments.score
                for blank in row.blank[each.since - self.frame :]:
                    score += blank
                kept = Alignments(score, each.alignments.gap, each.alignments.emissions)
                aside[prefix] = Aside(each.behind, frame, kept)
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
) -> list[Extension]:
    """The at most ``width`` best one-token extensions whose rank is above ``limit``, grouped by hypothesis."""
    found: list[Extension] = []
    for source in sources:
        row, score = rows[source], scores[source]
        if guide is None:
            tokens, labels = above(row.scores, row.place, here - row.first, limit - score, width)
            for at in range(len(tokens)):
                found.append(Extension(score + labels[at], score + labels[at], source, tokens[at]))
        else:
            rank, guided = score + prefixes[source].bonus, prefixes[source].guided
            least, every = limit - guide.gain(guided) - rank, row.scores.shape[2]
            tokens, labels = above(row.scores, row.place, here - row.first, least, every)
            changes = guide.ahead(guided, tokens)
            for at in range(len(tokens)):
                reached = rank + labels[at] + changes[at]
                if reached > limit:
                    found.append(Extension(reached, score + labels[at], source, tokens[at]))
    return found if len(found) <= width else sorted(found, key=_rank, reverse=True)[:width]
