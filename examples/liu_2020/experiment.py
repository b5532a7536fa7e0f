"""From transcripts to scored n-best lists: models, speech and lists are made where they are missing, and kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from device_sdk.bundle import Bundle
from examples.liu_2020.base_models import (
    BaseSettings,
    shipped_bundle,
    train_language_models,
    train_recognizer,
)
from examples.liu_2020.cache import describe, ship
from examples.liu_2020.first_pass import FirstPass, chosen, decode
from examples.liu_2020.second_pass import score
from examples.liu_2020.transcripts import read_meetings, staged
from examples.rao_2023.domains import Stage
from server.lab.simulation.progress import Tell

__all__ = ["Scale", "make_lists"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. development, test: meetings that are recognized; None for all. processes: at once."""

    base: BaseSettings = field(default_factory=BaseSettings)
    first: FirstPass = field(default_factory=FirstPass)
    development: int | None = None
    test: int | None = None
    processes: int = 1


def make_lists(data: Path, work: Path, scale: Scale, tell: Tell, start: Bundle | None = None) -> Path:
    """The cache folder of scored n-best lists, made in ``work`` as far as it is not there.

    start: the bundle that the recognizer grows from; by default the packaged one.
    """
    meetings = read_meetings(data / "ami" / "meetings.jsonl")
    recognizer, models, cache = work / "recognizer", work / "language_models", work / "lists"
    train_recognizer(data, meetings, scale.base, start or Bundle.open(), recognizer)
    perplexity = train_language_models(
        data, meetings, scale.base, models, lambda at: tell("language model", round(100 * at.share), 100)
    )
    bundle = shipped_bundle(recognizer, models, work / "bundle")
    ship(bundle, cache)
    counts: dict[Stage, int | None] = {"development": scale.development, "test": scale.test}
    for stage, count in counts.items():
        said = chosen(staged(meetings)[stage], count)
        first = work / "first_pass" / stage
        decode(said, stage, bundle.path, first, scale.first, scale.processes, partial(tell, f"first pass, {stage}"))
        names = [meeting.name for meeting in said]
        score(bundle, first, cache / stage, names, partial(tell, f"second pass, {stage}"))
    describe(cache, {"perplexity": perplexity})
    return cache
