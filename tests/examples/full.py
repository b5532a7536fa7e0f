"""Two optimizer steps of every experiment's full size, on little speech: what ``--full`` would begin with.

    python -m tests.examples.full PAPER FOLDER

Prints the parameters of the network and what was learned as JSON."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.gao_2022 import experiment as gao_2022
from examples.gao_2022.recipes import table_1
from examples.liu_2020.making import BaseSettings, train_language_models
from examples.liu_2020.meetings import SETTINGS
from examples.pelikan_2023 import experiment as pelikan_2023
from examples.pelikan_2023.recipe import BASE, Recipe
from examples.pelikan_2023.speech import SpokenScale
from examples.ramesh_2023 import experiment as ramesh_2023
from examples.ramesh_2023.recipes import FULL, Row, Sizes
from examples.ramesh_2023.speech import Speech
from examples.rao_2023 import experiment as rao_2023
from server.lab.simulation.engine.settings import Privacy
from server.lab.training.clips import HeldClips
from server.lab.training.data import Example
from server.lab.training.spectra import BINS

WORDS = 4000


def words(seed: int = 0) -> list[str]:
    """As many made-up words, of letters enough for 2,500 pieces."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(3, 9, WORDS)
    return ["".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz"), size)) for size in sizes]


def texts(times: int, size: int = 8) -> list[str]:
    """Sentences that say every word so often."""
    known, generator = words(), np.random.default_rng(0)
    said = [known[place] for _ in range(times) for place in generator.permutation(WORDS)]
    return [" ".join(said[start : start + size]) for start in range(0, len(said), size)]


def gao(work: Path) -> dict[str, Any]:
    full = gao_2022.Scale.full()
    crowd = replace(full.crowd, speakers=6, tested=1, held=1, least=2, most=3, digits=2)
    scale = replace(full, crowd=crowd, central=replace(full.central, steps=2, batch=2), rounds=2, cohort=2)
    experiment = gao_2022.Experiment(work, scale)
    recipe = next(each for each in table_1(2, 2) if each.name == "users: WER-based")
    row = experiment.row(recipe, "fr", 1)
    return {"values": _values(experiment.task("fr", 1).network), "losses": row.losses}


def liu(work: Path) -> dict[str, Any]:
    settings = BaseSettings(language_model_steps=2)
    train_language_models(texts(1), SETTINGS["ami-inside"], {}, settings, work, lambda *_: None)
    return {"values": json.loads((work / "language_model.json").read_text())["parameters"]}


def pelikan(work: Path) -> dict[str, Any]:
    spoken = SpokenScale(clients=2, server=2, tested=1, each=2, digits=1, bins=64)
    scale = replace(pelikan_2023.Scale.full(), spoken=spoken, steps=2, batch=1, rounds=1.0)
    privacy = Privacy(clip_norm=0.01, clipping="dim")
    local = BASE.local.model_copy(update={"count": 1, "batch": 1})
    engine = BASE.model_copy(update={"rounds": 2, "cohort": 1, "local": local, "privacy": privacy})
    experiment = pelikan_2023.Experiment(work, scale)
    row = experiment.row(Recipe(name="middle noise, dim", table="2", engine=engine, noise=0.048), 1)
    return {"values": _values(experiment.task("pre").network), "losses": row.losses}


def ramesh(work: Path) -> dict[str, Any]:
    federation = replace(FULL.federation, rounds=2, batch=1)
    teaching = replace(FULL.teaching, steps=2, batch=2)
    sizes: Sizes = replace(FULL, central_steps=2, central_batch=2, federation=federation, teaching=teaching)
    generator = np.random.default_rng(1)

    def clip(number: int, text: str) -> Example:
        return Example(generator.standard_normal((240, BINS)).astype(np.float16), text, f"s{number}")

    silos = HeldClips([clip(number // 2, "") for number in range(8)])
    taught = HeldClips([clip(number, text) for number, text in enumerate(texts(1))])
    speech = Speech("en", silos, (2,) * 4, taught, {"clean": (clip(9, "one word"),)})
    rows = [Row("2", "central", "central"), Row("2", "federated 48", "federated", 2)]
    outcomes = ramesh_2023.run(sizes, (1,), lambda _: speech, work, rows, lambda *_: None)
    return {"about": [dict(outcome.about) for outcome in outcomes]}


def rao(work: Path) -> dict[str, Any]:
    said = texts(8)
    data = work / "data"
    for folder in ("ami", "slurp"):
        (data / folder).mkdir(parents=True)
    turns = [{"speaker": "A", "text": text} for text in said]
    (data / "ami" / "meetings.jsonl").write_text(json.dumps({"meeting": "one", "turns": turns}) + "\n")
    (data / "slurp" / "lm.txt").write_text("\n".join([*said[:9], ""]))
    known = words()
    requests = [known[number : number + 4] for number in range(0, 400, 4)]
    rows = [
        {
            "sentence": " ".join(each),
            "tokens": [{"surface": word, "id": place} for place, word in enumerate(each)],
            "entities": [{"span": [1], "type": "thing"}],
            "scenario": "any",
        }
        for each in requests
    ]
    (data / "slurp" / "devel.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    full = rao_2023.Scale.full()
    cohort = replace(full.cohort, rounds=2, devices=2, batch=1, evaluate_every=10)
    scale = replace(full, base_minutes=1e-3, persons=2, tested=1, test=1, development=1, rehearsal=1, cohort=cohort)
    experiment = rao_2023.Experiment(data, work, scale)
    method = next(each for each in rao_2023.methods(scale) if each.name == "EMA + slots")
    row = experiment.row(replace(method, rehearsal=1), 1)
    sizes = experiment.start.architecture.parameter_shapes().values()
    return {"values": int(sum(np.prod(shape) for shape in sizes)), "losses": row.losses}


def _values(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


RUNS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "gao_2022": gao,
    "liu_2020": liu,
    "pelikan_2023": pelikan,
    "ramesh_2023": ramesh,
    "rao_2023": rao,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(RUNS[sys.argv[1]](Path(sys.argv[2]))))
