"""Memory that a round frees stays with the process, where the allocator can be told so."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from server.lab.simulation.engine.rounds import keep_freed_memory
if "keep" in sys.argv and not keep_freed_memory():
    sys.exit(77)
import numpy as np
def turn():
    for _ in range(5):
        np.ones(5 << 20)
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("there is no glibc here")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_what_is_freed_is_not_fetched_again() -> None:
    assert faults("keep") * 4 < faults()
