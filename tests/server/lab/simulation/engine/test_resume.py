"""A run that is killed again and again ends with the same bits as one that is not, noise included; the memory that its
rounds free stays with the process, where the allocator can be told so."""

import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from server.lab.simulation.engine.rounds import STATE, Engine, engine, init, run_rounds
from server.lab.simulation.engine.settings import EngineSettings, LocalWork, Privacy
from server.lab.simulation.engine.state import load, store
from tests.server.lab.simulation.engine.networks import made
from tests.server.lab.simulation.engine.test_rounds import same_bits

ROUNDS, POINTS = 200, 20
SETTINGS = EngineSettings(
    rounds=ROUNDS,
    cohort=4,
    local=LocalWork(kind="steps", count=2, batch=2),
    privacy=Privacy(clip_norm=0.1, clipping="dim", noise_multiplier=0.5),
)


def plan(settings: EngineSettings = SETTINGS) -> Engine:
    return engine(settings, *made("perceptron", 12, 0, torch.float32))


def go(folder: str) -> None:
    """All rounds in a folder."""
    torch.set_num_threads(1)
    run_rounds(plan(), Path(folder))


def killed(folder: Path, chance: random.Random) -> int:
    """Runs the folder to its end in processes that are killed at random moments; how many kills hit a running one."""
    context = get_context("fork")  # which imports torch once
    hits = 0
    while hits < POINTS:
        before = done(folder)
        last = before + chance.randrange(1, max(2, (ROUNDS - before) // (POINTS - hits)))
        process = context.Process(target=go, args=(str(folder),))
        process.start()
        while process.is_alive() and done(folder) < last:
            time.sleep(0.003 * chance.random())
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        hits += process.exitcode == -signal.SIGKILL
        assert process.exitcode == -signal.SIGKILL or (process.exitcode == 0 and done(folder) == ROUNDS)
        if done(folder) == ROUNDS:
            break
    go(str(folder))
    return hits


def done(folder: Path) -> int:
    return load(folder / STATE, SETTINGS.digest()).number


def test_killed_at_twenty_points(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    store(tmp_path / "whole" / STATE, init(plan()), SETTINGS.digest())  # with a key that both runs share
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    go(str(tmp_path / "whole"))
    assert killed(tmp_path / "cut", random.Random(7)) >= POINTS - 2
    one, other = (load(tmp_path / name / STATE, SETTINGS.digest()) for name in ("whole", "cut"))
    assert one.number == ROUNDS and same_bits(one, other)


def test_two_runs_share_no_noise(tmp_path: Path) -> None:
    """Each has a key of its own, whatever the seed."""
    short = plan(SETTINGS.model_copy(update={"rounds": 1}))
    assert not same_bits(run_rounds(short), run_rounds(short))


CODE = """
import resource, sys
from server.lab.simulation.engine.rounds import keep_freed_memory
assert "keep" not in sys.argv or keep_freed_memory()
import numpy as np
def turn():
    for _ in range(5):
        np.ones(5 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(-turn() + turn())"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is no glibc here")
def test_what_is_freed_is_not_fetched_again() -> None:
    commands = ([sys.executable, "-c", CODE, word] for word in ("keep", "free"))
    kept, freed = (int(subprocess.run(each, capture_output=True, check=True).stdout) for each in commands)
    assert kept * 4 < freed
