"""How much attackers raise word error under each way of averaging: rounds of real deltas, with and without them.

Each voice is a device: the bundle's own training graph takes the local steps, from transcripts, and the SDK bounds and
writes the report. Some reports are poisoned on their way; then they go through the server's checks, its averages and
its optimizer, round after round, and voices that no device has are recognized with the model that comes out. There is
no HTTP here: :class:`server.lab.simulation.settings.FleetSettings` has the same attacks for a fleet with a server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.checkin.reports import delta_report
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.wire.messages import DeltaHeader, DeltaPlan
from examples.runner import Errors, kept
from server.aggregation import deltas, optimizers, robust
from server.aggregation.validation import read_delta
from server.lab.corpora import Utterance
from server.lab.corpora.acoustics import GENTLE
from server.lab.rehearsal import PseudoDevices
from server.lab.simulation.attackers import Attack, AttackKind, attackers, poisoned
from server.lab.simulation.fleet import listen
from server.lab.simulation.population import Participant, Population, Shape, gather
from server.lab.simulation.progress import Tell
from server.plans.optimizer import OptimizerSettings
from server.plans.round import RehearsalPlan, RoundSettings
from server.registry.models import trainable

__all__ = ["AVERAGES", "MICROPHONES", "Averaging", "Cell", "Devices", "Scale", "aggregated", "run_cells", "train"]

Averaging = Literal["mean", "cosine"]
AVERAGES: tuple[Averaging, ...] = get_args(Averaging)
Weights = Mapping[str, NDArray[np.float32]]

MICROPHONES = replace(
    GENTLE,
    reverb=0.0,
    snr_db=(25.0, 45.0),
    eq_db=1.0,
    tilt_db=0.5,
    band=1.0,
    low_hz=(250.0, 350.0),
    high_hz=(1800.0, 2000.0),
)
"""Of made people: they let less pass than any that the packaged bundle was trained with, so that a few rounds teach
devices something that carries over to voices that no device has. They and the rates were chosen by voices of the
devices' set."""


