"""``python -m tests.learning SPEECH --json``: whether devices still learn, under several seeds.

SPEECH: ``made`` and ``barista`` are simulations of the demonstration's people and of coffee orders; ``librispeech``
lets one device a reader hear a chapter in order. Recordings lie in the folder that ``IDIOLECT_DATA`` names. Exit status
1 when a line does not hold. ``--keep FOLDER`` keeps what is done and goes on from there."""

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from device_sdk import Bundle, Device
from device_sdk.commands.output import AsJson, deliver
from device_sdk.learning.settings import LearningSettings
from device_sdk.settings import DeviceSettings
from server.lab.commands.shared import progress_bar
from server.lab.corpora import SAMPLE_RATE, Corpus, open_corpus
from server.lab.corpora.roles import UNHEARD, card_voices, scoring
from server.lab.simulation import Shape, SimulationSettings, simulate
from server.lab.simulation.fleet import saw
from server.lab.simulation.outcomes import CONDITIONS, Outcome, Run, against_frozen, figures, score
from server.lab.simulation.progress import progress

Figures = dict[str, Any]
Line = Callable[[Figures], tuple[float, bool]]
"""A figure, and whether it holds."""
ROUNDS = 3
SEEDS = {"made": 5, "barista": 6, "librispeech": 6}
EACH = 40
"""Utterances of a reader, at most."""
BY_NAME = {condition.name: condition for condition in CONDITIONS}


def _below(kind: str, part: str, condition: str = "both") -> Line:
    """Points that a condition makes more errors than *frozen*, whose interval lies below zero."""

    def line(found: Figures) -> tuple[float, bool]:
        points = found["against_frozen"][condition][kind][part]["absolute"]
        return 100 * points["mean"], points["high"] < 0

    return line


def _begin(found: Figures) -> tuple[float, bool]:
    mean = 100 * found["conditions"]["frozen"]["wer"]["all"]["mean"]
    return mean, mean < 40


def _fifth(found: Figures) -> tuple[float, bool]:
    percent = 100 * found["against_frozen"]["both"]["wer"]["last"]["relative"]["mean"]
    return percent, percent <= -20


def _half(found: Figures) -> tuple[float, bool]:
    gains = [found["against_frozen"][name]["wer"]["later"]["absolute"]["mean"] for name in ("both", "supervised")]
    return 100 * gains[0] / gains[1], gains[1] < 0 and gains[0] / gains[1] >= 0.5


LINES: dict[str, dict[str, Line]] = {
    "made": {
        "word error as shipped, under 40 %": _begin,
        "change of word error in the last round, at most -20 %": _fifth,
        "points of word error in the last round, interval below 0": _below("wer", "last"),
    },
    "barista": {
        "points of slot error, interval below 0": _below("slot_error", "all"),
        "points of word error, interval below 0": _below("wer", "all"),
    },
    "librispeech": {
        "points of word error in the later two thirds, interval below 0": _below("wer", "later"),
        "points of word error with marginals alone, interval below 0": _below("wer", "all", "marginals"),
        "percent of the gain by all true transcripts, at least 50": _half,
    },
}


def _readers(bundle: Bundle, data: Path) -> Corpus:
    return open_corpus(f"librispeech:{data / 'librispeech'}", UNHEARD, role=scoring(card_voices(bundle)))


