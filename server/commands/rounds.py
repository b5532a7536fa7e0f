"""``idiolect rounds``: plan, open, close, list and show rounds."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import ConfigurationError
from device_sdk.privacy.spending import stated
from server.commands.shared import Answer, command, moment, show, table
from server.operators.client import OperatorClient
from server.operators.messages import Round, Rounds

if TYPE_CHECKING:
    from server.plans.round import RoundSettings

app = typer.Typer(help="Plan, open, close, list and show rounds.", no_args_is_help=True)


_TOML = "The round's settings; examples/rounds has examples."
SettingsFile = Annotated[Path | None, typer.Argument(metavar="ROUND.toml", help=_TOML, show_default="noised counts")]


@command(app, "open")
def open_round(
    client: OperatorClient,
    file: SettingsFile = None,
    planned: Annotated[bool, typer.Option("--planned", help="Create it without opening it.")] = False,
    resume: Annotated[str | None, typer.Option("--planned-round", help="Open this planned round instead.")] = None,
    no_privacy: Annotated[
        bool, typer.Option("--no-privacy", help="Its noise may be too little to protect anybody.")
    ] = False,
) -> Answer:
    """Create a round and open it on the current model and marginals. Noise that leaves a user no bound on epsilon, or
    as good as none, is refused unless --no-privacy says that it is meant."""
    if resume is not None:
        if file is not None or no_privacy:
            found = "--no-privacy" if file is None else str(file)
            raise ConfigurationError(f"--planned-round: found beside {found}, which is said where a round is planned")
        return _answer(client.open_round(resume))
    settings = _read(file).model_copy(update={"no_privacy": no_privacy})
    return _answer(client.create_round(settings, opened=not planned))


@app.command("plan")
def plan_round(
    file: SettingsFile = None,
    delta: Annotated[float, typer.Option(help="At which epsilon is stated.", min=1e-300, max=0.999)] = 1e-6,
    user_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of a user over all rounds: finds the epsilon of a marginals release, or masked deltas' noise."
        ),
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """What rounds with these settings cost a user who is in all of them, and how much noise their releases get."""
    from server.privacy.costs import calibrate, calibrate_shares, round_costs

    settings = _read(file)
    if user_epsilon is not None:
        if settings.aggregated == "deltas" and settings.deltas is not None:
            shares = calibrate_shares(settings.deltas, user_epsilon, settings.rounds, delta)
            settings = settings.model_copy(update={"deltas": shares})
        elif settings.marginals is not None:
            plan = calibrate(settings.marginals, user_epsilon, settings.rounds, delta)
            settings = settings.model_copy(update={"marginals": plan})
        else:
            needed = "expected a round with them, or with deltas of trust 'distributed'"
            raise ConfigurationError(f"--user-epsilon: found no marginals in the round; {needed}")
    costs = {
        stream: {name: value for name, value in asdict(cost).items() if value is not None}
        for stream, cost in round_costs(settings, delta).items()
    }
    whole = settings.model_dump(mode="json")
    if not deliver({"settings": whole, "delta": delta, "costs": costs}, as_json, output):
        show("The round", ("", ""), _collected(whole))
        for stream, cost in costs.items():
            facts = [(_COSTS[name], _cost(name, value)) for name, value in cost.items()]
            show(f"Stream {stream}, {settings.rounds} rounds, delta {delta:g}", ("", ""), facts)


def _cost(name: str, value: float) -> str:
    return stated(value) if name.endswith("epsilon") else f"{value:.4g}"


def _read(file: Path | None) -> RoundSettings:
    from server.plans.round import RoundSettings
    from server.plans.round_file import read_round

    return RoundSettings() if file is None else read_round(file)


_COSTS = {
    "user_epsilon": "epsilon of a user, all rounds",
    "round_epsilon": "epsilon of a user, one round",
    "utterance_epsilon": "epsilon of an utterance",
    "count_epsilon": "epsilon of one count, all rounds",
    "scale_words": "scale of one draw of noise, words",
    "deviation_words": "noise of a word after all rounds, words",
}

RoundId = Annotated[str | None, typer.Argument(help="As `rounds list` shows it.", show_default="the one that is open")]


@command(app, "close")
def close_round(
    client: OperatorClient,
    round_id: RoundId = None,
    abandon: Annotated[bool, typer.Option("--abandon", help="Release nothing.")] = False,
) -> Answer:
    """Close a round, aggregate what it holds and publish the result."""
    end = client.abandon_round if abandon else client.close_round
    return _answer(end(round_id or _open(client)))


@command(app, "list")
def list_rounds(
    client: OperatorClient,
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1, max=1000)] = 20,
) -> Answer:
    """List rounds, the newest first."""
    found = client.rounds(limit)
    rows = [
        (
            *(entry.id, entry.state, *(entry.reports[stream] for stream in ("marginals", "deltas", "words"))),
            *(moment(entry.deadline), entry.model_version, entry.marginals_version),
        )
        for entry in found
    ]
    columns = ("round", "state", "marginals", "deltas", "words", "deadline", "model", "marginals version")
    return Rounds(rounds=found), table("Rounds", columns, rows)


@command(app, "show")
def show_round(client: OperatorClient, round_id: RoundId = None) -> Answer:
    """Show one round: its settings, how it moved, what it released."""
    return _answer(client.round(round_id or _open(client)))


def _open(client: OperatorClient) -> str:
    """The round that takes reports. ConfigurationError: there is none."""
    for entry in client.rounds(1000):
        if entry.state == "open":
            return entry.id
    raise ConfigurationError("round: found none open; expected the id of one, as `idiolect rounds list` shows it")


def _answer(found: Round) -> Answer:
    facts: list[tuple[str, str | int | None]] = [
        ("state", found.state),
        ("base", f"model {found.base_model}, marginals {found.base_marginals}"),
        *_collected(found.settings),
        ("reports", ", ".join(f"{stream} {count}" for stream, count in found.reports.items())),
        ("asked", _asked(found)),
        ("deadline", moment(found.deadline)),
        ("new model", found.model_version),
        ("its teacher", found.teacher_version),
        ("new marginals", found.marginals_version),
        ("note", found.note),
    ]
    for number, group in enumerate(found.groups, 1):
        facts.append((f"group {number}", f"{group.stage}, {group.devices} devices. {group.note}".strip()))
    for stream, release in found.releases.items():
        facts.append((f"release of {stream}", f"{release.reports} reports, {_mechanism(release.mechanism)}"))
        if release.words is not None:
            told = ", ".join(f"{word} (about {count} devices)" for word, count in release.words.items())
            facts.append(("new words", told or "none"))
    for move in found.transitions:
        note = f": {move.note}" if move.note else ""
        facts.append((moment(move.at), f"{move.source} to {move.target}{note}"))
    return found, table(f"Round {found.id}", ("", ""), [(name, value) for name, value in facts if value])


_NOISED_BY = {"central": "the server", "local": "every device", "distributed": "every device, a share of it"}


def _collected(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """The streams of a round with their noise, and how many reports it takes."""
    counts, deltas, words = (settings[stream] for stream in ("marginals", "deltas", "words"))
    facts: list[tuple[str, str]] = []
    if counts is not None:
        bound = "all counts so far" if counts["mode"] == "paper" else f"at most {counts['max_words']} words a device"
        noise = f"{counts['mechanism']} noise of {_NOISED_BY[counts['trust']]}"
        facts.append(("marginals", f"epsilon {stated(counts['epsilon'])}, {noise}, {bound}"))
    if deltas is not None:
        seen = f", seen in sums of {deltas['minimum_survivors']} or more" * (deltas["trust"] == "distributed")
        facts.append(("deltas", f"{deltas['kind']}, clipped to {deltas['clip_norm']:g}, {_noise(settings)}{seen}"))
    if words is not None:
        bound = f"at most {words['max_words']} words a device"
        facts.append(("words", f"epsilon {stated(words['epsilon'])}, delta {words['delta']:g}, {bound}"))
    by_hand = "none: it closes at its deadline, or by `rounds close`"
    facts.append(("minimum", f"{settings['minimum']} report{'s' * (settings['minimum'] != 1)} a stream"))
    facts.append(("goal", by_hand if settings["goal"] is None else f"{settings['goal']} reports a stream"))
    if settings["no_privacy"]:
        facts.append(("privacy", "its noise may protect nobody, as its operator said (--no-privacy)"))
    if settings["rounds"] > 1:
        facts.append(("rounds", f"{settings['rounds']}, one after another"))
    return facts


def _noise(settings: dict[str, Any]) -> str:
    if own := settings["deltas"]["noise_stddev"]:
        return f"noise {own:g} of every device"
    if multiplier := settings["noise_multiplier"]:
        return f"noise of {multiplier:g} clip norms of the server"
    return f"no noise: epsilon is {stated(math.inf)}"


def _asked(found: Round) -> str:
    plan = found.settings.get("sampling")
    if plan is None:
        return "every device"
    wanted = f"each with probability {plan['rate']:g}" if plan["rate"] else f"{plan['over_selection']:g} times the goal"
    eligible = "" if found.eligible is None else f", of {found.eligible} devices"
    return f"{plan['kind']} sampling, {wanted}{eligible}" + (", amplified" if plan["amplified"] else "")


def _mechanism(mechanism: dict[str, Any]) -> str:
    parts = [f"noise: {mechanism['name']}"]
    parts += [str(mechanism[name]) for name in ("kind", "clipping", "encoding") if name in mechanism]
    if mechanism.get("pseudo_devices"):
        parts.append(f"{mechanism['pseudo_devices']} pseudo-devices")
    return ", ".join(parts)
