"""Weights as bytes: equal weights, equal bytes."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load

from server.aggregation.weights_file import dump_weights, parse_weights, read_metadata

WEIGHTS = {"b": np.arange(3, dtype=np.float32), "a": np.ones((2, 5), np.float32)}


def test_equal_weights_are_equal_bytes_whatever_the_order() -> None:
    metadata = {"parent": "base", "inputs": "0123", "note": 'a "quote", ä'}
    contents = {dump_weights(WEIGHTS, dict(sorted(metadata.items(), reverse=bool(turn % 2)))) for turn in range(20)}
    contents |= {dump_weights(dict(reversed(WEIGHTS.items())), metadata) for _ in range(20)}
    assert len(contents) == 1
    (content,) = contents
    assert read_metadata(content) == metadata
    for found in (parse_weights(content), load(content)):
        assert all(np.array_equal(found[name], WEIGHTS[name]) for name in WEIGHTS)
