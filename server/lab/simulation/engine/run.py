"""A run that can be killed at any moment and goes on from its folder as if nothing had happened."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.rounds import Engine, apply, init
from server.lab.simulation.engine.state import State, load, store

STATE = "state.safetensors"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2_000_000_000


def run(
    plan: Engine,
    folder: Path | None = None,
    weights: Arrays | None = None,
    watch: Callable[[State], None] = lambda _: None,
    save_every: int = 1,
) -> State:
    """All rounds of the settings, from the folder's state where there is one. folder: None keeps nothing.

    weights: to begin with. watch: called after every round. Between the saves nothing leaves this function, so a round
    that is repeated after a kill has released nothing before. DataError: the folder holds a run with other settings.
    """
    keep_freed_memory()
    digest = plan.settings.digest()
    path = None if folder is None else folder / STATE
    if path is not None and path.exists():
        state = load(path, digest)
    else:
        state = init(plan, weights)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            store(path, state, digest)  # with its key, before anything is noised
    while state.number < plan.settings.rounds:
        state = apply(plan, state)
        watch(state)
        if path is not None and (state.number % save_every == 0 or state.number == plan.settings.rounds):
            store(path, state, digest)
    return state


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed for the next round: giving it back to the system and fetching it again takes up to
    a third of a round of small networks. Holds for the whole process, whose memory then stays at its peak.

    Returns False, and changes nothing, where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER) and mallopt(_MMAP_THRESHOLD, _NEVER))
