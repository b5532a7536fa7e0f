"""Which way clients are computed in."""

from __future__ import annotations

from collections.abc import Callable

from device_sdk.errors import ConfigurationError
from server.lab.simulation.engine.ghost import Ghost
from server.lab.simulation.engine.grouped import Grouped
from server.lab.simulation.engine.layers import unsupported
from server.lab.simulation.engine.loop import Loop
from server.lab.simulation.engine.population import Task
from server.lab.simulation.engine.settings import EngineSettings, LocalWork, Privacy
from server.lab.simulation.engine.updates import Worker

__all__ = ["worker"]


def worker(task: Task, settings: EngineSettings) -> Worker:
    """The way that the settings ask for, or the quickest that can be gone.

    Raises ConfigurationError where the way asked for cannot be gone, saying why.
    """
    reason = unsupported(task.network)
    way = settings.way
    if way in ("ghost", "grouped") and reason is not None:
        raise ConfigurationError(f"way: {way!r} cannot be gone, since {reason}; use 'loop'")
    if way == "auto":
        simple = settings.one_step and settings.averaging == "mean" and settings.weighting != "word_error"
        way = "loop" if reason is not None else "ghost" if simple else "grouped"
    kinds: dict[str, Callable[[Task, LocalWork, Privacy | None], Worker]]
    kinds = {"ghost": Ghost, "grouped": Grouped, "loop": Loop}
    return kinds[way](task, settings.local, settings.privacy)
