"""``idiolect privacy``: what was spent, what a federation would cost, and published tables of such costs; attacks on
the samplers."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver, write_file
from device_sdk.errors import ConfigurationError, DataError
from device_sdk.privacy.spending import stated
from server.commands.shared import Answer, command, show
from server.operators.client import OperatorClient
from server.operators.messages import Privacy

if TYPE_CHECKING:
    from server.privacy.calibration import Wish

app = typer.Typer(help="Read the privacy ledger, plan its cost, audit the samplers.", no_args_is_help=True)

TERMS = {
    "adjacency": "user: one user's updates of all rounds added or removed",
    "sampling": "Poisson, each user in each round with chance cohort / population",
    "trust_model": "central: the server sees clipped updates and adds the noise",
}
"""What the epsilons of ``plan`` and ``table`` are of."""


@command(app, "ledger")
def ledger(
    client: OperatorClient, devices: Annotated[bool, typer.Option("--devices", help="One line per device too.")] = False
) -> Answer:
    """Epsilon per stream, of a user and of an utterance, with what it means. No number stands for all streams."""
    books = client.privacy()
    return books, lambda: _show_books(books, devices)


def _show_books(books: Privacy, devices: bool) -> None:
    for stream, line in books.streams.items():
        one = line.count_epsilon
        facts = [
            ("epsilon of a user", _level(line.epsilon, line.delta)),
            ("epsilon of an utterance", _level(line.utterance_epsilon, line.utterance_delta)),
            *([("epsilon of one count", stated(one))] if one is not None else []),
            ("cap", stated(books.caps[stream])),
            *(("rounds", line.rounds), ("devices", line.devices), ("adjacency", line.adjacency)),
            ("", line.utterance_adjacency),
            ("sampling", line.sampling),
            ("trust", line.trust_model),
        ]
        show(f"Stream {stream}", ("", ""), facts)
    if devices:
        rows = [
            (
                *(line.device_id, line.stream, _level(line.epsilon, line.delta)),
                *(_level(line.utterance_epsilon, line.utterance_delta), line.rounds),
            )
            for line in books.devices
        ]
        show("Devices", ("device", "stream", "user", "utterance", "rounds"), rows)


@app.command("plan")
def plan(
    context: typer.Context,
    population: Annotated[int, typer.Argument(help="Users who may be drawn.")],
    cohort: Annotated[int, typer.Option(help="Users of a round, on average.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, max=100_000)] = 1,
    noise: Annotated[float, typer.Option(help="Of a round's sum, over the clipping bound.")] = 1,
    delta: Annotated[float, typer.Option(help="At which epsilon is stated.")] = 1e-6,
    scales: Annotated[str, typer.Option(help="Cohorts, of populations as much larger, to extrapolate to.")] = "10,100",
    populations: Annotated[str, typer.Option(help="Then populations still larger, with the largest cohort.")] = "10",
    target: Annotated[float, typer.Option(help="How much larger must everything be for this epsilon?")] = 10.0,
    pld: Annotated[bool, typer.Option(help="Also by privacy loss distributions (up to a minute a row).")] = True,
    deltas: Annotated[bool, typer.Option("--deltas", help="Find the noise for --target, and what it leaves.")] = False,
    values: Annotated[int, typer.Option(help="Of a delta, for --deltas: of all parameters, or of a part.")] = 4_000_000,
    clip_norm: Annotated[float, typer.Option(help="Of a delta, for --deltas.")] = 1.0,
    alignment: Annotated[float, typer.Option(help="Norm of the mean delta over the clip norm, for --deltas.")] = 0.3,
    loss: Annotated[float, typer.Option(help="Noise over signal that is bearable, for --deltas.")] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Write an SVG of loss over cohort, for --deltas.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Epsilon of a user whose deltas are summed with Gaussian noise over sampled rounds, by RDP and PLD, and of larger
    federations at the same noise of the mean update (Pelikan et al. 2023, tables 2, 16 and 17). With --deltas the other
    way round: the noise that a target epsilon needs, and the cohort whose deltas are not lost in it."""
    _check_given(context, deltas)
    if deltas:
        from server.privacy.calibration import Wish

        wanted = Wish(population, rounds, target, delta, values, clip_norm, alignment)
        _plan_deltas(wanted, cohort, loss, plot, as_json, output)
        return
    from server.privacy.sampled_gaussian import Plan, amplified, extrapolated, needed_scale, unamplified

    wished = Plan(population, cohort, rounds, noise, delta)
    rows: list[dict[str, Any]] = []
    for row in extrapolated(wished, _numbers(scales, "scales"), _numbers(populations, "populations")):
        epsilons = amplified(row, pld=pld)
        rows.append(
            asdict(row)
            | {"sampling": row.sampling, "rdp_epsilon": epsilons["rdp"], "order": epsilons["order"]}
            | {"pld_epsilon": epsilons["pld"], "unamplified_epsilon": unamplified(row, row.rounds)}
            | {"extrapolated": bool(rows)}
        )
    scale = needed_scale(wished, target)
    unamplified_of = "a user who is in every round and whose rounds are known"
    document = {**TERMS, "unamplified": unamplified_of, "rows": rows, "target": target, "scale_for_target": scale}
    if deliver(document, as_json, output):
        return
    columns = {"noise": "noise_multiplier", "cohort": "cohort", "population": "population", "q": "sampling"}
    columns |= {"rounds": "rounds", "RDP": "rdp_epsilon", "order": "order", "PLD": "pld_epsilon"}
    _show_rows(f"Epsilon of a user at delta {delta:g}", columns | {"in every round": "unamplified_epsilon"}, rows)
    times = "is out of reach by more users alone" if scale is None else f"needs {scale:,.3g} times the users and cohort"
    typer.echo(f"epsilon {stated(target)} {times}, at the same noise of the mean update")
    _print_terms()


