"""Measurements in processes of their own, with one thread and nothing of this one's memory."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from device_sdk.errors import IdiolectError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
KEEPING = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "2000000000"}
"""The allocator of Linux keeps what was freed. Else it may give large tensors back to the system between any two turns,
or not, as the heap happens to lie, and fetching them again takes as long as what is measured."""


def run_child(module: str, call: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``module.call()`` gives there, through JSON. environment: variables to set besides. Raises IdiolectError
    with its last words where it fails."""
    code = f"import json; import {module} as measuring; print(json.dumps(measuring.{call}()))"
    return _answer([sys.executable, "-c", code], environment, "the measuring process ended with")


def peer_interpreter() -> Path | None:
    """The Python that has the peers: ``IDIOLECT_PEERS``, or the one that ``make peers`` makes; None without them."""
    named = os.environ.get("IDIOLECT_PEERS")
    path = Path(named) if named else Path(".venv-peers") / "bin" / "python"
    return path if path.is_file() else None


def run_peers(*arguments: int) -> dict[str, float] | None:
    """What ``bench_peers.py`` gives in the peers' environment; None, which is said, where there is none."""
    python = peer_interpreter()
    if python is None:
        print("no peers here; run: make peers (or set IDIOLECT_PEERS)", file=sys.stderr)
        return None
    command = [str(python), str(Path(__file__).with_name("bench_peers.py")), *map(str, arguments)]
    return _answer(command, None, "make the peers again (make peers); it ended with")


def _answer(command: Sequence[str], environment: Mapping[str, str] | None, failed: str) -> dict[str, Any]:
    variables = os.environ | ONE_THREAD | dict(environment or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise IdiolectError(f"{failed} {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
