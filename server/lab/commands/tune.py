"""Chooses a bundle's combination weights, and what its confidences mean, on development data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import ConfigurationError
from device_sdk.privacy.spending import stated
from server.commands.shared import show
from server.lab.commands.shared import command_line, needing_extra, progress_bar, read_numbers

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from device_sdk.hypothesis import Hypothesis
    from server.lab.corpora import Corpus, Waveform
    from server.lab.corpora.roles import Role, RoleOf
    from server.lab.tuning.confidence import Heard
    from server.lab.tuning.lists import DevelopmentLists

app = typer.Typer(help="Choose a bundle's settings on development data.", no_args_is_help=True, add_completion=False)

InBundle = Annotated[Path, typer.Argument(help="Folder or zip of a bundle; what is chosen is written into it.")]
Data = Annotated[
    list[str] | None, typer.Option(help="KIND:PATH, of which development voices are used. Default: made:development.")
]
Out = Annotated[Path | None, typer.Option(help="Write the tuned bundle here and leave BUNDLE as it is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be chosen.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many utterances of each source.")]
Speeds = Annotated[str, typer.Option(help="Play every voice at each of these speeds.")]
Seed = Annotated[int, typer.Option(help="Decides made speech, fsdd's strings and masks.")]
Beam = Annotated[int, typer.Option(min=1, help="Width of the beam and length of the n-best lists.")]


@app.command()
def rescoring(
    bundle: InBundle,
    data: Data = None,
    out: Out = None,
    dry_run: DryRun = False,
    limit: Limit = None,
    speeds: Speeds = "0.9,1,1.1",
    beam: Beam = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Choose the weights of language models, words and marginals that make the fewest word errors.

    The marginals' weights are tuned with every speaker's cache simulated in the order of the utterances, and with what
    the other speakers of the same data say as the global distribution. Every source counts the same. Where the bundle
    has an n-gram over pieces, all of this is done for a few weights of it in the first pass, and the best is kept."""
    from server.lab.tuning.search import FIRST_PASSES, tune

    opened, corpora, report = _begin(bundle, data, speeds, seed, limit)
    previous, found = opened.combination, []
    for weight, bonus in FIRST_PASSES if opened.piece_ngram else FIRST_PASSES[:1]:
        first = replace(previous, search_ngram=weight, search_bonus=bonus)
        lists = _lists(opened.with_combination(first), corpora, beam)
        with progress_bar() as bar:
            show = partial(bar.advance, bar.add_task("searching", total=1.0))
            tuned = tune(lists, first, opened.words, opened.background, progress=show)
        found.append((tuned, lists.word_error(previous)))
    tuned, before = min(found, key=lambda each: each[0].rates["marginals"])
    weights, rates = tuned.weights.to_mapping(), {**tuned.rates, "previous": before}
    report |= {"utterances": len(lists), "weights": weights, "previous": previous.to_mapping(), "wer": rates}
    report["at_the_edge"] = tuned.edges
    stages = ("first_pass", "previous", "rescored", "marginals", "oracle")
    numbers = (f"{name} {value:g}" for name, value in weights.items() if isinstance(value, int | float))
    lines = [f"{name.replace('_', ' '):>12}  {100 * rates[name]:5.1f} % word errors" for name in stages]
    lines.append("     weights  " + ", ".join(numbers))
    lines.append("     at the edge of what was tried: " + (", ".join(tuned.edges) or "none"))
    _finish(opened, None if dry_run else out or bundle, report, lines, as_json, output, combination=tuned.weights)


