"""``idiolect rounds``: plan, open, close, list and show rounds."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.errors import ConfigurationError
from server.commands.operators import Answer, command, moment, show
from server.operators.client import OperatorClient

__all__ = ["app"]

app = typer.Typer(help="Plan, open, close, list and show rounds.", no_args_is_help=True)


def _settings(
    preset: Annotated[
        str | None, typer.Option(help="Whole settings by name: rao-2023. Options given besides have no effect.")
    ] = None,
    marginals: Annotated[bool, typer.Option(help="Collect word counts.")] = True,
    deltas: Annotated[bool, typer.Option(help="Collect model deltas.")] = False,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the marginals' release.")] = 1.0,
    max_words: Annotated[int, typer.Option(help="Distinct words a device may report.")] = 20,
    mode: Annotated[
        str, typer.Option(help="Of counts: bounded, or paper for all counts so far without a bound (Liu & Peng 2020).")
    ] = "bounded",
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Of their noise: discrete_laplace or discrete_gaussian.  [default: discrete_laplace; with "
            "distributed, discrete_gaussian]"
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="Of Gaussian noise.")] = 1e-6,
    trust: Annotated[
        str,
        typer.Option(
            help="Who adds the marginals' noise: central, the server; local, every device all of it; distributed, "
            "every device a share, and the server sees sums over groups only (secure aggregation)."
        ),
    ] = "central",
    group_size: Annotated[int, typer.Option(help="With distributed: devices that add up their counts together.")] = 50,
    stage_minutes: Annotated[
        float, typer.Option(help="With distributed: how long a group waits at a stage for its devices.")
    ] = 60.0,
    words: Annotated[
        bool,
        typer.Option(help="Collect words outside the public list that users gave, to release those many devices name."),
    ] = False,
    words_epsilon: Annotated[float, typer.Option(help="Epsilon of their release.")] = 1.0,
    words_delta: Annotated[float, typer.Option(help="And its delta.")] = 1e-8,
    new_words: Annotated[int, typer.Option(help="Distinct ones a device may name.")] = 5,
    clip_norm: Annotated[float, typer.Option(help="L2 bound of a delta.")] = 1.0,
    clipping: Annotated[
        str, typer.Option(help="Of the delta as a whole: global; of every parameter on its own: uniform or dim.")
    ] = "global",
    noise: Annotated[float, typer.Option(help="Gaussian noise each device adds to each value of its delta.")] = 0.0,
    noise_multiplier: Annotated[
        float, typer.Option(help="Deviation of the Gaussian noise the server adds to the deltas' sum, in clip norms.")
    ] = 0.0,
    kind: Annotated[
        str, typer.Option(help="Of deltas: difference, after local steps, or gradient, without (FedSGD).")
    ] = "difference",
    batch_size: Annotated[int, typer.Option(help="Most utterances of a device's gradient.")] = 16,
    encoding: Annotated[str, typer.Option(help="Of deltas: float32, float16 or int8.")] = "float32",
    scale_per: Annotated[str, typer.Option(help="What shares an int8 scale: row or tensor.")] = "row",
    weighting: Annotated[
        str | None,
        typer.Option(
            help="Of deltas: utterances, uniform, loss or word_errors.  [default: utterances; with noise, a buffer or "
            "a robust mean, uniform]"
        ),
    ] = None,
    averaging: Annotated[
        str,
        typer.Option(help="Of deltas: mean; or median, trimmed, krum or cosine, which few devices cannot pull far."),
    ] = "mean",
    trimmed: Annotated[
        float,
        typer.Option(
            help="Share of the largest and of the smallest values that is dropped; of devices with krum or cosine."
        ),
    ] = 0.2,
    optimizer: Annotated[
        str, typer.Option(help="Server optimizer: sgd, momentum, adagrad, adam, yogi, lars or lamb.")
    ] = "sgd",
    learning_rate: Annotated[float, typer.Option(help="Of the server optimizer.")] = 1.0,
    teacher_decay: Annotated[
        float | None, typer.Option(help="Publish a teacher beside the model: how much of it stays at an update.")
    ] = None,
    teacher_interval: Annotated[int, typer.Option(help="Models between updates of the teacher.")] = 10,
    rehearsal: Annotated[int, typer.Option(help="Pseudo-devices with the server's transcribed speech.", min=0)] = 0,
    rehearsal_batch: Annotated[int, typer.Option(help="Utterances of a pseudo-device.")] = 16,
    rehearsal_weight: Annotated[float, typer.Option(help="Of a pseudo-device, in devices.")] = 1.0,
    server_step: Annotated[
        int, typer.Option(help="Utterances of the server's transcribed speech to step on after the round.", min=0)
    ] = 0,
    server_step_rate: Annotated[float, typer.Option(help="Learning rate of these steps.")] = 0.1,
    sampling: Annotated[
        str | None,
        typer.Option(help="Ask some devices only: poisson, each with a probability, or fixed.  [default: all]"),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="That probability.  [default: as the goal needs]")] = None,
    over_selection: Annotated[
        float, typer.Option(help="With sampling: devices asked for every report of the goal.")
    ] = 1.0,
    amplified: Annotated[
        bool,
        typer.Option(
            "--amplified",
            help="Charge every device for a round of Poisson sampling, at the rate, by what sampling leaves of its "
            "privacy loss. Without a goal: the round ends at its deadline.",
        ),
    ] = False,
    buffered: Annotated[
        bool,
        typer.Option(
            "--buffered", help="Take deltas on older models too; the round closes at its goal, and the next follows."
        ),
    ] = False,
    staleness_limit: Annotated[int, typer.Option(help="With buffered: how many models older at most.")] = 10,
    staleness_weight: Annotated[
        str | None,
        typer.Option(
            help="With buffered: inverse_root, 1 / sqrt(1 + models older), or constant.  [default: inverse_root; with "
            "noise, constant]"
        ),
    ] = None,
    goal: Annotated[int | None, typer.Option(help="Reports per stream at which the round closes by itself.")] = None,
    minimum: Annotated[
        int, typer.Option(help="Fewest reports a stream may release; with distributed, fewest devices of every sum.")
    ] = 1,
    hours: Annotated[float, typer.Option(help="Until the deadline.")] = 24.0,
    smoothing: Annotated[float, typer.Option(help="Weight of the background in the marginals, in words.")] = 100.0,
    rounds: Annotated[int, typer.Option(help="Rounds like this, one after another.")] = 1,
    settings: Annotated[
        Path | None, typer.Option(help="JSON file with the round's settings, instead of the options above.")
    ] = None,
) -> dict[str, Any]:
    """What the operator wants of a round, as the server takes it. ConfigurationError: no such preset or file, options
    of sampling without it."""
    if settings is not None:
        return _read_settings(settings)
    if preset is not None:
        return _preset(preset)
    counts: dict[str, Any] = {"epsilon": epsilon, "max_words": max_words, "mode": mode, "trust": trust, "delta": delta}
    counts["mechanism"] = mechanism or ("discrete_gaussian" if trust == "distributed" else "discrete_laplace")
    if trust == "distributed":
        counts["minimum_survivors"] = minimum
    if sampling is None and (rate is not None or amplified or over_selection != 1):
        raise ConfigurationError(
            "--sampling: found none beside --rate, --over-selection or --amplified; expected poisson"
        )
    noisy = noise > 0 or noise_multiplier > 0
    return {
        "marginals": counts if marginals else None,
        "groups": {"size": group_size, "stage_seconds": stage_minutes * 60},
        "deltas": {
            "clip_norm": clip_norm,
            "clipping": clipping,
            "noise_stddev": noise,
            "kind": kind,
            "batch_size": batch_size,
            "encoding": encoding,
            "scale_per": scale_per,
        }
        if deltas
        else None,
        "words": {"epsilon": words_epsilon, "delta": words_delta, "max_words": new_words} if words else None,
        "weighting": weighting or ("uniform" if noisy or buffered or averaging != "mean" else "utterances"),
        "noise_multiplier": noise_multiplier,
        "sampling": {"kind": sampling, "rate": rate, "over_selection": over_selection, "amplified": amplified}
        if sampling is not None
        else None,
        "buffered": {
            "staleness_limit": staleness_limit,
            "staleness_weight": staleness_weight or ("constant" if noisy else "inverse_root"),
        }
        if buffered
        else None,
        "server_step": {"utterances": server_step, "learning_rate": server_step_rate} if server_step else None,
        "averaging": averaging,
        "trimmed": trimmed,
        "optimizer": {"kind": optimizer, "learning_rate": learning_rate},
        "teacher": {"decay": teacher_decay, "interval": teacher_interval} if teacher_decay is not None else None,
        "rehearsal": {"pseudo_devices": rehearsal, "batch_size": rehearsal_batch, "weight": rehearsal_weight}
        if rehearsal
        else None,
        "goal": goal,
        "minimum": minimum,
        "seconds": hours * 3600,
        "smoothing": smoothing,
        "rounds": rounds,
    }


def open_round(
    client: OperatorClient,
    *,
    planned: Annotated[bool, typer.Option("--planned", help="Create it without opening it.")] = False,
    resume: Annotated[str | None, typer.Option("--planned-round", help="Open this planned round instead.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Open it without asking, deltas without noise too.")] = False,
    **options: Any,
) -> Answer:
    """Create a round and open it on the current model and marginals. Asks before it collects deltas without noise."""
    settings = _settings(**options) if resume is None else client.get(f"rounds/{resume}")["settings"]
    if not (planned or yes):
        _ask_about_noise(settings)
    if resume is not None:
        return _answer(client.post(f"rounds/{resume}/open"))
    return _answer(client.post("rounds", json={"settings": settings, "open": not planned}))


def plan_round(client: OperatorClient, **options: Any) -> Answer:
    """Create a round without opening it; `rounds open --planned-round` does. Its JSON holds every setting."""
    return _answer(client.post("rounds", json={"settings": _settings(**options), "open": False}))


def _ask_about_noise(settings: dict[str, Any]) -> None:
    """Before a round that collects deltas without noise. ConfigurationError: where nobody can be asked."""
    deltas = settings.get("deltas")
    if not isinstance(deltas, dict) or deltas.get("noise_stddev") or settings.get("noise_multiplier"):
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "--noise: found 0 for deltas, with which epsilon is infinite; expected --noise or --noise-multiplier above "
            "0, or --yes"
        )
    with redirect_stdout(sys.stderr):  # standard output is the JSON's
        typer.confirm("The deltas get no noise, with which epsilon is infinite. Open the round?", abort=True)


def _with_settings(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Gives a command the options of :func:`_settings` in the place of ``options``; typer reads its signature."""
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [
        parameter
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    shared = [
        parameter.replace(kind=kind) for parameter in inspect.signature(_settings, eval_str=True).parameters.values()
    ]
    function.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return function


command(app, "open")(_with_settings(open_round))
command(app, "plan")(_with_settings(plan_round))


RoundId = Annotated[str | None, typer.Argument(help="As `rounds list` shows it.", show_default="the one that is open")]


@command(app, "close")
def close_round(
    client: OperatorClient,
    round_id: RoundId = None,
    abandon: Annotated[bool, typer.Option("--abandon", help="Release nothing.")] = False,
) -> Answer:
    """Close a round, aggregate what it holds and publish the result."""
    return _answer(client.post(f"rounds/{round_id or _open(client)}/{'abandon' if abandon else 'close'}"))


@command(app, "list")
def list_rounds(
    client: OperatorClient,
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1, max=1000)] = 20,
) -> Answer:
    """List rounds, the newest first."""
    found = client.get("rounds", limit=limit)

    def present() -> None:
        rows = [
            (
                entry["id"],
                entry["state"],
                entry["reports"]["marginals"],
                entry["reports"]["deltas"],
                entry["reports"]["words"],
                moment(entry["deadline"]),
                entry["model_version"],
                entry["marginals_version"],
            )
            for entry in found["rounds"]
        ]
        show(
            "Rounds", ("round", "state", "marginals", "deltas", "words", "deadline", "model", "marginals version"), rows
        )

    return found, present


