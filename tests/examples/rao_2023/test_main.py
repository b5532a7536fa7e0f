"""The experiment of Rao et al. 2023 from end to end, as small as it can be: every part is the real one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
from device_sdk.bundle import Bundle
from examples.rao_2023.domains import Sentence
from examples.rao_2023.experiment import INITIAL, Experiment, Scale, errors, methods
from examples.rao_2023.methods import CohortSettings
from examples.rao_2023.speech import Clip
from examples.rao_2023.tables import summary
from examples.runner import Errors

SMALL = Scale(persons=3, tested=2, test=4, development=2, cohort=CohortSettings(rounds=2, devices=2, evaluate_every=2))


def experiment(data: Path, work: Path, bundle: Bundle) -> Experiment:
    return Experiment(data, work, SMALL, base=bundle.path / "weights.safetensors", bundle=bundle)


def test_rows_are_run_kept_and_summed_up(
    data: Path, tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [None, *(method for method in methods(SMALL) if "slots" in method.name)]
    held = experiment(data, tmp_path, tiny_bundle)
    rows = [held.row(method, seed) for method in chosen for seed in (1, 2)]
    assert [row.name for row in rows[::2]] == [INITIAL, "EMA + transcript + slots", "EMA + slots"]
    assert all(len(row.losses) == 2 and [number for number, _ in row.curve] == [2] for row in rows[2:])
    document: dict[str, Any] = summary(held, rows)
    initial = document["rows"][INITIAL]["requests"]
    assert len(set(initial["by_seed"].values())) == 1, "one base model and one test for all seeds"
    change = document["rows"]["EMA + slots"]["requests"]["against"][INITIAL]
    assert change["rate_a"] == pytest.approx(initial["mean"]) and change["groups"] == 2
    assert document["findings"][0]["finding"].startswith("initial")
    json.dumps(document)
    monkeypatch.setattr("examples.rao_2023.experiment.transcribe", None)
    again = experiment(data, tmp_path, tiny_bundle)
    assert [again.row(method, seed) for method in chosen for seed in (1, 2)] == rows, "read, not run again"


def test_rows_of_other_settings_lie_elsewhere(data: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    weights = tiny_bundle.path / "weights.safetensors"
    other = tmp_path / "other.safetensors"
    other.write_bytes(weights.read_bytes() + b" ")
    longer = replace(SMALL, cohort=replace(SMALL.cohort, rounds=3))
    folders = {
        Experiment(data, tmp_path, scale, base=base, bundle=tiny_bundle).work
        for scale, base in ((SMALL, weights), (longer, weights), (SMALL, other), (SMALL, None))
    }
    assert len(folders) == 4


def test_errors_are_counted_clip_by_clip() -> None:
    nothing = np.zeros((3, 64), np.float16)
    clips = [Clip(nothing, Sentence("play some jazz"), "p"), Clip(nothing, Sentence("stop"), "q")]
    assert errors(clips, ["play jazz", "stop it"]) == Errors([1, 1], [3, 1], ["p", "q"])
