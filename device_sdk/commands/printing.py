"""What `idiolect transcribe` shows: partials as they change, results as tables, lines or JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from device_sdk.commands.output import print_table
from device_sdk.formatting import Cue, cues, spans, written_form
from device_sdk.hypothesis import Word, in_stream

if TYPE_CHECKING:
    from rich.console import Console

    from device_sdk.hypothesis import Partial, Result


def result_as_json(result: Result) -> dict[str, Any]:
    """A result as JSON values: when it began in the stream and how long it is, seconds, its text, and the n-best list
    with scores in nats, confidence in [0, 1] and word times in seconds from where it began."""
    return {
        "offset": round(result.offset, 4),
        "seconds": round(result.seconds, 4),
        "text": result.text,
        "nbest": [_rounded(asdict(hypothesis)) for hypothesis in result.nbest],
    }


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    """The times and confidences of a hypothesis to four places."""
    for each in (fields, *fields["words"]):
        each |= {name: round(each[name], 4) for name in ("start", "end", "confidence") if name in each}
    return fields


def subtitles(result: Result, format_text: bool) -> tuple[Cue, ...]:
    """The best hypothesis as subtitles, in the time of the whole stream."""
    words = in_stream(result)
    if format_text:
        pieces = spans([word.text for word in words])
        words = [Word(piece.text, words[piece.start].start, words[piece.stop - 1].end) for piece in pieces]
    return cues(words)


def print_result(console: Console, name: str, result: Result, format_text: bool) -> None:
    """The n-best list with the parts of each score, and when each word was said."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{name}  ({result.seconds:.2f} s)", style="bold"), soft_wrap=True)
    table = Table()
    added = [part for part in ("hotword", "pieces") if any(getattr(each.scores, part) for each in result.nbest)]
    for column in ("", "score", "acoustic", "neural", "n-gram", "personal", *added, "conf"):
        table.add_column(column, justify="right")
    table.add_column("text")
    for rank, hypothesis in enumerate(result.nbest, 1):
        scores = hypothesis.scores
        parts = [hypothesis.score, scores.acoustic, scores.neural, scores.ngram, scores.personal]
        shown = [f"{part:.2f}" for part in (*parts, *(getattr(scores, part) for part in added))]
        text = written_form(hypothesis.text) if format_text else hypothesis.text
        table.add_row(str(rank), *shown, f"{100 * hypothesis.confidence:.0f}%", Text(text))
    print_table(console, table)
    times = "  ".join(f"{word.text} {word.start:.2f}-{word.end:.2f}" for word in result.nbest[0].words)
    console.print(Text(f"{times}\n" if times else "(no words)\n"))


class Partials:
    """Shows partials: one line that changes on a terminal, a line for each change elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        live = Live(console=console, transient=True, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
        self._live = live if console.is_terminal else None
        self._last = ""

    def __enter__(self) -> Partials:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, partial: Partial, offset: float = 0.0) -> None:
        """offset: seconds of audio before this utterance."""
        if partial.text == self._last:
            return
        self._last = partial.text
        clock = f"{offset + partial.seconds:8.2f} s  "
        if self._live is None:
            print(f"{clock}{partial.text}", file=sys.stderr)
            return
        from rich.text import Text

        line = Text(clock, style="dim")
        line.append(partial.stable, style="bold").append(partial.text[len(partial.stable) :], style="italic")
        self._live.update(line, refresh=True)

    def clear(self) -> None:
        """The utterance is over."""
        self._last = ""
        if self._live is not None:
            self._live.update("", refresh=True)