_OPTIONS = {
    True: ("values", "clip_norm", "alignment", "loss", "plot"),
    False: ("noise", "scales", "populations", "pld"),
}
"""Of ``plan``: those that only a plan with --deltas, or only one without it, goes by."""


def _check_given(context: typer.Context, deltas: bool) -> None:
    """Whoever gives an option expects it to change what is planned: one that would not is refused by its name."""
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        # By its name, since click's own class is not the one that newer typers carry.
        if each.name in _OPTIONS[not deltas] and source is not None and source.name != "DEFAULT":
            found = "with --deltas; expected one of them" if deltas else "without --deltas; expected both, or neither"
            raise ConfigurationError(f"{'/'.join((*each.opts, *each.secondary_opts))}: found it {found}")


def _plan_deltas(wish: Wish, cohort: int, loss: float, plot: Path | None, as_json: bool, output: Path | None) -> None:
    from server.privacy.calibration import ledger_epsilon, needed_noise, smallest_cohort, smallest_population

    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigurationError(f"--plot {plot}: found {plot.suffix or 'no suffix'!r}, expected a name ending in .svg")
    if not 0 < loss < math.inf:
        raise ConfigurationError(f"--loss: found {loss}, expected a number above 0")
    noise = needed_noise(wish, cohort)
    found = {
        "noise_multiplier": noise,
        "epsilon": ledger_epsilon(wish, cohort, noise),
        "deviation": noise * wish.clip_norm / cohort,
        "loss_of_signal": wish.loss(cohort, noise),
        "smallest_cohort": smallest_cohort(wish, loss),
        "smallest_population": smallest_population(wish, cohort / wish.population, loss),
    }
    if plot is not None:
        write_file(plot, _loss_chart(wish, cohort))
    if deliver({**TERMS, **asdict(wish), "cohort": cohort, "loss": loss, **found}, as_json, output):
        return
    for line in _plan_in_words(wish, cohort, loss, found):
        typer.echo(line)
    _print_terms()


def _plan_in_words(wish: Wish, cohort: int, loss: float, found: dict[str, Any]) -> list[str]:
    lost, fewest, users = found["loss_of_signal"], found["smallest_cohort"], found["smallest_population"]
    verdicts = {0.3: "it hardly shows", 1.0: "more signal than noise", 10.0: "many values bear that, few do not"}
    verdict = next((text for most, text in verdicts.items() if lost <= most), "nothing can be learned from it")
    bearable = "no longer than the signal" if loss == 1 else f"at most {loss:g} times as long as the signal"
    return [
        f"Noise: {found['noise_multiplier']:.4g} clip norms in a round's sum (noise_multiplier) keep a user at epsilon "
        f"{stated(found['epsilon'])}, delta {wish.delta:g}, over {wish.rounds:,} rounds of about {cohort:,} of "
        f"{wish.population:,} users.",
        f"Loss of signal: every value of the mean gets noise of deviation {found['deviation']:.3g}; over "
        f"{wish.values:,} values it is {lost:.3g} times as long as the mean delta, if that is as long as "
        f"{100 * wish.alignment:.3g} % of the clip norm: {verdict}.",
        "Smallest cohort: "
        + (
            f"{fewest:,} users a round of these {wish.population:,} have noise {bearable}"
            if fewest is not None
            else f"all {wish.population:,} users in every round are too few for noise {bearable}"
        )
        + ("" if users is None else f"; with the same share of them in a round, {users:,} users do")
        + ". Fewer values (deltas.part), fewer rounds or a larger epsilon need fewer.",
    ]


def _loss_chart(wish: Wish, cohort: int) -> str:
    """Noise over signal by cohort, of this population and larger ones; what is above ``_SHOWN`` is left out."""
    from server.plots import Line, lines, standalone
    from server.privacy.calibration import losses

    cohorts = sorted({max(1, min(wish.population, round(cohort * 2.0**power))) for power in range(-3, 6)})
    series = [Line("noise = signal", "c0", [1.0] * len(cohorts))]
    for place, (times, found) in enumerate(losses(wish, cohorts, (1, 10, 100)).items(), 1):
        shown = [value if value is not None and value <= _SHOWN else None for value in found]
        series.append(Line(f"{wish.population * times:,} users", f"c{place}", shown))
    drawn = lines(series, [f"{each:,}" for each in cohorts], f"noise over signal, epsilon {stated(wish.epsilon)}")
    return standalone(drawn, {f"c{place}": colour for place, colour in enumerate(_COLOURS)})


