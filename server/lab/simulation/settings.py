"""Every choice of a simulation, with the defaults of the demonstration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from device_sdk.errors import ConfigurationError
from device_sdk.features import ChannelSettings
from device_sdk.learning.settings import LearningSettings, StepSettings
from server.lab.simulation.attackers import Attack
from server.lab.simulation.population import Shape

__all__ = ["FleetSettings", "SimulationSettings"]


def _learning() -> LearningSettings:
    return LearningSettings(passes=4, confirmation=1.0, step=StepSettings(learning_rate=0.2))


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How devices learn and what the server asks of them.

    learning: of every device; four bold steps an utterance, since a round has few.
    clip_norm, noise_stddev: bound of a delta (L2) and the noise each device adds to every value of it.
    server_rate: learning rate of the server's averaging; 1 moves the model onto the mean of the devices' models. None
        is one fifth of the number of devices, at least 1: the mean of many deltas is a shorter step than any of them.
    marginal_epsilon: epsilon of one marginal report.
    averaging: of the devices' deltas, see :class:`server.plans.round.RoundSettings`; robust ones take no noise.
    channel: devices that learn take their microphone's mean away; None leaves it there.
    attack: what a share of the devices does; None has honest devices only.
    """

    learning: LearningSettings = field(default_factory=_learning)
    clip_norm: float = 2.0
    noise_stddev: float = 5e-5
    server_rate: float | None = None
    marginal_epsilon: float = 2.0
    averaging: Literal["mean", "cosine"] = "mean"
    channel: ChannelSettings | None = None
    attack: Attack | None = None


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """source: ``made``, ``barista:PATH``, ``fsdd:PATH`` or ``folder:PATH``. bundle: path; None for the packaged one.

    seeds: each is one whole simulation with its own voices, sentences and order. workers: processes, one thread each.
    keep: a new or empty folder for the server's state of the condition with both streams, under the first seed; it can
    be served again afterwards. None keeps nothing.
    """

    source: str = "made"
    bundle: str | None = None
    seeds: tuple[int, ...] = (1,)
    shape: Shape = field(default_factory=Shape)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    workers: int = 2
    keep: str | None = None

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigurationError(f"seeds: found {self.seeds}, expected one or more different numbers")
        if self.workers < 1:
            raise ConfigurationError(f"workers: found {self.workers}, expected at least 1")
        if self.keep is not None and Path(self.keep).exists() and any(Path(self.keep).iterdir()):
            raise ConfigurationError(f"keep: {self.keep} is not empty; give a new folder, or remove what is in it")
        for name in ("rounds", "devices", "each", "heldout", "heldout_each"):
            value = getattr(self.shape, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}: found {value}, expected at least 1")

    def as_json(self) -> dict[str, Any]:
        """For a report: what was chosen, in plain values."""
        fleet, learning = self.fleet, self.fleet.learning
        return {
            "data": self.source,
            "seeds": list(self.seeds),
            "learning rate": learning.step.learning_rate,
            "steps an utterance": learning.passes,
            "delta bound (L2)": fleet.clip_norm,
            "delta noise (standard deviation of each value)": fleet.noise_stddev,
            "server learning rate": fleet.server_rate or "devices / 5, at least 1",
            "epsilon of a marginal report": fleet.marginal_epsilon,
            "channel": "as heard" if fleet.channel is None else f"taken away, prior {fleet.channel.prior_seconds:g} s",
        }