@app.command()
def confidence(
    bundle: InBundle,
    data: Data = None,
    out: Out = None,
    dry_run: DryRun = False,
    limit: Limit = None,
    speeds: Speeds = "0.9,1,1.1",
    beam: Beam = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Fit confidences to how often words and texts are right; do this after the weights are tuned.

    A model is too sure of the voices that it was trained on, so others say how right it is. Every source counts the
    same."""
    from server.lab.tuning.confidence import fit_and_check

    opened, corpora, report = _begin(bundle, data, speeds, seed, limit)
    fitted = fit_and_check(_heard(opened, corpora, beam))
    stages = {"before": fitted.before, "after": fitted.after, "other_voices": fitted.other_voices}
    report |= {
        "confidence": fitted.calibration.to_mapping(),
        "previous": opened.combination.confidence.to_mapping(),
        **{stage: {kind: each.as_json() for kind, each in figures.items()} for stage, figures in stages.items()},
    }
    lines = [
        f"{stage.replace('_', ' '):>12}  {kind}: calibration error {100 * each.ece:4.1f} %, "
        f"{100 * each.ece_equal_mass:4.1f} % in equal bins, normalized cross entropy "
        + ("-" if each.nce is None else f"{each.nce:.3f}")
        for stage, figures in stages.items()
        for kind, each in figures.items()
    ]
    chosen = replace(opened.combination, confidence=fitted.calibration)
    _finish(opened, None if dry_run else out or bundle, report, lines, as_json, output, combination=chosen)


@app.command()
def second_moments(
    bundle: InBundle,
    data: Annotated[
        list[str] | None, typer.Option(help="KIND:PATH, of which base voices are used. Default: made:base.")
    ] = None,
    out: Out = None,
    dry_run: DryRun = False,
    limit: Limit = None,
    speeds: Speeds = "0.9,1.12",
    seed: Seed = 0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Measure how large each parameter's gradient usually is; devices divide theirs by it. Do this after training."""
    from server.lab.tuning.second_moments import measure

    opened, corpora, report = _begin(bundle, data, speeds, seed, limit, "base")
    utterances = [utterance for corpus in corpora for utterance in corpus.utterances]
    with progress_bar() as bar:
        moments, used = measure(opened, bar.track(utterances, description="gradients"), seed)
    sizes = opened.architecture.parameter_shapes()
    shares = {name: float(vectors[0].sum(dtype="f8")) * math.prod(sizes[name][1:]) for name, vectors in moments.items()}
    report |= {"utterances": used, "share_of_squared_gradient": shares}
    lines = [f"{share:12.4f}  {name}" for name, share in shares.items()]
    lines.append(f"{used} utterances; shares of the squared gradient, which sum to 1")
    _finish(opened, None if dry_run else out or bundle, report, lines, as_json, output, second_moments=moments)


@app.command()
def parts(
    data: Annotated[str, typer.Argument(help="KIND:PATH with voices that no model was trained on.")],
    bundle: Annotated[Path | None, typer.Option(help="Folder or zip of a bundle; the packaged one by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Who learns and who is asked, drawn anew for each.")] = 3,
    epsilon: Annotated[float, typer.Option(help="Of a user, after all rounds.")] = 8.0,
    delta: Annotated[float, typer.Option(help="At which epsilon is stated.")] = 1e-7,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that epsilon is of.")] = 100,
    share: Annotated[float, typer.Option(help="Of the population, in a round on average.")] = 0.01,
    users: Annotated[int, typer.Option(help="Population of the curve.")] = 100_000,
    folder: Annotated[Path | None, typer.Option(help="Keeps finished rows, where a second call goes on.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw gain over epsilon to this .svg.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Which part of the model to federate: what a round's mean delta of each gains on voices that nobody learned from,
    what noise leaves of it, and the population at which half of it, and four fifths, are kept."""
    from device_sdk.bundle import Bundle
    from device_sdk.commands.output import write_file
    from server.lab.corpora import open_corpus
    from server.lab.corpora.roles import UNHEARD, card_voices, scoring
    from server.lab.tuning import parts as tuning

    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigurationError(f"--plot {plot}: found {plot.suffix or 'no suffix'!r}, expected a name ending in .svg")
    opened, aim = Bundle.open(bundle), tuning.Aim(epsilon, delta, rounds, share)
    corpus = open_corpus(data, UNHEARD, role=scoring(card_voices(opened)))
    rows = []
    with progress_bar() as bar:
        for part in tuning.PARTS:
            for seed in range(1, seeds + 1):
                task = bar.add_task(f"{part}, seed {seed}", total=1)
                rows.append(tuning.kept_row(folder, opened, corpus, part, seed, tuning.Sizes(), aim))
                bar.advance(task)
    if plot is not None:
        write_file(plot, tuning.chart(rows, aim, users))
    document = tuning.summary(rows, aim, users) | {"data": corpus.summary(), "bundle": opened.version}
    if deliver(document, as_json, output):
        return
    table = [
        (
            *(row["part"], f"{row['values']:,}", f"{row['before']:.3f}", _spread(row["gain"], ".4f")),
            *(_spread(row["alignment"], ".2f"), _spread(row["population_50"], ",.0f")),
            _spread(row["population_80"], ",.0f"),
        )
        for row in document["parts"]
    ]
    columns = ("part", "values", "loss before", "gain", "alignment", "users for 50 %", "for 80 %")
    show(f"Gain of a round's mean, nats a token, {corpus.name}, {seeds} seeds", columns, table)
    typer.echo(f"users: at epsilon {stated(epsilon)}, delta {delta:g}, {rounds} rounds, {100 * share:g} % in each")


def _spread(found: dict[str, Any] | None, form: str) -> str:
    """A mean with its interval over seeds."""
    if found is None:
        return "none"
    told = f"{'at most ' if found.get('bounded') else ''}{found['mean']:{form}}"
    return told if found.get("low") is None else f"{told} ({found['low']:{form}} to {found['high']:{form}})"


def _begin(
    bundle: Path, data: list[str] | None, speeds: str, seed: int, limit: int | None, role: Role = "development"
) -> tuple[Bundle, list[Corpus], dict[str, Any]]:
    """The bundle, the voices of a role, and what every report begins with."""
    from device_sdk.bundle import Bundle
    from server.lab.corpora.roles import card_voices, role_of

    opened = Bundle.open(bundle)
    factors = read_numbers("--speeds", speeds, float, "numbers like 0.8,1.25")
    of = partial(role_of, listed=card_voices(opened))
    corpora = [_played(source, role, of, factors, seed, limit) for source in data or [f"made:{role}"]]
    report = {"command": command_line(), "data": [corpus.summary() for corpus in corpora], "speeds": factors}
    return opened, corpora, report


def _finish(
    opened: Bundle,
    to: Path | None,
    report: dict[str, Any],
    lines: Iterable[str],
    as_json: bool,
    output: Path | None,
    **chosen: Any,
) -> None:
    """Write the bundle with what was chosen, then the report, as JSON or as lines. to: None for a dry run."""
    if to is not None:
        with needing_extra():
            from export.bundles import rewrite
        report["bundle"] = str(rewrite(opened, to, **chosen))
    if not deliver(report, as_json, output):
        last = "      (dry run: no bundle was changed)" if to is None else f"      bundle  {report['bundle']}"
        typer.echo("\n".join([*lines, last]))


def _played(source: str, role: Role, of: RoleOf, factors: list[float], seed: int, limit: int | None) -> Corpus:
    """Up to ``limit`` utterances by voices of a role, in order, at each speed."""
    from server.lab.corpora import open_corpus
    from server.lab.tuning.lists import at_speeds

    corpus = open_corpus(source, (role,), role=of, seed=seed)
    if not corpus.utterances:
        raise ConfigurationError(f"--data {source}: has no {role} voice; give other data")
    return at_speeds(corpus.first(limit), factors)


def _lists(bundle: Bundle, corpora: list[Corpus], beam: int) -> DevelopmentLists:
    from device_sdk.decoding import Recognizer
    from device_sdk.decoding.settings import DecodingSettings
    from device_sdk.personalization.rescorer import Rescorer
    from device_sdk.runtimes.language_model import load_ngram
    from server.lab.tuning.lists import gather, stack

    # A second pass that changes nothing: what the CTC head says is wanted, in the order of the first.
    recognizer = Recognizer(bundle, DecodingSettings(beam=beam, nbest=beam), tuple)
    recognize = partial(recognizer.recognize, sample_rate=16_000)
    entries = []
    with progress_bar() as bar:
        for corpus in corpora:
            heard = bar.track(corpus.utterances, description=corpus.name)
            entries += gather(heard, recognize, corpus.lexicon, corpus.name)
    return stack(entries, bundle.words, Rescorer(bundle).neural, load_ngram(bundle))


def _heard(bundle: Bundle, corpora: list[Corpus], beam: int) -> list[Heard]:
    """Every utterance twice: with the beam and rescoring, and greedily."""
    from device_sdk.decoding import Recognizer
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

    ways = [recognize, lambda waveform: greedy.recognize(waveform, 16_000).nbest][: 1 + (beam > 1)]
    with progress_bar() as bar:
        return [
            each
            for corpus in corpora
            for way in ways
            for each in hear(corpus.name, bar.track(corpus.utterances, description=corpus.name), way)
        ]
