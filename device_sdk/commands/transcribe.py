"""Transcribes audio files, folders, standard input or the microphone: partials as they come, then the n-best list."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands import workers
from device_sdk.commands.output import check_writable, write_file, written_whole
from device_sdk.commands.state import KEY_HELP, open_device
from device_sdk.commands.workers import Heard, Options
from device_sdk.errors import AudioError, ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from device_sdk.commands.sources import Format
    from device_sdk.decoding import Recognizer
    from device_sdk.device import Device
    from device_sdk.hypothesis import Result

STDIN = "-"
Input, Decoding, OnDevice, Output = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Input", "Decoding", "Device", "Output")
)


def command(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Audio files (WAV, FLAC, OGG, MP3), folders of them, or - for standard input."),
    ] = None,
    sample: Annotated[bool, Input("--sample", help="Take the clip that comes along, to try it.")] = False,
    mic: Annotated[bool, Input("--mic", help="Listen to the microphone, until Ctrl-C.")] = False,
    microphone: Annotated[str | None, Input(help="Which one: its number, or part of its name.")] = None,
    raw: Annotated[bool, Input("--raw", help="Standard input is samples without a header.")] = False,
    rate: Annotated[int, Input(help="Of raw samples, Hz.")] = 16_000,
    encoding: Annotated[str, Input(help="Of raw samples: s16le or f32le.")] = "s16le",
    mono: Annotated[bool, Input("--mono", help="Mix several channels down; they are refused otherwise.")] = False,
    strict: Annotated[bool, Input("--strict", help="Refuse audio that is not at 16 kHz.")] = False,
    jobs: Annotated[int, Input("--jobs", "-j", help="Processes that decode several files.")] = 1,
    nbest: Annotated[int | None, Decoding(help="Hypotheses to show; 8 unless the beam is narrower.")] = None,
    beam: Annotated[int | None, Decoding(help="Hypotheses to follow; 1 is greedy. 8, or --nbest if more.")] = None,
    bundle: Annotated[Path | None, Decoding(help="Bundle to use, a folder or zip; the packaged one if none.")] = None,
    rescore: Annotated[bool, Decoding(help="Order the list with the bundle's language models too.")] = True,
    precision: Annotated[str, Decoding(help="float32, int8 (quicker, a little less exact) or auto.")] = "float32",
    hotwords: Annotated[
        Path | None,
        Decoding(
            help="File of phrases to expect, one a line; 'phrase :3.5' boosts by 3.5 nats, 'phrase | spelling' too."
        ),
    ] = None,
    chunk: Annotated[float, Decoding(help="Seconds of audio to feed at a time.")] = 0.1,
    state: Annotated[
        Path | None,
        OnDevice(help="Folder of a device's state: it hears, counts the words, and remembers what it may learn from."),
    ] = None,
    key_file: Annotated[Path | None, OnDevice(help=KEY_HELP)] = None,
    format_text: Annotated[
        bool, Output("--format", help="Digits for spoken numbers, capitals; no punctuation.")
    ] = False,
    json_: Annotated[bool, Output("--json", help="Print JSON; a line for each of several files.")] = False,
    srt: Annotated[bool, Output("--srt", help="Print subtitles, SubRip.")] = False,
    vtt: Annotated[bool, Output("--vtt", help="Print subtitles, WebVTT.")] = False,
    output: Annotated[Path | None, Output(help="Also write the JSON to this file; subtitles only there.")] = None,
) -> None:
    """Transcribe FILES, folders of them, standard input (-) or the microphone.

    One file: partials on standard error, then the n-best list with the parts of each score; where it holds several
    utterances, a line of text each, or with --nbest the lists.

    Several: a line of text each, or with --nbest the lists. A bad one is named, the others go on; exit code 1.

    With --state a device hears them, made by the first use: every result has the id that idiolect device correct takes.
    """
    from device_sdk.audio import SAMPLE_AUDIO, check_sample_rate
    from device_sdk.commands.sources import ENCODINGS, Format

    given = [str(path) for path in (*(files or ()), *((SAMPLE_AUDIO,) if sample else ()))]
    other = next((name for name in given if name != STDIN), STDIN)
    wrong = {
        "transcribe: found no input, expected audio files, folders, - for standard input, --mic or --sample": (
            not given and not mic
        ),
        f"--mic: found {other} too, expected the microphone alone": mic and given,
        f"-: found {other} too, expected standard input alone": STDIN in given and len(given) > 1,
        "-: standard input is the terminal, expected audio: idiolect transcribe - < FILE.wav": (
            STDIN in given and sys.stdin.isatty()
        ),
        "--raw: found no -, expected raw samples from standard input": raw and STDIN not in given,
        "--microphone: found no --mic, expected both": microphone is not None and not mic,
        f"--encoding: found {encoding!r}, expected one of {', '.join(ENCODINGS)}": encoding not in ENCODINGS,
        f"--chunk: found {chunk}, expected a positive number of seconds": not 0.0 < chunk <= workers.DAY,
        f"--jobs: found {jobs}, expected 1 or more processes": jobs < 1,
        "--srt, --vtt: found both, expected one of them": srt and vtt,
    }
    for message, holds in wrong.items():
        if holds:
            raise ConfigurationError(message)
    width = max(8, nbest or 0) if beam is None else beam
    length = min(8, width) if nbest is None else nbest
    options = Options(bundle, width, length, rescore, precision, mono, strict, workers.read_hotwords(hotwords))
    subtitles = "srt" if srt else "vtt" if vtt else ""
    showing = _Showing(format_text, json_, subtitles, nbest is not None, output, state is not None)
    if output is not None:
        check_writable(output)
    if state is not None:
        options = replace(options, device=context.with_resource(_device(options, state, key_file, jobs)))
    if mic or STDIN in given:
        form = Format(check_sample_rate(rate, "--rate"), encoding) if raw else None
        _stream(options, showing, mic, microphone, form, chunk)
        return
    paths, failed = _listed(given)
    _check_spared(output, paths)
    if len(given) == 1 and not Path(given[0]).is_dir():
        good = _one_file(options, showing, paths[0], chunk)
    else:
        good = _several_files(options, showing, paths, failed, jobs)
    if not good:
        raise typer.Exit(1)


@contextmanager
def _device(options: Options, state: Path, key_file: Path | None, jobs: int) -> Iterator[Device]:
    """The device that hears instead of a recognizer; says at the end how what it heard is corrected."""
    if jobs > 1:
        raise ConfigurationError(f"--jobs: found {jobs} with --state, expected 1: a state has one process at a time")
    if not options.rescore:
        raise ConfigurationError("--no-rescore: found it with --state, expected one of them: a device rescores")
    with open_device(state, key_file, options.bundle, new=True, options=options) as device:
        before = {each.utterance_id for each in device.remembered()}
        yield device
        heard = [each for each in device.remembered() if each.utterance_id not in before]
        place = f"--state {quote(str(state))}"
        if heard and all(each.kept for each in heard):
            which = heard[0].utterance_id if len(heard) == 1 else "UTTERANCE"
            hint = f"to say what was really said: idiolect device correct {which} 'the right words' {place}"
        else:
            hint = f"to correct what is heard later, let it wait on the disk: idiolect device agree keeping {place}"
        if heard:
            print(f"idiolect: {hint}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Showing:
    """Where results go: standard output as tables, text, JSON or subtitles (srt, vtt or none), and a file. with_ids:
    each with the id that a device knows the utterance by."""

    format_text: bool
    as_json: bool
    subtitles: str
    tables: bool
    output: Path | None
    with_ids: bool

    def __post_init__(self) -> None:
        if self.as_json and self.subtitles:
            raise ConfigurationError(f"--json, --{self.subtitles}: found both, expected one of them")
        if (path := self.output) is not None and (path.is_dir() or not path.parent.is_dir()):
            found = "a folder" if path.is_dir() else f"a file in {path.parent}, which is no folder"
            raise ConfigurationError(f"--output: {path} is {found}; expected a file's name in a folder that exists")

    def utterance(self, result: Result) -> dict[str, Any]:
        """A result as JSON values."""
        from device_sdk.commands.printing import result_as_json

        entry = {"utterance_id": result.utterance_id} if self.with_ids else {}
        entry.update(result_as_json(result))
        if self.format_text:
            entry["formatted"] = self.text(result)
        return entry

    def entry(self, path: Path, heard: Heard) -> dict[str, Any]:
        """A file as JSON values."""
        entry = {"file": _shown(path), "seconds": round(heard.seconds, 4), "text": heard.text}
        if self.format_text:
            entry["formatted"] = self.text(heard)
        return {**entry, "utterances": [self.utterance(result) for result in heard.results]}

    def tell(self, console: Console, name: str, result: Result) -> None:
        """One utterance of a stream, on standard output: a line, or with --nbest the list."""
        from device_sdk.commands.printing import print_result

        if self.tables:
            print_result(console, self.heading(f"{name} at {result.offset:.2f} s", result), result, self.format_text)
        else:
            print(self.line("", result), flush=True)

    def text(self, said: Result | Heard) -> str:
        """Of an utterance or, utterance by utterance, of a file."""
        from device_sdk.formatting import written_form

        results = said.results if isinstance(said, Heard) else (said,)
        return " ".join(written_form(result.text) if self.format_text else result.text for result in results)

    def line(self, name: str, result: Result) -> str:
        """A result as one line of text; name: of its file, none in a stream."""
        words = [result.utterance_id] if self.with_ids else []
        return " ".join([*words, *([f"{name}:"] if name else []), self.text(result)])

    def heading(self, name: str, result: Result) -> str:
        return f"{name}  {result.utterance_id}" if self.with_ids else name

    def as_subtitles(self, results: Iterable[Result]) -> str:
        from device_sdk.commands.printing import subtitles
        from device_sdk.formatting import srt, webvtt

        lines = [cue for result in results for cue in subtitles(result, self.format_text)]
        return srt(lines) if self.subtitles == "srt" else webvtt(lines)

    def file(self) -> AbstractContextManager[IO[str] | None]:
        """The file that JSON or subtitles are written to."""
        return nullcontext() if self.output is None else written_whole(self.output)


def _check_spared(output: Path | None, paths: Iterable[Path]) -> None:
    """Raises ConfigurationError where results would take the place of a recording."""
    from device_sdk.audio import AUDIO_SUFFIXES

    if output is None or not output.is_file():
        return
    if output.suffix.lower() in AUDIO_SUFFIXES or any(path.is_file() and path.samefile(output) for path in paths):
        raise ConfigurationError(f"--output: {output} is a recording; expected the name of another file for the JSON")


def _shown(path: Path) -> str:
    """A path as it can be printed: a name need not be UTF-8."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _listed(given: Sequence[str]) -> tuple[list[Path], dict[Path, AudioError]]:
    """Every file, in order, and what is wrong with a folder (which then stands for itself)."""
    from device_sdk.audio import list_audio

    paths: list[Path] = []
    failed: dict[Path, AudioError] = {}
    for place in map(Path, given):
        try:
            paths += list_audio([place])
        except AudioError as error:
            paths.append(place)
            failed[place] = error
    return paths, failed


