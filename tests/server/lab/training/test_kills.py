"""Real processes of training, killed at random moments."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from server.lab.training.data import Example, write_shard
from server.lab.training.pieces import train_pieces
from server.lab.training.speech import Mixture, sentence

ROOT = Path(__file__).parents[4]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
RECIPE = {
    "preset": "tiny",
    "flat_share": 0.1,
    "easy_share": 0.2,
    "ctc_share": 0.5,
    "window": 2,
    "batch": 5,
    "threads": 1,
    "snapshot_minutes": 1e6,
    "watch_steps": 7,
    "checkpoint_steps": 3,
}


@pytest.fixture(scope="module")
def starter() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded everything and starts runs."""
    command = [sys.executable, "-m", "tests.server.lab.training.one_run"]
    with subprocess.Popen(
        command, cwd=ROOT, env=ONE_THREAD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(starter: subprocess.Popen[str], arguments: Sequence[str], after: float = math.inf, delay: float = 0) -> int:
    """A run that is killed by SIGKILL when so many of its steps are done and some time more. Returns the last step that
    it told of; -1 where it had come to its end."""
    assert starter.stdin is not None and starter.stdout is not None
    starter.stdin.write(json.dumps(arguments) + "\n")
    starter.stdin.flush()
    pid, steps = 0, [0]
    for said in map(json.loads, starter.stdout):
        if isinstance(said, int):
            steps.append(said)
        elif "pid" in said:
            pid = said["pid"]
        else:
            assert said["ended"] in ((0, -signal.SIGKILL) if delay else (0,))
            return steps[-1] if said["ended"] else -1
        if pid and len(steps) > after:
            time.sleep(delay)
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
            after = math.inf
    raise AssertionError("the process that starts runs has ended")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of noise with sentences, and a tokenizer."""
    folder = tmp_path_factory.mktemp("speech")
    generator = np.random.default_rng(0)
    sentences = [sentence(Mixture(), generator) for _ in range(1500)]
    (folder / "tokenizer.model").write_bytes(train_pieces(sentences, 64))
    for shard in range(3):
        examples = []
        for text in sentences[14 * shard : 14 * shard + 14]:
            features = generator.normal(-8.0, 3.0, (int(generator.integers(150, 260)), 64)).astype(np.float16)
            examples.append(Example(features, " ".join(text.split()[:3]), "made"))
        write_shard(folder / f"shard-{shard:05d}.safetensors", examples)
    return folder


def arguments(speech: Path, out: Path, steps: int, **changes: Any) -> list[str]:
    return [str(speech), str(out), json.dumps({**RECIPE, "budget": {"steps": steps}, **changes})]


@pytest.mark.parametrize(("points", "steps"), [(3, 18), pytest.param(20, 120, marks=pytest.mark.slow)])
def test_kills_change_nothing(
    starter: subprocess.Popen[str], speech: Path, tmp_path: Path, points: int, steps: int
) -> None:
    """A run that is killed at random points ends with the weights, averages, optimizer and generators of one that is
    not, and with the same choice among its weights."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert run(starter, arguments(speech, straight, steps)) == -1
    draw = random.Random(points)
    killed: list[int] = []
    while len(killed) < points:
        after = draw.randint(1, max(2, 2 * steps // points))
        last = run(starter, arguments(speech, broken, steps), after, draw.uniform(0.001, 0.06))
        if last >= 0:
            killed.append(last)
        else:  # it got to the end: begin another
            for path in broken.iterdir():
                path.unlink()
    assert run(starter, arguments(speech, broken, steps)) == -1
    assert len(set(killed)) > 1, killed
    check_same(*(load_file(out / "weights.safetensors") for out in (straight, broken)))
    one, other = (load_file(out / "checkpoint.safetensors") for out in (straight, broken))
    assert {name.partition(".")[0] for name in one} == {"module", "average", "optimizer", "generator"}
    check_same(one, other)


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
