"""Models, rollouts and marginals as operators see them."""

from __future__ import annotations

from typing import Any, Literal

from server.operators.messages.answer import Answer

__all__ = [
    "Rollouts",
    "Rollout",
    "RolloutArm",
    "MarginalsList",
    "MarginalsVersion",
    "MarginalsWords",
    "Model",
    "Models",
    "Publication",
    "Word",
]


class Publication(Answer):
    """When a version became current, and why."""

    version: str
    at: float
    note: str


class Model(Answer):
    """A version of the weights. size: bytes."""

    version: str
    parent: str | None
    teacher: str | None
    round_id: str | None
    sha256: str
    size: int
    created_at: float
    figures: dict[str, Any]
    note: str


class Models(Answer):
    """Every version, and every publication, the newest first."""

    current: str
    models: list[Model]
    history: list[Publication]


class MarginalsVersion(Answer):
    """A version of the global marginals. noise_deviation: of one word's released count, in words."""

    version: int
    parent: int | None
    round_id: str | None
    sha256: str
    words_digest: str
    created_at: float
    noise_deviation: float
    figures: dict[str, Any]
    note: str


class MarginalsList(Answer):
    """Every version, and every publication, the newest first."""

    current: int
    marginals: list[MarginalsVersion]
    history: list[Publication]


class Word(Answer):
    """A word of the public list, and what was released of it."""

    word_id: int
    word: str | None
    probability: float
    background: float
    released_count: float


class MarginalsWords(MarginalsVersion):
    """One version. words: how many the list has; top: those that it lifts most over the background."""

    words: int
    top: list[Word]


class RolloutArm(Answer):
    """seen: devices of it that checked in; watched: for long enough to be counted; failed: of these."""

    seen: int
    watched: int
    failed: int


class Rollout(Answer):
    """A model that some devices got first. base: what the others have; looks: how often it was judged."""

    version: str
    base: str
    state: Literal["running", "promoted", "rolled_back"]
    settings: dict[str, Any]
    started_at: float
    ended_at: float | None
    looks: int
    arms: dict[str, RolloutArm]
    figures: dict[str, Any]
    note: str


class Rollouts(Answer):
    """running: the version of the one that runs; the newest first."""

    running: str | None
    rollouts: list[Rollout]
