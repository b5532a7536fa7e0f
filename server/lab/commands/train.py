"""``idiolect train``: base models from made and real speech. Torch is loaded only when a command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from device_sdk.errors import ConfigurationError
from server.lab.commands import train_language
from server.lab.commands.shared import command_line, needing_extra

__all__ = ["app"]

app = typer.Typer(help="Train base models (needs the extra idiolect-server[train]).", no_args_is_help=True)
train_language.register(app)


@app.callback()
def _group() -> None:
    """Train base models (needs the extra idiolect-server[train])."""


@app.command()
def rnnt(
    out: Annotated[Path, typer.Option(help="Folder of the run; an interrupted run goes on from its checkpoint.")],
    preset: Annotated[str, typer.Option(help="tiny, small, bench or paper.")] = "small",
    minutes: Annotated[float | None, typer.Option(help="Budget of training time (default: 60).")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in steps instead.")] = None,
    seed: Annotated[int, typer.Option(help="Decides speech, order and first weights.")] = 1,
    text: Annotated[list[Path] | None, typer.Option(help="Sentences to speak too, one a line.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Real speech, KIND:PATH (barista, fsdd, folder).")] = None,
    shard: Annotated[int, typer.Option(help="Utterances made at a time.")] = 1200,
    pieces: Annotated[int | None, typer.Option(help="Pieces of the tokenizer (default: the preset's).")] = None,
    language: Annotated[str | None, typer.Option(help="espeak-ng's voices of it say --text (fr, es, ...).")] = None,
    begin: Annotated[Path | None, typer.Option(help="A bundle, or the folder of a run, to go on from.")] = None,
    fresh_pieces: Annotated[bool, typer.Option(help="With --begin: a new tokenizer and what belongs to it.")] = False,
    freeze: Annotated[list[str] | None, typer.Option(help="With --begin: stays as it is, e.g. encoder.0.")] = None,
    peak: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    seconds: Annotated[float, typer.Option(help="Most audio in a batch, padding included.")] = 140.0,
    accumulate: Annotated[int, typer.Option(help="Batches in a step.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU where there is one).")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's files.")] = None,
    snapshots: Annotated[Path | None, typer.Option(help="Folder for copies of the weights on the way.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the last line of the log as JSON.")] = False,
) -> None:
    """Train an RNN-T by CTC, then by RNN-T, on speech made on the fly and on real recordings.

    Writes OUT/weights.safetensors, tokenizer.model, words.txt, training.json and log.jsonl.
    """
    with needing_extra():
        import torch

        from server.lab.training.rnnt import Recipe
        from server.lab.training.runs import run_rnnt
        from server.lab.training.trainer import Budget
    if minutes is not None and steps is not None:
        raise ConfigurationError("--minutes and --steps exclude each other; give one")
    budget = Budget(steps=steps) if steps is not None else Budget(minutes=60.0 if minutes is None else minutes)
    recipe = Recipe(
        preset=preset,
        pieces=pieces,
        seed=seed,
        budget=budget,
        shard=shard,
        peak=peak,
        seconds=seconds,
        accumulate=accumulate,
        threads=threads,
    )
    result = run_rnnt(
        recipe,
        out,
        text or [],
        data or [],
        command_line(),
        snapshots,
        language=language,
        begin=begin,
        fresh_pieces=fresh_pieces,
        frozen=freeze or (),
        device=torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")),
        tensorboard=tensorboard,
        show=not json_output,
    )
    typer.echo(json.dumps(result) if json_output else f"weights: {out / 'weights.safetensors'}")
