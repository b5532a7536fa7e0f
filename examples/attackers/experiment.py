"""How much attackers raise word error under each way of averaging: rounds of real deltas, with and without them.

Each voice is a device: the bundle's own training graph takes the local steps, from transcripts, and the SDK bounds and
writes the report. Some reports are poisoned on their way; then they go through the server's checks, its averages and
its optimizer, round after round, and voices that no device has are recognized with the model that comes out. There is
no HTTP here.

An attacker knows the round's plan and the server's checks, and keeps to both: a delta beyond the norm bound would be
refused and do nothing. So whatever it sends is as large as the bound lets, and looks like an honest report. Where the
deltas are masked nobody checks one, so an attacker sends ``FACTOR`` times as much as the bound."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from device_sdk.bundle import Bundle
from device_sdk.checkin.reports import delta_report
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import ProtocolError
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.privacy.clipping import clip
from device_sdk.privacy.quantised import parted, quantised, summed, word_bits
from device_sdk.wire.delta_codec import decode, encode
from device_sdk.wire.messages import DeltaHeader, DeltaPlan
from examples.runner import Errors, keep
from server.aggregation import deltas, optimizers, robust
from server.aggregation.validation import read_delta
from server.aggregation.weights_file import parse_tensors, read_metadata
from server.lab.corpora import Utterance
from server.lab.corpora.acoustics import GENTLE
from server.lab.rehearsal import PseudoDevices
from server.lab.simulation.fleet import listen
from server.lab.simulation.population import Participant, Population, Shape, gather
from server.lab.simulation.progress import Tell
from server.plans.round import OptimizerSettings, RehearsalPlan, RoundSettings
from server.registry.models import trainable
from server.rounds.secure_aggregation.unmasking import check_sum

Attack = Literal["sign-flip", "scaling", "wrong transcripts"]
"""``sign-flip`` sends minus what was learned, ``scaling`` what was learned, ``wrong transcripts`` what was learned from
transcripts of other utterances; each ``FACTOR`` times as large, then clipped as the round's plan says."""
ATTACKS: tuple[Attack, ...] = get_args(Attack)
FACTOR = np.float32(10.0)
Averaging = Literal["mean", "cosine", "masked"]
"""``masked``: the mean of what secure aggregation makes known, the sum of all devices' integers, of the part of the
model that fits one."""
AVERAGES: tuple[Averaging, ...] = get_args(Averaging)
Weights = Mapping[str, NDArray[np.float32]]

_CLOSE = replace(GENTLE, reverb=0.0, snr_db=(25.0, 45.0), eq_db=1.0, tilt_db=0.5)
MICROPHONES = replace(_CLOSE, band=1.0, low_hz=(250.0, 350.0), high_hz=(1800.0, 2000.0))
"""Of made people: they let less pass than any that the packaged bundle was trained with, so that a few rounds teach
devices something that carries over to voices that no device has. They and the rates were chosen by voices of the
devices' set."""


