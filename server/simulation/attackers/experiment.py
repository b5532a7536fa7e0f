"""How much attackers raise word error under each way of averaging: the same fleet with and without them, seed by seed.

Every cell is a whole simulation: real devices learn from what was really said, report to a real server over HTTP, and
held-out voices are recognised with what it published. Attackers know the norm bound and keep to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from device_sdk.bundle import Bundle
from device_sdk.errors import ConfigurationError
from server.simulation.attackers.attacks import ATTACKS, Attack, AttackKind, attackers
from server.simulation.fleet import Task, run_task
from server.simulation.outcomes import Condition, Outcome
from server.simulation.population import Population, Shape, gather
from server.simulation.settings import FleetSettings, SimulationSettings

__all__ = ["AVERAGES", "LEARNING", "Averaging", "Cell", "Part", "Scale", "cells", "run_cells"]

Averaging = Literal["mean", "trimmed", "median"]
AVERAGES: tuple[Averaging, ...] = ("mean", "trimmed", "median")
Part = Literal["held out", "devices"]

LEARNING = Condition("learning", learning=True, supervised=True)
"""Deltas alone, from true transcripts: the surest learning there is, so that attackers have something to undo."""


@dataclass(frozen=True, slots=True)
class Scale:
    """shape: who speaks how much. share: of the devices that attack. kinds: of attack. fleet: how devices learn and
    what the server asks of them, without noise, since that of a robust average is not accounted."""

    shape: Shape = field(default_factory=lambda: Shape(rounds=3, devices=10, each=6, heldout=12, heldout_each=20))
    share: float = 0.2
    kinds: tuple[AttackKind, ...] = ATTACKS
    averages: tuple[Averaging, ...] = AVERAGES
    fleet: FleetSettings = field(default_factory=lambda: FleetSettings(noise_stddev=0.0))
    bundle: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= round(self.share * (self.shape.devices or 0)) < (self.shape.devices or 0):
            raise ConfigurationError(
                f"attackers: found {self.share:g} of {self.shape.devices} devices, expected one or more and not all"
            )


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack (None: all devices are honest) under one way of averaging and one seed.

    heldout: outcomes of voices that no device has; devices: of the honest devices, the same in all cells of a seed.
    """

    attack: AttackKind | None
    averaging: Averaging
    seed: int
    heldout: tuple[Outcome, ...]
    devices: tuple[Outcome, ...]
    seconds: float

    def outcomes(self, part: Part) -> tuple[Outcome, ...]:
        return self.heldout if part == "held out" else self.devices


@dataclass(frozen=True, slots=True)
class _Plan:
    attack: AttackKind | None
    averaging: Averaging
    seed: int
    population: Population
    folder: str


def cells(scale: Scale) -> list[tuple[AttackKind | None, Averaging]]:
    """What is run for every seed: nobody attacks, then every attack, under every way of averaging."""
    return [(kind, averaging) for kind in (None, *scale.kinds) for averaging in scale.averages]


def run_cells(
    scale: Scale, seeds: Sequence[int], workers: int = 1, done: Callable[[Cell, int, int], None] = lambda *_: None
) -> list[Cell]:
    """Every cell of every seed, in the order of seeds and :func:`cells`. workers: processes. done(cell, finished, all).

    Raises whatever ended a simulation as it is.
    """
    voices = Bundle.open(scale.bundle).manifest.training.get("voices", {})
    with tempfile.TemporaryDirectory(prefix="idiolect-attackers-") as name:
        folder = Path(name)
        plans = []
        for seed in seeds:
            population = gather("made", seed, scale.shape, voices, folder / f"speech-{seed}")
            for number, (kind, averaging) in enumerate(cells(scale)):
                plans.append(_Plan(kind, averaging, seed, population, str(folder / f"cell-{seed}-{number}")))
        found: dict[int, Cell] = {}
        # A process for each cell: graphs and sessions of one are gone before the next begins.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            futures = {pool.submit(_run, scale, plan): index for index, plan in enumerate(plans)}
            try:
                for future in as_completed(futures):
                    cell = found[futures[future]] = future.result()
                    done(cell, len(found), len(plans))
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return [found[index] for index in range(len(plans))]


def _run(scale: Scale, plan: _Plan) -> Cell:
    attack = Attack(plan.attack, scale.share) if plan.attack is not None else None
    fleet = replace(scale.fleet, averaging=plan.averaging, attack=attack)
    settings = SimulationSettings(bundle=scale.bundle, seeds=(plan.seed,), shape=scale.shape, fleet=fleet)
    run = run_task(Task(LEARNING, plan.seed, settings, plan.population, plan.folder))
    voices = [voice.name for voice in plan.population.devices]
    suspects = attackers(Attack(ATTACKS[0], scale.share), len(voices), plan.seed)
    honest = {name for number, name in enumerate(voices) if number not in suspects}
    last = scale.shape.rounds - 1
    return Cell(
        plan.attack,
        plan.averaging,
        plan.seed,
        tuple(outcome for outcome in run.outcomes if outcome.held_out),
        tuple(outcome for outcome in run.outcomes if outcome.round == last and outcome.voice in honest),
        run.seconds,
    )
