"""The first pass: what our own recognizer makes of a meeting, as n-best lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from examples.liu_2020.base_models import Lengths
from examples.liu_2020.lists import Client, NBest, write_client
from examples.liu_2020.speech import cast, waveform
from examples.liu_2020.transcripts import Meeting, series_of, utterances
from examples.rao_2023.domains import Stage
from server.lab.evaluation import word_errors

__all__ = ["FirstPass", "chosen", "decode", "recognize"]


@dataclass(frozen=True, slots=True)
class FirstPass:
    """lengths: words of an utterance. most: utterances of a meeting, from its beginning. decoding: beam and list."""

    lengths: Lengths = field(default_factory=Lengths)
    most: int = 200
    decoding: DecodingSettings = field(default_factory=lambda: DecodingSettings(beam=20, nbest=20, threshold=8.0))


def chosen(meetings: Sequence[Meeting], count: int | None) -> list[Meeting]:
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
    lengths, persons = settings.lengths, cast(meeting, stage)
    found = []
    for number, said in enumerate(utterances(meeting, lengths.shortest, lengths.longest)[: settings.most]):
        nbest = recognizer.recognize(waveform(meeting, number, said, persons), 16_000).nbest
        found.append(
            NBest(
                speaker=said.speaker,
                texts=tuple(hypothesis.text for hypothesis in nbest),
                acoustic=tuple(hypothesis.scores.acoustic for hypothesis in nbest),
                errors=tuple(word_errors(said.text, hypothesis.text) for hypothesis in nbest),
                words=len(said.text.split()),
            )
        )
    return Client(meeting.name, tuple(found))


def decode(
    meetings: Iterable[Meeting],
    stage: Stage,
    bundle: Path,
    folder: Path,
    settings: FirstPass,
    processes: int = 1,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Write the lists of every meeting to ``folder``, but for those that are there."""
    missing = [meeting for meeting in meetings if not (folder / f"{meeting.name}.jsonl.gz").exists()]
    work = partial(_write, stage=stage, folder=folder, settings=settings)
    if processes == 1:
        _prepare(bundle, settings.decoding)
        for number, meeting in enumerate(missing):
            tell(number, len(missing))
            work(meeting)
    else:
        with ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_prepare, initargs=(bundle, settings.decoding)
        ) as pool:
            for number, _ in enumerate(pool.map(work, missing)):
                tell(number, len(missing))
    tell(len(missing), len(missing))


_recognizer: Recognizer | None = None


def _prepare(bundle: Path, decoding: DecodingSettings) -> None:
    global _recognizer
    _recognizer = Recognizer(Bundle.open(bundle), decoding)


def _write(meeting: Meeting, stage: Stage, folder: Path, settings: FirstPass) -> None:
    assert _recognizer is not None
    write_client(folder, recognize(meeting, stage, _recognizer, settings))
