"""``python -m tests.records BEFORE AFTER``: exit code 1 where anything differs.

Recordings are recognized, a device learns, a server and two devices publish a round, and every page of help is printed,
once from each folder. What is random comes from a fixed stream and the clock stands still (``fixed``). The probe names
nothing that a rearrangement may rename: what ``device_sdk`` exports, commands, routes."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("IDIOLECT", "PYTHON"))}
ENVIRONMENT |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NO_COLOR"), "1")
ENVIRONMENT |= {"COLUMNS": "100", "TERM": "dumb", "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
"""This process's, without what would change sums or pages."""


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(place, text) of every value in JSON and of every line of its texts: 0.0 and -0.0 differ, NaN and NaN do not."""
    if isinstance(value, str) and "\n" in value:
        value = value.splitlines()
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if entries is None:
        yield place, json.dumps(value)
    for name, each in entries or ():
        yield from leaves(each, f"{place}/{name}")


def describe(tree: Path, folder: Path) -> None:
    """Put the checkout's commands into ``folder``, as an install of it would: the environment's are another's."""
    for path in (tree / "pyproject.toml", *tree.glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
        lines = [line for name in groups for line in (f"[{name}]", *map(" = ".join, groups[name].items()))]
        own = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        own.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (own / "METADATA").write_text(metadata)
        (own / "entry_points.txt").write_text("\n".join(lines))


def record(tree: Path) -> dict[str, Any]:
    """What a checkout does, its native modules compiled where it has none. CalledProcessError: it cannot be run; what
    it said is on standard error."""
    if not any((tree / "device_sdk").rglob("*.so")):
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tree, env=ENVIRONMENT, check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        describe(tree, folder)
        output = folder / "records.json"
        places = {"PYTHONPATH": os.pathsep.join(map(str, (HERE / "fixed", folder, tree))), "HOME": name}
        command = [sys.executable, "-P", str(HERE / "probe.py"), str(output)]
        subprocess.run(command, cwd=tree, env=ENVIRONMENT | places, check=True, stdout=sys.stderr)
        return json.loads(output.read_text())


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every record: its name, and the first difference as [place, text] on both sides, or None."""
    rows = []
    for name in before | after:
        pairs = zip_longest(leaves(before.get(name)), leaves(after.get(name)))
        rows.append({"record": name, "difference": next((pair for pair in pairs if pair[0] != pair[1]), None)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.records", description="Compare what two checkouts do.")
    parser.add_argument("trees", type=Path, nargs=2, metavar="CHECKOUT")
    with ThreadPoolExecutor(2) as pool:
        rows = compare(*pool.map(record, (tree.resolve() for tree in parser.parse_args().trees)))
    equal = all(row["difference"] is None for row in rows)
    print(json.dumps({"equal": equal, "records": rows}, indent=2))
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
