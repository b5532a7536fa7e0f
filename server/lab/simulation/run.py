"""A whole simulation: every condition under every seed in a pool of processes, and the document of what came out."""

import json
import platform
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from device_sdk.bundle import Bundle
from device_sdk.bundle.streaming import chosen
from device_sdk.commands.output import check_writable, finite
from server.lab.corpora.roles import card_voices
from server.lab.kept import read_row, write_row
from server.lab.simulation.fleet import DELTAS, LEARNING, MARGINALS, SimulationSettings, Task, run_task, start_worker
from server.lab.simulation.outcomes import CONDITIONS, Run, against_frozen, figures
from server.lab.simulation.population import Population, gather
from server.lab.simulation.progress import Tell


def simulate(
    settings: SimulationSettings,
    tell: Tell = lambda what, done, total: None,
    announce: Callable[[str, str], None] = lambda url, token: None,
) -> tuple[dict[str, Any], list[Run]]:
    """Runs everything and returns (document, runs): the JSON document and what it was computed from. announce: called
    with the dashboard's address and the operator's token when the server whose state is kept has come up. Raises
    DataError for a source that cannot be used or a damaged file of a finished run, BundleError for a bundle,
    ConfigurationError for a subset that it has no gradients of, and whatever ended a worker as it is."""
    bundle = Bundle.open(settings.bundle)
    chosen(bundle.architecture, settings.subset)
    if settings.work is not None:  # before hours of work
        check_writable(Path(settings.work) / "row", folders=True)
    voices = card_voices(bundle)
    with tempfile.TemporaryDirectory(prefix="idiolect-simulation-") as name:
        folder, populations = Path(name), dict[int, Population]()
        for seed in settings.seeds:
            told = partial(tell, f"speech, seed {seed}")
            own = folder / f"speech-{seed}"
            populations[seed] = gather(settings.source, seed, settings.shape, voices, own, told, habit=settings.habit)
        runs = _run_all(settings, bundle, populations, folder, tell, announce)
    return document_of(settings, f"{bundle.manifest.name} {bundle.version}", populations, runs), runs


def _run_all(
    settings: SimulationSettings,
    bundle: Bundle,
    populations: dict[int, Population],
    folder: Path,
    tell: Tell,
    announce: Callable[[str, str], None],
) -> list[Run]:
    keep = {("both", settings.seeds[0]): settings.keep}
    tasks = [
        Task(each, seed, settings, people, folder / f"{each.name}-{seed}", keep.get((each.name, seed)))
        for seed, people in populations.items()
        for each in reversed(CONDITIONS)  # the longest first, so that no worker ends long after the others
    ]
    speech = {} if settings.work is None else {seed: spoken(people) for seed, people in populations.items()}
    paths = {task.folder: finished(task, bundle, speech.get(task.seed, "")) for task in tasks}
    runs = [read_row(path, Run) for path in paths.values() if path is not None and path.exists()]
    tasks = [task for task in tasks if (path := paths[task.folder]) is None or not path.exists()]
    voices = [voice for task in tasks for voice in (*task.population.devices, *task.population.heldout)]
    total = sum(len(said) for voice in voices for said in voice.rounds)
    context = get_context("spawn")
    queue = context.SimpleQueue()

    def listen() -> None:
        done = 0
        while (message := queue.get()) is not None:
            if isinstance(message, tuple):
                announce(*message)
            else:
                done += 1
                tell("devices", done, total)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    # A process for each condition, so that the memory it reports is its own.
    with ProcessPoolExecutor(settings.workers, context, start_worker, (queue,), max_tasks_per_child=1) as pool:
        futures = [pool.submit(_run_and_keep, task, paths[task.folder]) for task in tasks]
        try:
            runs += [future.result() for future in as_completed(futures)]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            queue.put(None)
    listener.join()
    order = [condition.name for condition in CONDITIONS]
    return sorted(runs, key=lambda run: (run.seed, order.index(run.condition)))


def _run_and_keep(task: Task, path: Path | None) -> Run:
    """In a worker, so that what ends well is kept whatever becomes of the others."""
    run = run_task(task)
    if path is not None:
        write_row(path, run)
    return run


