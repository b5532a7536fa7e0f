"""One measured figure, its peer in the same run, its target, and whether it holds; and how ways are timed."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement. ours, peer_value: in ``unit``; peer: whose value that is, None where there is no peer. target:
    what ``ratio`` (or ``ours`` where there is no peer) must reach; None where nothing is claimed. lower_is_better: then
    the figure holds when it is at most the target."""

    metric: str
    unit: str
    ours: float
    peer: str | None = None
    peer_value: float | None = None
    target: float | None = None
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """ours / peer."""
        return self.ours / self.peer_value if self.peer_value else None

    @property
    def holds(self) -> bool | None:
        if self.target is None:
            return None
        value = self.ours if self.ratio is None else self.ratio
        return value <= self.target if self.lower_is_better else value >= self.target

    def as_json(self) -> dict[str, Any]:
        names = ("metric", "unit", "ours", "peer", "peer_value", "ratio", "target", "holds")
        return {name: getattr(self, name) for name in names}


def as_json(name: str, figures: Sequence[Figure]) -> dict[str, Any]:
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {"name": name, "machine": machine, "figures": [figure.as_json() for figure in figures]}


def alternate(
    ways: Mapping[str, Callable[[], Any]], turns: int, warm_up: int = 1, clock: Callable[[], float] = process_time
) -> dict[str, float]:
    """Median seconds of each way, which take turns, so that a busy machine slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + turns):
        for name, way in ways.items():
            begin = clock()
            way()
            if turn >= warm_up:
                times[name].append(clock() - begin)
    return {name: median(values) for name, values in times.items()}