def read_aloud(bundle: Path | None, data: Path, condition: str, seed: int, reader: str) -> list[Outcome]:
    """One reader's chapter, in order; rounds are its thirds. A device without a server, as apps have it by default."""
    opened, allowed = Bundle.open(bundle), BY_NAME[condition]
    own = _readers(opened, data).of_speakers(reader).utterances[:EACH]
    # Where every utterance is corrected, replays gain nothing and take long.
    learning = LearningSettings(replays=0) if allowed.supervised else LearningSettings()
    outcomes = list[Outcome]()
    settings = DeviceSettings(learn=allowed.learning, learning=learning, use_marginals=allowed.marginals)
    with TemporaryDirectory() as folder, Device.open(folder, bytes(32), opened, settings) as device:
        for place, said in enumerate(own):
            result = device.recognize(said.load(), SAMPLE_RATE)
            outcomes.append(score(said, result.text, None, reader, ROUNDS * place // len(own)))
            if allowed.reports and (signal := saw(said, result, None, allowed, seed)) is not None:
                device.feedback(result.utterance_id, signal)
                if allowed.learning:
                    device.learn()
    return outcomes


def _read_aloud(bundle: Path | None, data: Path, folder: Path) -> list[Run]:
    corpus, runs = _readers(Bundle.open(bundle), data), list[Run]()
    seeds = range(1, SEEDS["librispeech"] + 1)
    # What hears without learning, or learns from all, is the same under every seed.
    jobs = [("supervised", 1), ("frozen", 1), *((name, seed) for name in ("both", "marginals") for seed in seeds)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool, progress_bar() as bar:
        found = {}
        for job in jobs:
            for reader in corpus.speakers:
                path = folder / f"{job[0]}-{job[1]}-{reader}.pickle"
                found[*job, reader] = pool.submit(_kept, path, read_aloud, bundle, data, *job, reader)
        for each in bar.track(found.values(), description="chapters"):
            each.result()
    for seed in seeds:
        for name in ("frozen", "marginals", "both", "supervised"):
            own = seed if name in ("marginals", "both") else 1
            said = [outcome for reader in corpus.speakers for outcome in found[name, own, reader].result()]
            runs.append(Run(name, seed, tuple(said), (), {}, 0))
    return runs


def _kept(path: Path, work: Callable[..., Any], *arguments: object) -> Any:
    """What the work returns, or returned when it was done before."""
    if not path.exists():
        path.with_suffix(".part").write_bytes(pickle.dumps(work(*arguments)))
        path.with_suffix(".part").replace(path)
    return pickle.loads(path.read_bytes())


def _simulate(source: str, bundle: Path | None, seeds: Sequence[int], folder: Path) -> Sequence[Run]:
    path = str(bundle) if bundle else None
    with progress() as watch:
        return simulate(SimulationSettings(source, path, tuple(seeds), Shape(ROUNDS), work=str(folder)), watch)[1]


def main(
    speech: Annotated[str, typer.Argument(help=f"One of {', '.join(LINES)}.")],
    bundle: Annotated[Path | None, typer.Option(help="Folder or zip of a bundle; the packaged one if none.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of what is done so far.")] = None,
    as_json: AsJson = False,
) -> None:
    if speech not in LINES:
        raise typer.BadParameter(f"found {speech!r}, expected one of {', '.join(LINES)}")
    data = Path(os.environ["IDIOLECT_DATA"]) if speech != "made" else Path()
    with TemporaryDirectory() as temporary:
        folder, runs = keep or Path(temporary), list[Run]()
        folder.mkdir(parents=True, exist_ok=True)
        if speech == "librispeech":
            runs = _read_aloud(bundle, data, folder)
        else:
            source = "made" if speech == "made" else f"{speech}:{data / speech}"
            runs += _simulate(source, bundle, range(1, SEEDS[speech] + 1), folder)
    found: Figures = {"conditions": figures(runs, ROUNDS), "against_frozen": against_frozen(runs, ROUNDS)}
    named = {name: line(found) for name, line in LINES[speech].items()}
    lines = [{"name": name, "found": round(value, 2), "holds": holds} for name, (value, holds) in named.items()]
    if not deliver({"lines": lines, **found}, as_json, None):
        table = Table("line", "found", "", title=f"{speech}, {SEEDS[speech]} seeds")
        for line in lines:
            table.add_row(str(line["name"]), f"{line['found']:.1f}", "" if line["holds"] else "misses")
        Console().print(table)
    raise typer.Exit(not all(line["holds"] for line in lines))


if __name__ == "__main__":
    typer.run(main)
