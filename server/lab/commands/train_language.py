"""``idiolect train lm`` and ``idiolect train ngram``: the models of the second pass, from text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import ConfigurationError
from server.lab.commands.shared import command_line, needing_extra, progress_bar

__all__ = ["lm", "ngram", "register"]

Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Words = Annotated[Path, typer.Option(help="The public word list, words.txt: one word a line, <unk> first.")]
Text = Annotated[list[Path] | None, typer.Option(help="Sentences besides the grammar's, one a line.")]
Sentences = Annotated[int, typer.Option(min=0, help="Sentences drawn from the command grammar's base split.")]
HeldOut = Annotated[list[Path] | None, typer.Option(help="Sentences to report perplexity on; never trained on.")]
Seed = Annotated[int, typer.Option(help="Decides sentences, order and first weights.")]


def register(app: typer.Typer) -> None:
    """Add both commands to ``idiolect train``."""
    app.command("lm")(lm)
    app.command("ngram")(ngram)


def lm(
    out: Out,
    words: Words,
    text: Text = None,
    sentences: Sentences = 20_000,
    held_out: HeldOut = None,
    minutes: Annotated[float | None, typer.Option(help="Budget of training time.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in steps instead (default: 2000).")] = None,
    size: Annotated[int, typer.Option(min=1, help="Width of embeddings; feed-forward is four times as wide.")] = 128,
    blocks: Annotated[int, typer.Option(min=1, help="Transformer blocks.")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Train the word-level Transformer language model; writes OUT/language_model.onnx and its figures."""
    with needing_extra():
        import torch

        from server.lab.training.background import TextSources, run_language_model
        from server.lab.training.language_model import LanguageModelSettings
        from server.lab.training.trainer import Budget
    if minutes is not None and steps is not None:
        raise ConfigurationError("--minutes and --steps exclude each other; give one")
    budget = Budget(minutes=minutes) if minutes is not None else Budget(steps=2000 if steps is None else steps)
    torch.set_num_threads(threads)
    sizes = {"size": size, "feed_forward": 4 * size, "blocks": blocks, "heads": heads}
    sources = TextSources(words, tuple(text or ()), sentences, tuple(held_out or ()), seed)
    with progress_bar() as bar:
        task = bar.add_task("language model", total=1.0)
        summary = run_language_model(
            sources,
            out,
            sizes,
            LanguageModelSettings(budget=budget, seed=seed),
            command_line(),
            lambda at: bar.update(task, completed=at.share, description=f"{at.loss:.3f} nats a word"),
        )
    _show(summary, out / "language_model.onnx", as_json, output)


def ngram(
    out: Out,
    words: Words,
    text: Text = None,
    sentences: Sentences = 50_000,
    held_out: HeldOut = None,
    order: Annotated[int, typer.Option(min=2, help="Longest n-gram.")] = 5,
    cutoffs: Annotated[str, typer.Option(help="Least count to keep an n-gram of order 1, 2, ...; last for all.")] = "1",
    gzip: Annotated[bool, typer.Option(help="Write ngram.arpa.gz instead of ngram.arpa.")] = True,
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Estimate the Kneser-Ney n-gram and the background unigram; writes OUT/ngram.arpa.gz, background.safetensors."""
    with needing_extra():
        from server.lab.training.background import TextSources, run_ngram
    try:
        least = [int(value) for value in cutoffs.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"--cutoffs: found {cutoffs!r}, expected whole numbers like 1,1,2") from error
    sources = TextSources(words, tuple(text or ()), sentences, tuple(held_out or ()), seed)
    summary = run_ngram(sources, out, order, least, gzip, command_line())
    _show(summary, out / ("ngram.arpa.gz" if gzip else "ngram.arpa"), as_json, output)


def _show(summary: dict[str, Any], path: Path, as_json: bool, output: Path | None) -> None:
    if deliver(summary, as_json, output):
        return
    figures = ", ".join(f"{name} {value:.1f}" for name, value in summary["perplexity"].items())
    typer.echo(f"{path}: {summary['bytes'] / 1e6:.2f} MB; perplexity a word: {figures or 'not measured'}")