@dataclass(frozen=True, slots=True)
class Scale:
    """source: of speech, see :func:`server.lab.simulation.population.gather`; shape: who says how much, all of it known
    from the first round on; made people speak into ``MICROPHONES``. rounds: how many; batch: utterances of a device in
    each, one local step of ``learning_rate`` an utterance. server_rate: of the server's SGD, which falls linearly to
    ``floor`` of it, so that what the last round happens to say does not decide. clip_norm: L2 bound of a delta.
    attackers: share of the devices; kinds: of their attacks; averages: that are tried, the mean among them. bundle:
    path, None for the packaged one."""

    source: str = "made"
    shape: Shape = field(default_factory=lambda: Shape(rounds=1, devices=20, each=18, heldout=12, heldout_each=12))
    rounds: int = 3
    batch: int = 6
    learning_rate: float = 0.1
    server_rate: float = 16.0
    floor: float = 0.1
    clip_norm: float = 1.0
    attackers: float = 0.2
    kinds: tuple[AttackKind, ...] = ("sign-flip", "scaling")
    averages: tuple[Averaging, ...] = AVERAGES
    bundle: str | None = None

    def rate(self, number: int) -> float:
        """Of the server in round ``number``, counted from 1."""
        return self.server_rate * (1.0 - (1.0 - self.floor) * (number - 1) / max(1, self.rounds - 1))

    @property
    def rows(self) -> list[tuple[AttackKind | None, Averaging | None]]:
        """(attack, average) of every cell: the model before, nobody attacks, then every attack, under every average."""
        return [(None, None), *((attack, averaging) for attack in (None, *self.kinds) for averaging in self.averages)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack under one way of averaging and one seed. attack: None where all devices are honest; averaging: None
    for the model before the first round. errors: of voices that no device has."""

    attack: AttackKind | None
    averaging: Averaging | None
    seed: int
    errors: Errors


class Devices:
    """Owns a training session for each voice, and one for each of those that may learn from wrong transcripts; and what
    they learned from the bundle's own weights, where the rounds of every cell begin."""

    def __init__(self, scale: Scale, bundle: Bundle, population: Population, seed: int) -> None:
        self.count = len(population.devices)
        self._scale, self._seed, self._first = scale, seed, bundle.weights
        self._learned: dict[PseudoDevices, Weights] = {}
        self._plan = DeltaPlan(clip_norm=scale.clip_norm)
        self._honest = [PseudoDevices(bundle, _said(voice)) for voice in population.devices]
        chosen = attackers(Attack("wrong transcripts", scale.attackers), self.count, seed)
        wanted = chosen if "wrong transcripts" in scale.kinds else ()
        self._lying = {each: PseudoDevices(bundle, _misheard(population.devices[each])) for each in wanted}

    def reports(self, weights: Weights, number: int, attack: Attack | None) -> Iterator[bytes]:
        """What the server receives from each device in a round. weights: published before it. number: from 1."""
        chosen = attackers(attack, self.count, self._seed)
        scale = self._scale
        for device in range(self.count):
            lies = attack is not None and attack.kind == "wrong transcripts" and device in chosen
            learner = self._lying[device] if lies else self._honest[device]
            delta = self._delta(learner, weights, number)
            header = DeltaHeader(
                report_id=f"report-{device}", device_id=f"device-{device}", round_id=f"round-{number}",
                model_version="local", utterances=scale.batch,
            )  # fmt: skip
            body = delta_report(header, self._plan, delta)
            yield poisoned(body, self._plan, attack) if attack is not None and device in chosen else body

    def _delta(self, learner: PseudoDevices, weights: Weights, number: int) -> Weights:
        begins = number == 1 and weights is self._first
        if begins and learner in self._learned:
            return self._learned[learner]
        rehearsal = RehearsalPlan(
            pseudo_devices=1,
            batch_size=self._scale.batch,
            learning_rate=self._scale.learning_rate,
            seed=self._seed,
        )
        (delta,) = learner(weights, RoundSettings(deltas=self._plan, rehearsal=rehearsal), number)
        if begins:
            self._learned[learner] = delta
        return delta


def run_cells(scale: Scale, seeds: Sequence[int], work: Path, tell: Tell = lambda *_: None) -> list[Cell]:
    """Every cell of every seed, those that are not in the work folder yet: which devices attack, what is said when.

    Raises DataError for a source that cannot be used, LearningError where steps diverge.
    """
    bundle = Bundle.open(scale.bundle)
    voices = bundle.manifest.training.get("voices", {})
    cells: list[Cell] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="idiolect-attackers-") as folder:

            @cache
            def gathered(seed: int = seed, folder: str = folder) -> tuple[Population, Devices]:
                population = gather(scale.source, seed, scale.shape, voices, Path(folder), ranges=MICROPHONES)
                return population, Devices(scale, bundle, population, seed)

            def run(kind: AttackKind | None, averaging: Averaging | None, seed: int = seed) -> Cell:
                population, devices = gathered()
                attack = Attack(kind, scale.attackers) if kind is not None else None
                weights = bundle.weights
                if averaging is not None:
                    weights = train(scale, weights, devices, attack, averaging)
                return Cell(kind, averaging, seed, _recognized(bundle, weights, population))

            for number, (kind, averaging) in enumerate(scale.rows):
                settings = replace(scale, kinds=(), averages=())  # which others run decides nothing
                names = kind or "honest", averaging or "before", seed
                cells.append(kept(work / "cells", names, settings, Cell, partial(run, kind, averaging)))
                tell(f"seed {seed}", number + 1, len(scale.rows))
    return cells


def train(scale: Scale, base: Weights, devices: Devices, attack: Attack | None, averaging: Averaging) -> Weights:
    """The weights after all rounds."""
    plan, weights = DeltaPlan(clip_norm=scale.clip_norm), base
    for number in range(1, scale.rounds + 1):
        bodies = devices.reports(weights, number, attack)
        weights = aggregated(weights, bodies, plan, averaging, scale.rate(number))
    return weights


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
            mean = robust.cosine_mean(spool)
    settings = OptimizerSettings(kind="sgd", learning_rate=rate)
    moved, _ = optimizers.apply(settings, optimizers.init(settings, shapes), base, mean)
    return moved


def _said(voice: Participant) -> list[Utterance]:
    return [
        Utterance(each.id, voice.name, each.text, each.slots, each.score_words, each.load)
        for round_ in voice.rounds
        for each in round_
    ]


def _misheard(voice: Participant) -> list[Utterance]:
    """Every utterance with the transcript of the next one that says something else."""
    said = _said(voice)
    lies = []
    for place, each in enumerate(said):
        others = (other.text for other in (*said[place + 1 :], *said[:place]) if other.text != each.text)
        lies.append(replace(each, text=next(others, None)))
    return lies


def _recognized(bundle: Bundle, weights: Weights, population: Population) -> Errors:
    after = bundle.with_weights(weights, f"{bundle.version}+rounds") if weights is not bundle.weights else bundle
    recognizer = Recognizer(after, DecodingSettings(), Rescorer(after).rescore)
    outcomes = [each for voice in population.heldout for each in listen(recognizer, voice, population.lexicon)]
    return Errors(
        [each.word_errors for each in outcomes], [each.words for each in outcomes], [each.voice for each in outcomes]
    )
