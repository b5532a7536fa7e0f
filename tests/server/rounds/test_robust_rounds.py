"""Rounds whose average a minority of devices cannot pull far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.server.parties import Devices, Operator, Party, initial, weights_of

HONEST = [0.9, 1.0, 1.1, 1.2]


def moved(http: Any, operator: Operator, parties: list[Party], values: list[float], **settings: Any) -> float:
    """How far a round moved the first parameter, all of whose values move alike."""
    opened = operator.open(marginals=None, deltas={"clip_norm": 1000.0}, weighting="uniform", **settings)
    for party, value in zip(parties, values, strict=True):
        assert party.send_delta(opened, value=value).status_code == 200
    ended = operator.close(opened)
    assert ended["releases"]["deltas"]["mechanism"]["averaging"] == settings.get("averaging", "mean")
    change = weights_of(http, ended["model_version"])["encoder.0.W"] - initial().weights["encoder.0.W"]
    assert np.ptp(change) < 1e-4
    return float(change.mean())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, (sum(HONEST) + 40.0) / 5), ({"averaging": "cosine"}, (0.9 + 1.0 + 3 * 1.1) / 5)],
    ids=["mean", "cosine"],
)
def test_one_liar_among_five(
    http: Any, operator: Operator, devices: Devices, settings: dict[str, Any], expected: float
) -> None:
    assert moved(http, operator, devices(5), [*HONEST, 40.0], **settings) == pytest.approx(expected, rel=1e-4)
