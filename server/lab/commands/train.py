"""``idiolect train``: base models from speech, and the models of the second pass from text.

Torch is loaded only when a command runs."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import ConfigurationError
from server.lab.commands.shared import command_line, needing_extra, progress_bar, read_numbers

if TYPE_CHECKING:
    from server.lab.training.trainer import Budget

app = typer.Typer(
    help="Train base models, and the models of the second pass; needs idiolect-server's extra train.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Words = Annotated[Path, typer.Option(help="The public word list, words.txt: one word a line, <unk> first.")]
Text = Annotated[
    list[Path] | None,
    typer.Option(
        help="Sentences besides the grammar's, one a line; or FILE.jsonl@ROLE: of a manifest, or of meetings."
    ),
]
Sentences = Annotated[int, typer.Option(min=0, help="Sentences drawn from the command grammar's base split.")]
HeldOut = Annotated[list[Path] | None, typer.Option(help="Sentences to report perplexity on; never trained on.")]
Seed = Annotated[int, typer.Option(help="Decides sentences, order and first weights.")]
RunFolder = Annotated[Path, typer.Option(help="Folder of the run; an interrupted run goes on from its checkpoint.")]
Spoken = Annotated[list[Path] | None, typer.Option(help="Sentences to speak too, one a line.")]
Real = Annotated[list[str] | None, typer.Option(help="Real speech, KIND:PATH; base voices are trained on.")]
Made = Annotated[
    list[Path] | None, typer.Option(help="Folder of sentences that a machine spoke, with a manifest.jsonl.")
]
Recorded = Annotated[float, typer.Option(min=0, max=1, help="Share of --data and --made.")]
Noise = Annotated[Path | None, typer.Option(help="Folder of recordings of noises to speak over.")]
Shard = Annotated[int, typer.Option(help="Utterances made at a time.")]
Seconds = Annotated[float, typer.Option(help="Most audio in a batch, padding included.")]


@app.command()
def rnnt(
    out: RunFolder,
    preset: Annotated[
        str, typer.Option(help="tiny, small, medium, bench, paper or zipformer-small, -medium, -large.")
    ] = "small",
    minutes: Annotated[float | None, typer.Option(help="Budget of training time (default: 60).")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in steps instead.")] = None,
    call_minutes: Annotated[
        float | None, typer.Option(min=0, help="End this call after so many minutes; the same command goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides speech, order and first weights.")] = 1,
    text: Spoken = None,
    data: Real = None,
    made: Made = None,
    recorded: Recorded = 0.3,
    noise: Noise = None,
    shard: Shard = 1200,
    makers: Annotated[
        int | None, typer.Option(min=1, help="Processes that make speech (default: 1; for a GPU, all cores but five).")
    ] = None,
    pieces: Annotated[int | None, typer.Option(help="Pieces of the tokenizer (default: the preset's).")] = None,
    begin: Annotated[Path | None, typer.Option(help="A bundle, or the folder of a run, to go on from.")] = None,
    peak: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Of what each layer gives.")] = 0.2,
    seconds: Seconds = 140.0,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU where there is one).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the last line of the log as JSON.")] = False,
) -> None:
    """Train an RNN-T by CTC, then by RNN-T, on speech made on the fly and on real recordings.

    Writes OUT/weights.safetensors, tokenizer.model, words.txt, training.json and log.jsonl."""
    until = math.inf if call_minutes is None else time.monotonic() + 60.0 * call_minutes
    with needing_extra():
        import torch

        from server.lab.training.rnnt import Recipe
        from server.lab.training.runs import run_rnnt
    budget = _budget(steps, minutes, (None, 60.0))
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    makers = makers or (1 if place.type == "cpu" else max(1, (os.cpu_count() or 1) - 5))
    batch = _utterances(seconds)
    given: dict[str, Any] = {"shard": shard, "makers": makers, "batch": batch, "seconds": seconds}
    if begin is not None:
        given["sparse_share"] = 0.0  # every batch by RNN-T, which has learned the most by now
    recipe = Recipe(preset, pieces, seed, budget, peak=peak, dropout=dropout, threads=threads, **given)
    result = run_rnnt(
        recipe,
        out,
        text or [],
        data or [],
        command_line(),
        begin=begin,
        noise=noise,
        recorded=recorded,
        made=made or [],
        device=place,
        show=not json_output,
        until=until,
    )
    share = f"{100 * result['progress']:.0f} % of the budget; the same command goes on from {out}"
    said = share if result.get("finished") is False else f"weights: {out / 'weights.safetensors'}"
    typer.echo(json.dumps(result) if json_output else said)


@app.command()
def ctc(
    bundle: Annotated[Path, typer.Option(help="Folder or zip of the bundle whose encoder is listened to.")],
    out: RunFolder,
    minutes: Annotated[float | None, typer.Option(help="Budget of training time (default: 25).")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget in steps instead.")] = None,
    seed: Annotated[int, typer.Option(help="Decides speech, order and first weights.")] = 1,
    text: Spoken = None,
    data: Real = None,
    made: Made = None,
    recorded: Recorded = 0.3,
    noise: Noise = None,
    shard: Shard = 1200,
    peak: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    seconds: Seconds = 140.0,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Train the CTC head of the second pass over a bundle's encoder, which stays as it is; writes OUT/ctc.onnx.

    It hears phones, where the network spells; idiolect export mean --model puts it into a bundle, and idiolect tune
    rescoring says how much it counts."""
    with needing_extra():
        from device_sdk.bundle import Bundle
        from server.lab.training.rnnt import Recipe
        from server.lab.training.runs import run_ctc
    budget, batch = _budget(steps, minutes, (None, 25.0)), _utterances(seconds)
    recipe = Recipe(seed=seed, budget=budget, shard=shard, batch=batch, seconds=seconds, peak=peak, threads=threads)
    summary = run_ctc(
        Bundle.open(bundle),
        recipe,
        out,
        text or [],
        data or [],
        command_line(),
        noise=noise,
        recorded=recorded,
        made=made or [],
        show=not as_json,
    )
    if not deliver(summary, as_json, output):
        typer.echo(f"{out / 'ctc.onnx'}: {summary['result']['ctc']:.3f} nats a phone")


