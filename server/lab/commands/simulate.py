"""Simulates devices that learn against a live server: a table and report.html."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from device_sdk.commands.output import check_writable, deliver, print_table, write_file
from device_sdk.errors import ConfigurationError
from device_sdk.privacy.spending import stated
from server.lab.commands.shared import read_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from device_sdk.bundle.architecture import Subset
    from server.lab.simulation.progress import Shown


def command(
    data: Annotated[str, typer.Option(help="Speech: 'made' by espeak-ng, or KIND:PATH, such as folder:PATH.")] = "made",
    bundle: Annotated[str | None, typer.Option(help="Bundle to start from; the packaged one by default.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds: devices talk, learn, check in; the server aggregates.")] = 3,
    devices: Annotated[int | None, typer.Option(help="Number of devices; recordings: all their voices.")] = None,
    each: Annotated[int | None, typer.Option(help="Utterances of a device in a round; recordings: all.")] = None,
    heldout: Annotated[int | None, typer.Option(help="Number of held-out voices; recordings: all of them.")] = None,
    heldout_each: Annotated[int | None, typer.Option(help="Utterances of a held-out voice; recordings: all.")] = None,
    seed: Annotated[int, typer.Option(help="Decides voices, sentences and their order.")] = 1,
    seeds: Annotated[int, typer.Option(help="How many seeds to run, from --seed upwards.")] = 1,
    habit: Annotated[
        str, typer.Option(help="Made people's habits, 0 to 1; a simulation for each of several, such as 0,0.5,1.")
    ] = "1",
    subset: Annotated[
        str | None, typer.Option(help="What devices learn and send, such as adapters; the acoustic part by default.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes, one thread each.")] = 2,
    keep: Annotated[
        Path | None, typer.Option(help="A new folder for the state of one server, to look at in its dashboard.")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="Folder of finished runs; a second call goes on there.")] = None,
    report: Annotated[Path, typer.Option(help="Where the page with plots goes.")] = Path("report.html"),
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the table.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Simulate devices that learn against a live server, under five conditions on the same utterances."""
    from server.lab.simulation import Shape, SimulationSettings, render, simulate
    from server.lab.simulation.progress import progress

    for path in (report, output):
        if path is not None:
            check_writable(path, folders=True)
    habits = dict.fromkeys(read_numbers("--habit", habit, float, "numbers from 0 to 1 like 0,0.5,1"))
    if keep is not None and len(habits) > 1:
        raise ConfigurationError("--keep: found several --habit, expected one; the state of one server is kept")
    every = [
        SimulationSettings(
            source=data,
            bundle=bundle,
            seeds=tuple(range(seed, seed + seeds)),
            shape=Shape(rounds, devices, each, heldout, heldout_each),
            workers=workers,
            keep=str(keep) if keep is not None else None,
            work=str(work) if work is not None else None,
            habit=each_habit,
            subset=cast("Subset | None", subset),
        )
        for each_habit in habits
    ]
    documents: dict[str, dict[str, Any]] = {}
    pages: dict[str, Path] = {}
    for settings in every:
        started, name = time.monotonic(), f"{settings.habit:g}"
        with progress() as watch:
            document, runs = simulate(settings, watch, _announce)
        document["settings"]["seconds"] = round(time.monotonic() - started)
        documents[name] = document
        pages[name] = report if len(every) == 1 else report.with_stem(f"{report.stem}-habit-{name}")
        write_file(pages[name], render(document, runs), folders=True)
    found = {"habits": documents} if len(every) > 1 else document
    if deliver(found, json_, output, folders=True):
        return
    for name, document in documents.items():
        _show(document, pages[name], keep)


def _announce(url: str, token: str) -> None:
    typer.echo(f"dashboard, while the devices learn: {url} (operator token {token})", err=True)


def _show(document: dict[str, Any], report: Path, keep: Path | None) -> None:
    """The tables of one simulation, and where the rest is."""
    from rich.console import Console

    console = Console()
    print_table(console, table(document))
    if any(part for found in document["against_frozen"].values() for kind in found.values() for part in kind.values()):
        print_table(console, differences(document))
    console.print(told(document), soft_wrap=True)
    for line in _remarks(document):
        console.print(line, soft_wrap=True)
    console.print(f"Report: {report.resolve()}", soft_wrap=True)
    if keep is not None:
        again = f"idiolect serve --database {keep / 'server.db'}"
        console.print(f"Dashboard of these rounds: {again}, then http://127.0.0.1:8470/dashboard", soft_wrap=True)


