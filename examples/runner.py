"""What the experiments share: finished rows in a work folder, figures over seeds, findings, tables, charts, options.

A row is a recipe under a seed. Documents are plain JSON; ``rates`` of a row are word errors by test set."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from device_sdk.commands.output import deliver, write_file
from device_sdk.errors import DataError, IdiolectError
from server.lab.kept import read_row, write_row
from server.lab.statistics import in_percent, mean_interval, paired_bootstrap
from server.plots import Bar, bars, standalone

Row = TypeVar("Row")
Weights = Mapping[str, NDArray[np.float32]]
COLOURS = ("#2563eb", "#d97706", "#16a34a", "#9333ea", "#6b7280")

Work = Annotated[Path, typer.Option(help="Folder of speech, models and finished rows; a second call goes on there.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds.")]
Only = Annotated[list[str] | None, typer.Option("--rows", help="Only rows so named, or whose name holds this.")]
Data = Annotated[Path, typer.Option(envvar="IDIOLECT_DATA", show_default=False, help="Folder that holds the corpora.")]
Full = Annotated[bool, typer.Option("--full", help="The paper's sizes, as far as they go: for a GPU, or days.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of tables.")]
Output = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]
Plots = Annotated[Path | None, typer.Option(help="Write charts (SVG) into this folder.")]


@dataclass(frozen=True, slots=True)
class Errors:
    """Of N utterances: wrong words, words said, and who speaks (intervals resample speakers)."""

    wrong: Sequence[float]
    words: Sequence[int]
    speakers: Sequence[str]

    @property
    def rate(self) -> float:
        """Word error rate, micro-averaged; NaN for no words."""
        return float(sum(self.wrong) / sum(self.words)) if sum(self.words) else float("nan")

    def where(self, chosen: Sequence[bool]) -> Errors:
        """Of the chosen utterances only."""
        rows = zip(self.wrong, self.words, self.speakers, chosen, strict=True)
        return join(Errors([wrong], [words], [speaker]) for wrong, words, speaker, keep in rows if keep)


def join(parts: Iterable[Errors]) -> Errors:
    """The utterances of all parts, in order."""
    held = list(parts)
    fields = ([part.wrong for part in held], [part.words for part in held], [part.speakers for part in held])
    return Errors(*(list(chain.from_iterable(field)) for field in fields))  # type: ignore[arg-type]


def difference(first: Errors, second: Errors) -> dict[str, Any] | None:
    """JSON of :func:`server.lab.statistics.paired_bootstrap` of ``second`` against ``first``; None where there are no
    words, or ``first`` makes no error."""
    if not sum(second.words) or not sum(first.wrong):
        return None
    return paired_bootstrap(first.wrong, second.wrong, second.words, second.speakers).as_json()


def start(main: Callable[..., None]) -> None:
    """Runs a script's options; what is wrong with them or with a file is said in a line, with exit status 1."""
    try:
        typer.run(main)
    except IdiolectError as error:
        sys.exit(f"{Path(sys.argv[0]).parent.name}: {error}")


def digest(settings: Any) -> str:
    """Names what was made by the same settings: a dataclass, or a model of pydantic."""
    content = asdict(settings) if is_dataclass(settings) else settings.model_dump()  # type: ignore[arg-type]
    return sha256(json.dumps(content, default=str).encode()).hexdigest()[:8]


def keep(folder: Path, names: Sequence[object], recipe: Any, kind: type[Row], make: Callable[[], Row]) -> Row:
    """The finished row (a dataclass) of these names and this recipe in ``folder``, made first where there is none.
    Raises DataError naming a damaged file."""
    slug = "-".join("".join(c if c.isalnum() or c == "." else "-" for c in str(name)) for name in names)
    path = folder / f"{slug}-{digest(recipe)}.json"
    if not path.exists():
        write_row(path, make())
    return read_row(path, kind)


