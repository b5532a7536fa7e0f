"""Real processes of training, killed at random moments."""

from __future__ import annotations

import json
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
from server.lab.training.trainer.checkpoints import load_tensors

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


class Runs:
    """Starts runs from a process that has loaded everything. Owns that process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.lab.training.one_run"],
            cwd=ROOT,
            env=ONE_THREAD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, arguments: Sequence[str]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()

    def lines(self) -> Iterator[Any]:
        """What it says, up to how the runs ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            yield said
            if isinstance(said, dict) and "ended" in said:
                return

    def finish(self, arguments: Sequence[str]) -> None:
        self.start(arguments)
        *_, last = self.lines()
        assert last == {"ended": 0}

    def kill(self, arguments: Sequence[str], after: int, delay: float) -> int | None:
        """Start a run and SIGKILL it when so many of its steps are done and some time more. Returns the last step that
        it told of; None where it had come to its end."""
        self.start(arguments)
        pid, steps = 0, [0]
        for said in self.lines():
            if isinstance(said, int):
                steps.append(said)
            elif "pid" in said:
                pid = said["pid"]
            else:
                assert said["ended"] in (0, -signal.SIGKILL)
                return steps[-1] if said["ended"] else None
            if pid and len(steps) > after:
                time.sleep(delay)
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
                after = 1 << 30
        raise AssertionError("the process that starts runs has ended")


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    found = Runs()
    with found.process:
        yield found
        assert found.process.stdin is not None
        found.process.stdin.close()


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of noise with sentences, and a tokenizer."""
    folder = tmp_path_factory.mktemp("speech")
    generator = np.random.default_rng(0)
    sentences = [sentence(Mixture(), generator) for _ in range(1500)]
    (folder / "tokenizer.model").write_bytes(train_pieces(sentences, 64))
    for shard in range(3):
        examples = []
        for number in range(14):
            frames = int(generator.integers(150, 260))
            features = generator.normal(-8.0, 3.0, (frames, 64)).astype(np.float16)
            examples.append(Example(features, " ".join(sentences[14 * shard + number].split()[:3]), "made"))
        write_shard(folder / f"shard-{shard:05d}.safetensors", examples)
    return folder


def arguments(speech: Path, out: Path, steps: int, **changes: Any) -> list[str]:
    return [str(speech), str(out), json.dumps({**RECIPE, "budget": {"steps": steps}, **changes})]


def check_kills(runs: Runs, speech: Path, folder: Path, points: int, steps: int, seed: int) -> None:
    """A run that is killed at random points ends with the weights, averages, optimizer and generators of one that is
    not, and with the same choice among its weights."""
    straight, broken = folder / "straight", folder / "broken"
    runs.finish(arguments(speech, straight, steps))
    draw = random.Random(seed)
    killed: list[int] = []
    while len(killed) < points:
        after = draw.randint(1, max(2, 2 * steps // points))
        last = runs.kill(arguments(speech, broken, steps), after, draw.uniform(0.0, 0.06))
        if last is not None:
            killed.append(last)
        else:  # it got to the end: begin another
            for path in broken.iterdir():
                path.unlink()
    runs.finish(arguments(speech, broken, steps))
    assert len(set(killed)) > 1, killed
    check_same(*(load_file(out / "weights.safetensors") for out in (straight, broken)))
    (one, _), (other, _) = (load_tensors(out / "checkpoint.safetensors") for out in (straight, broken))
    assert {name.partition(".")[0] for name in one} == {"module", "average", "optimizer", "generator"}
    check_same(*({name: value.numpy() for name, value in side.items()} for side in (one, other)))


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_three_kills_change_nothing(runs: Runs, speech: Path, tmp_path: Path) -> None:
    check_kills(runs, speech, tmp_path, points=3, steps=18, seed=1)


@pytest.mark.slow
def test_twenty_kills_change_nothing(runs: Runs, speech: Path, tmp_path: Path) -> None:
    check_kills(runs, speech, tmp_path, points=20, steps=120, seed=2)
