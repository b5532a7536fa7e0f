"""Folding a round's deltas: speed beside memory copies and beside flwr's and pfl's own averages, memory and error.

One thread, by the processor's time. A speed counts the bytes of the updates; a copy counts the bytes that it copies.
The peers run in an environment of their own (``make peers``), whose interpreter ``IDIOLECT_PEERS`` names."""

from statistics import median
from time import process_time

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure
from device_sdk.peak_memory import peak_bytes
from server.aggregation import deltas
from server.lab.benchmarks.children import run_child, run_peers

VALUES, LAYERS, UPDATES, DISTINCT = 10_000_000, 20, 100, 12
COPY, FLWR = 0.8, 3.0
MODELS = 2 + deltas.UPDATES
ERROR = 1e-6
SPEED = "GB of updates/s of CPU"

Arrays = dict[str, NDArray[np.float32]]


def benchmark() -> list[Figure]:
    """Figures of 100 updates of 10 million values."""
    found, size = run_child(__name__, "measure"), 4 * VALUES / 1e9
    ours, what = size / found["add"], "weighted sum of 100 updates of 10 M values"
    figures = [Figure(what, SPEED, ours, "memory copy", size / found["copy"], COPY)]
    peers = run_peers(VALUES, LAYERS, UPDATES, DISTINCT) or {}
    for name, target in {"flwr": FLWR, "pfl": None}.items():
        if name in peers:
            figures.append(Figure("the same", SPEED, ours, f"{name}'s own", size / peers[name], target))
    models = (found["peak"] - found["before"]) / (4 * VALUES / (1 << 20))
    memory = f"memory at most, {deltas.UPDATES} updates in it"
    return [
        *figures,
        Figure(memory, "models", models, target=MODELS, lower_is_better=True),
        Figure("error against float64", "relative", found["error"], target=ERROR, lower_is_better=True),
    ]


def measure() -> dict[str, float]:
    """Seconds of CPU for one update (``add``) and for one copy of a model (``copy``), MB of memory before and at most,
    and the error. Run in a process of its own, for its memory."""
    names = [f"layer.{number}" for number in range(LAYERS)]
    shapes = dict.fromkeys(names, (VALUES // LAYERS,))
    weights = [1.0 + number % 7 for number in range(UPDATES)]
    target, copies = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}, []
    before = peak_bytes() / 2**20
    spent, state = 0.0, deltas.init(shapes)
    for number, weight in enumerate(weights):
        update = _update(number % DISTINCT, names)
        begin = process_time()
        state = deltas.add(state, update, weight)
        spent += process_time() - begin
        begin = process_time()
        for name, values in update.items():
            np.copyto(target[name], values)
        copies.append(process_time() - begin)
    del update
    begin = process_time()
    mean = deltas.finish(state)
    spent += process_time() - begin
    found = {"add": spent / UPDATES, "copy": median(copies), "before": before, "peak": peak_bytes() / 2**20}
    return found | {"error": _error(mean, names, weights)}


def _update(seed: int, names: list[str]) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(VALUES // LAYERS, dtype=np.float32) for name in names}


def _error(mean: Arrays, names: list[str], weights: list[float]) -> float:
    shares = np.bincount(np.arange(UPDATES) % DISTINCT, weights) / sum(weights)
    exact = {name: np.zeros(VALUES // LAYERS) for name in names}
    for seed, share in enumerate(shares):
        for name, values in _update(seed, names).items():
            exact[name] += share * values
    difference = sum(float(np.square(mean[name] - exact[name]).sum()) for name in names)
    return float(np.sqrt(difference / sum(float(np.square(values).sum()) for values in exact.values())))
