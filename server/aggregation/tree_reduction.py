"""A round's deltas folded by many workers, with a result that does not tell how many they were.

Reports in the order of their ids are cut into leaves of ``LEAF``, of which any worker may fold any to the same partial
sum, to the bit. The partial sums are merged in the order of the leaves, into one total:

    ((0 + leaf 1) + leaf 2) + ... + leaf n

So 1, 2 or 7 workers, in this process or on other machines with processors of this kind, give the same bits. A worker
holds one model's sum and a block of ``UPDATES`` deltas; whoever merges holds the total and one leaf. Where the sum gets
noise, it is of whole numbers (:mod:`server.aggregation.deltas`), of twice the size, one delta after the other."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import Protocol, TypeVar

import numpy as np

from device_sdk.errors import StateError
from device_sdk.wire.delta_codec import decode
from device_sdk.wire.messages import DeltaPlan
from server.aggregation import deltas
from server.aggregation.deltas import DeltaSum, Grid, Weights, in_steps
from server.aggregation.weights_file import parse_tensors
from server.storage.blobs import BlobStore

LEAF = 4 * deltas.UPDATES
"""Reports of one leaf. Part of what a round's result is: another number rounds in another order."""

Task = TypeVar("Task")
Promise = TypeVar("Promise")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Accepted:
    """One report's delta: where its bytes lie, their SHA-256 when they were accepted, and its weight in the mean."""

    blob: str
    sha256: str
    weight: float


@dataclass(frozen=True, slots=True)
class Leaf:
    """Consecutive reports that one worker folds. shapes: of the parameters; plan: how the deltas are written; grid: of
    the sum where it gets noise, and all weights are 1, None where it is in float32."""

    reports: tuple[Accepted, ...]
    shapes: Mapping[str, tuple[int, ...]]
    plan: DeltaPlan
    grid: Grid | None = None


class Workers(Protocol):
    """Who folds leaves."""

    def fold(self, tasks: Iterable[Leaf]) -> Iterator[DeltaSum]:
        """The leaves' partial sums in the order of the leaves, which may be read-only. StateError: a stored delta is
        not what was accepted, or the workers were lost."""

    def close(self) -> None: ...


class LocalWorkers:
    """This process, one leaf after the other."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def fold(self, tasks: Iterable[Leaf]) -> Iterator[DeltaSum]:
        return (fold_leaf(self._blobs, leaf) for leaf in tasks)

    def close(self) -> None:
        """Nothing is held."""


def leaves(
    reports: Sequence[Accepted], shapes: Mapping[str, tuple[int, ...]], plan: DeltaPlan, grid: Grid | None = None
) -> Iterator[Leaf]:
    """reports: in the order of their ids. Raises ValueError for one of another weight than 1 where there is a grid."""
    if grid is not None and any(report.weight != 1 for report in reports):
        raise ValueError("reports: found a weight other than 1; deltas that get noise count alike")
    for start in range(0, len(reports), LEAF):
        yield Leaf(tuple(reports[start : start + LEAF]), shapes, plan, grid)


def fold_leaf(blobs: BlobStore, leaf: Leaf) -> DeltaSum:
    """The leaf's partial sum, with nothing waiting. StateError: a stored delta is not what was accepted."""
    total = deltas.init(leaf.shapes, dtype_of(leaf.grid))
    for report in leaf.reports:
        delta = read_accepted(blobs, report, leaf.plan)
        if leaf.grid is None:
            total = deltas.add(total, delta, report.weight)
        else:
            total = deltas.add_steps(total, in_steps(delta, leaf.grid))
    return deltas.fold(total)


def merge_all(sums: Iterable[DeltaSum], shapes: Mapping[str, tuple[int, ...]], grid: Grid | None = None) -> DeltaSum:
    """The total of partial sums in their order, of a grid or none as they are."""
    return reduce(deltas.merge, sums, deltas.init(shapes, dtype_of(grid)))


def dtype_of(grid: Grid | None) -> type[np.float32 | np.int64]:
    """Of sums on a grid, or on none."""
    return np.float32 if grid is None else np.int64


def read_accepted(blobs: BlobStore, report: Accepted, plan: DeltaPlan) -> Weights:
    """The delta in float32, of the very bytes that were checked when they came. StateError: other ones lie there."""
    content = blobs.get(report.blob)
    if sha256(content).hexdigest() != report.sha256:
        raise StateError(f"{report.blob}: differs from what was accepted; restore it or abandon the round")
    return decode(parse_tensors(content), plan.encoding, plan.scale_per)


def bounded_map(
    tasks: Iterable[Task], submit: Callable[[Task], Promise], wait: Callable[[Promise], Result], count: int
) -> Iterator[Result]:
    """Results in the order of the tasks, of which at most ``count`` are under way or waiting to be taken."""
    underway: deque[Promise] = deque()
    for task in tasks:
        if len(underway) == count:
            yield wait(underway.popleft())
        underway.append(submit(task))
    while underway:
        yield wait(underway.popleft())
