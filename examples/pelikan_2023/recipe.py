"""A row of the experiment: what is begun with, who has which data, and how the federation runs."""

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from device_sdk.errors import ConfigurationError
from server.lab.simulation.engine.settings import EngineSettings, LocalWork
from server.plans.round import OptimizerSettings, ScheduleSettings
from server.plans.round_file import merge_tables

BASE = EngineSettings(
    rounds=60,
    cohort=64,
    local=LocalWork(kind="steps", count=10, batch=3, learning_rate=0.1, clip_norm=1.0),
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
"""What rows differ from. As in the paper a client takes 10 local steps clipped at 1 and the server LAMB's, its rate
constant at first and then decaying; rounds are 2,000 of 1,024 clients there."""


class Recipe(BaseModel):
    """name, table: of the paper's. paper: the word error printed there, in percent. begin: with weights of a model
    that was trained on the server's voices for ``seed_share`` of the usual steps, or with none; ``only`` is that
    model alone, ``central`` learns from all clients' speech in one place instead of in rounds, from that model or
    from none. norm: where LayerNorm stands. iid: sentences have clients drawn at random. masks: SpecAugment. engine:
    the federation. noise: norm of the noise in a round's mean over the clipping bound, whatever network and cohort:
    sigma sqrt(D) / C of the paper, which at sigma = 1, 3 and 10e-8 is 0.016, 0.048 and 0.16; it sets the engine's
    ``noise_multiplier``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    table: str
    paper: float | None = None
    begin: Literal["seed", "scratch", "only", "central", "central, scratch"] = "seed"
    seed_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    norm: Literal["pre", "post"] = "pre"
    iid: bool = False
    masks: bool = True
    engine: EngineSettings = BASE
    noise: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.noise and self.engine.privacy is None:
            raise ValueError(f"noise: found {self.noise} without a clipping bound; give engine.privacy")
        return self

    @property
    def layered(self) -> bool:
        """Whether every parameter array has a bound of its own."""
        return self.engine.privacy is not None and self.engine.privacy.clipping != "global"

    def noised(self, values: int) -> EngineSettings:
        """The federation with this row's noise. values: D, the network's parameters."""
        privacy, cohort = self.engine.privacy, self.engine.cohort
        if privacy is None or not self.noise:
            return self.engine
        multiplier = self.noise * cohort / math.sqrt(values)
        noisy = privacy.model_copy(update={"noise_multiplier": multiplier})
        return self.engine.model_copy(update={"privacy": noisy})


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
