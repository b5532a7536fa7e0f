"""Runs the rows of tables 2 and 3, each at several seeds, and keeps what is finished in a folder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.ramesh_2023.encoders import centrally, fresh, some_silos, together
from examples.ramesh_2023.recipes import Row, Sizes
from examples.ramesh_2023.recognition import teach, word_errors
from examples.ramesh_2023.speech import Language, Speech
from examples.runner import Errors, digest, keep
from export.networks.cpc import CPC
from server.lab.simulation.progress import Tell


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row at one seed. errors: by test set. about: figures of its pre-training."""

    table: str
    row: str
    seed: int
    errors: Mapping[str, Errors]
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Encoder:
    about: Mapping[str, Any]


def run(
    sizes: Sizes,
    seeds: Iterable[int],
    speech: Callable[[Language], Speech],
    work: Path,
    rows: Sequence[Row],
    tell: Tell,
) -> list[Outcome]:
    """All rows at all seeds, those that are not in the folder ``work`` yet; a run that was killed goes on. speech: how
    to get that of each language; rows of table 2 are taught in English, of table 3 in French."""
    folder, language = work / digest(sizes), cache(speech)

    def make(row: Row, seed: int) -> Outcome:
        target: Language = "en" if row.table == "2" else "fr"
        own = folder / f"seed-{seed}"
        encoder, about = _encoder(row, language, sizes, seed, own / "encoders", tell)
        task = teach(encoder, language(target), sizes, seed, own / f"table-{row.table}-{digest(row)}")
        errors = {name: word_errors(task, examples) for name, examples in language(target).tests.items()}
        return Outcome(row.table, row.name, seed, errors, about)

    outcomes: list[Outcome] = []
    wanted = list(product(seeds, rows))
    for number, (seed, row) in enumerate(wanted):
        tell("rows", number, len(wanted))
        names = row.table, row.name, seed
        outcomes.append(keep(folder / "rows", names, row, Outcome, partial(make, row, seed)))
    tell("rows", len(wanted), len(wanted))
    return outcomes


def _encoder(
    row: Row, language: Callable[[Language], Speech], sizes: Sizes, seed: int, folder: Path, tell: Tell
) -> tuple[CPC | None, Mapping[str, Any]]:
    """The row's encoder and how it was made; rows that share one make it once."""
    if row.way == "none":
        return None, {}
    english = language("en")
    name = f"{row.way}-{row.cohort}-{'whole' if row.whole else 'part'}-{row.passes or 'all'}"
    network = fresh(sizes, english.silos, seed)
    about = _kept(
        network, folder, name, lambda: _pretrained(network, row, english, sizes, seed, folder / name, 1.0, tell)
    )
    if not row.continued:
        return network, about

    def go_on() -> dict[str, Any]:
        french = language("fr")
        more = _pretrained(network, row, french, sizes, seed, folder / f"{name}-fr", sizes.continued, tell)
        return {**about, "continued": more}

    return network, _kept(network, folder, f"{name}-continued", go_on)


def _pretrained(
    network: CPC, row: Row, speech: Speech, sizes: Sizes, seed: int, folder: Path, share: float, tell: Tell
) -> dict[str, Any]:
    """share: of the usual steps or rounds. Continued pre-training has all the silos of its language, as the paper's."""
    clips, owners = speech.silos, speech.owners
    if not row.whole and speech.language == "en":
        clips, owners = some_silos(clips, owners, sizes.part, seed)
    if row.way == "central":
        steps = max(1, round(share * sizes.central_steps))
        centrally(network, clips, sizes, steps, seed, folder)
        return {"steps": steps, "utterances": len(clips.frames)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    told = partial(tell, f"{row.name}, seed {seed}")
    cohort = row.cohort if row.cohort <= len(owners) else max(1, round(sizes.part * row.cohort))
    _, about = together(network.to(device), clips, owners, sizes, cohort, seed, share, told, row.passes)
    return {**about, "utterances": len(clips.frames)}


def _kept(network: CPC, folder: Path, name: str, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Loads the network's weights, which ``make`` trains where there are none; returns what it said."""
    path = folder / f"{name}.safetensors"

    def train() -> _Encoder:
        about = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in network.state_dict().items()}, path)
        return _Encoder(about)

    about = keep(folder, (name,), _Encoder({}), _Encoder, train).about
    network.load_state_dict(load_file(path))
    return about
