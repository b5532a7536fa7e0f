"""Measures a bundle on data: word error, slot error, oracle word error of its n-best lists, speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from server.corpora import Corpus
    from server.evaluation import Evaluation

__all__ = ["command"]


def command(
    bundle: Annotated[str, typer.Argument(help="Folder or zip of a bundle, or 'default' for the packaged one.")],
    data: Annotated[
        list[str],
        typer.Option(help="KIND:PATH with KIND barista, fsdd or folder, or made:heldout; may be given several times."),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many utterances of each source.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Width of the beam.")] = 8,
    rescore: Annotated[bool, typer.Option(help="Rescore with the bundle's language models.")] = True,
    speakers: Annotated[bool, typer.Option("--speakers", help="Figures of each speaker, too.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this speaker's utterances; may be given several times.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides fsdd's strings and made speech.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON to this file.")] = None,
) -> None:
    """Measures a bundle on data: word error, slot error, oracle word error of its n-best lists, speed."""
    from rich.console import Console

    from device_sdk.bundle import Bundle
    from device_sdk.decoding.recognizer import Recognizer
    from device_sdk.decoding.settings import DecodingSettings
    from server.corpora import open_corpus

    if output is not None and not output.parent.is_dir():
        raise ConfigurationError(f"--output {output}: the folder {output.parent} does not exist; make it first")
    corpora = [_selected(open_corpus(source, seed=seed), only, limit) for source in data]
    loaded = Bundle.open(None if bundle == "default" else bundle)
    second_pass = None
    if rescore:
        from device_sdk.personalization.rescorer import Rescorer

        second_pass = Rescorer(loaded).rescore
    recognizer = Recognizer(loaded, DecodingSettings(beam=beam, nbest=beam), second_pass)
    evaluations = {corpus.name: _measure(recognizer, corpus) for corpus in corpora}

    rows = {name: _figures(evaluation, speakers) for name, evaluation in evaluations.items()}
    figures: dict[str, Any] = next(iter(rows.values())) if len(rows) == 1 else {"data": rows}
    text = json.dumps(figures, indent=2)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        Console().print(_table(f"{loaded.manifest.name} {loaded.version}", evaluations, speakers))


def _selected(corpus: Corpus, only: list[str] | None, limit: int | None) -> Corpus:
    from server.corpora import Corpus

    if only:
        corpus = corpus.of_speakers(*only)
    return corpus if limit is None else Corpus(corpus.name, corpus.utterances[:limit], corpus.lexicon)


def _measure(recognizer: Any, corpus: Corpus) -> Evaluation:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from server.evaluation import evaluate

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(corpus.name, total=len(corpus))
        return evaluate(recognizer.recognise, corpus, lambda _: bar.advance(task))


def _figures(evaluation: Evaluation, speakers: bool) -> dict[str, Any]:
    figures = evaluation.as_json()
    if speakers:
        figures["speakers"] = {name: part.as_json() for name, part in evaluation.of_speakers().items()}
    return figures


def _table(title: str, evaluations: dict[str, Evaluation], speakers: bool) -> Any:
    from rich.table import Table

    from server.evaluation import ORACLE_DEPTHS

    table = Table(title=title)
    table.add_column("data", min_width=14, overflow="fold")
    for heading in ("WER", "slot error", *(f"oracle {depth}" for depth in ORACLE_DEPTHS), "RTF", "utterances"):
        table.add_column(heading, justify="right")
    for name, evaluation in evaluations.items():
        table.add_row(*_cells(name, evaluation))
        for speaker, part in evaluation.of_speakers().items() if speakers else ():
            table.add_row(*_cells(f"  {speaker}", part))
    return table


def _cells(name: str, evaluation: Evaluation) -> tuple[str, ...]:
    from server.evaluation import ORACLE_DEPTHS

    rates = (evaluation.wer, evaluation.slot_error, *map(evaluation.oracle_wer, ORACLE_DEPTHS))
    speed = evaluation.real_time_factor
    return (
        name,
        *("-" if rate is None else f"{100 * rate:.1f} %" for rate in rates),
        "-" if speed is None else f"{speed:.3f}",
        str(len(evaluation.scores)),
    )