def keep_weights(path: Path, make: Callable[[], Weights]) -> dict[str, NDArray[np.float32]]:
    """The weights in a safetensors file, which is written first where there is none. Raises DataError naming a damaged
    file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        save_file(dict(make()), temporary)
        temporary.replace(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError(f"{path}: not readable weights ({error}); delete it to have them made again") from error


def choose(known: Mapping[str, Row], only: Sequence[str] | None) -> list[Row]:
    """The rows so named, or whose name holds a part; all without parts. DataError: a part that no name holds."""
    wanted: set[str] = set() if only else set(known)
    for part in only or ():
        matches = {part} if part in known else {name for name in known if part in name}
        if not matches:
            raise DataError(f"rows: no name holds {part!r}; expected part of one of: {', '.join(known)}")
        wanted |= matches
    return [row for name, row in known.items() if name in wanted]


def rates(by_seed: Mapping[int, float]) -> dict[str, Any]:
    """{"mean", "std", "by_seed"} of a row's word errors; std is the sample's, None for one seed."""
    values = list(by_seed.values())
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "by_seed": {str(seed): rate for seed, rate in by_seed.items()},
    }


def seed_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """``second`` minus ``first`` (both as :func:`rates` has them) under the seeds that both have: their mean, and its
    95 % interval where there are several."""
    common = [seed for seed in second["by_seed"] if seed in first["by_seed"]]
    values = [second["by_seed"][seed] - first["by_seed"][seed] for seed in common]
    interval = mean_interval(values)
    return {"mean": statistics.fmean(values)} | ({} if interval is None else interval.as_json())


def finding(
    text: str, value: float | Mapping[str, Any], expected: str, holds: Callable[[float], bool] | bool
) -> dict[str, Any]:
    """One of the paper's findings, as JSON. value: what is found here, a number or an interval. holds: whether that is
    as expected, or what says so of the number."""
    interval = value if isinstance(value, Mapping) else {"mean": value}
    verdict = holds if isinstance(holds, bool) else bool(holds(interval["mean"]))
    bounds = {end: interval[end] for end in ("low", "high") if end in interval}
    return {"finding": text, "value": interval["mean"], **bounds, "expected": expected, "holds": verdict}


def remark(found: Mapping[str, Any]) -> str:
    """A finding in a line."""
    interval = f" ({found['low']:+.3f} to {found['high']:+.3f})" if "low" in found else ""
    verdict = "holds" if found["holds"] else "does NOT hold"
    return f"{verdict}: {found['finding']}: {found['value']:+.3f}{interval}, expected {found['expected']}"


def percent(rate: Mapping[str, Any] | None) -> str:
    """Mean and deviation of :func:`rates` in a table."""
    if rate is None:
        return ""
    return f"{100 * rate['mean']:.1f}" + ("" if rate["std"] is None else f" ± {100 * rate['std']:.1f}")


def interval_in_percent(interval: Mapping[str, Any] | None) -> str:
    """A relative difference with its interval in a table."""
    if interval is None:
        return ""
    mean, low, high = in_percent(interval)
    return f"{mean} % ({low} to {high})"


def table(
    title: str, rows: Iterable[Row], columns: Mapping[str, Callable[[Row], Any]], caption: str | None = None
) -> Table:
    """A line a row. columns: heading -> what stands below it for a row; the first is the row's name."""
    result = Table(title=title, caption=caption)
    for number, heading in enumerate(columns):
        result.add_column(heading, justify="right" if number else "left")
    for row in rows:
        result.add_row(*(cell(row) for cell in columns.values()))
    return result


def chart(groups: Iterable[tuple[str, Mapping[str, float | None]]]) -> str:
    """A group of bars a row, as an SVG file of its own."""
    held = [(label, dict(values)) for label, values in groups]
    names = list(dict.fromkeys(name for _, values in held for name in values))
    classes = {name: f"c{number % len(COLOURS)}" for number, name in enumerate(names)}
    drawn = bars(
        [(label, [Bar(name, classes[name], value) for name, value in values.items()]) for label, values in held],
        "word errors",
        percent=True,
        width=max(560, 110 * len(held)),
    )
    return standalone(drawn, {f"c{number}": colour for number, colour in enumerate(COLOURS)})


def present(
    document: dict[str, Any],
    tables: Iterable[Table],
    charts: Mapping[str, str],
    as_json: bool,
    output: Path | None,
    plots: Path | None,
    remarks: Iterable[str] | None = None,
) -> None:
    """The document as tables and remarks (by default its findings), or as JSON; charts by name into a folder."""
    for name, drawn in charts.items() if plots is not None else ():
        write_file(Path(plots or "") / f"{name}.svg", drawn, folders=True)
    if not deliver(document, as_json, output, folders=True):
        console = Console()
        console.print(*tables, sep="\n")
        for line in map(remark, document["findings"]) if remarks is None else remarks:
            console.print(line, soft_wrap=True)