@dataclass(frozen=True, slots=True)
class Scale:
    """source: of speech, see :func:`server.lab.simulation.population.gather`; shape: who says how much, all of it known
    from the first round on; made people speak into ``MICROPHONES``. rounds: how many; batch: utterances of a device in
    each, one local step of ``learning_rate`` an utterance. server_rate: of the server's SGD, which falls linearly to
    ``floor`` of it, so that what the last round happens to say does not decide. clip_norm: L2 bound of a delta.
    attackers: share of the devices; kinds: of their attacks. bundle: path, None for the packaged one."""

    source: str = "made"
    shape: Shape = field(default_factory=lambda: Shape(rounds=1, devices=20, each=18, heldout=12, heldout_each=12))
    rounds: int = 3
    batch: int = 6
    learning_rate: float = 0.1
    server_rate: float = 16.0
    floor: float = 0.1
    clip_norm: float = 1.0
    attackers: float = 0.2
    kinds: tuple[Attack, ...] = ("sign-flip", "scaling")
    bundle: str | None = None

    @property
    def plan(self) -> DeltaPlan:
        return DeltaPlan(clip_norm=self.clip_norm)

    @property
    def masked(self) -> DeltaPlan:
        return DeltaPlan(clip_norm=self.clip_norm, trust="distributed", minimum_survivors=2, part="output")

    def rate(self, number: int) -> float:
        """Of the server in round ``number``, counted from 1."""
        return self.server_rate * (1.0 - (1.0 - self.floor) * (number - 1) / max(1, self.rounds - 1))

    def attacking(self, devices: int, seed: int) -> frozenset[int]:
        """Which of the devices, numbered from 0, attack, whatever they do."""
        chosen = np.random.default_rng([seed, 0xA7]).permutation(devices)[: round(self.attackers * devices)]
        return frozenset(chosen.tolist())

    @property
    def rows(self) -> list[tuple[Attack | None, Averaging | None]]:
        """(attack, average) of every cell: the model before, nobody attacks, then every attack, under every average."""
        return [(None, None), *((attack, averaging) for attack in (None, *self.kinds) for averaging in AVERAGES)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack under one way of averaging and one seed. attack: None where all devices are honest; averaging: None
    for the model before the first round. errors: of voices that no device has."""

    attack: Attack | None
    averaging: Averaging | None
    seed: int
    errors: Errors


def poison(body: bytes, plan: DeltaPlan, attack: Attack) -> bytes:
    """The report that an attacker sends in place of an honest one: the same header, other values within the bounds.
    Raises ProtocolError where ``body`` is not a report of such a plan."""
    delta = decode(parse_tensors(body), plan.encoding, plan.scale_per)
    factor = -FACTOR if attack == "sign-flip" else FACTOR
    bounded, _ = clip({name: values * factor for name, values in delta.items()}, plan.clip_norm, plan.clipping)
    tensors = encode(bounded, plan.encoding, plan.scale_per)
    return bytes(save({name: tensors[name] for name in sorted(tensors)}, metadata=read_metadata(body)))


class Devices:
    """Owns a training session for each voice, and one for each of those that may learn from wrong transcripts; and what
    they learned from the bundle's own weights, where the rounds of every cell begin."""

    def __init__(self, scale: Scale, bundle: Bundle, population: Population, seed: int) -> None:
        self._scale, self._seed, self._first = scale, seed, bundle.weights
        self._learned: dict[PseudoDevices, Weights] = {}
        self._honest = [PseudoDevices(bundle, _said(voice)) for voice in population.devices]
        self._attacking = scale.attacking(len(self._honest), seed)
        wanted = self._attacking if "wrong transcripts" in scale.kinds else ()
        self._lying = {each: PseudoDevices(bundle, _mishear(population.devices[each])) for each in wanted}

    def reports(self, weights: Weights, number: int, attack: Attack | None) -> Iterator[bytes]:
        """What the server receives from each device in a round. weights: published before it. number: from 1."""
        scale = self._scale
        for device, honest in enumerate(self._honest):
            kind = attack if device in self._attacking else None
            delta = self._delta(self._lying[device] if kind == "wrong transcripts" else honest, weights, number)
            header = DeltaHeader(
                report_id=f"report-{device}", device_id=f"device-{device}", round_id=f"round-{number}",
                model_version="local", utterances=scale.batch,
            )  # fmt: skip
            body = delta_report(header, scale.plan, delta)
            yield body if kind is None else poison(body, scale.plan, kind)

    def vectors(self, weights: Weights, number: int, attack: Attack | None) -> Iterator[NDArray[np.int64]]:
        """What each device masks in a round, int64 [values]; an attacker's is longer than any that is clipped."""
        scale = self._scale
        for device, honest in enumerate(self._honest):
            kind = attack if device in self._attacking else None
            delta = self._delta(self._lying[device] if kind == "wrong transcripts" else honest, weights, number)
            factor = 1 if kind is None else -FACTOR if kind == "sign-flip" else FACTOR
            sent = {name: delta[name] for name in trainable(weights, scale.masked.part)}
            yield quantised(sent, scale.masked, f"round-{number}") * np.int64(factor)

    def _delta(self, learner: PseudoDevices, weights: Weights, number: int) -> Weights:
        begins, scale = number == 1 and weights is self._first, self._scale
        if begins and learner in self._learned:
            return self._learned[learner]
        rate, seed = scale.learning_rate, self._seed
        rehearsal = RehearsalPlan(pseudo_devices=1, batch_size=scale.batch, learning_rate=rate, seed=seed)
        (delta,) = learner(weights, RoundSettings(deltas=scale.plan, rehearsal=rehearsal), number)
        if begins:
            self._learned[learner] = delta
        return delta


def run_cells(scale: Scale, seeds: Sequence[int], work: Path, tell: Tell = lambda *_: None) -> list[Cell]:
    """Every cell of every seed, those that are not in the work folder yet: which devices attack, what is said when.
    Raises DataError for a source that cannot be used, LearningError where steps diverge."""
    bundle = Bundle.open(scale.bundle)
    voices = bundle.manifest.training.get("voices", {})
    cells: list[Cell] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="idiolect-attackers-") as folder:

            @cache
            def gathered(seed: int = seed, folder: str = folder) -> tuple[Population, Devices]:
                population = gather(scale.source, seed, scale.shape, voices, Path(folder), ranges=MICROPHONES)
                return population, Devices(scale, bundle, population, seed)

            def run(attack: Attack | None, averaging: Averaging | None, seed: int = seed) -> Cell:
                (population, devices), weights = gathered(), bundle.weights
                if averaging is not None:
                    for number in range(1, scale.rounds + 1):
                        if averaging == "masked":
                            masked = list(devices.vectors(weights, number, attack))
                            mean = add_up(masked, trainable(weights, scale.masked.part), scale.masked, number)
                            still = {name: np.zeros(shape, np.float32) for name, shape in trainable(weights).items()}
                            weights = _stepped(weights, still | mean, scale.rate(number))
                            continue
                        bodies = devices.reports(weights, number, attack)
                        weights = aggregate(weights, bodies, scale.plan, averaging, scale.rate(number))
                return Cell(attack, averaging, seed, _errors(bundle, weights, population))

            for number, (attack, averaging) in enumerate(scale.rows):
                settings = replace(scale, kinds=())  # which others run decides nothing
                names = attack or "honest", averaging or "before", seed
                cells.append(keep(work / "cells", names, settings, Cell, partial(run, attack, averaging)))
                tell(f"seed {seed}", number + 1, len(scale.rows))
    return cells


