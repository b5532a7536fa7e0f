"""Many audio files at once, each decoded in one of several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.checks import read_utf8
from device_sdk.errors import AudioError, ConfigurationError

if TYPE_CHECKING:
    from device_sdk.decoding import DecodingSettings, Hotword, Hotwords, RecognitionSession, Recognizer
    from device_sdk.device import Device
    from device_sdk.hypothesis import Partial, Result

DAY = 86_400.0
FILE_BLOCK = 2.4  # s that files are decoded in where nobody watches partials: a third quicker than blocks of 0.3 s


@dataclass(frozen=True, slots=True)
class Options:
    """How a command decodes: what a process needs to know to open a recognizer of its own. block_seconds: of
    :class:`~device_sdk.decoding.DecodingSettings`; None for what it is there. device: hears instead."""

    bundle: Path | None
    beam: int
    nbest: int
    rescore: bool
    precision: str
    mono: bool
    strict: bool
    hotwords: tuple[Hotword, ...] = ()
    block_seconds: float | None = None
    device: Device | None = None

    def decoding(self) -> DecodingSettings:
        from device_sdk.decoding import DecodingSettings

        settings = DecodingSettings(beam=self.beam, nbest=self.nbest, max_seconds=DAY)
        return settings if self.block_seconds is None else replace(settings, block_seconds=self.block_seconds)


@dataclass(frozen=True, slots=True)
class Heard:
    """What is said in a file of ``seconds``, in order."""

    seconds: float
    results: tuple[Result, ...]

    @property
    def text(self) -> str:
        return " ".join(result.text for result in self.results)


def open_recognizer(options: Options) -> Recognizer | Device:
    from device_sdk.bundle import Bundle
    from device_sdk.decoding import Recognizer
    from device_sdk.personalization.rescorer import Rescorer

    if options.device is not None:
        return options.device
    opened = Bundle.open(options.bundle)
    rescore = Rescorer(opened).rescore if options.rescore else None
    return Recognizer(opened, options.decoding(), rescore, precision=options.precision)  # type: ignore[arg-type]


def session(recognizer: Recognizer | Device, options: Options, rate: int) -> RecognitionSession:
    """A session for audio of this rate."""
    hotwords = _built(options.hotwords) if options.hotwords else None
    return recognizer.session(rate, mix_down=options.mono, hotwords=hotwords)


@lru_cache(maxsize=1)
def _built(hotwords: tuple[Hotword, ...]) -> Hotwords:
    from device_sdk.decoding import Hotwords

    return Hotwords.build(hotwords)


def read_hotwords(path: Path | None) -> tuple[Hotword, ...]:
    """The phrases of a text file, one a line: ``phrase | other spelling :boost`` in nats. # begins a comment. Raises
    :class:`ConfigurationError` that names the line."""
    from device_sdk.decoding.hotwords import DEFAULT_BOOST, Hotword

    if path is None:
        return ()
    lines = read_utf8(path, ConfigurationError, "--hotwords").splitlines()
    found: list[Hotword] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        spellings, colon, boost = text.rpartition(":")
        phrase, *others = (each.strip() for each in (spellings if colon else text).split("|"))
        try:
            found.append(Hotword(phrase, float(boost) if colon else DEFAULT_BOOST, tuple(others)))
        except (ValueError, ConfigurationError) as error:
            raise ConfigurationError(f"--hotwords: {path}, line {number}: found {line!r}; {error}") from error
    return tuple(found)


def read_and_decode(
    recognizer: Recognizer | Device,
    options: Options,
    path: Path,
    chunk: float = FILE_BLOCK,
    told: Callable[[Partial, float], object] = lambda partial, offset: None,
) -> Heard:
    """What is said in a file, utterance by utterance. Raises :class:`AudioError`. chunk: seconds to feed at a time.
    told: of every partial, and when its utterance began."""
    from device_sdk.audio import SAMPLE_RATE, read_audio
    from device_sdk.hypothesis import Partial

    waveform = read_audio(path, mono=options.mono, strict=options.strict)
    listening, size = session(recognizer, options, SAMPLE_RATE), max(1, round(chunk * SAMPLE_RATE))
    results: list[Result] = []
    for event in listening.segments(waveform[at : at + size] for at in range(0, len(waveform), size)):
        if isinstance(event, Partial):
            told(event, listening.offset)
        else:
            results.append(event)
    return Heard(len(waveform) / SAMPLE_RATE, tuple(results))


def decode_files(paths: Sequence[Path], options: Options, jobs: int) -> Iterator[tuple[Path, Heard | AudioError]]:
    """Every file with its result, or why it has none, in the order given, as they become ready. A file that makes its
    process crash is such an error too, and the others go on. Ending it early ends the processes."""
    context = multiprocessing.get_context("spawn")  # threads of libraries do not survive a fork
    others = set(multiprocessing.active_children())
    left = list(paths)
    crashed = False
    while left:
        batch = left[:1] if crashed else left
        with ProcessPoolExecutor(min(jobs, len(batch)), context, _open, (options,)) as pool:
            try:
                with _uninterrupted():
                    futures = [pool.submit(_decode, path) for path in batch]
                for path, future in zip(batch, futures, strict=True):
                    result = future.result()
                    left = left[1:]
                    yield path, result
                crashed = False
            except BrokenProcessPool:
                if crashed or len(batch) == 1:  # alone, so it was this file
                    path, left, crashed = left[0], left[1:], False
                    yield path, AudioError(f"{path}: the process that decoded this file crashed; is the file damaged?")
                else:
                    crashed = True  # it was one of several: see whether the next one was it
            except BaseException:
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()
                raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started in here never hear of Ctrl-C, which their parent answers; this one hears of it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_held: list[tuple[Recognizer | Device, Options]] = []
"""What this process decodes with."""


def _open(options: Options) -> None:
    _held.append((open_recognizer(options), options))


def _decode(path: Path) -> Heard | AudioError:
    try:
        return read_and_decode(*_held[0], path)
    except AudioError as error:
        return error
