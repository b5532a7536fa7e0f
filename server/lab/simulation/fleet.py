"""One condition under one seed: devices talk, learn and check in with a live server, round by round.

Every device is the SDK with its own state folder. One is open at a time, so the peak memory of this process is a
device's. The order within a round:

1. each device fetches what the server has published, then hears its user: recognize, score, tell the device what the
   app saw, learn;
2. the server opens a round, each device reports, the round is closed and its model and marginals are published.

After the last round, held-out voices are recognized with what the server published and nothing personal.
"""

from __future__ import annotations

import math
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from device_sdk.bundle import Bundle
from device_sdk.consent import Stream
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.device import Device
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, Signal, SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result
from device_sdk.personalization import cache as caches
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.privacy.bounds import OfferBounds
from device_sdk.settings import DeviceSettings
from server.lab.simulation.attackers import Attack, attackers
from server.lab.simulation.outcomes import Condition, Outcome, Run, Traffic, score
from server.lab.simulation.population import Participant, Population, Recording
from server.lab.simulation.process import Operator, ServerProcess
from server.lab.simulation.settings import FleetSettings, SimulationSettings

__all__ = ["Member", "Task", "hear", "listen", "opened", "round_settings", "run_task", "saw", "start_worker"]


@dataclass(frozen=True, slots=True)
class Task:
    """One condition under one seed. folder: where its devices keep their state; keep: where its server does, in
    ``folder`` too where it is None."""

    condition: Condition
    seed: int
    settings: SimulationSettings
    population: Population
    folder: str
    keep: str | None = None


_tell: Callable[[Any], None] = lambda message: None  # noqa: E731


def start_worker(queue: Any) -> None:
    """Called once in every worker process; progress goes to ``queue``, one entry an utterance."""
    global _tell
    _tell = queue.put


