"""What a federation is, as data that can be written in a file: cohorts, local work, privacy, aggregation."""

import hashlib
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from device_sdk.wire.messages import Clipping
from server.plans.round import OptimizerSettings

Way = Literal["auto", "ghost", "grouped", "loop"]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LocalWork(_Settings):
    """What a client does in a round. kind: ``gradient`` sends minus the mean gradient of one batch (FedSGD); ``steps``
    and ``epochs`` send the difference after ``count`` of them by plain SGD (FedAvg). batch: examples of a step, at
    most. learning_rate: of a step. clip_norm: L2 bound of every step's gradient. proximal: mu of FedProx, whose steps
    add mu (w - w_0) to the gradient."""

    kind: Literal["gradient", "steps", "epochs"] = "gradient"
    count: Count = 1
    batch: Count = 8
    learning_rate: Positive = 0.1
    clip_norm: Positive | None = None
    proximal: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _one_gradient(self) -> Self:
        if self.kind == "gradient" and self.count != 1:
            raise ValueError(f"count: found {self.count} with kind 'gradient', expected 1; use 'steps' for several")
        return self

    @property
    def rate(self) -> float:
        """What a gradient is multiplied with on its way into the delta."""
        return 1.0 if self.kind == "gradient" else self.learning_rate


class Privacy(_Settings):
    """clip_norm: C, the L2 bound of what a client sends; clipping: of the whole or of every parameter array (Pelikan et
    al. 2023, definition 3). noise_multiplier: z, the noise of the round's sum over C; 0 for none, and then epsilon is
    infinite. delta: at which epsilon is stated."""

    clip_norm: Positive
    clipping: Clipping = "global"
    noise_multiplier: Annotated[float, Field(ge=0)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-9


class HeldOutStep(_Settings):
    """A step on the server's own held-out examples after every update (Gao et al. 2022): batch examples at a rate."""

    learning_rate: Positive
    batch: Count = 32


class EngineSettings(_Settings):
    """A whole run but for its data and its network. seed: decides cohorts and batches; never noise. cohort: clients of
    a round, drawn without replacement. weighting: equations 8 to 10 of Gao et al. 2022, or all alike. way: how clients
    are computed, see :mod:`server.lab.simulation.engine.workers`; ``auto`` is ``ghost`` for one step and ``grouped``
    for several where the network allows it. group: clients that are computed at once. held_out: what the server
    adds."""

    seed: Annotated[int, Field(ge=0)] = 1
    rounds: Count = 10
    cohort: Count = 10
    local: LocalWork = LocalWork()
    privacy: Privacy | None = None
    weighting: Literal["uniform", "examples", "loss", "word_error"] = "uniform"
    optimizer: OptimizerSettings = OptimizerSettings()
    held_out: HeldOutStep | None = None
    way: Way = "auto"
    group: Count = 64

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.way == "ghost" and not self.one_step:
            raise ValueError("way: 'ghost' takes one step; use 'grouped' or 'loop' for several")
        if self.noisy and self.weighting != "uniform":
            raise ValueError("weighting: weights that depend on the data are not accounted; with noise use 'uniform'")
        return self

    @property
    def noisy(self) -> bool:
        return self.privacy is not None and self.privacy.noise_multiplier > 0

    @property
    def one_step(self) -> bool:
        return self.local.kind != "epochs" and self.local.count == 1

    def digest(self) -> str:
        """Of everything but the number of rounds and how clients are computed: what a resumed run must agree on."""
        return hashlib.sha256(self.model_dump_json(exclude={"rounds", "way", "group"}).encode()).hexdigest()
