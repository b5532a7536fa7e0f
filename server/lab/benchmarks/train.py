"""Training speed: whole steps of the one training loop on made-up speech, RNN-T with CTC as a helper.

On a GPU the ``paper`` preset, with the share of the card's peak that its matrix products reach. On the CPU the
``small`` preset on one thread, by the processor's time. Frames are those of the features, 10 ms."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from device_sdk.benchmarks import Figure, alternate
from device_sdk.bundle.architecture import Architecture
from server.lab.benchmarks.children import run_child

if TYPE_CHECKING:
    import torch

ON_CPU: dict[str, Any] = {"preset": "small", "utterances": 6, "frames": 500, "tokens": 15, "steps": 4}
ON_GPU: dict[str, Any] = {"preset": "paper", "utterances": 32, "frames": 1200, "tokens": 60, "steps": 20}
WARM_UP = 2

PEAKS = {"H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "L40": 181, "L4": 121}
"""TFLOP a second of dense bfloat16 products, by the makers' data sheets; the first whose name is part of the card's."""


def benchmark() -> list[Figure]:
    """Frames a second; on a GPU also the share of its peak."""
    found = run_child(__name__, "measure")
    shape = ", ".join(f"{name} {found[name]}" for name in ("utterances", "frames", "tokens"))
    name = f"training, {found['preset']}, {shape}"
    if found["device"] == "cpu":
        print("bench train: no GPU here, so the paper preset is not measured", file=sys.stderr)
        return [Figure(f"{name}, one thread", "frames/s of CPU", found["speed"])]
    return [
        Figure(f"{name}, {found['device']}", "frames/s", found["speed"]),
        Figure("the same, matrix products", "TFLOP/s", found["products"] / 1e12, found["peer"], found["peak"] / 1e12),
    ]


def measure() -> dict[str, Any]:
    """Steps on a GPU where there is one, else on the CPU: the shape, ``device``, ``speed`` and, on a GPU, the matrix
    ``products`` a second, the ``peak`` and the ``peer`` whose peak it is."""
    import torch

    gpu = torch.cuda.is_available()
    shape = ON_GPU if gpu else ON_CPU
    clock = time.perf_counter if gpu else time.process_time
    device = torch.device("cuda" if gpu else "cpu")
    with TemporaryDirectory(prefix="idiolect-train-") as folder:
        step, architecture = _step(shape, device, Path(folder))

        def finished() -> None:
            step()
            if gpu:
                torch.cuda.synchronize()

        spent = alternate({"step": finished}, shape["steps"], WARM_UP, clock)["step"]
    found = {**shape, "device": "cpu", "speed": shape["utterances"] * shape["frames"] / spent}
    if gpu:
        name = torch.cuda.get_device_name()
        known = next((1e12 * peak for part, peak in PEAKS.items() if part in name), None)
        peer = "data sheet" if known else "a product of 8192 x 8192"
        done = products(architecture, shape["utterances"], shape["frames"], shape["tokens"])
        found |= {"device": name, "products": done / spent, "peak": known or _product(device), "peer": peer}
    return found


def _step(shape: dict[str, Any], device: torch.device, folder: Path) -> tuple[Any, Architecture]:
    """A function that takes one step of a trainer, and the network's architecture."""
    import sentencepiece

    from server.lab.training.data import Batch, collate
    from server.lab.training.pieces import train_pieces
    from server.lab.training.rnnt import Recipe
    from server.lab.training.rnnt.learner import new_network
    from server.lab.training.rnnt.task import RnntTask
    from server.lab.training.trainer import Budget, Sampler, Trainer

    steps = Budget(steps=1_000_000)
    recipe = Recipe(shape["preset"], budget=steps, flat_share=0, easy_share=0, ctc_share=0, sparse_share=0, threads=1)
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(generator.choice(letters, 6)) for _ in range(20 * recipe.architecture.pieces)]
    pieces = train_pieces(words, recipe.architecture.pieces)
    size, frames, most = shape["utterances"], shape["frames"], shape["tokens"]
    features = generator.normal(size=(size, frames, recipe.architecture.mel_bins)).astype(np.float32)
    tokens = generator.integers(1, recipe.architecture.pieces, (size, most))
    batch = collate(zip(features, tokens.tolist(), strict=True), recipe.architecture.subsampling_factor)

    class Same(Sampler[Batch]):
        """One batch, again and again."""

        def plan(self, epoch: int, progress: float) -> list[list[int]]:
            return [list(range(size))]

        def load(self, epoch: int, chosen: Any) -> Batch:
            return batch

    network = new_network(recipe.architecture, recipe.dropout)
    task = RnntTask(network, sentencepiece.SentencePieceProcessor(model_proto=pieces), recipe.phases)
    trainer = Trainer(task, Same(), recipe.settings, folder, device=device)
    assert isinstance(recipe.architecture, Architecture)
    return lambda: trainer.step(batch, time.monotonic()), recipe.architecture


def products(a: Architecture, utterances: int, frames: int, tokens: int) -> float:
    """FLOP of a step's matrix products: three times those of the forward pass, except that the joint's output counts
    once, since its gradient is taken only where paths go and its second computation is no progress."""
    stacked, positions = frames // a.subsampling_factor, tokens + 1
    encoder = _lstm(a.mel_bins * a.subsampling_factor, a.encoder_size, a.encoder_layers)
    predictor = _lstm(a.embedding_size, a.predictor_size, a.predictor_layers)
    each_frame = encoder + 2 * 2 * a.encoder_size * a.joiner_size + 2 * a.joiner_size * a.pieces  # the CTC head's too
    each_position = predictor + 2 * a.predictor_size * a.joiner_size
    output = 2 * stacked * positions * a.joiner_size * a.pieces
    return float(utterances * (3 * (stacked * each_frame + positions * each_position) + output))


def _lstm(width: int, size: int, layers: int) -> int:
    """FLOP of a stack's matrix products for one frame."""
    return sum(2 * 4 * size * ((width if layer == 0 else size) + size) for layer in range(layers))


def _product(device: torch.device, size: int = 8192) -> float:
    """FLOP a second of a large bfloat16 matrix product."""
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def multiply() -> None:
        a @ b
        torch.cuda.synchronize()

    return 2.0 * size**3 / alternate({"product": multiply}, 7, 3, time.perf_counter)["product"]
