"""How much attackers raise word error under each way of averaging: one round of real devices, aggregated many times.

Devices learn from what their users say and report to a real server over HTTP; what they sent is kept. The same
reports, some of them poisoned, then go through the server's checks, its averages and its optimizer, and voices that no
device has are recognised with the model that comes out. Attackers know the norm bound and keep to it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.checkin.client import Client
from device_sdk.checkin.identity import Identity
from device_sdk.checkin.outbox import Outgoing
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import ConfigurationError
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.wire.messages import DeltaPlan, Receipt
from server.aggregation import deltas, optimizers, robust
from server.aggregation.validation import read_delta
from server.registry.models import trainable
from server.simulation.attackers.attacks import ATTACKS, Attack, AttackKind, attackers, poisoned
from server.simulation.fleet import Member, Task, hear, listen, opened, round_settings
from server.simulation.outcomes import Condition, Outcome
from server.simulation.population import Population, Shape, gather
from server.simulation.process import ServerProcess
from server.simulation.progress import Tell
from server.simulation.settings import FleetSettings, SimulationSettings

__all__ = ["AVERAGES", "LEARNING", "Averaging", "Cell", "Reports", "Scale", "aggregated", "learned", "run_cells"]

Averaging = Literal["mean", "trimmed", "median"]
AVERAGES: tuple[Averaging, ...] = ("mean", "trimmed", "median")
Weights = Mapping[str, NDArray[np.float32]]

LEARNING = Condition("learning", learning=True, supervised=True)
"""Deltas alone, from true transcripts: the surest learning there is, so that attackers have something to undo."""


@dataclass(frozen=True, slots=True)
class Scale:
    """source: of speech, see :func:`server.simulation.population.gather`; shape: who says how much, in one round.
    share: of the devices that attack. fleet: how devices learn and what the server asks of them, without noise, since
    that of a robust average is not accounted; bundle: path, None for the packaged one."""

    source: str = "made"
    shape: Shape = field(default_factory=lambda: Shape(rounds=1, devices=10, each=12, heldout=12, heldout_each=15))
    share: float = 0.2
    fleet: FleetSettings = field(default_factory=lambda: FleetSettings(noise_stddev=0.0))
    bundle: str | None = None

    def __post_init__(self) -> None:
        if self.shape.rounds != 1:
            raise ConfigurationError(f"rounds: found {self.shape.rounds}, expected 1: its reports are replayed")


@dataclass(frozen=True, slots=True)
class Reports:
    """What the devices of a seed sent, in their order. honest: bodies of all; lied: of those who learned from wrong
    transcripts, by device. plan: what the server asked for."""

    seed: int
    plan: DeltaPlan
    honest: tuple[bytes, ...]
    lied: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack under one way of averaging and one seed. attack: None where all devices are honest; averaging: None
    for the model that the round began with. heldout: what voices say that no device has."""

    attack: AttackKind | None
    averaging: Averaging | None
    seed: int
    heldout: tuple[Outcome, ...]


def run_cells(
    scale: Scale, seeds: Sequence[int], tell: Tell = lambda *_: None, found: Callable[[Cell], None] = lambda _: None
) -> list[Cell]:
    """Every cell of every seed: the model before, nobody attacks, then every attack, under every way of averaging.

    found: is given each cell when it is there. Raises what devices or server raise, as it is.
    """
    bundle = Bundle.open(scale.bundle)
    voices = bundle.manifest.training.get("voices", {})
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="idiolect-attackers-") as name:
        for seed in seeds:
            folder = Path(name) / str(seed)
            population = gather(scale.source, seed, scale.shape, voices, folder / "speech")
            reports = learned(scale, population, seed, folder, tell)
            for attack, averaging in _rows():
                weights = bundle.weights
                if averaging is not None:
                    bodies = sent(reports, attack, scale.share)
                    weights = aggregated(weights, bodies, reports.plan, averaging, _rate(scale, len(bodies)))
                cells.append(Cell(attack, averaging, seed, tuple(_heard(bundle, weights, population))))
                found(cells[-1])
    return cells


