"""What a fleet is shipped with: a recognizer and two language models that have never met a test meeting.

All three learn from the meetings of the stage ``learn`` and from sentences said to assistants (``slurp/lm.txt``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import PRESETS
from device_sdk.features.logmel import logmel
from examples.liu_2020.speech import base_mixture, cast, waveform
from examples.liu_2020.transcripts import Meeting, staged, utterances
from examples.rao_2023.domains import Stage
from export.bundles import bundle_run
from server.lab.training.background import TextSources, run_language_model, run_ngram
from server.lab.training.data import Example
from server.lab.training.language_model import LanguageModelSettings, Progress
from server.lab.training.pieces import read_sentences, word_list
from server.lab.training.rnnt import Recipe, train_rnnt
from server.lab.training.trainer import Budget

__all__ = [
    "BaseSettings",
    "Lengths",
    "base_sentences",
    "shipped_bundle",
    "train_language_models",
    "train_recognizer",
]

_LICENCE = "CC BY 4.0 (AMI corpus, SLURP)"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Words of an utterance: longer turns are cut, shorter parts are left out."""

    shortest: int = 3
    longest: int = 12


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """recognizer_steps, language_model_steps: of training. shard: utterances made at a time. watched: of each
    development meeting, whose word error is logged. size, feed_forward, blocks, heads: of the Transformer, as in Liu &
    Peng 2020. order, cutoffs: of the n-gram."""

    lengths: Lengths = field(default_factory=Lengths)
    recognizer_steps: int = 660
    language_model_steps: int = 600
    shard: int = 3000
    watched: int = 8
    size: int = 256
    feed_forward: int = 1024
    blocks: int = 3
    heads: int = 4
    order: int = 5
    cutoffs: tuple[int, ...] = (1, 1, 2)
    threads: int = 1


def base_sentences(data: Path, meetings: Sequence[Meeting], lengths: Lengths) -> list[str]:
    """The distinct sentences that base models may learn from."""
    said = [u.text for m in staged(meetings)["learn"] for u in utterances(m, lengths.shortest, lengths.longest)]
    requests = read_sentences(data / "slurp" / "lm.txt")
    kept = (text for text in requests if lengths.shortest <= len(text.split()) <= lengths.longest)
    return list(dict.fromkeys([*said, *kept]))


def watched(meetings: Sequence[Meeting], lengths: Lengths, each: int, stage: Stage = "development") -> list[Example]:
    """``each`` utterances, spread over the meeting, of every meeting of a stage."""
    found = []
    for meeting in staged(meetings)[stage]:
        persons, said = cast(meeting, stage), utterances(meeting, lengths.shortest, lengths.longest)
        for number in range(0, len(said), max(1, len(said) // each))[:each]:
            features = logmel(waveform(meeting, number, said[number], persons))
            found.append(Example(features, said[number].text, f"meetings.{stage}"))
    return found


def train_recognizer(data: Path, meetings: Sequence[Meeting], settings: BaseSettings, start: Bundle, out: Path) -> None:
    """Train the packaged model further on general sentences, where the folder has no finished weights.

    What it starts from has heard commands and requests to assistants, no meeting.
    """
    described = out / "training.json"
    if described.exists() and json.loads(described.read_text("utf-8"))["result"].get("progress", 0.0) >= 1.0:
        return
    recipe = Recipe(
        preset=next(name for name, shape in PRESETS.items() if shape == start.architecture),
        budget=Budget(steps=settings.recognizer_steps),
        peak=1.5e-3,
        helper=0.0,
        augment_share=0.0,
        made_augmented=0.1,
        dropout=0.05,
        average=0.998,
        shard=settings.shard,
        window=6,
        batch=40,
        seconds=120.0,
        threads=settings.threads,
        snapshot_minutes=15.0,
    )
    mixture = base_mixture(base_sentences(data, meetings, settings.lengths))
    pieces = start.file("tokenizer.model").read_bytes()
    train_rnnt(recipe, mixture, pieces, out, watched(meetings, settings.lengths, settings.watched), begin=start.weights)


def train_language_models(
    data: Path,
    meetings: Sequence[Meeting],
    settings: BaseSettings,
    out: Path,
    tell: Callable[[Progress], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Train the Transformer and estimate the n-gram over every word of the text, where the folder has none.

    Returns the perplexity of either ("neural", "ngram") on the utterances of development and test meetings.
    """
    sources = _text(data, meetings, settings.lengths, out)
    described = {"neural": out / "language_model.json", "ngram": out / "ngram.json"}
    if not described["neural"].exists():
        sizes: dict[str, Any] = {name: getattr(settings, name) for name in ("size", "feed_forward", "blocks", "heads")}
        budget = LanguageModelSettings(budget=Budget(steps=settings.language_model_steps), bfloat16=True)
        run_language_model(sources, out, sizes, budget, "idiolect train lm", tell)
    if not described["ngram"].exists():
        run_ngram(sources, out, settings.order, settings.cutoffs, True, "idiolect train ngram")
    return {name: json.loads(path.read_text("utf-8"))["perplexity"] for name, path in described.items()}


def shipped_bundle(recognizer: Path, language_models: Path, out: Path) -> Bundle:
    """The bundle that every device of the simulation has; written where there is none."""
    if not out.exists():
        card = {"description": "Base models of the experiment with meetings; made by examples.liu_2020."}
        bundle_run([recognizer, language_models], out, name="meetings", version="1", licence=_LICENCE, card=card)
    return Bundle.open(out)


def _text(data: Path, meetings: Sequence[Meeting], lengths: Lengths, out: Path) -> TextSources:
    """The text files that the language models learn from and are measured on."""
    out.mkdir(parents=True, exist_ok=True)
    text, words = out / "text.txt", out / "words.txt"
    if not words.exists():
        sentences = base_sentences(data, meetings, lengths)
        text.write_text("\n".join([*sentences, ""]), "utf-8")
        words.write_text("\n".join([*word_list((), sentences, 1), ""]), "utf-8")
    held: dict[Stage, Path] = {"development": out / "development.txt", "test": out / "test.txt"}
    for stage, path in held.items():
        said = (u.text for m in staged(meetings)[stage] for u in utterances(m, lengths.shortest, lengths.longest))
        path.write_text("\n".join([*said, ""]), "utf-8")
    return TextSources(words, (text,), 0, tuple(held.values()))
