"""The base model on a tiny network: kept where it is finished, continued where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
from device_sdk.bundle import Bundle
from server.simulation.cohorts import base
from server.simulation.cohorts.base import train_base
from tests.server.simulation.cohorts.data import write_data


@pytest.mark.slow
def test_a_finished_run_is_kept_and_a_stopped_one_goes_on(
    tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = write_data(tmp_path / "data"), tmp_path / "work"
    first = train_base(data, tiny_bundle, out, 0.02, 8, 100, [])
    assert any((first[name] != value).any() for name, value in tiny_bundle.weights.items())

    begun = []
    real = base.train_rnnt

    def spied(*given: object, **named: object) -> object:
        begun.append(named["begin"])
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(base, "train_rnnt", spied)
    again = train_base(data, tiny_bundle, out, 0.02, 8, 100, [])
    assert not begun and all((again[name] == first[name]).all() for name in first)

    training = out / "training.json"
    document = json.loads(training.read_text())
    document["result"].pop("blank_lowered_by")
    training.write_text(json.dumps(document))
    resumed = train_base(data, tiny_bundle, out, 0.02, 8, 100, [])
    assert len(begun) == 1 and all(np.isfinite(value).all() for value in resumed.values())
