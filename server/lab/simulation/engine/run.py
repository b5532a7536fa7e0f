"""A run that can be killed at any moment and goes on from its folder as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from server.lab.simulation.engine.memory import keep_freed_memory
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.rounds import Engine, apply, init
from server.lab.simulation.engine.state import State, load, store

__all__ = ["STATE", "run"]

STATE = "state.safetensors"


def run(
    plan: Engine,
    folder: Path | None = None,
    weights: Arrays | None = None,
    watch: Callable[[State], Mapping[str, Any] | None] = lambda _: None,
    save_every: int = 1,
) -> State:
    """All rounds of the settings, from the folder's state where there is one. folder: None keeps nothing.

    weights: to begin with. watch: called after every round; what it returns joins the round's figures. Between the
    saves nothing leaves this function, so a round that is repeated after a kill has released nothing before.
    DataError: the folder holds a run with other settings.
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
        if more := watch(state):
            state = replace(state, history=(*state.history[:-1], {**state.history[-1], **more}))
        if path is not None and (state.number % save_every == 0 or state.number == plan.settings.rounds):
            store(path, state, digest)
    return state
