"""The stages of the base model on a tiny network: each begins where the one before ended, and none runs twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
from device_sdk.bundle import Bundle
from examples.rao_2023 import base
from examples.rao_2023.base import STAGES, train_base


@pytest.mark.slow
def test_stages_follow_each_other_and_are_kept(
    data: Path, tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [replace(stage, share=0.5, people=min(stage.people, 4)) for stage in STAGES[1:]]
    first = train_base(data, tiny_bundle, tmp_path / "work", 0.02, 8, 100, [], stages=stages)
    assert any((first[name] != value).any() for name, value in tiny_bundle.weights.items())

    begun = []
    real = base.train_rnnt

    def spied(*given: object, **named: object) -> object:
        begun.append(named["begin"])
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(base, "train_rnnt", spied)
    again = train_base(data, tiny_bundle, tmp_path / "work", 0.02, 8, 100, [], stages=stages)
    assert not begun and all((again[name] == first[name]).all() for name in first)

    training = tmp_path / "work" / "stage-2" / "training.json"
    training.write_text(training.read_text().replace('"blank_lowered_by"', '"stopped"'))
    train_base(data, tiny_bundle, tmp_path / "work", 0.02, 8, 100, [], stages=stages)
    (weights,) = begun
    assert any((weights[name] != first[name]).any() for name in first), "the second stage begins with the first's"
    assert all(np.isfinite(value).all() for value in weights.values())
