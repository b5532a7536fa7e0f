"""From transcripts to scored n-best lists: models, speech and lists are made where they are missing, and kept.

The recognizer and the two language models of a fleet learn from general text: sentences said to assistants and read
aloud; inside a corpus from its meetings of the stage ``learn`` and what is said to assistants. The language models
score every hypothesis of the recognizer's lists once."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.commands.output import write_file
from device_sdk.features.logmel import logmel
from device_sdk.runtimes.ctc import FILE as CTC_FILE
from examples.liu_2020.meetings import (
    LONGEST,
    MEETINGS,
    Meeting,
    Scenario,
    Talk,
    Turn,
    cast,
    clients_of,
    cut,
    read_meetings,
    stages_of,
    utterances,
    waveform,
)
from examples.liu_2020.passes import FirstPass, recognize
from examples.rao_2023.base import further_recipe, spoken_by
from examples.rao_2023.domains import Stage
from export.bundles import bundle_run
from server.lab.simulation.progress import Tell
from server.lab.training.background import TextSources, run_language_model, run_ngram, run_words
from server.lab.training.data import Example
from server.lab.training.language_model import LanguageModelSettings
from server.lab.training.pieces import read_sentences, word_list
from server.lab.training.rnnt import train_rnnt
from server.lab.training.trainer import Budget

_LICENCE = "CC BY 4.0 (AMI corpus, SLURP, LibriSpeech), CC0 (Common Voice)"
_GENERAL = ("slurp/lm.txt", "librispeech/manifest.jsonl@base", "common_voice/manifest.jsonl@base")
_LISTED = 20_000
"""Words of the list where no meeting says which they are: then the most frequent English ones."""


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """recognizer_steps, language_model_steps: of training. shard: utterances made at a time. watched: of each
    development meeting, whose word error is logged. size, feed_forward, blocks, heads: of the Transformer, as in Liu &
    Peng 2020. order, cutoffs: of the n-gram."""

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


def base_sentences(data: Path, meetings: Sequence[Meeting], setting: Scenario) -> list[str]:
    """The distinct sentences that base models may learn from, none longer than an utterance."""
    sources = _GENERAL[:1] if setting.inside else _GENERAL
    said = [said.text for m in _learned(meetings, setting) for said in utterances(m, setting.shortest)]
    general = [" ".join(part) for source in sources for text in read_sentences(data / source) for part in _cut(text)]
    return list(dict.fromkeys([*said, *(text for text in general if len(text.split()) >= setting.shortest)]))


def _learned(meetings: Sequence[Meeting], setting: Scenario) -> Sequence[Meeting]:
    return stages_of(meetings)["learn"] if setting.inside else ()


def _cut(text: str) -> list[Sequence[str]]:
    return cut(text.split(), LONGEST)


def watched_utterances(talks: Iterable[Talk], setting: Scenario, each: int) -> list[Example]:
    """``each`` utterances of every client, spread over its first meeting."""
    found = []
    for talk in talks:
        persons, said = cast(talk, "development"), utterances(talk[0], setting.shortest)
        for number in range(0, len(said), max(1, len(said) // each))[:each]:
            features = logmel(waveform(talk[0], number, said[number], persons))
            found.append(Example(features, said[number].text, "meetings.development"))
    return found


def train_recognizer(
    sentences: Sequence[str], watched: Sequence[Example], settings: BaseSettings, start: Bundle, out: Path
) -> None:
    """Train the packaged model further on general sentences, where the folder has no finished weights. What it starts
    from has heard commands and requests to assistants, no meeting."""
    described = out / "training.json"
    if described.exists() and json.loads(described.read_text("utf-8"))["result"].get("progress", 0.0) >= 1.0:
        return
    given = {"budget": Budget(steps=settings.recognizer_steps), "snapshot_minutes": 15.0}
    recipe = further_recipe(start.architecture, made_augmented=0.1, shard=settings.shard, window=6, **given)
    scenes = replace(MEETINGS.scenes, speed=(0.95, 1.05))
    mixture = spoken_by(MEETINGS, 600, sentences, scenes)
    train_rnnt(recipe, mixture, start.file("tokenizer.model").read_bytes(), out, watched, begin=start.weights)


def train_language_models(
    text: Sequence[str],
    setting: Scenario,
    held: Mapping[Stage, Iterable[Talk]],
    settings: BaseSettings,
    out: Path,
    tell: Callable[[float, float], None],
) -> dict[str, dict[str, float]]:
    """Train the Transformer and estimate the n-gram over every word of the text, where the folder has none. Returns the
    perplexity of either ("neural", "ngram") on what is held out of each stage."""
    sources = _text(text, setting, held, out)
    described = {"neural": out / "language_model.json", "ngram": out / "ngram.json"}
    if not described["neural"].exists():
        sizes: dict[str, Any] = {name: getattr(settings, name) for name in ("size", "feed_forward", "blocks", "heads")}
        budget = LanguageModelSettings(budget=Budget(steps=settings.language_model_steps), bfloat16=True)
        run_language_model(sources, out, sizes, budget, "idiolect train lm", tell)
    if not described["ngram"].exists():
        run_ngram(sources, out, settings.order, settings.cutoffs, "idiolect train ngram")
    return {name: json.loads(path.read_text("utf-8"))["perplexity"] for name, path in described.items()}


def shipped_bundle(recognizer: Path, language_models: Path, start: Bundle, out: Path) -> Bundle:
    """The bundle that every device of the simulation has; written where there is none. Its CTC head, where it has one,
    is that of ``start``, with its weight."""
    if not out.exists():
        if start.has(CTC_FILE):
            shutil.copyfile(start.file(CTC_FILE), recognizer / CTC_FILE)
            write_file(recognizer / "rescoring.json", json.dumps({"ctc": start.combination.ctc}) + "\n")
        card = {"description": "Base models of the experiment with meetings; made by examples.liu_2020."}
        bundle_run([recognizer, language_models], out, name="meetings", version="1", licence=_LICENCE, card=card)
    return Bundle.open(out)


def _text(text: Sequence[str], setting: Scenario, held: Mapping[Stage, Iterable[Talk]], out: Path) -> TextSources:
    """The text files that the language models learn from and are measured on. Words are those of the text; where it
    knows no meeting, as many more of those that English has most."""
    out.mkdir(parents=True, exist_ok=True)
    path, words = out / "text.txt", out / "words.txt"
    if not words.exists():
        path.write_text("\n".join([*text, ""]), "utf-8")
        if setting.inside:
            words.write_text("\n".join([*word_list((), text, 1), ""]), "utf-8")
        else:
            run_words(TextSources(words, (path,), 0), _LISTED, "idiolect train words")
    paths = {stage: out / f"{setting.corpus}-{stage}.txt" for stage in held}
    for stage, talks in held.items():
        said = (one.text for talk in talks for meeting in talk for one in utterances(meeting, setting.shortest))
        paths[stage].write_text("\n".join([*said, ""]), "utf-8")
    return TextSources(words, (path,), 0, tuple(paths.values()))


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. development, test: clients that are recognized; None for all. general: utterances by
    which it is known how the recognizer hears."""

    base: BaseSettings = field(default_factory=BaseSettings)
    first: FirstPass = field(default_factory=FirstPass)
    development: int | None = None
    test: int | None = None
    general: int = 8_000


