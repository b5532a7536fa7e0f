"""Runs the rows of tables 2 and 3, each at several seeds, and keeps what is finished in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.ramesh_2023.encoders import centrally, fresh, some_silos, together
from examples.ramesh_2023.numbers import Language
from examples.ramesh_2023.recognition import Errors, taught, word_errors
from examples.ramesh_2023.rows import Row
from examples.ramesh_2023.settings import Sizes
from examples.ramesh_2023.speech import Speech
from export.networks.cpc import CPC
from server.lab.simulation.progress import Tell
from server.lab.training.trainer import write_atomically

__all__ = ["Outcome", "Plan", "run"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. languages: how to get the speech of each; rows: those of table 2 are taught in English, of table
    3 in French."""

    sizes: Sizes
    seeds: Sequence[int]
    speech: Callable[[Language], Speech]
    work: Path
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row at one seed. errors: by test set. about: figures of its pre-training."""

    table: str
    row: str
    seed: int
    errors: Mapping[str, Errors]
    about: Mapping[str, Any]


def run(plan: Plan, tell: Tell) -> list[Outcome]:
    """All rows at all seeds, those that are not in the folder yet; a run that was killed goes on."""
    folder = plan.work / hashlib.sha256(repr(plan.sizes).encode()).hexdigest()[:12]
    speech: dict[Language, Speech] = {}

    def language(name: Language) -> Speech:
        if name not in speech:
            speech[name] = plan.speech(name)
        return speech[name]

    outcomes: list[Outcome] = []
    wanted = [(seed, row) for seed in plan.seeds for row in plan.rows]
    for number, (seed, row) in enumerate(wanted):
        tell("rows", number, len(wanted))
        own = folder / f"seed-{seed}" / f"table-{row.table}" / row.name.replace(", ", "-").replace(" ", "-")
        done = own / "outcome.json"
        if not done.exists():
            target: Language = "en" if row.table == "2" else "fr"
            encoder, about = _encoder(row, language, plan.sizes, seed, folder / f"seed-{seed}" / "encoders", tell)
            task = taught(encoder, language(target), plan.sizes, seed, own)
            errors = {name: word_errors(task, examples) for name, examples in language(target).tests.items()}
            write_atomically(done, json.dumps({"errors": errors, "about": about}).encode())
        found = json.loads(done.read_bytes())
        outcomes.append(Outcome(row.table, row.name, seed, found["errors"], found["about"]))
        tell("rows", number + 1, len(wanted))
    return outcomes


def _encoder(
    row: Row, language: Callable[[Language], Speech], sizes: Sizes, seed: int, folder: Path, tell: Tell
) -> tuple[CPC | None, dict[str, Any]]:
    """The row's encoder and how it was made; rows that share one make it once."""
    if row.way == "none":
        return None, {}
    english = language("en")
    name = f"{row.way}-{row.cohort}-{'whole' if row.whole else 'part'}"
    network, about = fresh(sizes, english.silos, seed), {}
    path = folder / f"{name}.safetensors"
    if path.exists():
        about = _load(network, path)
    else:
        about = _pretrained(network, row, english, sizes, seed, folder / name, 1.0, tell)
        _save(network, path, about)
    if not row.continued:
        return network, about
    path = folder / f"{name}-continued.safetensors"
    if path.exists():
        return network, _load(network, path)
    more = _pretrained(network, row, language("fr"), sizes, seed, folder / f"{name}-fr", sizes.continued, tell)
    about = {**about, "continued": more}
    _save(network, path, about)
    return network, about


def _pretrained(
    network: CPC, row: Row, speech: Speech, sizes: Sizes, seed: int, folder: Path, share: float, tell: Tell
) -> dict[str, Any]:
    """share: of the usual steps or rounds. Continued pre-training has all the silos of its language, as the paper's."""
    clips, owners = speech.silos, speech.owners
    if not row.whole and speech.language == "en":
        clips, owners = some_silos(clips, owners, sizes.part, row.cohort)
    if row.way == "central":
        steps = max(1, round(share * sizes.central_steps))
        centrally(network, clips, sizes, steps, seed, folder)
        return {"steps": steps, "utterances": len(clips.frames)}
    what = f"{row.name}, seed {seed}"
    _, about = together(
        network,
        clips,
        owners,
        sizes,
        row.cohort,
        seed,
        share,
        lambda done, total: tell(what, done, total),
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    return {**about, "utterances": len(clips.frames)}


def _save(network: CPC, path: Path, about: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, temporary)
    path.with_suffix(".json").write_text(json.dumps(about))
    temporary.replace(path)


def _load(network: CPC, path: Path) -> dict[str, Any]:
    network.load_state_dict(load_file(path))
    about: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return about
