"""A widened network beside the narrower one, in torch."""

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.bundle.architecture import PRESETS
from export.widening import widened
from tests.tiny import tiny_weights

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("layers", "narrow", "cells"), [(1, 32, 40), (3, 16, 17)])
def test_it_says_what_the_narrower_one_said_and_learns_with_all_its_cells(layers: int, narrow: int, cells: int) -> None:
    from export.networks.rnnt import RNNT

    small = replace(PRESETS["tiny"], encoder_layers=layers, encoder_size=narrow)
    given = tiny_weights(small, 3)
    before, after = RNNT(small), RNNT(replace(small, encoder_size=cells))
    before.from_parameters(given)
    after.from_parameters(widened(given, small, cells))
    features = torch.from_numpy(np.random.default_rng(0).normal(-8, 3, (2, 60, 64)).astype(np.float32))
    torch.testing.assert_close(after.encode(features), before.encode(features))
    after.encode(features).square().sum().backward()
    asked = after.joiner_encoder.weight.grad
    assert asked is not None and (asked[:, narrow:] != 0).any(0).all()
    for layer in range(1, layers):
        asked = getattr(after.encoder, f"weight_ih_l{layer}").grad
        assert (asked[:, narrow:] != 0).any(0).all(), layer
