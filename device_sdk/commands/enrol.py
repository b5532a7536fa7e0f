"""``idiolect enrol``: read some thirty phrases aloud, and a device learns a voice or a microphone at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.checks import read_utf8
from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.commands.state import BundlePath, KeyFile, State, open_device
from device_sdk.enrolment import LEAST, MOST
from device_sdk.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from device_sdk.device import Device
    from device_sdk.enrolment import Enrolment, Step

_LONGEST = 15.0  # seconds of a phrase
_CHUNK = 0.1


def command(
    state: State,
    recordings: Annotated[
        Path | None, typer.Option(help="Folder of phrases read before: audio files, each with its words in a .txt.")
    ] = None,
    most: Annotated[int, typer.Option(min=LEAST, help="Phrases to read at most.")] = MOST,
    microphone: Annotated[str | None, typer.Option(help="Which one: its number, or part of its name.")] = None,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Read phrases aloud into the microphone, each until it is heard out; Ctrl-C ends. Two in three are learned from,
    the third measures. Ends by itself when nothing more is gained, and takes back what did not help.
    """
    files = None if recordings is None else _files(recordings)
    if files is None:
        from device_sdk.commands.sources import check_microphone

        check_microphone()  # before there is a key, and a device that nobody reads to
    with open_device(state, key_file, bundle, new=True) as device:
        if files is None:
            reading = device.enrolment(most=most)
            spoken: Iterator[tuple[NDArray[np.generic], int]] = _spoken(device, microphone)
        else:
            reading = device.enrolment([text for _, text in files], most)
            spoken = iter([*_read(files)])  # all of them, before a word is learned
        steps: list[dict[str, Any]] = []
        try:
            for step in _all(reading, spoken):
                steps.append(asdict(step))
        except KeyboardInterrupt:  # what was learned so far is measured like the rest
            print("ended", file=sys.stderr)
        report = reading.finish()
    if not deliver({"report": asdict(report), "steps": steps}, as_json, output):
        print(report)


def _all(reading: Enrolment, spoken: Iterator[tuple[NDArray[np.generic], int]]) -> Iterator[Step]:
    while (phrase := reading.phrase) is not None:
        print(f"{reading.count + 1} of {reading.most}: {phrase}", file=sys.stderr)
        heard = next(spoken, None)
        if heard is None:
            break
        step = reading.read(*heard)
        print(f"    {'measured' if step.aside else 'heard'}: {step.heard or '(nothing)'}", file=sys.stderr)
        yield step


def _files(folder: Path) -> list[tuple[Path, str]]:
    """Audio files and their words, by name. Raises :class:`DataError`."""
    from device_sdk.audio import list_audio

    if not folder.is_dir():
        raise DataError(f"--recordings: {folder}: no such folder")
    found = [(path, path.with_suffix(".txt")) for path in list_audio([folder])]
    if missing := [path for path, words in found if not words.is_file()]:
        raise DataError(f"--recordings: {missing[0]} has no {missing[0].stem}.txt with its words beside it")
    return [(path, read_utf8(words, DataError).strip()) for path, words in found]


def _read(files: list[tuple[Path, str]]) -> Iterator[tuple[NDArray[np.generic], int]]:
    from device_sdk.audio import SAMPLE_RATE, read_audio

    for path, _ in files:
        yield read_audio(path, mono=True), SAMPLE_RATE


def _spoken(device: Device, microphone: str | None) -> Iterator[tuple[NDArray[np.generic], int]]:
    """What comes from the microphone, a phrase at a time: to the silence after it."""
    import numpy as np

    from device_sdk.audio import SAMPLE_RATE
    from device_sdk.commands import sources
    from device_sdk.decoding import Recognizer

    session, parts = Recognizer(device.base).session(SAMPLE_RATE), list[Any]()
    for chunk in sources.microphone(microphone, _CHUNK):
        parts.append(chunk)
        found = session.feed(chunk)
        if (found.endpoint and found.text) or found.seconds >= _LONGEST:
            yield np.concatenate(parts), SAMPLE_RATE
            session.finish()
            session.reset()
            parts.clear()
