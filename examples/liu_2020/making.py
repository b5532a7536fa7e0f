"""From transcripts to scored n-best lists: models, speech and lists are made where they are missing, and kept.

The recognizer and the two language models of a fleet learn from the meetings of the stage ``learn`` and from sentences
said to assistants (``slurp/lm.txt``). The language models score every hypothesis of the recognizer's lists once."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from device_sdk.bundle import Bundle
from device_sdk.commands.output import write_file
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import DataError
from device_sdk.features.logmel import logmel
from device_sdk.personalization.rescorer import Rescorer
from examples.liu_2020.lists import Client, NBest, read_clients, write_client
from examples.liu_2020.meetings import (
    LONGEST,
    MEETINGS,
    SHORTEST,
    Meeting,
    cast,
    read_meetings,
    series_of,
    stages_of,
    utterances,
    waveform,
)
from examples.rao_2023.base import further_recipe, spoken_by
from examples.rao_2023.domains import Stage
from export.bundles import bundle_run
from rescoring.combination import CombinationWeights
from server.lab.evaluation.scores import word_errors
from server.lab.simulation.progress import Tell
from server.lab.training.background import TextSources, run_language_model, run_ngram
from server.lab.training.data import Example
from server.lab.training.language_model import LanguageModelSettings
from server.lab.training.pieces import read_sentences, word_list
from server.lab.training.rnnt import train_rnnt
from server.lab.training.trainer import Budget

_LICENCE = "CC BY 4.0 (AMI corpus, SLURP)"


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


def base_sentences(data: Path, meetings: Sequence[Meeting]) -> list[str]:
    """The distinct sentences that base models may learn from."""
    said = [said.text for meeting in stages_of(meetings)["learn"] for said in utterances(meeting)]
    requests = read_sentences(data / "slurp" / "lm.txt")
    kept = (text for text in requests if SHORTEST <= len(text.split()) <= LONGEST)
    return list(dict.fromkeys([*said, *kept]))


def watched_utterances(meetings: Sequence[Meeting], each: int) -> list[Example]:
    """``each`` utterances, spread over the meeting, of every development meeting."""
    found = []
    for meeting in stages_of(meetings)["development"]:
        persons, said = cast(meeting, "development"), utterances(meeting)
        for number in range(0, len(said), max(1, len(said) // each))[:each]:
            features = logmel(waveform(meeting, number, said[number], persons))
            found.append(Example(features, said[number].text, "meetings.development"))
    return found


def train_recognizer(data: Path, meetings: Sequence[Meeting], settings: BaseSettings, start: Bundle, out: Path) -> None:
    """Train the packaged model further on general sentences, where the folder has no finished weights. What it starts
    from has heard commands and requests to assistants, no meeting."""
    described = out / "training.json"
    if described.exists() and json.loads(described.read_text("utf-8"))["result"].get("progress", 0.0) >= 1.0:
        return
    given = {"budget": Budget(steps=settings.recognizer_steps), "snapshot_minutes": 15.0}
    recipe = further_recipe(start, made_augmented=0.1, shard=settings.shard, window=6, **given)
    scenes = replace(MEETINGS.scenes, speed=(0.95, 1.05))
    mixture = spoken_by(MEETINGS, 600, base_sentences(data, meetings), scenes)
    pieces = start.file("tokenizer.model").read_bytes()
    train_rnnt(recipe, mixture, pieces, out, watched_utterances(meetings, settings.watched), begin=start.weights)


def train_language_models(
    data: Path, meetings: Sequence[Meeting], settings: BaseSettings, out: Path, tell: Callable[[float, float], None]
) -> dict[str, dict[str, float]]:
    """Train the Transformer and estimate the n-gram over every word of the text, where the folder has none. Returns the
    perplexity of either ("neural", "ngram") on the utterances of development and test meetings."""
    sources = _text(data, meetings, out)
    described = {"neural": out / "language_model.json", "ngram": out / "ngram.json"}
    if not described["neural"].exists():
        sizes: dict[str, Any] = {name: getattr(settings, name) for name in ("size", "feed_forward", "blocks", "heads")}
        budget = LanguageModelSettings(budget=Budget(steps=settings.language_model_steps), bfloat16=True)
        run_language_model(sources, out, sizes, budget, "idiolect train lm", tell)
    if not described["ngram"].exists():
        run_ngram(sources, out, settings.order, settings.cutoffs, "idiolect train ngram")
    return {name: json.loads(path.read_text("utf-8"))["perplexity"] for name, path in described.items()}


def shipped_bundle(recognizer: Path, language_models: Path, out: Path) -> Bundle:
    """The bundle that every device of the simulation has; written where there is none."""
    if not out.exists():
        card = {"description": "Base models of the experiment with meetings; made by examples.liu_2020."}
        bundle_run([recognizer, language_models], out, name="meetings", version="1", licence=_LICENCE, card=card)
    return Bundle.open(out)


def _text(data: Path, meetings: Sequence[Meeting], out: Path) -> TextSources:
    """The text files that the language models learn from and are measured on."""
    out.mkdir(parents=True, exist_ok=True)
    text, words = out / "text.txt", out / "words.txt"
    if not words.exists():
        sentences = base_sentences(data, meetings)
        text.write_text("\n".join([*sentences, ""]), "utf-8")
        words.write_text("\n".join([*word_list((), sentences, 1), ""]), "utf-8")
    held: dict[Stage, Path] = {"development": out / "development.txt", "test": out / "test.txt"}
    for stage, path in held.items():
        said = (said.text for meeting in stages_of(meetings)[stage] for said in utterances(meeting))
        path.write_text("\n".join([*said, ""]), "utf-8")
    return TextSources(words, (text,), 0, tuple(held.values()))


@dataclass(frozen=True, slots=True)
class FirstPass:
    """most: utterances of a meeting, from its beginning. decoding: beam and list."""

    most: int = 200
    decoding: DecodingSettings = field(default_factory=lambda: DecodingSettings(beam=20, nbest=20, threshold=8.0))


def choose_meetings(meetings: Sequence[Meeting], count: int | None) -> list[Meeting]:
    """``count`` meetings, one of every series before a second one of any; None for all. In the order of choice."""
    places: dict[str, int] = {}
    ranked = []
    for meeting in sorted(meetings, key=lambda meeting: meeting.name):
        series = series_of(meeting.name)
        places[series] = places.get(series, 0) + 1
        ranked.append((places[series], series, meeting))
    return [meeting for _, _, meeting in sorted(ranked, key=lambda entry: entry[:2])][:count]


def recognize(meeting: Meeting, stage: Stage, recognizer: Recognizer, settings: FirstPass) -> Client:
    """The n-best lists of a meeting's first utterances, said by voices of the stage."""
    found, persons = [], cast(meeting, stage)
    for number, said in enumerate(utterances(meeting)[: settings.most]):
        nbest = recognizer.recognize(waveform(meeting, number, said, persons), 16_000).nbest
        found.append(
            NBest(
                speaker=said.speaker,
                texts=tuple(hypothesis.text for hypothesis in nbest),
                acoustic=_rounded(hypothesis.scores.acoustic for hypothesis in nbest),
                errors=tuple(word_errors(said.text, hypothesis.text) for hypothesis in nbest),
                words=len(said.text.split()),
            )
        )
    return Client(meeting.name, tuple(found))


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """A thousandth of a nat is far below what decides between hypotheses, and keeps files small."""
    return tuple(round(float(value), 3) for value in values)


