"""Transcribes audio files: partials as they come, then the n-best list with the parts of each score."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.errors import AudioError, ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from device_sdk.decoding import Recognizer
    from device_sdk.hypothesis import Partial, Result

__all__ = ["command", "result_as_json"]

DAY = 86_400.0


def command(
    files: Annotated[list[Path], typer.Argument(help="Audio files (WAV, FLAC, OGG), or folders of them.")],
    nbest: Annotated[int | None, typer.Option(help="Hypotheses to show; 8 unless the beam is narrower.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses to follow; 1 is greedy. 8, or --nbest if more.")] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Bundle to use, a folder or zip; the packaged one if none.")
    ] = None,
    rescore: Annotated[bool, typer.Option(help="Order the list with the bundle's language models too.")] = True,
    chunk: Annotated[float, typer.Option(help="Seconds of audio to feed at a time.")] = 0.1,
    mono: Annotated[
        bool, typer.Option("--mono", help="Mix several channels down; they are refused otherwise.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse files that are not at 16 kHz.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Transcribe FILES. A file that cannot be read is reported, the others are transcribed; the exit code is then 1."""
    from rich.console import Console

    from device_sdk.audio import list_audio

    if not chunk > 0.0:
        raise ConfigurationError(f"--chunk: found {chunk}, expected a positive number of seconds")
    recognizer = _recognizer(bundle, beam, nbest, rescore)
    console, progress = Console(quiet=json_), Console(stderr=True)
    reports: list[dict[str, Any]] = []
    for given in files:
        try:
            paths = list_audio([given])
        except AudioError as error:
            reports.append(_failure(given, error))
            continue
        for path in paths:
            try:
                result = _transcribe(recognizer, path, chunk, mono, strict, progress)
            except AudioError as error:
                reports.append(_failure(path, error))
                continue
            _print_result(console, path, result)
            reports.append({"file": str(path), **result_as_json(result)})
    report = {"bundle": recognizer.bundle.version, "files": reports}
    text = json.dumps(report, indent=2, ensure_ascii=False)
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    if json_:
        print(text)
    if any("error" in entry for entry in reports):
        raise typer.Exit(1)


def result_as_json(result: Result) -> dict[str, Any]:
    """A result as JSON values: seconds, text, and the n-best list with scores in nats and word times in seconds."""
    return {
        "seconds": round(result.seconds, 4),
        "text": result.text,
        "nbest": [
            {
                "text": hypothesis.text,
                "score": hypothesis.score,
                "scores": asdict(hypothesis.scores),
                "tokens": list(hypothesis.tokens),
                "words": [
                    {"text": word.text, "start": round(word.start, 4), "end": round(word.end, 4)}
                    for word in hypothesis.words
                ],
            }
            for hypothesis in result.nbest
        ],
    }


def _recognizer(bundle: Path | None, beam: int | None, nbest: int | None, rescore: bool) -> Recognizer:
    from device_sdk.bundle import Bundle
    from device_sdk.decoding import DecodingSettings, Recognizer

    width = max(8, nbest or 0) if beam is None else beam
    settings = DecodingSettings(beam=width, nbest=min(8, width) if nbest is None else nbest, max_seconds=DAY)
    opened = Bundle.open(bundle)
    if not rescore:
        return Recognizer(opened, settings)
    from device_sdk.personalization.rescorer import Rescorer

    return Recognizer(opened, settings, Rescorer(opened).rescore)


def _transcribe(
    recognizer: Recognizer, path: Path, chunk: float, mono: bool, strict: bool, progress: Console
) -> Result:
    from device_sdk.audio import SAMPLE_RATE, read_audio

    waveform = read_audio(path, mono=mono, strict=strict)
    session = recognizer.session(SAMPLE_RATE)
    size = max(1, round(chunk * SAMPLE_RATE))
    with _Partials(progress) as shown:
        for at in range(0, len(waveform), size):
            shown.show(session.feed(waveform[at : at + size]))
    return session.finish()


class _Partials:
    """Shows partials: one line that changes on a terminal, a line for each change elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._last = ""

    def __enter__(self) -> _Partials:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, partial: Partial) -> None:
        if partial.text == self._last:
            return
        self._last = partial.text
        if self._live is None:
            print(f"{partial.seconds:8.2f} s  {partial.text}", file=sys.stderr)
            return
        from rich.text import Text

        line = Text(f"{partial.seconds:8.2f} s  ", style="dim")
        line.append(partial.stable, style="bold").append(partial.text[len(partial.stable) :], style="italic")
        self._live.update(line, refresh=True)


def _failure(path: Path, error: AudioError) -> dict[str, Any]:
    print(f"idiolect: AudioError: {error}", file=sys.stderr)
    return {"file": str(path), "error": str(error)}


def _print_result(console: Console, path: Path, result: Result) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{path}  ({result.seconds:.2f} s)", style="bold"), soft_wrap=True)
    table = Table()
    for column in ("", "score", "acoustic", "neural", "n-gram", "personal", "text"):
        table.add_column(column, justify="left" if column == "text" else "right")
    for rank, hypothesis in enumerate(result.nbest, 1):
        scores = hypothesis.scores
        parts = (hypothesis.score, scores.acoustic, scores.neural, scores.ngram, scores.personal)
        table.add_row(str(rank), *(f"{part:.2f}" for part in parts), Text(hypothesis.text))
    console.print(table)
    times = "  ".join(f"{word.text} {word.start:.2f}-{word.end:.2f}" for word in result.nbest[0].words)
    console.print(Text(f"{times}\n" if times else "(no words)\n"))
