"""Runs of RNN-T training as processes of their own, for tests that kill them.

Loads everything once and then forks a run for every line of JSON that it reads: [FOLDER, OUT, RECIPE], where FOLDER
holds tokenizer.model and shards and RECIPE is JSON. A run prints the number of every finished step; this process prints
the run's number (``pid``) and, when it has ended, how (``ended``).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch._dynamo  # noqa: F401 (the first step of an optimizer would load it, in every fork)

from server.lab.training.data import Example, read_shard
from server.lab.training.rnnt import Recipe, run, train_rnnt
from server.lab.training.speech import Mixture
from server.lab.training.trainer import Budget


def window(folder: Path, first: int, last: int) -> list[Example]:
    """Of shards that are there already: what is tested is the loop, not espeak-ng."""
    shards = [folder / f"shard-{index % 3:05d}.safetensors" for index in range(first, last + 1)]
    return [example for shard in shards for example in read_shard(shard)]


def tell(step: int, progress: float, figures: Mapping[str, float]) -> None:
    if "seconds" in figures:
        print(step, flush=True)


def main(folder: str, out: str, recipe: str) -> None:
    shards = SimpleNamespace(window=partial(window, Path(folder)))
    run.ShardMaker = lambda *_: nullcontext(shards)  # type: ignore[assignment, misc]
    run.progress_bar = lambda show: nullcontext(tell)
    settings = json.loads(recipe)
    chosen = Recipe(**{**settings, "budget": Budget(**settings["budget"])})
    features = np.random.default_rng(0).normal(-8, 3, (60, 64)).astype(np.float32)
    watched = [Example(features, "stop", "noise.development")]
    pieces = (Path(folder) / "tokenizer.model").read_bytes()
    train_rnnt(chosen, Mixture(), pieces, Path(out), watched)


if __name__ == "__main__":
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                main(*json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(json.dumps({"pid": pid}), flush=True)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}), flush=True)