def learned(scale: Scale, population: Population, seed: int, folder: Path, tell: Tell = lambda *_: None) -> Reports:
    """Has every device learn, once honestly and, where it is to attack, once from wrong transcripts, and keeps what it
    sends; the server's own checks have passed every report."""
    bundle = Bundle.open(scale.bundle)
    wrong = Attack("wrong transcripts", scale.share)
    chosen = attackers(wrong, len(population.devices), seed)
    settings = SimulationSettings(source=scale.source, bundle=scale.bundle, seeds=(seed,), shape=scale.shape)
    task = Task(LEARNING, seed, replace(settings, fleet=scale.fleet), population, str(folder))
    turns = [(number, False) for number in range(len(population.devices))] + [(each, True) for each in sorted(chosen)]
    bodies: dict[tuple[int, bool], bytes] = {}
    with ServerProcess(folder / "server", scale.bundle) as server, server.operator() as operator:
        plan = round_settings(scale.fleet, LEARNING, len(turns)) | {"goal": None}
        operator.open_round(plan)
        for done, (number, lies) in enumerate(turns):
            place, key = folder / f"device-{number:02d}-{lies}", bytes([number]) * 32
            member = Member(population.devices[number], place, key, wrong if lies else None)
            with opened(member, bundle, task) as device, _KeepingClient(server.url) as client:
                list(hear(device, member, 0, task))
                device.check_in(client, server.token)
                bodies[number, lies] = client.sent[0]
            tell(f"devices, seed {seed}", done + 1, len(turns))
    return Reports(
        seed,
        DeltaPlan.model_validate(plan["deltas"]),
        tuple(bodies[number, False] for number in range(len(population.devices))),
        {number: bodies[number, True] for number in chosen},
    )


def sent(reports: Reports, kind: AttackKind | None, share: float) -> list[bytes]:
    """What the server receives where a share of the devices attacks."""
    if kind is None:
        return list(reports.honest)
    attack = Attack(kind, share)
    chosen = attackers(attack, len(reports.honest), reports.seed)
    begun = {**dict(enumerate(reports.honest)), **(reports.lied if kind == "wrong transcripts" else {})}
    return [
        poisoned(body, reports.plan, attack) if number in chosen else body for number, body in sorted(begun.items())
    ]


def aggregated(
    base: Weights, bodies: Iterable[bytes], plan: DeltaPlan, averaging: Averaging, rate: float
) -> dict[str, NDArray[np.float32]]:
    """The model that the server makes of reports, each checked as when it arrives. rate: of its SGD.

    Raises ProtocolError for a report that it would refuse.
    """
    shapes = trainable(base)
    read = (read_delta(body, shapes, plan) for body in bodies)
    if averaging == "mean":
        total = deltas.init(shapes)
        for delta in read:
            total = deltas.add(total, delta, 1.0)
        mean = deltas.finish(total)
    else:
        with robust.spooled(read, shapes) as spool:
            mean = robust.robust_mean(spool, averaging)
    settings = optimizers.OptimizerSettings(kind="sgd", learning_rate=rate)
    moved, _ = optimizers.apply(settings, optimizers.init(settings, shapes), base, mean)
    return moved


class _KeepingClient(Client):
    """A client that keeps the bytes of what it sends."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: list[bytes] = []

    def report(self, identity: Identity, outgoing: Outgoing) -> Receipt:
        self.sent.append(outgoing.body)
        return super().report(identity, outgoing)


def _rows() -> list[tuple[AttackKind | None, Averaging | None]]:
    return [(None, None), *((attack, averaging) for attack in (None, *ATTACKS) for averaging in AVERAGES)]


def _rate(scale: Scale, devices: int) -> float:
    return scale.fleet.server_rate or max(1.0, devices / 5)


def _heard(bundle: Bundle, weights: Weights, population: Population) -> Iterable[Outcome]:
    after = bundle.with_weights(weights, f"{bundle.version}+round") if weights is not bundle.weights else bundle
    recognizer = Recognizer(after, DecodingSettings(), Rescorer(after).rescore)
    for voice in population.heldout:
        yield from listen(recognizer, voice, population.lexicon)
