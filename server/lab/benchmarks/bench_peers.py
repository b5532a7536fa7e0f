"""The peers of ``idiolect bench aggregate`` on the same arrays.

Their releases pin versions of their own, so they live in an environment of their own and this file is run there by
path. It imports nothing of this project. Prints one JSON object: seconds of CPU for one update, by name.

    PYTHON bench_peers.py VALUES LAYERS UPDATES DISTINCT
"""

import json
import sys
from time import process_time
from typing import Any

import numpy as np


def aggregation(values: int, layers: int, updates: int, distinct: int) -> dict[str, float]:
    """flwr's and pfl's own weighted averages of ``updates`` updates of ``values`` float32 in ``layers`` arrays."""
    rng = np.random.default_rng(0)
    arrays = [[rng.standard_normal(values // layers, dtype=np.float32) for _ in range(layers)] for _ in range(distinct)]
    seconds = {}
    for name, peer in {"flwr": by_flwr, "pfl": by_pfl}.items():
        try:
            seconds[name] = peer(arrays, updates) / updates
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return seconds


def by_flwr(arrays: list[Any], updates: int) -> float:
    """``aggregate`` takes all results at once, and keeps a weighted copy of each: as many as memory lets it have."""
    from flwr.server.strategy.aggregate import aggregate

    results = [(arrays[number % len(arrays)], number + 1) for number in range(min(updates, 40))]
    begin = process_time()
    aggregate(results)
    return (process_time() - begin) * updates / len(results)


def by_pfl(arrays: list[Any], updates: int) -> float:
    """Statistics are weighted in place and added up as they come."""
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.stats import MappedVectorStatistics

    set_framework_module(numpy_ops)
    total: Any = None
    spent = 0.0
    for number in range(updates):
        own = {str(layer): array.copy() for layer, array in enumerate(arrays[number % len(arrays)])}
        statistics = MappedVectorStatistics(own, 1.0)
        begin = process_time()
        statistics.reweight(float(number + 1))
        total = statistics if total is None else total + statistics
        spent += process_time() - begin
    return spent


if __name__ == "__main__":
    print(json.dumps(aggregation(*map(int, sys.argv[1:]))))
