"""A new name, corrected until it is heard, costs neither what else was learned nor what was known."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.architecture.sources import ROOT
from tests.confirmed_rounds import VOICES
from tests.speech import packaged


@pytest.mark.slow
def test_32_confirmed_rounds_are_never_rolled_back_and_cost_no_other_command() -> None:
    packaged()
    environment = {name: value for name, value in os.environ.items() if name != "IDIOLECT_COMPILED"}
    command = [sys.executable, "-m", "tests.confirmed_rounds", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lives) == VOICES
