"""Measurements in a process of their own, with one thread and nothing of this one's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from device_sdk.errors import IdiolectError

__all__ = ["ONE_THREAD", "measured"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measured(module: str, call: str) -> dict[str, Any]:
    """What ``module.call()`` gives there, through JSON. Raises IdiolectError with its last words where it fails."""
    code = f"import json; import {module} as measuring; print(json.dumps(measuring.{call}()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | ONE_THREAD
    )
    if done.returncode:
        raise IdiolectError(f"the measuring process ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