_SHOWN = 5.0
_COLOURS = ("#6b7280", "#2563eb", "#d97706", "#16a34a")


@app.command("table")
def table(
    number: Annotated[list[int] | None, typer.Option("--table", help="Of these tables only: 2, 16 or 17.")] = None,
    pld: Annotated[bool, typer.Option(help="Also by privacy loss distributions (a minute or two).")] = True,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Recompute tables 2, 16 and 17 of Pelikan et al. 2023: epsilon by RDP at each row's order, misprints named, PLD
    beside."""
    from rich.progress import track

    from server.privacy.sampled_gaussian import judge, pld_epsilon, published_rows

    wanted = [row for row in published_rows() if not number or row.table in number]
    if not wanted:
        raise DataError(f"--table: found {number}, expected some of 2, 16 and 17")
    rows: list[dict[str, Any]] = []
    for row in track(wanted, "privacy tables", disable=as_json or not sys.stderr.isatty()):
        verdict, known = judge(row), asdict(row)
        printed = {f"printed_{name}": known.pop(name) for name in ("epsilon", "order")}
        tight = pld_epsilon(row) if pld else None
        best = {"best_rdp_epsilon": verdict.best, "best_order": verdict.best_order}
        found = {"rdp_epsilon": verdict.epsilon, "misprint": verdict.misprint, "pld_epsilon": tight}
        rows.append(known | printed | best | found)
    right = sum(row["misprint"] is None for row in rows)
    if deliver({**TERMS, "rows": rows, "as_printed": right, "misprints": len(rows) - right}, as_json, output):
        return
    columns = {"table": "table", "noise": "noise_multiplier", "cohort": "cohort", "population": "population"}
    columns |= {"rounds": "rounds", "printed": "printed_epsilon", "order": "printed_order", "RDP": "rdp_epsilon"}
    _show_rows("Epsilon of Pelikan et al. 2023", columns | {"PLD": "pld_epsilon", "misprint": "misprint"}, rows)
    typer.echo(f"{right} of {len(rows)} rows are as printed; {len(rows) - right} misprints")
    _print_terms()


@app.command("audit")
def audit(
    runs: Annotated[int, typer.Option(help="Releases of each sampler, half with the canary.", min=2)] = 1_000_000,
    epsilon: Annotated[float, typer.Option(help="What the samplers claim.", min=0.01)] = 1.0,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.", min=0.5, max=0.999999)] = 0.95,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Attack the samplers with a canary: a lower bound on epsilon for each, beside three that are known to be broken.

    Ends with status 1 if a sampler that ships does not keep its claim, or a broken one is not found."""
    from rich.console import Console
    from rich.progress import Progress

    from server.privacy.audit import BROKEN, SHIPPED
    from server.privacy.audit import audit as attack

    findings = []
    with Progress(console=Console(stderr=True), transient=True, disable=as_json or not sys.stderr.isatty()) as bar:
        for name in (*SHIPPED, *BROKEN):
            task = bar.add_task(name, total=runs)
            findings.append(attack(name, runs, epsilon, confidence, partial(bar.advance, task)))
    kept = all(finding.flagged == (finding.sampler in BROKEN) for finding in findings)
    if not deliver({"as_expected": kept, "samplers": [finding.as_json() for finding in findings]}, as_json, output):
        verdicts = {True: "broken, found", False: "keeps its claim, as far as this attack sees"}
        rows = [
            (
                *(finding.sampler, f"{finding.runs:,}", stated(finding.epsilon), f"{finding.delta:g}"),
                *(f"{finding.lower_bound:.3f}", verdicts[finding.flagged], finding.event),
            )
            for finding in findings
        ]
        title = f"Epsilon is at least (with {100 * confidence:g} % confidence)"
        show(title, ("sampler", "runs", "claimed", "delta", "at least", "verdict", "bet"), rows)
    if not kept:
        raise typer.Exit(1)


def _show_rows(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """columns: what stands above each -> the field of a row that it shows."""
    show(title, tuple(columns), [[_cell(name, row[name]) for name in columns.values()] for row in rows])


def _print_terms() -> None:
    for name, term in TERMS.items():
        typer.echo(f"{name.replace('_', ' ')}: {term}")


def _cell(name: str, value: float | str | None) -> str | None:
    if isinstance(value, float) and name.endswith("epsilon"):
        return stated(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value


def _numbers(text: str, name: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = [-1.0]
    if any(not 1 < value < math.inf for value in numbers):
        raise ConfigurationError(f"--{name}: found {text!r}, expected numbers above 1, separated by commas")
    return numbers


def _level(epsilon: float, delta: float) -> str:
    return f"{stated(epsilon)} at delta {delta:.4g}" if delta else stated(epsilon)
