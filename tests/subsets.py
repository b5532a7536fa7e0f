"""``python -m tests.subsets --bundle BUNDLE --json``: what an imported model learns with each of its subsets.

People whom no training heard, one after the other, predict then learn: readers' chapters and coffee orders in order,
one utterance in five corrected, the rest accepted or cancelled, as :mod:`tests.learning` has it. Without ``--bundle``
the packaged network in NeMo's layout is imported. A row a subset: word error beside *frozen* over the later two thirds
with its interval over people, seconds of a core for a second of speech, and what a delta takes in float16. Exit status
1 when a line does not hold. ``--keep FOLDER`` keeps what is done and goes on from there."""

import json
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import prod
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from device_sdk import Bundle, Device
from device_sdk.bundle.architecture import Subset, trainable
from device_sdk.bundle.streaming import subsets_of
from device_sdk.commands.output import AsJson, deliver
from device_sdk.feedback.distance import edit_distance
from device_sdk.learning.settings import LearningSettings
from device_sdk.settings import DeviceSettings
from export.bundles import MODELS, rewrite
from export.sherpa import export_sherpa
from server.lab.commands.shared import progress_bar
from server.lab.corpora import SAMPLE_RATE, open_corpus
from server.lab.corpora.made import made_corpus
from server.lab.corpora.roles import UNHEARD, card_voices, scoring
from server.lab.imports import Import, import_bundle
from server.lab.simulation.fleet import saw
from server.lab.simulation.outcomes import CONDITIONS
from server.lab.tuning.second_moments import measure

KINDS = ("librispeech", "barista")
EACH, LEAST = 24, 12
"""Utterances of a person, at most and at least."""
SEEDS = 6
LATER = 1 / 3
MOMENTS = 400
BOTH = next(each for each in CONDITIONS if each.name == "both")


@dataclass(frozen=True, slots=True)
class Heard:
    """errors, words: of each utterance, in order. seconds: of speech; spent: of a core while learning."""

    errors: tuple[int, ...]
    words: tuple[int, ...]
    seconds: float
    spent: float


