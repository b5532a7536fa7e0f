"""``idiolect privacy audit`` and ``plan``: what the samplers keep of their claim, and what a plan's rounds cost."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.commands.output import deliver
from device_sdk.errors import ConfigurationError

__all__ = ["register"]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
OutputFile = Annotated[Path | None, typer.Option(help="Write the JSON to a file.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``idiolect privacy``."""
    app.command("audit")(audit)
    app.command("plan")(plan)


def audit(
    runs: Annotated[int, typer.Option(help="Releases of each sampler, half with the canary.", min=2)] = 1_000_000,
    epsilon: Annotated[float, typer.Option(help="What the samplers claim.", min=0.01)] = 1.0,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.", min=0.5, max=0.999999)] = 0.95,
    as_json: JsonFlag = False,
    output: OutputFile = None,
) -> None:
    """Attack the samplers with a canary: a lower bound on epsilon for each, beside three that are known to be broken.

    Ends with status 1 if a sampler that ships does not keep its claim, or a broken one is not found.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from server.commands.operators import show
    from server.privacy.audit import BROKEN, SHIPPED
    from server.privacy.audit import audit as attack

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    findings = []
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=as_json or not sys.stderr.isatty()
    ) as bar:
        for name in (*SHIPPED, *BROKEN):
            task = bar.add_task(name, total=runs)
            findings.append(attack(name, runs, epsilon, confidence, partial(bar.advance, task)))
    kept = all(finding.flagged == (finding.sampler in BROKEN) for finding in findings)
    document = {"as_expected": kept, "samplers": [finding.as_json() for finding in findings]}
    if not deliver(document, as_json, output):
        rows = [
            (
                finding.sampler,
                f"{finding.runs:,}",
                f"{finding.epsilon:g}",
                f"{finding.delta:g}",
                f"{finding.lower_bound:.3f}",
                "broken, found" if finding.flagged else "keeps its claim, as far as this attack sees",
                finding.event,
            )
            for finding in findings
        ]
        title = f"Epsilon is at least (with {100 * confidence:g} % confidence)"
        show(title, ("sampler", "runs", "claimed", "delta", "at least", "verdict", "bet"), rows)
    if not kept:
        raise typer.Exit(1)


def plan(
    epsilon: Annotated[float, typer.Option(help="Of one release.", min=0.001)] = 1.0,
    user_epsilon: Annotated[
        float | None, typer.Option(help="Of a user over all rounds: finds the epsilon of one release.", min=0.001)
    ] = None,
    rounds: Annotated[int, typer.Option(help="In which one device reports.", min=1, max=100_000)] = 1,
    mechanism: Annotated[str, typer.Option(help="discrete_laplace or discrete_gaussian.")] = "discrete_laplace",
    trust: Annotated[str, typer.Option(help="Who adds the noise: central, distributed or local.")] = "central",
    mode: Annotated[str, typer.Option(help="bounded, or paper for the counts of Liu & Peng 2020.")] = "bounded",
    max_words: Annotated[int, typer.Option(help="Distinct words a device may report.")] = 20,
    max_weight: Annotated[float, typer.Option(help="Largest count of one word.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Of Gaussian noise, and of the composition.")] = 1e-6,
    survivors: Annotated[int, typer.Option(help="Fewest devices whose shares are all of the noise.")] = 1,
    population: Annotated[
        int | None, typer.Option(help="Users who may be drawn: plans deltas of sampled cohorts instead.")
    ] = None,
    cohort: Annotated[int, typer.Option(help="With --population: users of a round, on average.")] = 100,
    noise: Annotated[
        float, typer.Option(help="With --population: noise of a round's sum over the clipping bound.")
    ] = 1,
    scales: Annotated[str, typer.Option(help="Cohorts, of populations as much larger, to extrapolate to.")] = "10,100",
    populations: Annotated[str, typer.Option(help="Then populations still larger, with the largest cohort.")] = "10",
    target: Annotated[float, typer.Option(help="How much larger must everything be for this epsilon?")] = 10.0,
    pld: Annotated[bool, typer.Option(help="Also by privacy loss distributions (up to a minute a row).")] = True,
    as_json: JsonFlag = False,
    output: OutputFile = None,
) -> None:
    """What a plan for marginals costs over its rounds, and how much a word must be said to stand out of the noise.

    With --population: epsilon of a user whose deltas are summed with Gaussian noise, by RDP and PLD, and of larger
    federations at the same noise of the mean update (Pelikan et al. 2023, tables 2, 16 and 17).
    """
    if population is not None:
        from server.commands.privacy_plan import plan_cohorts
        from server.privacy.plans import Plan

        wished = Plan(population, cohort, rounds, noise, delta)
        plan_cohorts(wished, scales, populations, target, pld, as_json, output)
        return
    from pydantic import ValidationError

    from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
    from server.commands.operators import show
    from server.plans.round import RoundSettings
    from server.privacy.calibration import calibrated
    from server.privacy.charges import charge_for
    from server.privacy.composition import Spent, compose, exchanged
    from server.privacy.noise import plan_noise, released_variance

    try:
        wanted = MarginalPlan.model_validate(
            {
                "epsilon": epsilon,
                "mechanism": mechanism,
                "trust": trust,
                "mode": mode,
                "max_words": max_words,
                "max_weight": max_weight,
                "delta": delta,
                "minimum_survivors": survivors,
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise ConfigurationError(where + first["msg"].removeprefix("Value error, ")) from error
    if user_epsilon is not None:
        wanted = calibrated(wanted, user_epsilon, rounds)
    charge = charge_for("marginals", RoundSettings(marginals=wanted, minimum=survivors))
    user, total = Spent({charge: rounds}), survivors if trust == "distributed" else 1
    releases = 1 if mode == "paper" else rounds  # counts so far take the place of the release before
    document: dict[str, Any] = {
        "plan": wanted.model_dump(mode="json", context={"whole": True}),
        "rounds": rounds,
        "scale_words": plan_noise(wanted).scale / FIXED_POINT,
        "deviation_words": math.sqrt(releases * released_variance(wanted, total)),
        "user_epsilon": _finite(compose(user, delta)[0]),
        "utterance_epsilon": _finite(compose(Spent({exchanged([charge])[0]: 1}), delta)[0]),
        "count_epsilon": user.count_epsilon,
        "delta": delta,
    }
    if deliver(document, as_json, output):
        return
    facts = [
        ("epsilon of one release", f"{wanted.epsilon:.4g}"),
        ("scale of one draw, words", f"{document['scale_words']:.4g}"),
        ("noise of a word after all rounds, words", f"{document['deviation_words']:.4g}"),
        ("a word stands out from, words", f"{3 * document['deviation_words']:.4g}"),
        ("epsilon of a user, all rounds", _shown(document["user_epsilon"])),
        ("epsilon of an utterance", _shown(document["utterance_epsilon"])),
        ("epsilon of one count, all rounds", _shown(document["count_epsilon"])),
        ("at delta", f"{delta:g}"),
    ]
    show(f"{rounds} rounds of {mechanism}, {trust}", ("", ""), [fact for fact in facts if fact[1]])


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity"


def _shown(value: float | str | None) -> str:
    return "" if value is None else "infinite" if isinstance(value, str) else f"{value:.4g}"