def run_task(task: Task) -> Run:
    """Runs a condition and returns what was measured. Errors of the SDK and the server are raised as they are."""
    started = time.monotonic()
    folder, condition = Path(task.folder), task.condition
    bundle = Bundle.open(task.settings.bundle)
    attack = task.settings.fleet.attack
    chosen = attackers(attack, len(task.population.devices), task.seed)
    fleet = [
        Member(voice, folder / f"device-{number:02d}", secrets.token_bytes(32), attack if number in chosen else None)
        for number, voice in enumerate(task.population.devices)
    ]
    outcomes: list[Outcome] = []
    traffic: list[Traffic] = []
    epsilon: dict[str, dict[str, Any]] = {}
    spent: list[dict[str, float]] = []
    with ExitStack() as stack:
        server = operator = None
        if condition.reports:
            place = folder / "server" if task.keep is None else Path(task.keep)
            server = stack.enter_context(ServerProcess(place, task.settings.bundle))
            if task.keep is not None:
                _tell(server.keep_tokens())
            operator = stack.enter_context(server.operator())
        for number in range(task.settings.shape.rounds):
            bytes_moved = [[0, 0] for _ in fleet]
            for member, moved in zip(fleet, bytes_moved, strict=True):
                with opened(member, bundle, task) as device:
                    if server is not None:
                        _check_in(device, server, moved, member.attack)
                    outcomes += hear(device, member, number, task)
            if server is not None and operator is not None:
                round_id = operator.open_round(round_settings(task.settings.fleet, condition, len(fleet)))
                for member, moved in zip(fleet, bytes_moved, strict=True):
                    with opened(member, bundle, task) as device:
                        _check_in(device, server, moved, member.attack)
                operator.close_round(round_id)
                epsilon = operator.privacy()
                spent.append({stream: float(entry["epsilon"]) for stream, entry in epsilon.items()})
                traffic += [
                    Traffic(member.voice.name, number, up, down)
                    for member, (up, down) in zip(fleet, bytes_moved, strict=True)
                ]
        recognizer = _published(bundle, server, operator, condition)
    for voice in task.population.heldout:
        outcomes += listen(recognizer, voice, task.population.lexicon)
    for stream, entry in epsilon.items():
        entry["per_round"] = [values[stream] for values in spent]
    return Run(
        condition.name,
        task.seed,
        tuple(outcomes),
        tuple(traffic),
        epsilon,
        _peak_bytes(),
        time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A device of the fleet. folder, key: of its state. attack: what it does, None where it is honest."""

    voice: Participant
    folder: Path
    key: bytes
    attack: Attack | None = None


@contextmanager
def opened(member: Member, bundle: Bundle, task: Task) -> Iterator[Device]:
    """A member's device, whose user agrees to what the condition sends."""
    with Device.open(member.folder, member.key, bundle, device_settings(task.settings.fleet, task.condition)) as device:
        device.agree(*streams(task.condition))
        yield device


def streams(condition: Condition) -> tuple[Stream, ...]:
    """What the users of a condition agree to send."""
    agreed: list[Stream] = ["marginals"] if condition.marginals else []
    return (*agreed, "deltas") if condition.learning else tuple(agreed)


_BOUNDS = OfferBounds(
    clip_norm=math.inf,
    least_noise=0.0,
    marginals_epsilon=math.inf,
    deltas_epsilon=math.inf,
)
"""Nobody is behind a simulated device: a fleet finds out what any noise does, and the report tells its epsilon. With
the handful of devices of the demonstration, noise that leaves something to learn from protects nobody."""


def device_settings(fleet: FleetSettings, condition: Condition) -> DeviceSettings:
    """What the condition lets a device do."""
    return DeviceSettings(
        use_marginals=condition.marginals,
        share_marginals=condition.marginals,
        learn=condition.learning,
        share_deltas=condition.learning,
        learning=fleet.learning,
        channel=fleet.channel if condition.learning else None,
        bounds=_BOUNDS,
    )


def round_settings(fleet: FleetSettings, condition: Condition, devices: int) -> dict[str, Any]:
    """The round that the operator opens: the streams of the condition, bounded and noised."""
    plans: dict[str, Any] = {"marginals": None, "deltas": None}
    if condition.marginals:
        plans["marginals"] = {"epsilon": fleet.marginal_epsilon}
    if condition.learning:
        plans["deltas"] = {"clip_norm": fleet.clip_norm, "noise_stddev": fleet.noise_stddev}
    return {
        **plans,
        "goal": devices,
        "minimum": max(1, math.ceil(devices / 2)),
        "weighting": "uniform",
        "averaging": fleet.averaging,
        "optimizer": {"kind": "sgd", "learning_rate": fleet.server_rate or max(1.0, devices / 5)},
    }


def _check_in(device: Device, server: ServerProcess, moved: list[int], attack: Attack | None) -> None:
    if attack is None:
        report = device.check_in(server.url, server.token)
    else:
        from server.lab.simulation.attackers import PoisoningClient

        with PoisoningClient(server.url, attack) as client:
            report = device.check_in(client, server.token)
    moved[0] += report.bytes_up
    moved[1] += report.bytes_down


def hear(device: Device, member: Member, number: int, task: Task) -> Iterator[Outcome]:
    """Predict, then learn: every utterance of a round, in order."""
    voice = member.voice
    for recording in voice.rounds[number]:
        begin = time.perf_counter()
        result = device.recognize(recording.load(), 16_000)
        heard = time.perf_counter() - begin
        outcome = score(
            recording, result.text, task.population.lexicon, voice=voice.name, round_=number, recognize_seconds=heard
        )
        signal = saw(recording, result, task.population.lexicon, task.condition)
        if member.attack is not None and member.attack.kind == "wrong transcripts":
            signal = _lied(recording, voice)
        if (task.condition.learning or task.condition.marginals) and signal is not None:
            begin = time.perf_counter()
            device.feedback(result.utterance_id, signal)
            if task.condition.learning:
                device.learn()
            outcome = replace(outcome, learn_seconds=time.perf_counter() - begin)
        _tell(1)
        yield outcome


def saw(recording: Recording, result: Result, lexicon: SlotLexicon | None, condition: Condition) -> Signal | None:
    """What an app would see its user do.

    With labelled slots: the request that was carried out in the end. Without: whether the user went on with what was
    served or cancelled it. Only the supervised yardstick is told the words.
    """
    if condition.supervised:
        return Corrected(recording.text) if recording.text else None
    if recording.slots is not None and lexicon is not None:
        return Semantics(recording.slots, lexicon)
    if recording.text is None:
        return None
    return Accepted() if result.text == recording.text else Cancelled()


def _lied(recording: Recording, voice: Participant) -> Signal | None:
    """The next other thing that this voice says, as the transcript of this one."""
    said = [each for round_ in voice.rounds for each in round_]
    place = said.index(recording)
    others = (each.text for each in (*said[place + 1 :], *said[:place]) if each.text and each.text != recording.text)
    text = next(others, None)
    return Corrected(text) if text is not None else None


def _published(
    bundle: Bundle, server: ServerProcess | None, operator: Operator | None, condition: Condition
) -> Recognizer:
    """A recognizer of what the server has published: what a new device of a new user starts with."""
    if server is None or operator is None:
        rescorer = Rescorer(bundle)
        return Recognizer(bundle, DecodingSettings(), rescorer.rescore)
    from device_sdk.bundle import weights as weight_files
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.updates.adoption import decode_marginals
    from device_sdk.checkin.updates.metadata import Target

    status = operator.status()
    version = str(status["model_version"])
    marginal = None
    with Client(server.url) as client:
        if version != bundle.version:
            model = Target(f"model {version}", version, 1 << 30, operator.models()[version])
            content = client.download(f"/v1/models/{version}", model.length, 600.0)
            model.check(content)
            bundle = bundle.with_weights(weight_files.read(content, f"model {version}"), version)
        rescorer = Rescorer(bundle)
        if condition.marginals:
            message = client.marginals(int(status["marginals_version"]))
            shared = decode_marginals(message, bundle.words.digest, len(bundle.words))
            marginal = caches.marginal(caches.empty(bundle.words), bundle.background, shared, rescorer.weights)

    def rescore(hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        return rescorer.rescore(hypotheses, marginal)

    return Recognizer(bundle, DecodingSettings(), rescore)


def listen(recognizer: Recognizer, voice: Participant, lexicon: SlotLexicon | None) -> Iterator[Outcome]:
    """What a held-out voice says, recognized and scored."""
    for round_ in voice.rounds:
        for recording in round_:
            begin = time.perf_counter()
            result = recognizer.recognize(recording.load(), 16_000)
            heard = time.perf_counter() - begin
            _tell(1)
            yield score(recording, result.text, lexicon, voice=voice.name, round_=-1, recognize_seconds=heard)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
