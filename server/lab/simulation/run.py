"""A whole simulation: every condition under every seed in a pool of processes, and the document of what came out."""

from __future__ import annotations

import math
import platform
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from device_sdk.bundle import Bundle
from server.lab.simulation.fleet import Task, run_task, start_worker
from server.lab.simulation.outcomes import CONDITIONS, Outcome, Run, against_frozen, figures
from server.lab.simulation.population import Population, gather_all
from server.lab.simulation.process import Address
from server.lab.simulation.settings import SimulationSettings

__all__ = ["Announce", "Watch", "simulate"]

Watch = Callable[[str, int, int], None]
"""(what is being done, done, all)."""
Announce = Callable[[Address], None]
"""Called when the server whose state is kept has come up."""


def simulate(
    settings: SimulationSettings,
    watch: Watch = lambda what, done, total: None,
    announce: Announce = lambda address: None,
) -> tuple[dict[str, Any], list[Run]]:
    """Runs everything and returns (document, runs): the JSON document and what it was computed from.

    Raises DataError for a source that cannot be used, BundleError for a bundle, and whatever ended a worker as it is.
    """
    bundle = Bundle.open(settings.bundle)
    voices = bundle.manifest.training.get("voices", {})
    with tempfile.TemporaryDirectory(prefix="idiolect-simulation-") as name:
        folder = Path(name)
        populations = gather_all(settings.source, settings.seeds, settings.shape, voices, folder, watch)
        runs = _run_all(settings, populations, folder, watch, announce)
    document = describe(settings, bundle, populations, runs)
    return document, runs


def _run_all(
    settings: SimulationSettings,
    populations: dict[int, Population],
    folder: Path,
    watch: Watch,
    announce: Announce,
) -> list[Run]:
    # The longest conditions first, so that no worker ends long after the others.
    tasks = [
        Task(
            condition,
            seed,
            settings,
            population,
            str(folder / f"{condition.name}-{seed}"),
            settings.keep if condition.name == "both" and seed == settings.seeds[0] else None,
        )
        for seed, population in populations.items()
        for condition in reversed(CONDITIONS)
    ]
    total = sum(_size(task.population) for task in tasks)
    context = get_context("spawn")
    queue = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(queue, total, watch, announce), daemon=True)
    listener.start()
    runs: list[Run] = []
    # A process for each condition, so that the memory it reports is its own.
    with ProcessPoolExecutor(
        settings.workers, mp_context=context, initializer=start_worker, initargs=(queue,), max_tasks_per_child=1
    ) as pool:
        futures = [pool.submit(run_task, task) for task in tasks]
        try:
            runs.extend(future.result() for future in as_completed(futures))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            queue.put(None)
    listener.join()
    order = [condition.name for condition in CONDITIONS]
    return sorted(runs, key=lambda run: (run.seed, order.index(run.condition)))


def _size(population: Population) -> int:
    return sum(len(said) for voice in (*population.devices, *population.heldout) for said in voice.rounds)


def _listen(queue: Any, total: int, watch: Watch, announce: Announce) -> None:
    done = 0
    while (message := queue.get()) is not None:
        if isinstance(message, Address):
            announce(message)
            continue
        done += 1
        watch("devices", done, total)


def describe(
    settings: SimulationSettings, bundle: Bundle, populations: dict[int, Population], runs: Sequence[Run]
) -> dict[str, Any]:
    """The simulation's JSON document."""
    rounds = settings.shape.rounds
    return {
        "conditions": figures(runs, rounds),
        "against_frozen": against_frozen(runs, rounds),
        "rounds": rounds,
        "seeds": len(settings.seeds),
        "seed_values": list(settings.seeds),
        "epsilon": epsilon(runs),
        "data": settings.source,
        "bytes": {condition.name: traffic(runs, condition.name) for condition in CONDITIONS},
        "device": {condition.name: load(runs, condition.name) for condition in CONDITIONS},
        "voices": {
            "base": sorted({voice for population in populations.values() for voice in population.base}),
            "devices": sorted({voice.name for population in populations.values() for voice in population.devices}),
            "heldout": sorted({voice.name for population in populations.values() for voice in population.heldout}),
        },
        "settings": {
            "bundle": f"{bundle.manifest.name} {bundle.version}",
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            **settings.as_json(),
        },
    }


def epsilon(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """stream that a round collected -> the ledger's entry of the condition with both streams, of the seed where it is
    largest.

    Infinity is written as the string ``Infinity``, since JSON has no such number.
    """
    streams: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.condition != "both":
            continue
        for stream, entry in run.epsilon.items():
            used = entry.get("rounds") != 0
            if used and (stream not in streams or _size_of(entry) > _size_of(streams[stream])):
                streams[stream] = entry
    return {stream: {key: _finite(value) for key, value in entry.items()} for stream, entry in streams.items()}


def _size_of(entry: dict[str, Any]) -> float:
    value = entry.get("epsilon")
    return float(value) if value is not None else math.inf


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return "Infinity" if isinstance(value, float) and not math.isfinite(value) else value


def traffic(runs: Sequence[Run], condition: str) -> dict[str, float]:
    """Mean bytes a device sends and receives in a round."""
    own = [entry for run in runs if run.condition == condition for entry in run.traffic]
    return {
        "up": statistics.fmean(entry.up for entry in own) if own else 0.0,
        "down": statistics.fmean(entry.down for entry in own) if own else 0.0,
    }


def load(runs: Sequence[Run], condition: str) -> dict[str, float]:
    """Mean seconds an utterance on the device, and the largest memory of its process."""
    own = [run for run in runs if run.condition == condition]
    spoken: list[Outcome] = [outcome for run in own for outcome in run.outcomes if not outcome.held_out]
    return {
        "audio_seconds": statistics.fmean(outcome.seconds for outcome in spoken),
        "recognize_seconds": statistics.fmean(outcome.recognize_seconds for outcome in spoken),
        "learn_seconds": statistics.fmean(outcome.learn_seconds for outcome in spoken),
        "peak_memory_bytes": float(max(run.memory_bytes for run in own)),
    }