@command(app, "show")
def show_round(client: OperatorClient, round_id: RoundId = None) -> Answer:
    """Show one round: its settings, how it moved, what it released."""
    return _answer(client.get(f"rounds/{round_id or _open(client)}"))


def _open(client: OperatorClient) -> str:
    """The round that takes reports. ConfigurationError: there is none."""
    for entry in client.get("rounds", limit=1000)["rounds"]:
        if entry["state"] == "open":
            return str(entry["id"])
    raise ConfigurationError("round: found none open; expected the id of one, as `idiolect rounds list` shows it")


def _answer(found: dict[str, Any]) -> Answer:
    return found, lambda: _show(found)


def _show(found: dict[str, Any]) -> None:
    facts = [
        ("state", found["state"]),
        ("base", f"model {found['base_model']}, marginals {found['base_marginals']}"),
        *_collected(found["settings"]),
        ("reports", ", ".join(f"{stream} {count}" for stream, count in found["reports"].items())),
        ("asked", _asked(found)),
        ("deadline", moment(found["deadline"])),
        ("new model", found["model_version"]),
        ("its teacher", found["teacher_version"]),
        ("new marginals", found["marginals_version"]),
        ("note", found["note"]),
    ]
    facts += [
        (f"group {number + 1}", f"{group['stage']}, {group['devices']} devices. {group['note']}".strip())
        for number, group in enumerate(found["groups"])
    ]
    facts += [
        (f"release of {stream}", f"{release['reports']} reports, {_mechanism(release['mechanism'])}")
        for stream, release in found["releases"].items()
    ]
    facts += [
        (
            "new words",
            ", ".join(f"{word} (about {count} devices)" for word, count in release["words"].items()) or "none",
        )
        for release in found["releases"].values()
        if release["words"] is not None
    ]
    facts += [
        (moment(move["at"]), f"{move['source']} to {move['target']}" + (f": {move['note']}" if move["note"] else ""))
        for move in found["transitions"]
    ]
    show(f"Round {found['id']}", ("", ""), [(name, value) for name, value in facts if value])


