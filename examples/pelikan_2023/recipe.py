"""A row of the experiment: what is begun with, who has which data, and how the federation runs."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from device_sdk.errors import ConfigurationError
from server.lab.simulation.engine.settings import EngineSettings, LocalWork
from server.plans.round import OptimizerSettings, ScheduleSettings
from server.plans.round_file import merge_tables

BASE = EngineSettings(
    rounds=60,
    cohort=32,
    local=LocalWork(kind="gradient", batch=3),
    optimizer=OptimizerSettings(
        kind="lamb",
        learning_rate=0.02,
        momentum=0.9,
        second_momentum=0.99,
        epsilon=1e-8,
        schedule=ScheduleSettings(start=30, decay=0.1, transition=30),
    ),
    group=32,
)
"""What rows differ from. The paper's are 2,000 rounds of 1,024 clients with 10 local steps and LAMB on the server, its
rate constant at first and then decaying."""


class Recipe(BaseModel):
    """name, table: of the paper's. paper: the word error printed there, in percent. begin: weights of a model that was
    trained on the server's voices for ``seed_share`` of the usual steps, or none. norm: where LayerNorm stands. iid:
    sentences have clients drawn at random. masks: SpecAugment. engine: the federation."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    table: str
    paper: float | None = None
    begin: Literal["seed", "scratch", "only"] = "seed"
    seed_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    norm: Literal["pre", "post"] = "pre"
    iid: bool = False
    masks: bool = True
    engine: EngineSettings = BASE


def read_recipe(path: Path) -> Recipe:
    """A TOML file whose table ``engine`` holds what differs from the base row. ConfigurationError names the file."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        content["engine"] = merge_tables(BASE.model_dump(), content.get("engine", {}))
        return Recipe.model_validate(content)
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigurationError(f"{path}: not a recipe ({error})") from error


def read_recipes(folder: Path) -> list[Recipe]:
    """Every recipe of a folder, in the order of file names. ConfigurationError: none, or two with one name."""
    found = [read_recipe(path) for path in sorted(folder.glob("*.toml"))]
    if not found:
        raise ConfigurationError(f"{folder}: found no .toml file, expected one a row")
    names = [recipe.name for recipe in found]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{folder}: found a name twice among {sorted(names)}, expected different ones")
    return found