def aggregate(
    base: Weights, bodies: Iterable[bytes], plan: DeltaPlan, averaging: Averaging, rate: float
) -> dict[str, NDArray[np.float32]]:
    """The model that the server makes of reports, each checked as when it arrives. rate: of its SGD. Raises
    ProtocolError for a report that it would refuse."""
    shapes = trainable(base)
    read = (read_delta(body, shapes, plan) for body in bodies)
    if averaging == "mean":
        total = deltas.init(shapes)
        for delta in read:
            total = deltas.add(total, delta, 1.0)
        mean = deltas.finish(total)
    else:
        mean = robust.cosine_mean(read, shapes)
    return _stepped(base, mean, rate)


def add_up(
    vectors: Sequence[NDArray[np.int64]], shapes: Mapping[str, tuple[int, ...]], plan: DeltaPlan, number: int
) -> dict[str, NDArray[np.float32]]:
    """The mean that a server makes of the sum of masked vectors, modulo what their words hold; nothing of one that
    honest devices cannot have made. number: of the round."""
    half = 1 << (word_bits(plan, len(vectors), vectors[0].size) - 1)
    total = (np.sum(vectors, axis=0) + half) % (2 * half) - half
    try:
        check_sum(total, plan, len(vectors))
    except ProtocolError:
        total = np.zeros_like(total)
    return parted(summed(total, plan, f"round-{number}") / len(vectors), shapes)


def _stepped(base: Weights, mean: Weights, rate: float) -> dict[str, NDArray[np.float32]]:
    settings = OptimizerSettings(kind="sgd", learning_rate=rate)
    return optimizers.apply(settings, optimizers.init(settings, trainable(base)), base, mean)[0]


def _said(voice: Participant) -> list[Utterance]:
    return [each for round_ in voice.rounds for each in round_]


def _mishear(voice: Participant) -> list[Utterance]:
    """Every utterance with the transcript of the next one that says something else."""
    said = _said(voice)
    lies = []
    for place, each in enumerate(said):
        others = (other.text for other in (*said[place + 1 :], *said[:place]) if other.text != each.text)
        lies.append(replace(each, text=next(others, None)))
    return lies


def _errors(bundle: Bundle, weights: Weights, population: Population) -> Errors:
    after = bundle.with_weights(weights, f"{bundle.version}+rounds") if weights is not bundle.weights else bundle
    recognizer = Recognizer(after, DecodingSettings(), Rescorer(after).rescore)
    outcomes = [each for voice in population.heldout for each in listen(recognizer, voice, population.lexicon)]
    columns = zip(*((each.word_errors, each.words, each.voice) for each in outcomes), strict=True)
    return Errors(*map(list, columns))
