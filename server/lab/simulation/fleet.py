"""One condition under one seed: devices talk, learn and check in with a live server, round by round.

Every device is the SDK with its own state folder. One is open at a time, so the peak memory of this process is a
device's. In a round each device fetches what the server has published, then hears its user: recognize, score, tell the
device what the app saw, learn; then the server opens a round, each device reports, the round is closed and published.
After the last, held-out voices are recognized with what the server published and nothing personal."""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import SUBSETS, Subset
from device_sdk.bundle.streaming import AnyArchitecture, subsets_of
from device_sdk.checks import check_choice, check_interval
from device_sdk.consent import Stream
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.device import Device
from device_sdk.errors import ConfigurationError
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, Signal, SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result
from device_sdk.learning.settings import LearningSettings, StepSettings
from device_sdk.peak_memory import peak_bytes
from device_sdk.personalization import cache as caches
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.privacy.bounds import OfferBounds
from device_sdk.settings import DeviceSettings
from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.lab.corpora import SAMPLE_RATE, Utterance
from server.lab.simulation.outcomes import Condition, Outcome, Run, Traffic, score
from server.lab.simulation.population import Participant, Population, Shape
from server.lab.simulation.process import START_SECONDS, ServerProcess
from server.plans.round import UNDERWAY, OptimizerSettings, RoundSettings

