"""`report.html`: the whole simulation on one self-contained page."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from device_sdk.privacy.spending import LARGEST_STATED, stated
from server.lab.simulation.outcomes import CONDITIONS, Kind, Outcome, Run, rate, spread
from server.plots import Bar, Line, bars, lines

TITLES: dict[Kind, str] = {"slot_error": "Slot error", "wer": "Word error"}
PARTS = {"all": "devices, all rounds", "last": "devices, last round", "heldout": "held-out voices"}
MEANINGS = {
    "frozen": "the bundle as shipped",
    "marginals": "rescoring with personal and global word counts",
    "learning": "local gradient steps from weak feedback, averaged by the server",
    "both": "marginals and learning",
    "supervised": "as both, but the steps are told the true transcripts: a yardstick, not a product",
}
Charts = dict[str, Markup]
"""By their titles."""


def render(document: dict[str, Any], runs: Sequence[Run]) -> str:
    """The page. document: the simulation's JSON; runs: what it was computed from."""
    kinds = [kind for kind in TITLES if document["conditions"]["frozen"][kind]["all"]["mean"] is not None]
    place = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(place), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["points"] = lambda share: f"{100 * share:+.1f}"
    environment.filters["epsilon"] = stated
    return environment.get_template("report.html").render(
        document,
        kinds=kinds,
        compared=any(document["against_frozen"]["both"][kind]["all"] for kind in kinds),
        titles=TITLES,
        parts=PARTS,
        meanings=MEANINGS,
        style=Markup((place / "report.css").read_text("utf-8")),
        by_round={TITLES[kind]: _by_round(document, runs, kind) for kind in kinds},
        by_device={TITLES[kind]: _by_device(runs, kind) for kind in kinds},
        travels={f"Megabytes a device {verb}": _bytes(document, runs, way) for way, verb in _TRAVELS.items()},
        spent=_spent(document),
        on_device=_on_device(document),
    )


def _by_round(document: dict[str, Any], runs: Sequence[Run], kind: Kind) -> Markup:
    series = []
    for condition in CONDITIONS:
        own = [run.outcomes for run in runs if run.condition == condition.name]
        columns = [
            [rate((each for each in outcomes if each.round == number), kind) for outcomes in own]
            for number in range(document["rounds"])
        ]
        found = [spread(column) for column in columns]
        bands = [each["std"] or 0.0 for each in found] if document["seeds"] > 1 else None
        series.append(Line(condition.name, condition.name, [each["mean"] for each in found], bands))
    return Markup(lines(series, _rounds(document["rounds"]), "errors / references", percent=True))


def _by_device(runs: Sequence[Run], kind: Kind) -> list[Markup]:
    said: dict[str, dict[str, list[Outcome]]] = {}
    for run in runs:
        for outcome in (each for each in run.outcomes if not each.held_out):
            said.setdefault(outcome.voice, {}).setdefault(run.condition, []).append(outcome)
    groups = [
        (voice, [Bar(name, name, rate(own.get(name, ()), kind)) for name in ("frozen", "both", "supervised")])
        for voice, own in sorted(said.items())
    ]
    rows = [groups[start : start + 12] for start in range(0, len(groups), 12)]
    return [Markup(bars(row, "errors / references", percent=True, width=1140)) for row in rows]


_TRAVELS: dict[Literal["up", "down"], str] = {"up": "sends", "down": "receives"}


def _bytes(document: dict[str, Any], runs: Sequence[Run], way: Literal["up", "down"]) -> Markup:
    groups = []
    for number, label in enumerate(_rounds(document["rounds"])):
        group = []
        for name in ("marginals", "learning", "both"):
            moved = [each for run in runs if run.condition == name for each in run.traffic if each.round == number]
            mean = fmean(getattr(each, way) for each in moved) / 1e6 if moved else None
            group.append(Bar(name, name, mean))
        groups.append((label, group))
    return Markup(bars(groups, "MB a device and round"))


def _spent(document: dict[str, Any]) -> Charts:
    """Of streams whose epsilon is bounded."""
    return {
        f"Epsilon of {stream}": Markup(
            lines(
                [Line(stream, "both", entry["per_round"])],
                _rounds(len(entry["per_round"])),
                "epsilon spent by a device, so far",
            )
        )
        for stream, entry in document["epsilon"].items()
        if not any(map(_is_unbounded, entry["per_round"]))
    }


def _is_unbounded(value: Any) -> bool:
    return not float(value) <= LARGEST_STATED


def _on_device(document: dict[str, Any]) -> Charts:
    times, memory = [], []
    for name, entry in document["device"].items():
        taken = {"recognize": "marginals", "learn": "learning"}
        times.append((name, [Bar(what, colour, 1e3 * entry[f"{what}_seconds"]) for what, colour in taken.items()]))
        memory.append((name, [Bar("peak", name, entry["peak_memory_bytes"] / 1e6)]))
    return {
        "Time an utterance": Markup(bars(times, "milliseconds")),
        "Peak resident memory of the device's process": Markup(bars(memory, "megabytes")),
    }


def _rounds(count: int) -> list[str]:
    return [f"round {number + 1}" for number in range(count)]
