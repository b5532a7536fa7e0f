"""Measurements in a process of their own, with one thread and nothing of this one's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from device_sdk.errors import IdiolectError

__all__ = ["KEEPING", "ONE_THREAD", "measured"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
KEEPING = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "2000000000"}
"""The allocator of Linux keeps what was freed. Else it may give large tensors back to the system between any two turns,
or not, as the heap happens to lie, and fetching them again takes as long as what is measured."""


def measured(module: str, call: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``module.call()`` gives there, through JSON. environment: variables to set besides.

    Raises IdiolectError with its last words where it fails.
    """
    code = f"import json; import {module} as measuring; print(json.dumps(measuring.{call}()))"
    set_ = os.environ | ONE_THREAD | dict(environment or {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=set_)
    if done.returncode:
        raise IdiolectError(f"the measuring process ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