LEARNING = LearningSettings(subset="acoustic", passes=4, confirmation=1.0, step=StepSettings(learning_rate=0.2))
"""Of every device: four bold steps an utterance, since a round has few."""
DELTAS = DeltaPlan(clip_norm=2.0, noise_stddev=5e-5)
MARGINALS = MarginalPlan(epsilon=2.0)
CORRECTED = 0.2
"""How often a user without slots to fill types what was meant."""
BOUNDS = OfferBounds(clip_norm=math.inf, least_noise=0.0, marginals_epsilon=math.inf, deltas_epsilon=math.inf)
"""Nobody is behind a simulated device: a fleet finds out what any noise does, and the report tells its epsilon. With
the handful of devices of the demonstration, noise that leaves something to learn from protects nobody."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """source: ``made``, or KIND:PATH, such as ``barista:PATH``. bundle: path; None for the packaged one.
    seeds: each is one whole simulation with its own voices, sentences and order. workers: processes, one thread
    each. keep: a new or empty folder for the server's state of the condition with both streams, under the first seed;
    it can be served again afterwards. None keeps nothing. work: a folder of finished runs, where a second simulation
    goes on; None keeps none. habit: how much of the habits of made people there is.
    subset: what devices learn and send; None for the acoustic part, or the default one of an imported bundle."""

    source: str = "made"
    bundle: str | None = None
    seeds: tuple[int, ...] = (1,)
    shape: Shape = field(default_factory=Shape)
    workers: int = 2
    keep: str | None = None
    work: str | None = None
    habit: float = 1.0
    subset: Subset | None = None

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigurationError(f"seeds: found {self.seeds}, expected one or more different numbers")
        if self.keep is not None and Path(self.keep).exists() and any(Path(self.keep).iterdir()):
            raise ConfigurationError(f"keep: {self.keep} is not empty; give a new folder, or remove what is in it")
        check_interval("habit", self.habit, "[0, 1]")
        if self.habit != 1.0 and self.source != "made":
            raise ConfigurationError(f"habit: found {self.habit:g} for {self.source}; only made people's can be chosen")
        if self.subset is not None:
            check_choice("subset", self.subset, SUBSETS)
        for place, name in ((self, "workers"), *((self.shape, name) for name in Shape.__slots__)):
            value = getattr(place, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}: found {value}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Task:
    """One condition under one seed. folder: where its devices keep their state; keep: where its server does, in
    ``folder`` too where it is None."""

    condition: Condition
    seed: int
    settings: SimulationSettings
    population: Population
    folder: Path
    keep: str | None = None


_tell: Callable[[Any], None] = lambda message: None  # noqa: E731


def start_worker(queue: Any) -> None:
    """Called once in every worker process; progress goes to ``queue``, one entry an utterance, and (url of the
    dashboard, the operator's token) once the server whose state is kept has come up."""
    global _tell
    _tell = queue.put


def run_task(task: Task) -> Run:
    """Runs a condition and returns what was measured. Errors of the SDK and the server are raised as they are."""
    condition, fleet, lexicon = task.condition, task.population.devices, task.population.lexicon
    bundle, key = Bundle.open(task.settings.bundle), secrets.token_bytes(32)
    folders = [task.folder / f"device-{number:02d}" for number in range(len(fleet))]
    outcomes: list[Outcome] = []
    traffic: list[Traffic] = []
    epsilon: dict[str, dict[str, Any]] = {}
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        server = None
        if condition.reports:
            place = task.folder / "server" if task.keep is None else Path(task.keep)
            server = stack.enter_context(ServerProcess(place, task.settings.bundle))
            if task.keep is not None:
                server.keep_tokens()
                _tell((f"{server.url}/dashboard", server.operator_token))
        for number in range(task.settings.shape.rounds):
            moved = [[0, 0] for _ in fleet]
            for place, voice, each in zip(folders, fleet, moved, strict=True):
                with _open(place, key, bundle, task, server, each) as device:
                    outcomes += hear(device, voice, number, task)
            if server is not None:
                round_id = server.operator.create_round(round_settings(condition, len(fleet))).id
                for place, each in zip(folders, moved, strict=True):
                    with _open(place, key, bundle, task, server, each):
                        pass  # but for its check-in
                deadline = time.monotonic() + START_SECONDS
                while server.operator.close_round(round_id).state in UNDERWAY and time.monotonic() < deadline:
                    time.sleep(0.05)
                epsilon = {stream: line.model_dump() for stream, line in server.operator.privacy().streams.items()}
                for stream, entry in epsilon.items():
                    spent.setdefault(stream, []).append(entry["epsilon"])
                traffic += [Traffic(number, *each) for each in moved]
        recognizer = _new_recognizer(bundle, server, condition)
    for voice in task.population.heldout:
        outcomes += listen(recognizer, voice, lexicon)
    for stream, entry in epsilon.items():
        entry["per_round"] = spent[stream]
    return Run(condition.name, task.seed, tuple(outcomes), tuple(traffic), epsilon, peak_bytes())


@contextmanager
def _open(
    folder: Path, key: bytes, bundle: Bundle, task: Task, server: ServerProcess | None, moved: list[int]
) -> Iterator[Device]:
    """A device, whose user agrees to what the condition sends, after a check-in. moved: bytes up and down are added."""
    condition = task.condition
    agreed: dict[Stream, bool] = {"marginals": condition.marginals, "deltas": condition.learning}
    with Device.open(
        folder, key, bundle, device_settings(condition, bundle.architecture, task.settings.subset)
    ) as device:
        device.agree(*(stream for stream, sent in agreed.items() if sent))
        if server is not None:
            report = device.check_in(server.url, server.token)
            moved[:] = moved[0] + report.bytes_up, moved[1] + report.bytes_down
        yield device


def device_settings(
    condition: Condition, architecture: AnyArchitecture, subset: Subset | None = None
) -> DeviceSettings:
    """What the condition lets a device do. Where every utterance is corrected, replays gain nothing and take long.
    subset: as of :class:`SimulationSettings`."""
    learning = replace(LEARNING, replays=0) if condition.supervised else LEARNING
    if subset is not None or learning.subset not in subsets_of(architecture):
        learning = replace(learning, subset=subset)
    return DeviceSettings(
        use_marginals=condition.marginals,
        share_marginals=condition.marginals,
        learn=condition.learning,
        share_deltas=condition.learning,
        learning=learning,
        bounds=BOUNDS,
    )


def round_settings(condition: Condition, devices: int) -> RoundSettings:
    """The round that the operator opens: the streams of the condition, bounded and noised. The mean of many deltas is a
    shorter step than any of them: the server makes it longer. Noise that leaves a few devices something to learn from
    protects nobody, which is stated."""
    return RoundSettings(
        marginals=MARGINALS if condition.marginals else None,
        deltas=DELTAS if condition.learning else None,
        goal=devices,
        minimum=math.ceil(devices / 2),
        weighting="uniform",
        optimizer=OptimizerSettings(kind="sgd", learning_rate=max(1.0, devices / 5)),
        no_privacy=condition.learning,
    )


def hear(device: Device, voice: Participant, number: int, task: Task) -> Iterator[Outcome]:
    """Predict, then learn: every utterance of a round, in order."""
    condition, lexicon = task.condition, task.population.lexicon
    for recording in voice.rounds[number]:
        result, outcome = _recognize(device, recording, voice, number, lexicon)
        signal = saw(recording, result, lexicon, condition, task.seed)
        if condition.reports and signal is not None:
            begin = time.perf_counter()
            device.feedback(result.utterance_id, signal)
            if condition.learning:
                device.learn()
            outcome = replace(outcome, learn_seconds=time.perf_counter() - begin)
        _tell(1)
        yield outcome


def listen(recognizer: Recognizer, voice: Participant, lexicon: SlotLexicon | None) -> Iterator[Outcome]:
    """What a held-out voice says, recognized and scored."""
    for recording in (each for round_ in voice.rounds for each in round_):
        yield _recognize(recognizer, recording, voice, -1, lexicon)[1]
        _tell(1)


def _recognize(
    by: Device | Recognizer, said: Utterance, voice: Participant, number: int, lexicon: SlotLexicon | None
) -> tuple[Result, Outcome]:
    audio, begin = said.load(), time.perf_counter()
    result = by.recognize(audio, SAMPLE_RATE)
    taken = time.perf_counter() - begin
    return result, score(said, result.text, lexicon, voice.name, number, audio.size / SAMPLE_RATE, taken)


def saw(
    recording: Utterance, result: Result, lexicon: SlotLexicon | None, condition: Condition, seed: int
) -> Signal | None:
    """What an app would see its user do. With labelled slots: the request that was carried out in the end. Without: the
    user goes on with what was heard rightly, else cancels it, or corrects it, for a share ``CORRECTED`` of the
    utterances that the seed draws. Only the supervised yardstick is told the words of all."""
    if condition.supervised:
        return Corrected(recording.text) if recording.text else None
    if recording.slots is not None and lexicon is not None:
        return Semantics(recording.slots, lexicon)
    if recording.text is None:
        return None
    if result.text == recording.text:
        return Accepted()
    corrects = np.random.default_rng([seed, *recording.id.encode()]).random() < CORRECTED
    return Corrected(recording.text) if corrects else Cancelled()


def _new_recognizer(bundle: Bundle, server: ServerProcess | None, condition: Condition) -> Recognizer:
    """A recognizer of what the server has published: what a new device of a new user starts with."""
    from device_sdk.bundle import weights as weight_files
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.updates.adoption import decode_marginals
    from device_sdk.checkin.updates.metadata import Target

    marginal = shared = None
    if server is not None:
        status, known = server.operator.status(), server.operator.models().models
        version = status.model_version
        with Client(server.url) as client:
            if version != bundle.version:
                content = client.download(f"/v1/models/{version}", 1 << 30, 600.0)
                for model in (model for model in known if model.version == version):
                    Target(f"model {version}", version, len(content), model.sha256).check(content)
                bundle = bundle.with_weights(weight_files.read(content, f"model {version}"), version)
            if condition.marginals:
                message = client.marginals(status.marginals_version)
                shared = decode_marginals(message, bundle.words.digest, len(bundle.words))
    rescorer = Rescorer(bundle)
    if shared is not None:
        nothing_said = caches.empty(bundle.words)
        marginal = caches.personal_marginal(nothing_said, bundle.words, bundle.background, shared, rescorer.weights)

    def rescore(hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        return rescorer.rescore(hypotheses, marginal)

    return Recognizer(bundle, DecodingSettings(), rescore)
