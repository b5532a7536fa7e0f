"""Chooses a bundle's combination weights, and what its confidences mean, on development data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import ConfigurationError, MissingExtraError
from server.lab.commands.shared import command_line, progress_bar

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from device_sdk.bundle.second_moments import SecondMoments
    from device_sdk.hypothesis import Hypothesis
    from rescoring.combination import CombinationWeights
    from server.lab.corpora import Corpus, Waveform
    from server.lab.tuning.confidence import Heard
    from server.lab.tuning.lists import DevelopmentLists

__all__ = ["app"]

app = typer.Typer(help="Choose a bundle's settings on development data.", no_args_is_help=True, add_completion=False)

ROLES = ("base", "development")

Data = Annotated[
    list[str] | None, typer.Option(help="KIND:PATH; only voices meant for base training are used. Default: made:base.")
]
Out = Annotated[Path | None, typer.Option(help="Write the tuned bundle here and leave BUNDLE as it is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be chosen.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many utterances of each source.")]
Speeds = Annotated[str, typer.Option(help="Play voices at these speeds; training hears them at 0.86 to 1.17.")]
Beam = Annotated[int, typer.Option(min=1, help="Width of the beam and length of the n-best lists.")]


@app.callback()
def _group() -> None:
    """Choose a bundle's settings on development data."""