def _one_file(options: Options, showing: _Showing, path: Path, chunk: float) -> bool:
    """One file, with partials; its JSON is one document."""
    from rich.console import Console

    from device_sdk.commands.printing import Partials, print_result

    recognizer, console = workers.open_recognizer(options), Console()
    heard: Heard | None = None
    try:
        with Partials(Console(stderr=True)) as shown:
            heard = workers.read_and_decode(recognizer, options, path, chunk, shown.show)
        entry = showing.entry(path, heard)
    except AudioError as error:
        entry = _failure(path, error)
    text = json.dumps({"bundle": recognizer.model_version, "files": [entry]}, indent=2, ensure_ascii=False) + "\n"
    if showing.subtitles:
        text = showing.as_subtitles([] if heard is None else heard.results)
    if heard is not None or not showing.subtitles:
        with showing.file() as out:
            if out is not None:
                out.write(text)
        if showing.as_json or (showing.subtitles and showing.output is None):
            print(text, end="")
    if heard is not None and not showing.as_json and not showing.subtitles:
        if not heard.results:
            print(f"{path}: nothing was said in {heard.seconds:.2f} s", file=sys.stderr)
        for result in heard.results:
            if len(heard.results) == 1:
                print_result(console, showing.heading(_shown(path), result), result, showing.format_text)
            else:
                showing.tell(console, _shown(path), result)
    return heard is not None