_NOISED_BY = {"central": "the server", "local": "every device", "distributed": "every device, a share of it"}


def _collected(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """The streams of a round with their noise, and how many reports it takes."""
    counts, deltas, words = (settings[stream] for stream in ("marginals", "deltas", "words"))
    facts: list[tuple[str, str]] = []
    if counts is not None:
        bound = "all counts so far" if counts["mode"] == "paper" else f"at most {counts['max_words']} words a device"
        noise = f"{counts['mechanism']} noise of {_NOISED_BY[counts['trust']]}"
        facts.append(("marginals", f"epsilon {counts['epsilon']:g}, {noise}, {bound}"))
    if deltas is not None:
        facts.append(("deltas", f"{deltas['kind']}, clipped to {deltas['clip_norm']:g}, {_noise(settings)}"))
    if words is not None:
        bound = f"at most {words['max_words']} words a device"
        facts.append(("words", f"epsilon {words['epsilon']:g}, delta {words['delta']:g}, {bound}"))
    by_hand = "none: it closes at its deadline, or by `rounds close`"
    facts.append(("minimum", f"{settings['minimum']} report{'s' * (settings['minimum'] != 1)} a stream"))
    facts.append(("goal", by_hand if settings["goal"] is None else f"{settings['goal']} reports a stream"))
    if settings["rounds"] > 1:
        facts.append(("rounds", f"{settings['rounds']}, one after another"))
    return facts


def _noise(settings: dict[str, Any]) -> str:
    if own := settings["deltas"]["noise_stddev"]:
        return f"noise {own:g} of every device"
    if multiplier := settings["noise_multiplier"]:
        return f"noise of {multiplier:g} clip norms of the server"
    return "no noise: epsilon is infinite"


def _asked(found: dict[str, Any]) -> str:
    plan = found["settings"].get("sampling")
    if plan is None:
        return "every device"
    wanted = f"each with probability {plan['rate']:g}" if plan["rate"] else f"{plan['over_selection']:g} times the goal"
    eligible = "" if found.get("eligible") is None else f", of {found['eligible']} devices"
    return f"{plan['kind']} sampling, {wanted}{eligible}" + (", amplified" if plan["amplified"] else "")


def _mechanism(mechanism: dict[str, Any]) -> str:
    parts = [f"noise: {mechanism['name']}"]
    parts += [str(mechanism[name]) for name in ("kind", "clipping", "encoding") if name in mechanism]
    if mechanism.get("stale"):
        parts.append(f"{mechanism['stale']} stale")
    if mechanism.get("pseudo_devices"):
        parts.append(f"{mechanism['pseudo_devices']} pseudo-devices")
    return ", ".join(parts)


def _preset(name: str) -> dict[str, Any]:
    from device_sdk.wire.messages import WHOLE
    from server.plans.round import PRESETS

    if name not in PRESETS:
        raise ConfigurationError(f"--preset: found {name!r}, expected one of {', '.join(sorted(PRESETS))}")
    return PRESETS[name].model_dump(mode="json", context=WHOLE)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: found {error}, expected a JSON file with a round's settings") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: found {type(found).__name__}, expected a JSON object of settings")
    return found