@app.command()
def words(
    out: Annotated[Path, typer.Option(help="The word list to write, such as words.txt.")],
    text: Text = None,
    sentences: Sentences = 20_000,
    held_out: HeldOut = None,
    size: Annotated[int, typer.Option(min=1, help="Words of the list.")] = 24_000,
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """List the public vocabulary, most frequent words first: the grammar's, the texts' and English as it is."""
    with needing_extra():
        from server.lab.training.background import TextSources, run_words
    sources = TextSources(out, tuple(text or ()), sentences, tuple(held_out or ()), seed)
    summary = run_words(sources, size, command_line())
    if not deliver(summary, as_json, output):
        shares = ", ".join(f"{name} {share:.2f} %" for name, share in summary["coverage"].items())
        typer.echo(f"{out}: {summary['words']} words; coverage: {shares or 'not measured'}")


@app.command()
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
    frequent: Annotated[
        int | None, typer.Option(min=1, help="First words of the list with an embedding of their own (default: all).")
    ] = None,
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
        from server.lab.training.trainer.settings import multiplies_bfloat16
    torch.set_num_threads(threads)
    sizes = {"size": size, "feed_forward": 4 * size, "blocks": blocks, "heads": heads, "frequent": frequent}
    settings = LanguageModelSettings(_budget(steps, minutes, (2000, None)), bfloat16=multiplies_bfloat16(), seed=seed)
    sources = TextSources(words, tuple(text or ()), sentences, tuple(held_out or ()), seed)
    with progress_bar() as bar:
        task = bar.add_task("language model", total=1.0)

        def show(share: float, loss: float) -> None:
            bar.update(task, completed=share, description=f"{loss:.3f} nats a word")

        summary = run_language_model(sources, out, sizes, settings, command_line(), show)
    _show(summary, out / "language_model.onnx", as_json, output)


@app.command()
def ngram(
    out: Out,
    words: Words,
    text: Text = None,
    sentences: Sentences = 50_000,
    held_out: HeldOut = None,
    order: Annotated[int, typer.Option(min=2, help="Longest n-gram.")] = 5,
    cutoffs: Annotated[str, typer.Option(help="Least count to keep an n-gram of order 1, 2, ...; last for all.")] = "1",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Also an n-gram over the pieces of this tokenizer.model, for the first pass.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Estimate the Kneser-Ney n-gram and the background unigram; writes OUT/ngram.arpa.gz, background.safetensors, and
    with --tokenizer pieces.ngram.safetensors."""
    with needing_extra():
        from server.lab.training.background import TextSources, run_ngram
    least = read_numbers("--cutoffs", cutoffs, int, "whole numbers like 1,1,2")
    sources = TextSources(words, tuple(text or ()), sentences, tuple(held_out or ()), seed)
    summary = run_ngram(sources, out, order, least, command_line(), tokenizer)
    _show(summary, out / "ngram.arpa.gz", as_json, output)


def _utterances(seconds: float) -> int:
    """Of a batch with so much audio, at most."""
    return max(32, round(seconds * 32 / 140))


def _budget(steps: int | None, minutes: float | None, default: tuple[int | None, float | None]) -> Budget:
    from server.lab.training.trainer import Budget

    if minutes is not None and steps is not None:
        raise ConfigurationError("--minutes and --steps exclude each other; give one")
    return Budget(*(default if minutes is None and steps is None else (steps, minutes)))


def _show(summary: dict[str, Any], path: Path, as_json: bool, output: Path | None) -> None:
    figures = ", ".join(f"{name} {value:.1f}" for name, value in summary["perplexity"].items())
    if not deliver(summary, as_json, output):
        typer.echo(f"{path}: {summary['bytes'] / 1e6:.2f} MB; perplexity a word: {figures or 'not measured'}")