def decode(
    meetings: Iterable[Meeting],
    stage: Stage,
    bundle: Bundle,
    folder: Path,
    settings: FirstPass,
    tell: Callable[[int, int], None],
) -> None:
    """Write the lists of every meeting to ``folder``, but for those that are there."""
    missing = [meeting for meeting in meetings if not (folder / f"{meeting.name}.jsonl.gz").exists()]
    recognizer = Recognizer(bundle, settings.decoding)
    for number, meeting in enumerate(missing):
        tell(number, len(missing))
        write_client(folder, recognize(meeting, stage, recognizer, settings))
    tell(len(missing), len(missing))


def score(bundle: Bundle, lists: Path, scored: Path, names: list[str], tell: Callable[[int, int], None]) -> None:
    """Write the clients' lists with the scores of the bundle's language models to ``scored``, but for those there.
    Raises DataError where the bundle lacks a model, or kenlm is not installed."""
    rescorer = Rescorer(bundle, CombinationWeights())  # in which both have a share
    for number, name in enumerate(names):
        if not (scored / f"{name}.jsonl.gz").exists():
            neural, ngram = rescorer.neural, rescorer.ngram
            if neural is None or ngram is None:
                raise DataError(f"{bundle.path}: expected a neural language model and an n-gram, with kenlm installed")
            (client,) = read_clients(lists, [name])
            utterances = []
            for nbest in client.utterances:
                ids = [bundle.words.ids(text) for text in nbest.texts]
                first, second = (_rounded(values.sum() for values in model(ids)) for model in (neural, ngram))
                utterances.append(replace(nbest, neural=first, ngram=second))
            write_client(scored, replace(client, utterances=tuple(utterances)))
        tell(number + 1, len(names))


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. development, test: meetings that are recognized; None for all."""

    base: BaseSettings = field(default_factory=BaseSettings)
    first: FirstPass = field(default_factory=FirstPass)
    development: int | None = None
    test: int | None = None


def make_lists(data: Path, work: Path, scale: Scale, tell: Tell, start: Bundle | None = None) -> Path:
    """The cache folder of scored n-best lists, made in ``work`` as far as it is not there. start: the bundle that the
    recognizer grows from; by default the packaged one."""
    meetings = read_meetings(data / "ami" / "meetings.jsonl")
    recognizer, models, cache = work / "recognizer", work / "language_models", work / "lists"
    train_recognizer(data, meetings, scale.base, start or Bundle.open(), recognizer)
    perplexity = train_language_models(
        data, meetings, scale.base, models, lambda share, _: tell("language model", round(100 * share), 100)
    )
    bundle = shipped_bundle(recognizer, models, work / "bundle")
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("words.txt", "background.safetensors"):
        shutil.copyfile(bundle.file(name), cache / name)
    counts: dict[Stage, int | None] = {"development": scale.development, "test": scale.test}
    for stage, count in counts.items():
        said = choose_meetings(stages_of(meetings)[stage], count)
        first = work / "first_pass" / stage
        decode(said, stage, bundle, first, scale.first, partial(tell, f"first pass, {stage}"))
        names = [meeting.name for meeting in said]
        score(bundle, first, cache / stage, names, partial(tell, f"second pass, {stage}"))
    write_file(cache / "about.json", json.dumps({"perplexity": perplexity}, indent=2) + "\n")
    return cache
