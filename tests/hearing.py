"""``python -m tests.hearing --json``: what a bundle hears of people it never met, by kind of speech, and of nobody.

Beam 8 with rescoring, on voices for devices and held-out ones, recordings in the folder that ``IDIOLECT_DATA`` names.
How fast int8 is says something only where nothing else runs.
Exit status 1 when a line does not hold. ``--keep FILE`` keeps what is measured and goes on from there."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from device_sdk import Bundle
from device_sdk.commands.output import AsJson, deliver
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.personalization.rescorer import Rescorer
from server.lab.commands.shared import progress_bar
from server.lab.corpora import SAMPLE_RATE, Corpus, Waveform, open_corpus
from server.lab.corpora.grammar import lexicon, sample
from server.lab.corpora.made import draw_people, made_utterance
from server.lab.corpora.readers import AUDIO_SUFFIXES, load_audio
from server.lab.corpora.roles import UNHEARD, card_voices, scoring
from server.lab.corpora.utterance import Utterance
from server.lab.evaluation.reliability import Reliability
from server.lab.evaluation.scores import Evaluation, Score, evaluate

REAL = ("barista", "fsdd", "phone_numbers", "speech_commands", "librispeech", "common_voice")
MOST = 600
"""Utterances of a set."""
MANY = 30
"""Voices of which each has a figure of its own."""
ELSEWHERE = ("order_drink", "digits")
"""Intents that are no home commands."""
TARGETS = {
    "barista": 9.0,
    "barista, slots": 14.0,
    "fsdd": 12.0,
    "phone_numbers": 25.0,
    "speech_commands": 15.0,
    "librispeech": 65.0,
    "common_voice": 60.0,
    "home commands": 25.0,
    "calibration of texts": 8.0,
    "words in 100 clips of nobody": 2.0,
}
"""Errors in percent, and clips: at most."""
SPEED, TIMED = 100.0, 60
"""Seconds of speech heard in one, by one thread and int8, all kinds together, at least; and utterances of each."""
_FAST = "times real time, int8"


def home_commands(people: int = 20, each: int = 10) -> Corpus:
    """What is said to a device at home, by made voices, in sentences that no base model is trained on. The speakers are
    accents."""
    generator, utterances = np.random.default_rng(7), list[Utterance]()
    for number, person in enumerate(draw_people("devices", people, seed=7, with_profiles=False)):
        while len(utterances) < each * (number + 1):
            command = sample(generator, "devices")
            if command.intent not in ELSEWHERE:
                said = made_utterance(command, person, (7, number, len(utterances)))
                utterances.append(replace(said, speaker=person.voice.accent))
    return Corpus("home commands", tuple(utterances), lexicon())


def nobody(noise: Path, count: int = 100) -> Iterator[Waveform]:
    """Clips of 1 to 6 s of silence, hiss and the last thirds of recorded noises, which no model is trained on."""
    generator = np.random.default_rng(9)
    recorded = [load_audio(path) for path in sorted(noise.glob("*")) if path.suffix in AUDIO_SUFFIXES]
    rests = [waveform[2 * waveform.size // 3 :] for waveform in recorded]
    for _ in range(count):
        size, level = int(generator.uniform(1.0, 6.0) * SAMPLE_RATE), 10 ** generator.uniform(-4.0, -1.3)
        kind = generator.integers(6)
        clip: Waveform = (np.zeros(size) if kind == 0 else generator.standard_normal(size)).astype(np.float32)
        if kind > 1:
            rest = rests[generator.integers(len(rests))]
            start = int(generator.integers(max(1, rest.size - size)))
            clip = rest[start : start + size]
        yield (level * clip / max(float(np.sqrt(np.mean(np.square(clip)))), 1e-6)).astype(np.float32)


def main(
    bundle: Annotated[Path | None, typer.Option(help="Folder or zip of a bundle; the packaged one if none.")] = None,
    keep: Annotated[Path | None, typer.Option(help="JSON file of what is measured so far.")] = None,
    as_json: AsJson = False,
) -> None:
    opened, data = Bundle.open(bundle), Path(os.environ["IDIOLECT_DATA"])
    title, role = f"{opened.manifest.name} {opened.version}", scoring(card_voices(opened))
    recognizer = Recognizer(opened, DecodingSettings(), Rescorer(opened).rescore)
    recognize = partial(recognizer.recognize, sample_rate=SAMPLE_RATE)
    quick = Recognizer(opened, DecodingSettings(), Rescorer(opened).rescore, precision="auto")
    by_int8 = partial(quick.recognize, sample_rate=SAMPLE_RATE)
    known: dict[str, Any] = json.loads(keep.read_text("utf-8")) if keep and keep.exists() else {"bundle": title}
    if known["bundle"] != title:
        raise SystemExit(f"{keep}: is of {known['bundle']}; choose another file")
    sets: dict[str, Callable[[], Corpus]] = {"home commands": home_commands}
    sets |= {kind: partial(open_corpus, f"{kind}:{data / kind}", UNHEARD, role=role) for kind in REAL}
    with progress_bar() as bar:
        for name, read in sets.items():
            if "seconds taken" not in known.get(name, {}):
                corpus = _some(read())
                task = bar.add_task(name, total=len(corpus))
                found = evaluate(recognize, corpus, partial(_advance, bar, task))
                timed = corpus.utterances[:: max(1, len(corpus) // TIMED)][:TIMED]
                known[name] = _figures(found, evaluate(by_int8, replace(corpus, utterances=timed)))
                _keep(keep, known)
        if "nobody" not in known:
            clips = bar.track(nobody(data / "noise"), 100, description="nobody")
            known["nobody"] = sum(bool(recognize(clip).text) for clip in clips)
            _keep(keep, known)
    lines = _lines(known)
    if not deliver({"lines": lines, "figures": known}, as_json, None):
        table = Table("line", "found", "target", "", title=title)
        for line in lines:
            ends = "" if line["holds"] else "misses"
            bound = f"{'at least' if line['name'] == _FAST else 'at most'} {line['target']:g}"
            table.add_row(line["name"], f"{line['found']:.1f}", bound, ends)
        Console().print(table)
    raise typer.Exit(not all(line["holds"] for line in lines))


def _advance(bar: Progress, task: TaskID, _: Score) -> None:
    bar.advance(task)


def _some(corpus: Corpus) -> Corpus:
    """At most ``MOST`` utterances with a sure text or slots, whose order stays."""
    usable = corpus.only(lambda one: one.sure_text is not None or one.slots is not None)
    chosen = sorted(np.random.default_rng(0).permutation(len(usable))[:MOST])
    return Corpus(corpus.name, tuple(usable.utterances[place] for place in chosen), corpus.lexicon)


def _figures(found: Evaluation, timed: Evaluation) -> dict[str, Any]:
    words, texts, voices = found.words(), (score.text_confidence for score in found.scores), found.of_speakers()
    return {
        "word error by voice": {name: own.wer for name, own in voices.items()} if len(voices) <= MANY else {},
        "word error": found.wer,
        "slot error": found.slot_error,
        "oracle word error of 8": found.oracle_wer(8),
        "utterances": len(found.scores),
        "words": sum(score.words or 0 for score in found.scores),
        "seconds timed": sum(score.audio_seconds for score in timed.scores),
        "seconds taken": sum(score.seconds for score in timed.scores),
        "calibration error of words": None if words is None else words.ece,
        "texts": [(round(confidence, 4), right) for confidence, right in filter(None, texts)],
    }


def _keep(path: Path | None, known: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(known), encoding="utf-8")


def _lines(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = Reliability.of((confidence, right) for kind in REAL for confidence, right in known[kind]["texts"])
    assert texts is not None
    found = {name: 100 * known[name]["word error"] for name in (*REAL, "home commands")}
    found |= {"barista, slots": 100 * known["barista"]["slot error"], "calibration of texts": 100 * texts.ece}
    found["words in 100 clips of nobody"] = known["nobody"]
    lines = [
        {"name": name, "found": round(found[name], 1), "target": target, "holds": found[name] <= target}
        for name, target in TARGETS.items()
    ]
    heard, taken = (
        sum(known[name][key] for name in (*REAL, "home commands")) for key in ("seconds timed", "seconds taken")
    )
    return [*lines, {"name": _FAST, "found": round(heard / taken, 1), "target": SPEED, "holds": heard / taken >= SPEED}]


if __name__ == "__main__":
    typer.run(main)
