"""Rounds of a part of the parameters: a delta has those alone, and the published model keeps the rest as it was."""

from typing import Any

import numpy as np
import pytest

from device_sdk.wire.delta_codec import encode, parts
from tests.server import parties
from tests.server.parties import Operator, Party, initial, refusal, weights_of

PARTS = ("acoustic", "output", "adapters", "norms")


def _send(device: Party, round_id: str, names: tuple[str, ...], **header: Any) -> Any:
    delta = {name: np.full(parties.SHAPES[name], 0.001, np.float32) for name in names}
    body = device.delta(round_id, encode(delta, "float32", "row"), **header)
    return device.post(f"/v1/rounds/{round_id}/deltas", body, round_id)


@pytest.mark.parametrize("part", PARTS)
def test_what_is_no_part_stays(http: Any, operator: Operator, device: Party, part: str) -> None:
    names = parts(parties.SHAPES, part)
    assert 0 < len(names) < len(parties.SHAPES)
    round_id = operator.open(marginals=None, deltas={"part": part})
    assert refusal(_send(device, round_id, tuple(parties.SHAPES))) == (422, "bad_delta")
    assert refusal(_send(device, round_id, names[1:])) == (422, "bad_delta")
    _send(device, round_id, names).raise_for_status()
    found = operator.close(round_id)
    assert found["releases"]["deltas"]["mechanism"]["part"] == part
    moved, base = weights_of(http, found["model_version"]), initial().weights
    for name in base:
        expected = base[name] + np.float32(0.001) if name in names else base[name]
        np.testing.assert_allclose(moved[name], expected, atol=1e-7)


def test_momentum_of_former_rounds_moves_no_other_part(http: Any, operator: Operator, device: Party) -> None:
    first = operator.open(marginals=None, deltas={}, optimizer={"kind": "adam", "learning_rate": 0.01})
    _send(device, first, tuple(parties.SHAPES)).raise_for_status()
    version = operator.close(first)["model_version"]
    before = weights_of(http, version)
    second = operator.open(marginals=None, deltas={"part": "norms"}, optimizer={"kind": "adam", "learning_rate": 0.01})
    names = parts(parties.SHAPES, "norms")
    _send(device, second, names, model_version=version).raise_for_status()
    after = weights_of(http, operator.close(second)["model_version"])
    for name in before:
        assert (after[name] == before[name]).all() == (name not in names), name
