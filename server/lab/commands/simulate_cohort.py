"""``idiolect simulate --engine cohort``: a federation of made voices, without devices or HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_sdk.commands.output import deliver
from device_sdk.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from server.lab.simulation.engine.spread import RaySpread

__all__ = ["simulate_cohort"]


def simulate_cohort(
    engine: str,
    recipe: Path | None,
    work: Path,
    seeds: Sequence[int],
    rounds: int | None,
    as_json: bool,
    output: Path | None,
    ray: str | None = None,
    workers: int | None = None,
) -> None:
    """Run a recipe under some seeds, from where an earlier call stopped, and print errors, losses and epsilon.

    recipe: a TOML file as in ``examples/recipes``; None is a small federation with per-layer clipping and noise.
    rounds: instead of the recipe's. ray, workers: address of a cluster that computes the clients, and how many of their
    groups are under way there; None is this process, and one for each processor.
    Raises ConfigurationError for another engine and a recipe that is none.
    """
    if engine != "cohort":
        raise ConfigurationError(f"--engine: found {engine!r}, expected fleet or cohort")
    try:
        from server.lab.simulation.dictation.experiment import Experiment, Scale
    except ImportError as error:
        raise MissingExtraError(
            "cohorts are computed by torch, which is not installed; run: pip install 'idiolect-server[train]'"
        ) from error
    from server.lab.simulation.dictation.recipes import BASE, Recipe, read_recipe
    from server.lab.simulation.dictation.speech import SpokenScale
    from server.lab.simulation.engine.settings import Privacy
    from server.lab.simulation.progress import progress

    scale = Scale()
    if recipe is None:
        scale = replace(scale, steps=300, spoken=SpokenScale(clients=24, server=12, tested=8, each=4, digits=2))
        noisy = Privacy(clip_norm=0.5, clipping="dim", noise_multiplier=0.05)
        small = BASE.model_copy(update={"rounds": 10, "cohort": 12, "privacy": noisy})
        chosen = Recipe(name="small", table="2", engine=small)
    else:
        chosen = read_recipe(recipe)
    if rounds is not None:
        if rounds < 1:
            raise ConfigurationError(f"--rounds: found {rounds}, expected 1 or more")
        chosen = chosen.model_copy(update={"engine": chosen.engine.model_copy(update={"rounds": rounds})})
        chosen = chosen.model_copy(update={"name": f"{chosen.name}, {rounds} rounds"})
    with progress() as tell, _spread(ray, workers) as spread:
        experiment = Experiment(work, scale, tell, spread=spread)
        rows = [experiment.row(chosen, seed) for seed in seeds]
    document: dict[str, Any] = {
        "recipe": chosen.model_dump(mode="json"),
        "rows": [asdict(row) for row in rows],
    }
    if deliver(document, as_json, output, folders=True):
        return
    from server.commands.operators import show

    lines = [
        (
            row.seed,
            f"{100 * row.error:.1f}",
            f"{100 * row.clients['error']:.1f}",
            f"{100 * row.clients['worst_tenth']:.1f}",
            f"{row.losses[0]:.2f} to {row.losses[-1]:.2f}" if row.losses else "",
            _epsilon(row.privacy),
        )
        for row in rows
    ]
    columns = ("seed", "word error %", "clients' own %", "worst tenth %", "loss", "epsilon")
    show(f"{chosen.name}: {chosen.engine.rounds} rounds of {chosen.engine.cohort} clients", columns, lines)


@contextmanager
def _spread(ray: str | None, workers: int | None) -> Iterator[RaySpread | None]:
    if ray is None:
        yield None
        return
    from server.lab.simulation.engine.spread import RaySpread

    with closing(RaySpread(ray, workers)) as spread:
        yield spread


def _epsilon(privacy: Any) -> str:
    value = privacy["epsilon"]
    shown = "infinite" if isinstance(value, str) else f"{value:.3g}"
    return f"{shown} at delta {privacy['delta']:g}" if privacy.get("delta") else shown
