"""``python -m tests.records BEFORE AFTER [--json] [--build]``: exit code 1 where anything differs."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("IDIOLECT", "PYTHON"))}
ENVIRONMENT |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {
    "COLUMNS": "100",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
}
"""This process's, without what would change sums or pages."""
Records = dict[str, Any]
_ABSENT = "(absent)"


def first_difference(before: Any, after: Any, place: str = "") -> str | None:
    """Where two values of JSON differ first, with what is found there; None where they are equal to the last bit."""
    pairs: Iterable[tuple[Any, Any, Any]] = ()
    rest = ""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(name, before.get(name, _ABSENT), after.get(name, _ABSENT)) for name in before | after]
        rest = f"in the order {list(before)} and {list(after)}" if list(before) != list(after) else ""
    elif isinstance(before, list) and isinstance(after, list):
        pairs = zip(itertools.count(), before, after)
        rest = f"{len(before)} and {len(after)} entries" if len(before) != len(after) else ""
    elif isinstance(before, str) and isinstance(after, str) and before.splitlines() != after.splitlines():
        lines = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="(end)")
        number, (one, other) = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
        return f"{place}, line {number}: {one!r} and {other!r}"
    elif json.dumps(before) != json.dumps(after):  # by their texts: 0.0 and -0.0 differ, NaN and NaN do not
        return f"{place}: {before!r} and {after!r}"
    for name, one, other in pairs:
        if (found := first_difference(one, other, f"{place}/{name}")) is not None:
            return found
    return f"{place}: {rest}" if rest else None


def describe(tree: Path, folder: Path) -> None:
    """Put the checkout's commands into ``folder``, as an install of it would: the environment's are another's."""
    for path in (tree / "pyproject.toml", *tree.glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
        lines = [
            line for name in groups for line in (f"[{name}]", *(f"{key} = {groups[name][key]}" for key in groups[name]))
        ]
        own = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        own.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (own / "METADATA").write_text(metadata)
        (own / "entry_points.txt").write_text("\n".join(lines))


def build(tree: Path) -> None:
    """Compile the checkout's native modules where it stands."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tree, env=ENVIRONMENT, check=True, stdout=sys.stderr)


def record(tree: Path) -> Records:
    """What a checkout does. CalledProcessError: it cannot be run; what it said is on standard error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        describe(tree, folder)
        output = folder / "records.json"
        places = {"PYTHONPATH": os.pathsep.join(map(str, (HERE / "fixed", folder, tree))), "HOME": name}
        command = [sys.executable, "-P", str(HERE / "probe.py"), str(output)]
        subprocess.run(command, cwd=tree, env=ENVIRONMENT | places, check=True, stdout=sys.stderr)
        found: Records = json.loads(output.read_text())
        return found


def compare(before: Records, after: Records) -> list[dict[str, Any]]:
    """A row for every record: its name, its SHA-256 on both sides, the first difference or None."""
    rows = []
    for name in [*before, *(name for name in after if name not in before)]:
        one, other = before.get(name), after.get(name)
        digests = [sha256(json.dumps(each).encode()).hexdigest() for each in (one, other)]
        difference = first_difference(one, other)
        rows.append({"record": name, "before": digests[0], "after": digests[1], "difference": difference})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.records", description="Compare what two checkouts do.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--build", action="store_true", help="compile native modules anew, even where there are some")
    given = parser.parse_args()
    trees = given.before.resolve(), given.after.resolve()
    with ThreadPoolExecutor(2) as pool:
        stale = {tree for tree in trees if given.build or not any((tree / "device_sdk").rglob("*.so"))}
        list(pool.map(build, stale))
        rows = compare(*pool.map(record, trees))
    equal = all(row["difference"] is None for row in rows)
    print(json.dumps({"equal": equal, "records": rows}, indent=2)) if given.json else show(rows)
    return int(not equal)


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table of records."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("record", "SHA-256 before")
    table.add_column("equal, or the first difference", overflow="fold")
    for row in rows:
        table.add_row(row["record"], row["before"][:16], escape(row["difference"] or "equal"))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
