"""The two passes of devices over what is said: n-best lists, and their scores by language models. What is heard at one
meeting changes nothing at another until words are counted, so a process a core takes one meeting after the other."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import DataError
from device_sdk.features.logmel import logmel
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.runtimes.ctc import FILE as CTC_FILE
from device_sdk.runtimes.ctc import CtcHead
from device_sdk.runtimes.protocol import encode_whole
from examples.liu_2020.lists import Client, NBest, read_clients, write_client
from examples.liu_2020.meetings import Scenario, Talk, cast, utterances, waveform
from examples.rao_2023.domains import Stage
from rescoring.combination import CombinationWeights
from server.lab.evaluation.scores import word_errors

Hear = Callable[[NDArray[np.float32]], dict[str, float]]
Score = Callable[[NBest], NBest]


@dataclass(frozen=True, slots=True)
class FirstPass:
    """most: utterances of a client at a meeting, from its beginning (None: as the setting has it). decoding: beam and
    list."""

    most: int | None = None
    decoding: DecodingSettings = field(default_factory=lambda: DecodingSettings(beam=64, nbest=64, threshold=8.0))


def recognize(
    talks: Mapping[str, Talk],
    stage: Stage,
    bundle: Path,
    folder: Path,
    setting: Scenario,
    first: FirstPass,
    tell: Callable[[int, int], None],
    scored: bool = True,
) -> None:
    """Write the lists of every client to ``folder``, but for those that are there: of its first utterances at each
    meeting, said by voices of the stage. scored: by the bundle's language models too. Meetings that are finished are
    kept in ``parts`` until the client is whole. Raises DataError where the bundle lacks a model, or kenlm is not
    installed."""
    missing = [name for name in talks if not (folder / f"{name}.jsonl.gz").exists()]
    places = [(name, number) for name in missing for number in range(len(talks[name]))]
    parts = folder / "parts"
    work = partial(_meeting, talks, stage, bundle, parts, setting, first, scored)
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn")) as pool:
        jobs = [pool.submit(work, *place) for place in places]
        try:
            for number, done in enumerate(as_completed(jobs)):
                tell(number, len(jobs))
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for name in missing:
        held = read_clients(parts / name)
        write_client(folder, Client(name, tuple(nbest for part in held for nbest in part.utterances)))
    shutil.rmtree(parts, ignore_errors=True)
    tell(len(places), len(places))


def _meeting(
    talks: Mapping[str, Talk],
    stage: Stage,
    bundle: Path,
    parts: Path,
    setting: Scenario,
    first: FirstPass,
    scored: bool,
    name: str,
    place: int,
) -> None:
    """One client at one meeting, where its part is not there."""
    part, talk = f"{place:04d}", talks[name]
    if (parts / name / f"{part}.jsonl.gz").exists():
        return
    hear, score = _opened(bundle, first.decoding, scored)
    found, persons, meeting = [], cast(talk, stage), talk[place]
    for number, said in enumerate(utterances(meeting, setting.shortest)[: first.most or setting.most]):
        heard = hear(waveform(meeting, number, said, persons))
        nbest = NBest(
            speaker=said.speaker,
            texts=tuple(heard),
            acoustic=_rounded(heard.values()),
            errors=tuple(word_errors(said.text, text) for text in heard),
            words=len(said.text.split()),
            meeting=meeting.name,
            said=said.text,
        )
        found.append(score(nbest))
    write_client(parts / name, Client(part, tuple(found)))


@cache
def _opened(bundle: Path, decoding: DecodingSettings, scored: bool) -> tuple[Hear, Score]:
    """What hears and what scores, once a process."""
    opened = Bundle.open(bundle)
    return _hearing(opened, decoding), _scoring(opened) if scored else lambda nbest: nbest


def _hearing(bundle: Bundle, decoding: DecodingSettings) -> Hear:
    """What gives the texts that an utterance may have been, the likeliest first, and of each what the transducer says
    and, by its weight, the CTC head, where the bundle has one: log p(text | audio), nats."""
    recognizer, weight = Recognizer(bundle, decoding), bundle.combination.ctc
    head = CtcHead(bundle) if bundle.has(CTC_FILE) else None

    def hear(samples: NDArray[np.float32]) -> dict[str, float]:
        heard = {each.text: each.scores.acoustic for each in recognizer.recognize(samples, 16_000).nbest}
        if head is not None:
            log_probs = head(encode_whole(recognizer.transducer, logmel(samples)))
            scores = head.scores(log_probs, list(heard)).tolist()
            heard = {text: heard[text] + weight * score for text, score in zip(heard, scores, strict=True)}
        return dict(sorted(heard.items(), key=lambda pair: -pair[1]))

    return hear


def _scoring(bundle: Bundle) -> Score:
    """What gives a list the scores of both language models."""
    rescorer = Rescorer(bundle, CombinationWeights())  # in which both have a share
    neural, ngram = rescorer.neural, rescorer.ngram
    if neural is None or ngram is None:
        raise DataError(f"{bundle.path}: expected a neural language model and an n-gram, with kenlm installed")

    def score(nbest: NBest) -> NBest:
        ids = [bundle.words.ids(text) for text in nbest.texts]
        first, second = (_rounded(values.sum() for values in model(ids)) for model in (neural, ngram))
        return replace(nbest, neural=first, ngram=second)

    return score


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """A thousandth of a nat is far below what decides between hypotheses, and keeps files small."""
    return tuple(round(float(value), 3) for value in values)
