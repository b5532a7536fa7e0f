"""Real processes of training, killed at random moments."""

import json
import math
import random
import signal
import time
from contextlib import nullcontext, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch._dynamo  # noqa: F401 (the first step of an optimizer would load it, in every fork)
from safetensors import safe_open
from safetensors.numpy import load_file

from server.lab.training.data import Example, read_shard, write_shard
from server.lab.training.pieces import train_pieces
from server.lab.training.rnnt import Recipe, run, train_rnnt
from server.lab.training.speech import Mixture, sentence
from server.lab.training.trainer import Budget

FORKED = get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
SHARES = {"flat_share": 0.1, "easy_share": 0.2, "ctc_share": 0.5}
TIMES = {"seconds", "watched", "record"}
OFTEN = {"snapshot_minutes": 1e6, "watch_steps": 7, "checkpoint_steps": 3}


def train(folder: Path, out: Path, recipe: Recipe, told: Connection) -> None:
    """A run on the shards of a folder, which tells the number of every finished step."""

    def window(first: int, last: int) -> list[Example]:
        paths = [folder / f"shard-{index % 3:05d}.safetensors" for index in range(first, last + 1)]
        return [example for path in paths for example in read_shard(path)]

    def tell(step: int, progress: float, figures: dict[str, float]) -> None:
        if "seconds" in figures:
            told.send(step)

    run.ShardMaker = lambda *_: nullcontext(SimpleNamespace(window=window))  # type: ignore[assignment, misc]
    run.progress_bar = lambda show: nullcontext(tell)
    features = np.random.default_rng(0).normal(-8, 3, (60, 64)).astype(np.float32)
    watched = [Example(features, "stop", "noise.development")]
    train_rnnt(recipe, Mixture(), (folder / "tokenizer.model").read_bytes(), out, watched)


def finish(speech: Path, out: Path, steps: int, after: float = math.inf, delay: float = 0.0) -> int | None:
    """A run that is killed by SIGKILL when it has told of so many steps and some time more. Returns the last of them;
    None where it had come to its end."""
    recipe = Recipe("tiny", budget=Budget(steps=steps), window=2, batch=5, threads=1, **SHARES, **OFTEN)  # type: ignore[arg-type]
    heard, told = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=train, args=(speech, out, recipe, told))
    process.start()
    told.close()
    done: list[int] = []
    with suppress(EOFError, OSError):  # its end may cut a message short
        while True:
            done.append(heard.recv())
            if len(done) == after:
                time.sleep(delay)
                process.kill()
    process.join()
    assert process.exitcode in ((0,) if math.isinf(after) else (0, -signal.SIGKILL))
    return done[-1] if process.exitcode else None


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of noise with sentences, and a tokenizer."""
    folder, generator = tmp_path_factory.mktemp("speech"), np.random.default_rng(0)
    sentences = [sentence(Mixture(), generator) for _ in range(1500)]
    (folder / "tokenizer.model").write_bytes(train_pieces(sentences, 64))
    for shard in range(3):
        examples = []
        for text in sentences[14 * shard : 14 * shard + 14]:
            features = generator.normal(-8.0, 3.0, (int(generator.integers(150, 260)), 64)).astype(np.float16)
            examples.append(Example(features, " ".join(text.split()[:3]), "made"))
        write_shard(folder / f"shard-{shard:05d}.safetensors", examples)
    return folder


@pytest.mark.parametrize(("points", "steps"), [(3, 18), pytest.param(20, 120, marks=pytest.mark.slow)])
def test_kills_change_nothing(speech: Path, tmp_path: Path, points: int, steps: int) -> None:
    """A run that is killed at random points ends with the weights, averages, optimizer and generators of one that is
    not, and with the same choice among its weights."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert finish(speech, straight, steps) is None
    draw = random.Random(points)
    killed: list[int] = []
    while len(killed) < points:
        last = finish(speech, broken, steps, draw.randint(1, max(2, 2 * steps // points)), draw.uniform(0.0, 0.06))
        if last is not None:
            killed.append(last)
        else:  # it got to the end: begin another
            for path in broken.iterdir():
                path.unlink()
    assert finish(speech, broken, steps) is None
    assert len(set(killed)) > 1, killed
    check_same(*(load_file(out / "weights.safetensors") for out in (straight, broken)))
    one, other = (load_file(out / "checkpoint.safetensors") for out in (straight, broken))
    assert {name.partition(".")[0] for name in one} == {"module", "average", "optimizer", "generator"}
    check_same(one, other)
    assert position(straight) == position(broken)


def position(out: Path) -> dict[str, Any]:
    """What a checkpoint holds beside tensors, but for times: steps, epoch, batches, sampler, phase, losses, choice."""
    with safe_open(out / "checkpoint.safetensors", "numpy") as file:
        described = {name: json.loads(value) for name, value in file.metadata().items()}
    assert {"sampler", "task", "epoch", "group", "best"} <= described["state"].keys()
    described["state"] = {name: value for name, value in described["state"].items() if name not in TIMES}
    return described


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