@app.command()
def rescoring(
    bundle: Annotated[Path, typer.Argument(help="Folder or zip of a bundle; its rescoring.json is replaced.")],
    data: Data = None,
    out: Out = None,
    dry_run: DryRun = False,
    limit: Limit = None,
    speeds: Speeds = "0.75,0.8,1.25,1.35",
    beam: Beam = 8,
    seed: Annotated[int, typer.Option(help="Decides made speech and fsdd's strings.")] = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Choose the weights of language models, words and marginals that make the fewest word errors.

    The marginals' weights are tuned with every speaker's cache simulated in the order of the utterances, and with what
    the other speakers of the same data say as the global distribution.
    """
    from server.lab.tuning.search import tune

    opened, corpora, report = _begin(bundle, data, speeds, seed, limit)
    lists = _lists(opened, corpora, beam)
    with progress_bar() as bar:
        task = bar.add_task("searching", total=1.0)
        tuned = tune(
            lists,
            opened.combination,
            opened.words,
            opened.background,
            progress=lambda share: bar.update(task, completed=share),
        )
    errors = {**tuned.errors, "previous": lists.word_errors(opened.combination)}
    report |= {
        "utterances": len(lists),
        "weights": tuned.weights.to_mapping(),
        "previous": opened.combination.to_mapping(),
        "wer": {name: lists.wer(count) for name, count in errors.items()},
    }
    if not dry_run:
        report["bundle"] = _written(opened, out or bundle, tuned.weights)
    if deliver(report, as_json, output):
        return
    for name in ("first_pass", "previous", "rescored", "marginals", "oracle"):
        typer.echo(f"{name.replace('_', ' '):>12}  {100 * report['wer'][name]:5.1f} % word errors")
    numbers = {name: value for name, value in report["weights"].items() if isinstance(value, int | float)}
    typer.echo("     weights  " + ", ".join(f"{name} {value:g}" for name, value in numbers.items()))
    typer.echo(_written_line(report))


@app.command()
def confidence(
    bundle: Annotated[Path, typer.Argument(help="Folder or zip of a bundle; its rescoring.json is replaced.")],
    data: Data = None,
    out: Out = None,
    dry_run: DryRun = False,
    limit: Limit = None,
    speeds: Speeds = "0.7,0.75,0.8,1.25,1.35,1.45",
    beam: Beam = 8,
    seed: Annotated[int, typer.Option(help="Decides made speech and fsdd's strings.")] = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Fit confidences to how often words and texts are right; do this after the weights are tuned.

    A model is too sure of the voices that it was trained on, so these are played at speeds it never heard, at which it
    errs about as often as on voices of others. Every source counts the same.
    """
    from server.lab.tuning.confidence import fit_and_check

    opened, corpora, report = _begin(bundle, data, speeds, seed, limit)
    fitted = fit_and_check(_heard(opened, corpora, beam))
    stages = {"before": fitted.before, "after": fitted.after, "other_voices": fitted.other_voices}
    report |= {
        "confidence": fitted.calibration.to_mapping(),
        "previous": opened.combination.confidence.to_mapping(),
        **{stage: {kind: each.as_json() for kind, each in figures.items()} for stage, figures in stages.items()},
    }
    if not dry_run:
        report["bundle"] = _written(opened, out or bundle, replace(opened.combination, confidence=fitted.calibration))
    if deliver(report, as_json, output):
        return
    for stage, figures in stages.items():
        for kind, each in figures.items():
            nce = "-" if each.nce is None else f"{each.nce:.3f}"
            typer.echo(
                f"{stage.replace('_', ' '):>12}  {kind}: calibration error {100 * each.ece:4.1f} %, "
                f"{100 * each.ece_equal_mass:4.1f} % in equal bins, normalized cross entropy {nce}"
            )
    typer.echo(_written_line(report))


@app.command()
def second_moments(
    bundle: Annotated[
        Path, typer.Argument(help="Folder or zip of a bundle; its second moments are written or replaced.")
    ],
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Write the bundle here and leave BUNDLE as it is.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what was measured.")] = False,
    limit: Limit = None,
    speeds: Annotated[str, typer.Option(help="Play voices at these speeds.")] = "0.9,1.12",
    seed: Annotated[int, typer.Option(help="Decides made speech, fsdd's strings and masks.")] = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Measure how large each parameter's gradient usually is; devices divide theirs by it. Do this after training."""
    from server.lab.tuning.second_moments import measure

    opened, corpora, report = _begin(bundle, data, speeds, seed, limit)
    with progress_bar() as bar:
        task = bar.add_task("gradients", total=sum(map(len, corpora)))
        utterances = (utterance for corpus in corpora for utterance in corpus.utterances)
        moments, used = measure(opened, utterances, seed, lambda: bar.advance(task))
    sizes = opened.architecture.parameter_shapes()
    shares = {name: float(vectors[0].sum(dtype="f8")) * math.prod(sizes[name][1:]) for name, vectors in moments.items()}
    report |= {"utterances": used, "share_of_squared_gradient": shares}
    if not dry_run:
        report["bundle"] = _written(opened, out or bundle, second_moments=moments)
    if deliver(report, as_json, output):
        return
    for name, share in shares.items():
        typer.echo(f"{share:12.4f}  {name}")
    typer.echo(f"{used} utterances; shares of the squared gradient, which sum to 1")
    typer.echo(_written_line(report))


def _begin(
    bundle: Path, data: list[str] | None, speeds: str, seed: int, limit: int | None
) -> tuple[Bundle, list[Corpus], dict[str, Any]]:
    """The bundle, its development data, and what every report begins with."""
    from device_sdk.bundle import Bundle

    opened = Bundle.open(bundle)
    try:
        factors = [float(value) for value in speeds.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"--speeds: found {speeds!r}, expected numbers like 0.8,1.25") from error
    corpora = [_development(source, factors, seed, limit) for source in data or ["made:base"]]
    report = {"command": command_line(), "data": [corpus.summary() for corpus in corpora], "speeds": factors}
    return opened, corpora, report


def _written(
    bundle: Bundle,
    out: Path,
    combination: CombinationWeights | None = None,
    second_moments: SecondMoments | None = None,
) -> str:
    """Write the bundle with what was chosen; where it went."""
    try:
        from export.bundles import rewrite
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise MissingExtraError("writing bundles needs onnx; run: pip install 'idiolect-server[train]'") from error
    return str(rewrite(bundle, out, combination=combination, second_moments=second_moments))


def _development(source: str, factors: list[float], seed: int, limit: int | None) -> Corpus:
    """Up to ``limit`` utterances by voices that base training may use, in order, at each speed."""
    from server.lab.corpora import Corpus, open_corpus
    from server.lab.corpora.roles import role_of
    from server.lab.tuning.lists import at_speeds

    corpus, kind = open_corpus(source, seed), source.partition(":")[0]
    if kind != "made":
        corpus = corpus.only(lambda utterance: role_of(kind, utterance.speaker) in ROLES)
    elif source != "made:base":
        raise ConfigurationError(f"--data {source}: these voices are kept from tuning; use made:base")
    if limit is not None:
        corpus = Corpus(corpus.name, corpus.utterances[:limit], corpus.lexicon)
    return at_speeds(corpus, factors)


def _lists(bundle: Bundle, corpora: list[Corpus], beam: int) -> DevelopmentLists:
    from device_sdk.decoding.recognizer import Recognizer
    from device_sdk.decoding.settings import DecodingSettings
    from device_sdk.personalization.rescorer import Rescorer
    from device_sdk.runtimes.ngram import load_ngram
    from server.lab.tuning.lists import gather, stack

    recognizer = Recognizer(bundle, DecodingSettings(beam=beam, nbest=beam))
    entries = []
    with progress_bar() as bar:
        for corpus in corpora:
            advance = partial(bar.advance, bar.add_task(corpus.name, total=len(corpus)))
            entries += gather(
                corpus.utterances,
                partial(recognizer.recognize, sample_rate=16_000),
                corpus.lexicon,
                advance,
                corpus.name,
            )
    return stack(entries, bundle.words, Rescorer(bundle).neural, load_ngram(bundle))


def _heard(bundle: Bundle, corpora: list[Corpus], beam: int) -> list[Heard]:
    """Every utterance twice: with the beam and rescoring, and greedily."""
    from device_sdk.decoding.recognizer import Recognizer
    from device_sdk.decoding.settings import DecodingSettings
    from device_sdk.personalization.rescorer import Rescorer
    from server.lab.tuning.confidence import hear

    rescorer = Rescorer(bundle)
    last: list[tuple[Hypothesis, ...]] = []

    def rescore(hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        last[:] = [rescorer.rescore(hypotheses)]
        return last[0]

    recognizer = Recognizer(bundle, DecodingSettings(beam=beam, nbest=beam), rescore)
    greedy = Recognizer(bundle, DecodingSettings(beam=1, nbest=1))

    def recognize(waveform: Waveform) -> tuple[Hypothesis, ...]:
        recognizer.recognize(waveform, 16_000)
        return last[0]  # all that the confidences of a result rest on, also what was cut off its list

    found = []
    with progress_bar() as bar:
        for corpus in corpora:
            advance = partial(bar.advance, bar.add_task(corpus.name, total=2 * len(corpus)))
            found += hear(corpus.name, corpus.utterances, recognize, _voice, advance)
            if beam > 1:
                found += hear(
                    corpus.name, corpus.utterances, lambda wave: greedy.recognize(wave, 16_000).nbest, _voice, advance
                )
    return found


def _voice(speaker: str) -> str:
    """Whose voice it is, at whatever speed it was played."""
    return re.sub(r"-x[\d.]+$", "", speaker)


def _written_line(report: dict[str, Any]) -> str:
    return f"      bundle  {report['bundle']}" if "bundle" in report else "      (dry run: no bundle was changed)"