def _several_files(
    options: Options, showing: _Showing, paths: Sequence[Path], failed: dict[Path, AudioError], jobs: int
) -> bool:
    """Every file in order, with a progress bar; a line of JSON for each."""
    from rich import progress
    from rich.console import Console

    if showing.subtitles:
        raise ConfigurationError(f"--{showing.subtitles}: found a folder or several files, expected one file")
    options = replace(options, block_seconds=workers.FILE_BLOCK)
    recognizer = workers.open_recognizer(options)  # for one job, and so that a bad bundle or setting is named at once
    version, console, errors = recognizer.model_version, Console(), Console(stderr=True)
    good, hidden = True, not errors.is_terminal
    kinds = progress.BarColumn, progress.MofNCompleteColumn, progress.TimeElapsedColumn, progress.TimeRemainingColumn
    shown: dict[str, Any] = {"transient": True, "disable": hidden, "redirect_stdout": sys.stdout.isatty()}
    bar = progress.Progress(progress.TextColumn("files"), *(each() for each in kinds), console=errors, **shown)
    kept: list[str] = []
    try:
        with showing.file() as out, bar:
            task = bar.add_task("files", total=len(paths))
            for path, heard in _in_order(recognizer, options, paths, failed, jobs):
                name = _shown(path)
                if isinstance(heard, AudioError):
                    entry, good = _failure(path, heard), False
                else:
                    entry = showing.entry(path, heard)
                line = json.dumps({"bundle": version, **entry}, ensure_ascii=False)
                kept.append(line + "\n")
                if out is not None:
                    out.write(kept[-1])
                if showing.as_json:
                    print(line, flush=True)
                elif isinstance(heard, AudioError):
                    pass
                elif showing.tables:
                    for result in heard.results:
                        showing.tell(console, name, result)
                elif showing.with_ids:
                    for result in heard.results:
                        print(showing.line(name, result), flush=True)
                else:
                    print(f"{name}: {showing.text(heard)}", flush=True)
                bar.advance(task)
    except KeyboardInterrupt:  # an hour's work may be done; what was there before stays
        place = showing.output
        if place is None or not kept or (place.exists() and not place.is_file()):
            raise
        place = place.with_name(f"{place.name}.part") if place.exists() else place
        write_file(place, "".join(kept))
        print(f"idiolect: interrupted; {place} holds {len(kept)} of {len(paths)} files", file=sys.stderr)
        raise typer.Exit(130) from None
    return good