STYLES = {"both": "bold", "supervised": "dim"}
PARTS = {"all": "all", "last": "last round", "heldout": "held out"}


def table(document: dict[str, Any]) -> Table:
    """Errors of every condition, in percent."""
    from rich.table import Table

    kinds = _kinds(document)
    result = Table(
        title=f"{len(document['voices']['devices'])} devices, {document['rounds']} rounds, "
        f"seed {', '.join(map(str, document['seed_values']))}, {document['data']}"
        + (f", habit {document['habit']:g}" if document["habit"] != 1.0 else "")
        + ": errors in %",
        caption="every utterance is decoded and scored first, then learned from once",
    )
    result.add_column("condition", no_wrap=True)
    for title in kinds.values():
        for part in PARTS.values():
            result.add_column(f"{title}\n{part}", justify="right")
    for name, condition in document["conditions"].items():
        cells = [_cell(condition[kind][part], document["seeds"]) for kind in kinds for part in PARTS]
        result.add_row(name, *cells, style=STYLES.get(name))
    return result


def differences(document: dict[str, Any]) -> Table:
    """Every condition's differences from frozen, in points, with their intervals."""
    from rich.table import Table

    devices, heldout = (len(document["voices"][part]) for part in ("devices", "heldout"))
    result = Table(
        title="difference from frozen in points, with 95 % intervals",
        caption=f"bootstrap over {devices} voices, and {heldout} held-out ones; *: excludes zero",
    )
    for heading in ("errors", "condition"):
        result.add_column(heading, no_wrap=True)
    for part in PARTS.values():
        result.add_column(part, justify="right")
    for kind, title in _kinds(document).items():
        for name, found in document["against_frozen"].items():
            result.add_row(title, name, *(_interval(found[kind][part]) for part in PARTS), style=STYLES.get(name))
        result.add_section()
    return result


def _kinds(document: dict[str, Any]) -> dict[str, str]:
    """The kinds of errors that the data labels, and what a table calls them."""
    frozen, kinds = document["conditions"]["frozen"], {"slot_error": "slots", "wer": "words"}
    return {kind: title for kind, title in kinds.items() if frozen[kind]["all"]["mean"] is not None}


def _cell(figure: dict[str, Any], seeds: int) -> str:
    if figure["mean"] is None:
        return "-"
    return f"{100 * figure['mean']:.1f}" + (f" ± {100 * figure['std']:.1f}" if seeds > 1 else "")


def _interval(found: dict[str, Any] | None) -> Shown:
    from server.lab.simulation.progress import Shown
    from server.lab.statistics import in_percent

    if found is None:
        return Shown("-")
    mean, low, high = in_percent(found["absolute"])
    return Shown(f"{mean}{'*' if found['absolute']['excludes_zero'] else ''}", f"[{low}, {high}]")


def told(document: dict[str, Any]) -> str:
    """What happened, in one paragraph."""
    kind, title = list(_kinds(document).items())[-1]
    frozen, both = (
        {part: f"{100 * (condition[kind][part]['mean'] or 0.0):.1f}" for part in PARTS}
        for condition in (document["conditions"][name] for name in ("frozen", "both"))
    )
    devices, rounds = len(document["voices"]["devices"]), document["rounds"]
    return (
        f"{devices} people whom the model had never heard talked to their devices for {rounds} rounds. As shipped, it "
        f"gets {frozen['all']} % of their {title} wrong. On devices that learn by themselves, from what the app sees "
        f"their users do, it is {both['all']} %; in the last round {both['last']}, where the model as shipped gets "
        f"{frozen['last']}. People who never took part begin at {both['heldout']} with what the devices learned "
        f"together, at {frozen['heldout']} without. No audio and no text left a device."
    )


def _remarks(document: dict[str, Any]) -> Iterator[str]:
    for stream, entry in document["epsilon"].items():
        shown = stated(entry["epsilon"])
        if entry.get("delta"):
            shown += f" at delta {entry['delta']:g}"
        adjacency, trust = (entry[key].partition(":")[0] for key in ("adjacency", "trust_model"))
        yield f"epsilon, {stream}: {shown} (adjacency: {adjacency}; trust: {trust})"