def imported(folder: Path) -> Path:
    """The packaged network in NeMo's layout, imported, with everything else as it is packaged."""
    own, out = Bundle.open(), folder / "imported"
    if not out.exists():
        texts = folder / "text.txt"
        texts.write_text("turn the light off\n")
        import_bundle(Import(export_sherpa(own, folder / "nemo"), folder / "bare", (texts,)))
        held = {
            name: own.file(name).read_bytes() for name in (*MODELS, "card.json", "tokenizer.model") if own.has(name)
        }
        given: dict[str, Any] = {"words": own.words, "background": own.background, "combination": own.combination}
        given |= {"card": json.loads(held.pop("card.json")), "tokenizer_model": held.pop("tokenizer.model")}
        bare = Bundle.open(folder / "bare")
        moments, _ = measure(bare, made_corpus("base", 40, MOMENTS // 40, 0).utterances)
        rewrite(bare, folder / "part", models=held, second_moments=moments, **given)
        (folder / "part").rename(out)
    return out


def predict_then_learn(bundle: Path, data: Path, subset: Subset | None, seed: int, kind: str, person: str) -> Heard:
    """subset: None for *frozen*."""
    opened = Bundle.open(bundle)
    corpus = open_corpus(f"{kind}:{data / kind}", UNHEARD, role=scoring(card_voices(opened)))
    own = [each for each in corpus.of_speakers(person).utterances if each.sure_text][:EACH]
    learning = LearningSettings(subset=subset)
    settings = DeviceSettings(learn=subset is not None, learning=learning, use_marginals=False)
    errors, words, seconds, spent = list[int](), list[int](), 0.0, 0.0
    with TemporaryDirectory() as folder, Device.open(folder, bytes(32), opened, settings) as device:
        for said in own:
            waveform = said.load()
            result = device.recognize(waveform, SAMPLE_RATE)
            spoken = said.sure_text.split()
            errors.append(edit_distance(spoken, result.text.split()))
            words.append(len(spoken))
            seconds += len(waveform) / SAMPLE_RATE
            if subset is not None and (signal := saw(said, result, corpus.lexicon, BOTH, seed)) is not None:
                device.feedback(result.utterance_id, signal)
                begin = process_time()
                device.learn()
                spent += process_time() - begin
    return Heard(tuple(errors), tuple(words), seconds, spent)


def _kept(path: Path, *arguments: Any) -> Heard:
    if not path.exists():
        path.with_suffix(".part").write_bytes(pickle.dumps(predict_then_learn(*arguments)))
        path.with_suffix(".part").replace(path)
    found: Heard = pickle.loads(path.read_bytes())
    return found


def _people(bundle: Bundle, data: Path, kind: str) -> list[str]:
    corpus = open_corpus(f"{kind}:{data / kind}", UNHEARD, role=scoring(card_voices(bundle)))
    counts = {
        name: sum(one.sure_text is not None for one in corpus.of_speakers(name).utterances) for name in corpus.speakers
    }
    return [name for name, count in counts.items() if count >= LEAST]


def delta_bytes(bundle: Bundle, subset: Subset) -> int:
    """In float16. What adapters moved is sent as the matrices' change: products of factors do not add up by factors."""
    shapes = bundle.architecture.parameter_shapes()
    return 2 * sum(prod(shapes[name]) for name in trainable(bundle.architecture, subset))


def _later(heard: Heard) -> tuple[int, int]:
    first = int(len(heard.words) * LATER)
    return sum(heard.errors[first:]), sum(heard.words[first:])


def interval(frozen: list[tuple[int, int]], learned: list[list[tuple[int, int]]]) -> tuple[float, float, float]:
    """Points of word error, learned less frozen, pooled: mean, and 95 % over people drawn anew. learned: of each seed,
    as many people."""
    generator, count = np.random.default_rng(0), len(frozen)
    before, after = np.array(frozen, float), np.array(learned, float).mean(0)
    draws = generator.integers(0, count, (10_000, count))

    def points(rows: Any) -> Any:
        old, new = before[rows].sum(-2), after[rows].sum(-2)
        return 100.0 * (new[..., 0] / new[..., 1] - old[..., 0] / old[..., 1])

    low, high = np.percentile(points(draws), [2.5, 97.5])
    return float(points(np.arange(count))), float(low), float(high)


def main(
    bundle: Annotated[Path | None, typer.Option(help="An imported bundle.")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = SEEDS,
    keep: Annotated[Path | None, typer.Option(help="Folder of what is done so far.")] = None,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    as_json: AsJson = False,
) -> None:
    data = Path(os.environ["IDIOLECT_DATA"])
    with TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = bundle or imported(folder)
        opened = Bundle.open(path)
        people = [(kind, name) for kind in KINDS for name in _people(opened, data, kind)]
        jobs: list[tuple[Subset | None, int]] = [(None, 1)]
        jobs += [(subset, seed) for seed in range(1, seeds + 1) for subset in subsets_of(opened.architecture)]
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool, progress_bar() as bar:
            found = {
                (subset, seed, kind, name): pool.submit(
                    _kept, folder / f"{subset}-{seed}-{kind}-{name}.pickle", path, data, subset, seed, kind, name
                )
                for subset, seed in jobs
                for kind, name in people
            }
            for each in bar.track(found.values(), description="people"):
                each.result()
        heard = {key: future.result() for key, future in found.items()}
    rows = [_row(opened, subset, seeds, people, heard) for subset in subsets_of(opened.architecture)]
    default = rows[0]
    small = min((row for row in rows if row["bytes"] <= 0.25 * default["bytes"]), key=lambda row: row["points"])
    share = 100 * small["points"] / default["points"]
    lines = [
        {"name": f"points of word error by {default['subset']}, interval below 0", "found": default["points"],
         "holds": default["high"] < 0},
        {"name": f"percent of it by {small['subset']}, the best at a quarter of its bytes or less, at least 80",
         "found": share, "holds": default["points"] < 0 and share >= 80},
    ]  # fmt: skip
    if not deliver({"people": len(people), "seeds": seeds, "rows": rows, "lines": lines}, as_json, None):
        table = Table("subset", "frozen", "later", "points", "interval", "core s / s", "delta", title="imported model")
        for row in rows:
            table.add_row(
                row["subset"], f"{row['frozen']:.1f}", f"{row['later']:.1f}", f"{row['points']:+.2f}",
                f"{row['low']:+.2f} to {row['high']:+.2f}", f"{row['spent']:.2f}", f"{row['bytes'] / 1e6:.2f} MB",
            )  # fmt: skip
        Console().print(table)
        for line in lines:
            print(f"{line['name']}: {line['found']:.2f}{'' if line['holds'] else ', misses'}")
    raise typer.Exit(not all(line["holds"] for line in lines))


def _row(
    bundle: Bundle, subset: Subset, seeds: int, people: list[tuple[str, str]], heard: dict[Any, Heard]
) -> dict[str, Any]:
    frozen = [_later(heard[None, 1, kind, name]) for kind, name in people]
    own = [[heard[subset, seed, kind, name] for kind, name in people] for seed in range(1, seeds + 1)]
    learned = [[_later(each) for each in seed] for seed in own]
    mean, low, high = interval(frozen, learned)
    before = 100 * sum(errors for errors, _ in frozen) / sum(words for _, words in frozen)
    each = [one for seed in own for one in seed]
    return {
        "subset": subset, "frozen": before, "later": before + mean, "points": mean, "low": low, "high": high,
        "spent": sum(one.spent for one in each) / sum(one.seconds for one in each),
        "bytes": delta_bytes(bundle, subset),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