def _in_order(
    recognizer: Recognizer | Device, options: Options, paths: Sequence[Path], failed: dict[Path, AudioError], jobs: int
) -> Iterator[tuple[Path, Heard | AudioError]]:
    readable = [path for path in paths if path not in failed]
    others = workers.decode_files(readable, options, jobs) if jobs > 1 else iter(())
    for path in paths:
        if path in failed:
            yield path, failed[path]
        elif jobs > 1:
            yield next(others)
        else:
            try:
                yield path, workers.read_and_decode(recognizer, options, path)
            except AudioError as error:
                yield path, error


def _stream(
    options: Options, showing: _Showing, mic: bool, microphone: str | None, form: Format | None, chunk: float
) -> None:
    """Utterance by utterance: partials on standard error, each text on standard output as soon as it is over."""
    from rich.console import Console

    from device_sdk.audio import SAMPLE_RATE
    from device_sdk.commands import sources
    from device_sdk.commands.printing import Partials
    from device_sdk.hypothesis import Partial

    chunks: Iterator[NDArray[np.generic]]
    if mic:
        rate, name = SAMPLE_RATE, "microphone"
        chunks = sources.microphone(microphone, chunk)
    else:
        name = STDIN
        rate, chunks = sources.standard_input(sys.stdin.buffer, form, chunk, mono=options.mono, strict=options.strict)
    recognizer = workers.open_recognizer(options)
    listening = workers.session(recognizer, options, rate)
    console, errors = Console(), Console(stderr=True)
    heard: list[Result] = []
    if mic and errors.is_terminal:
        errors.print("listening; Ctrl-C ends", style="dim")
    with showing.file() as out, Partials(errors) as shown:
        for event in listening.segments(chunks):
            if isinstance(event, Partial):
                shown.show(event, listening.offset)
                continue
            shown.clear()
            entry = {"bundle": recognizer.model_version, "file": name, **showing.utterance(event)}
            line = json.dumps(entry, ensure_ascii=False)
            if showing.subtitles:
                heard.append(event)
            elif out is not None:
                out.write(line + "\n")
            if showing.as_json:
                print(line, flush=True)
            elif not showing.subtitles:
                showing.tell(console, name, event)
        if showing.subtitles:
            print(showing.as_subtitles(heard), end="", file=sys.stdout if out is None else out)


def _failure(path: Path, error: AudioError) -> dict[str, Any]:
    print(f"idiolect: AudioError: {error}", file=sys.stderr)
    return {"file": _shown(path), "error": str(error).replace(str(path), _shown(path))}
