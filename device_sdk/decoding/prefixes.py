"""Hypotheses of a search: token prefixes as a tree, with the prediction network run once for each of them, and the
alignments of a prefix that the search kept."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import BLANK
from device_sdk.decoding.contextual_biasing import UNGUIDED, Guide, Guided
from device_sdk.runtimes.protocol import States, Transducer

Float = NDArray[np.float32]

_FEWEST = 64  # rows that the tree makes room for


class Prefix:
    """A node: the tokens from the root to it. Equal prefixes of one tree are the same object. guided: what the tree's
    guide knows of it, if any; bonus: its bonus, else 0. row: of what the predictor said of it, -1 for none."""

    __slots__ = ("bonus", "depth", "guided", "parent", "row", "token")

    def __init__(self, parent: Prefix | None, token: int, guided: Guided = UNGUIDED) -> None:
        self.parent = parent
        self.token = token
        self.guided = guided
        self.bonus = guided.bonus
        self.row = -1
        self.depth: int = 0 if parent is None else parent.depth + 1

    def tokens(self) -> tuple[int, ...]:
        path: list[int] = []
        node = self
        while node.parent is not None:
            path.append(node.token)
            node = node.parent
        path.reverse()
        return tuple(path)


class PrefixTree:
    """Owns the cached output and state of the prediction network for the prefixes of one utterance. Rows are only ever
    added; :meth:`compact` alone drops those of prefixes that are in no hypothesis any more. Prefixes know their parents
    and the tree knows their children, so that no cycle keeps an utterance in memory after its end."""

    __slots__ = ("_children", "_predicted", "_states", "_used", "guide", "root", "transducer")

    def __init__(self, transducer: Transducer, guide: Guide | None = None) -> None:
        self.transducer = transducer
        self.guide = guide
        self.root = Prefix(None, BLANK, UNGUIDED if guide is None else guide.start())
        predicted, states = transducer.predict(np.array([BLANK], np.int64), None)
        self._predicted: Any = predicted
        self._states: list[Any] = list(states)
        self.root.row = 0
        self._used = 1
        self._children: dict[tuple[Prefix, int], Prefix] = {}

    def __len__(self) -> int:
        """Prefixes whose prediction is cached."""
        return self._used

    def extend(self, parents: list[Prefix], tokens: list[int]) -> list[Prefix]:
        """The prefixes ``parents[i] + tokens[i]``; those not seen before go through the predictor in one batch. Every
        parent must be cached, which holds for every prefix that this method returned."""
        nodes: list[Prefix] = []
        new: list[Prefix] = []
        source: list[int] = []
        for at in range(len(parents)):
            node = self._child(parents[at], tokens[at])
            nodes.append(node)
            if node.row < 0:
                node.row = self._used + len(new)
                new.append(node)
                source.append(parents[at].row)
        if new:
            ids = np.array([node.token for node in new], np.int64)
            try:
                predicted, states = self.transducer.predict(ids, self._chosen(source))
            except BaseException:
                for node in new:
                    node.row = -1
                raise
            start, stop = self._used, self._used + len(new)
            if stop > len(self._predicted):
                self._grow(stop)
            self._predicted[start:stop] = predicted
            for at in range(len(states)):
                self._states[at][:, start:stop] = states[at]
            self._used = stop
        return nodes

    def predicted(self, prefixes: list[Prefix]) -> Float:
        """Outputs of the prediction network for cached prefixes: [B, J]."""
        if len(prefixes) == 1:
            row = prefixes[0].row
            one: Float = self._predicted[row : row + 1]  # most often; a view is quicker
            return one
        found: Float = self._predicted.take([prefix.row for prefix in prefixes], axis=0)
        return found

    def compact(self, live: Sequence[Prefix]) -> None:
        """Forget every prefix that is neither live nor on the way to a live one."""
        rows = [prefix.row for prefix in live]
        self._predicted, self._states = self._predicted[rows], [each[:, rows] for each in self._states]
        self._used = len(live)
        kept: set[Prefix] = {self.root}
        for prefix in live:
            node = prefix
            while node not in kept:
                kept.add(node)
                assert node.parent is not None
                node = node.parent
        for node in kept:
            node.row = -1
        self._children = {(node.parent, node.token): node for node in kept if node.parent is not None}
        for row in range(len(live)):
            live[row].row = row

    def restart(self, live: Sequence[Prefix]) -> None:
        """From here on, predict what follows the live prefixes as at the start of an utterance; forget all others."""
        self.compact(live)
        predicted, states = self.transducer.predict(np.array([self.root.token], np.int64), None)
        self._predicted = np.repeat(predicted, len(live), axis=0)
        self._states = [np.repeat(each, len(live), axis=1) for each in states]

    def _chosen(self, rows: list[int]) -> States:
        """States of cached prefixes, each [layers, B, ...]."""
        states = self._states
        if len(rows) == 1 and len(states[0]) == 1:
            row = rows[0]
            return tuple([each[:, row : row + 1] for each in states])
        places: Any = np.array(rows)
        return tuple([each.take(places, axis=1) for each in states])

    def child(self, parent: Prefix, token: int) -> Prefix | None:
        """The prefix ``parent + token``, where it was ever made."""
        return self._children.get((parent, token))

    def _child(self, parent: Prefix, token: int) -> Prefix:
        found = self.child(parent, token)
        if found is None:
            guide = self.guide
            found = Prefix(parent, token, UNGUIDED if guide is None else guide.step(parent.guided, token))
            self._children[parent, token] = found
        return found

    def _grow(self, needed: int) -> None:
        size = max(_FEWEST, 2 * needed)
        self._predicted = _grown(self._predicted, 0, self._used, size)
        self._states = [_grown(each, 1, self._used, size) for each in self._states]


def _grown(array: Float, axis: int, used: int, size: int) -> Float:
    """With room for ``size`` along an axis, of which the first ``used`` are kept."""
    shape = list(array.shape)
    shape[axis] = size
    wider: Any = np.empty(shape, array.dtype)
    kept = (slice(None),) * axis + (slice(used),)
    wider[kept] = array[kept]
    return wider


class Emission:
    """The frame that emitted a token, and what was emitted before it: a linked list that alignments share."""

    __slots__ = ("before", "frame")

    def __init__(self, frame: int, before: Emission | None) -> None:
        self.frame: Final = frame
        self.before: Final = before


class Alignments:
    """The alignments of one prefix. score: log of their summed probability; gap, emissions: of the best one."""

    __slots__ = ("emissions", "gap", "score")

    def __init__(self, score: float, gap: float = 0.0, emissions: Emission | None = None) -> None:
        self.score: Final = score
        self.gap: Final = gap
        self.emissions: Final = emissions

    def frames(self) -> tuple[int, ...]:
        """Those that emitted the tokens, in the best alignment."""
        found: list[int] = []
        emission = self.emissions
        while emission is not None:
            found.append(emission.frame)
            emission = emission.before
        found.reverse()
        return tuple(found)


class Aside:
    """A hypothesis that was ``behind`` nats behind the best one, guide and all, after ``since`` frames. alignments:
    after these frames. It is ranked as if it had stayed that far behind."""

    __slots__ = ("alignments", "behind", "since")

    def __init__(self, behind: float, since: int, alignments: Alignments) -> None:
        self.behind: Final = behind
        self.since: Final = since
        self.alignments: Final = alignments


def merge(a: Alignments, b: Alignments) -> Alignments:
    """Two sets of alignments of one prefix: probabilities add up, the better of the two best alignments stays."""
    if a.score >= b.score:
        high, low = a.score, b.score
    else:
        high, low = b.score, a.score
    score = high + log1p(exp(low - high))
    best_a, best_b = a.score - a.gap, b.score - b.gap
    if best_a >= best_b:
        return Alignments(score, score - best_a, a.emissions)
    return Alignments(score, score - best_b, b.emissions)


def descends(prefix: Prefix, ancestor: Prefix) -> bool:
    """Whether a prefix is the other one, or begins with it."""
    depth = ancestor.depth
    node: Prefix | None = prefix
    while node is not None and node.depth > depth:
        node = node.parent
    return node is ancestor


def shared_prefix(prefixes: Sequence[Prefix], alignments: Sequence[Alignments], threshold: float) -> Prefix:
    """The longest prefix of all hypotheses, best first, that may still be extended. threshold: nats below the best."""
    shared = prefixes[0]
    least = alignments[0].score + shared.bonus - threshold
    for at in range(1, len(prefixes)):
        other = prefixes[at]
        if alignments[at].score + other.bonus < least:
            continue
        while other is not shared:
            if other.depth >= shared.depth and other.parent is not None:
                other = other.parent
            elif shared.parent is not None:
                shared = shared.parent
    return shared