def general_talks(sentences: Sequence[str], count: int, each: int = 500) -> dict[str, Talk]:
    """``count`` of the sentences that base models learn from, drawn at random, all of them before one comes again, and
    said by twelve people: by these it is known how the recognizer hears. No meeting is among them that anybody is
    tested on."""
    generator, size = np.random.default_rng(count), len(sentences)
    drawn = [index for _ in range(0, count, size) for index in generator.permutation(size).tolist()][:count]
    turns = [Turn(f"S{place % 12}", sentences[index]) for place, index in enumerate(drawn)]
    parts = (tuple(turns[first : first + each]) for first in range(0, len(turns), each))
    return {f"General{number:02d}": (Meeting(f"General{number:02d}", part),) for number, part in enumerate(parts)}


def make_lists(
    data: Path, work: Path, setting: Scenario, scale: Scale, tell: Tell, start: Bundle | None = None
) -> Path:
    """The cache folder of scored n-best lists, made in ``work`` as far as it is not there. Base models that know no
    meeting are the same for all corpora. start: the bundle that the recognizer grows from; by default the packaged
    one."""
    meetings = read_meetings(data / setting.corpus / setting.file)
    name = f"{setting.corpus}-inside" if setting.inside else setting.corpus
    models, cache = work / (name if setting.inside else "general"), work / name / "lists"
    stages = stages_of(meetings) if setting.corpus == "ami" else {"test": tuple(meetings)}
    counts: dict[Stage, int | None] = {"development": scale.development, "test": scale.test}
    said = {stage: clients_of(setting, stages[stage], count) for stage, count in counts.items() if stage in stages}
    text = base_sentences(data, meetings, setting)
    watched = watched_utterances(said.get("development", {}).values(), setting, scale.base.watched)
    start = start or Bundle.open()
    train_recognizer(text, watched, scale.base, start, models / "recognizer")
    held = {stage: tuple(talks.values()) for stage, talks in said.items()}
    perplexity = train_language_models(
        text,
        setting,
        held,
        scale.base,
        models / "language_models",
        lambda share, _: tell("language model", round(100 * share), 100),
    )
    bundle = shipped_bundle(models / "recognizer", models / "language_models", start, models / "bundle")
    cache.mkdir(parents=True, exist_ok=True)
    for file in ("words.txt", "background.safetensors"):
        shutil.copyfile(bundle.file(file), cache / file)
    for stage, talks in said.items():
        told = partial(tell, f"both passes, {stage}")
        recognize(talks, stage, bundle.path, cache / stage, setting, scale.first, told)
    heard, told = models / "general_speech", partial(tell, "first pass, general speech")
    whole = replace(scale.first, most=scale.general)
    general = general_talks(text, scale.general)
    recognize(general, "development", bundle.path, heard, setting, whole, told, scored=False)
    shutil.copytree(heard, cache / "general", dirs_exist_ok=True)
    write_file(cache / "about.json", json.dumps({"perplexity": perplexity}, indent=2) + "\n")
    return cache
