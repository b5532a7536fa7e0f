"""What an update costs a device: the model that ships, after a round, as a difference beside the whole file.

A round's step is at most as long as the bound that every delta is clipped to, so the weights are moved by such steps:
spread over all of them, as learning on device does, and in one step of length 1 and of length 0.1 (the mean of many
devices that do not agree). Times are of one thread's CPU."""

from time import process_time

import numpy as np

from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.checkin.updates import difference
from device_sdk.errors import IdiolectError
from server.aggregation.weights_file import dump_weights

LENGTHS = (1.0, 0.1)
SHARE = 0.8
"""Of the whole file, at most: what a difference is worth its making for."""


def benchmark() -> list[Figure]:
    """Sizes and times. IdiolectError: a difference did not lead to the very bytes."""
    bundle = Bundle.open(None)
    base, rng = dict(bundle.weights), np.random.default_rng(0)
    names = list(bundle.architecture.parameter_shapes())
    values = sum(base[name].size for name in names)
    figures = []
    for length in LENGTHS:
        step = np.float32(length / np.sqrt(values))
        moved = {name: base[name] + step * rng.standard_normal(base[name].shape, np.float32) for name in names}
        content = dump_weights(base | moved)
        begin = process_time()
        made = difference.make(base, content)
        making, begin = process_time() - begin, process_time()
        found = difference.apply(base, made, len(content))
        applying = process_time() - begin
        if found != content:
            raise IdiolectError(f"a step of {length}: the difference leads to other bytes")
        what = f"after a step of length {length:g}"
        size, whole = len(made) / 1e6, len(content) / 1e6
        figures += [
            Figure(f"difference {what}", "MB", size, "the whole file", whole, SHARE, lower_is_better=True),
            Figure("making it, in the server", "s of CPU", making, lower_is_better=True),
            Figure("applying it, on the device", "s of CPU", applying, lower_is_better=True),
        ]
    return figures