def spoken(population: Population) -> str:
    """Hex sha256 of who says what, and how it sounds."""
    digest = sha256()
    for voice in (*population.devices, *population.heldout):
        for said in (said for round_ in voice.rounds for said in round_):
            slots = None if said.slots is None else sorted(said.slots.items())
            digest.update(json.dumps([voice.name, said.id, said.text, slots]).encode())
            digest.update(said.load().tobytes())
    return digest.hexdigest()


def finished(task: Task, bundle: Bundle, speech: str) -> Path | None:
    """Where a condition's run under a seed lies once it is finished, named after what it was made of; None where it is
    not to be kept, or its server's state is asked for and so it has to run. speech: :func:`spoken`."""
    settings = task.settings
    if settings.work is None or task.keep is not None:
        return None
    of = [version("idiolect"), bundle.manifest.to_bytes().decode(), speech, asdict(settings.shape), settings.subset]
    digest = sha256(json.dumps(of).encode()).hexdigest()[:8]
    return Path(settings.work, f"{task.condition.name}-{task.seed}-{digest}.json")


def document_of(
    settings: SimulationSettings, bundle: str, populations: dict[int, Population], runs: Sequence[Run]
) -> dict[str, Any]:
    """The simulation's JSON document. bundle: its name and version."""
    rounds, everybody = settings.shape.rounds, populations.values()
    by_condition = {each.name: [run for run in runs if run.condition == each.name] for each in CONDITIONS}
    return {
        "conditions": figures(runs, rounds),
        "against_frozen": against_frozen(runs, rounds),
        "rounds": rounds,
        "seeds": len(settings.seeds),
        "seed_values": list(settings.seeds),
        "epsilon": epsilon(runs),
        "data": settings.source,
        "habit": settings.habit,
        "subset": settings.subset,
        "bytes": {name: _traffic(own) for name, own in by_condition.items()},
        "device": {name: _load(own) for name, own in by_condition.items()},
        "voices": {
            "base": sorted({voice for each in everybody for voice in each.base}),
            "devices": sorted({voice.name for each in everybody for voice in each.devices}),
            "heldout": sorted({voice.name for each in everybody for voice in each.heldout}),
        },
        "settings": {
            "bundle": bundle,
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            "data": settings.source,
            "seeds": list(settings.seeds),
            "learning rate": LEARNING.step.learning_rate,
            "steps an utterance": LEARNING.passes,
            "delta bound (L2)": DELTAS.clip_norm,
            "delta noise (standard deviation of each value)": DELTAS.noise_stddev,
            "server learning rate": "devices / 5, at least 1",
            "epsilon of a marginal report": MARGINALS.epsilon,
        },
    }


def epsilon(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """stream that a round collected -> the ledger's entry of the condition with both streams, of the seed where it is
    largest. Infinity is written as the string ``Infinity``, since JSON has no such number."""
    streams: dict[str, list[dict[str, Any]]] = {}
    for stream, entry in (item for run in runs if run.condition == "both" for item in run.epsilon.items()):
        if entry.get("rounds") != 0:
            streams.setdefault(stream, []).append(entry)
    largest = {stream: max(entries, key=lambda entry: float(entry["epsilon"])) for stream, entries in streams.items()}
    return {stream: finite(entry) for stream, entry in largest.items()}


def _traffic(runs: Sequence[Run]) -> dict[str, float]:
    """Mean bytes a device sends and receives in a round."""
    moved = [entry for run in runs for entry in run.traffic]
    return {way: fmean(getattr(entry, way) for entry in moved) if moved else 0.0 for way in ("up", "down")}


def _load(runs: Sequence[Run]) -> dict[str, float]:
    """Mean seconds an utterance on the device, and the largest memory of its process."""
    spoken = [outcome for run in runs for outcome in run.outcomes if not outcome.held_out]
    return {
        "audio_seconds": fmean(outcome.seconds for outcome in spoken),
        "recognize_seconds": fmean(outcome.recognize_seconds for outcome in spoken),
        "learn_seconds": fmean(outcome.learn_seconds for outcome in spoken),
        "peak_memory_bytes": float(max(run.memory_bytes for run in runs)),
    }
