"""A device whose model another project trained lives the whole life: heard, taught, reported, updated, restarted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Device
from device_sdk.bundle.architecture import Subset, trainable
from tests.device_sdk.checkin.site import KEY, SETTINGS, taught
from tests.device_sdk.checkin.updates.fleet import running
from tests.device_sdk.devices import LIGHT
from tests.export.imports.conftest import folders, imported
from tests.speech import clips

__all__ = ["folders", "imported"]
FAMILIES = ["zipformer2", "nemo"]
_STEP = replace(
    SETTINGS.learning.step, learning_rate=0.01, largest_norm=1e9
)  # of drawn weights, whose slopes are steep


@pytest.mark.parametrize("subset", ["output", "adapters", "norms", "input", "whole"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_imported_model_lives_the_whole_life(
    family: str, subset: Subset, imported: dict[str, Bundle], tmp_path: Path
) -> None:
    bundle, state = imported[family], tmp_path / "device"
    calm = replace(SETTINGS, learning=replace(SETTINGS.learning, step=_STEP, subset=subset))
    inside = trainable(bundle.architecture, subset)
    outside = [name for name in bundle.weights if name not in inside]
    with running(tmp_path / "fleet", bundle) as fleet:
        round_id = fleet.operator.open(suppression=0.0, deltas={"clip_norm": 1e3})
        with Device.open(state, KEY, bundle, calm, trusted_root=fleet.root) as device:
            device.agree("marginals", "deltas")
            for clip in clips()[:2]:
                device.feedback(device.recognize(clip, 16_000), LIGHT)
            report = device.learn()
            assert report.utterances == 2 and report.steps >= 2, report
            local = device.student.weights
            assert all((local[name] == bundle.weights[name]).all() for name in outside)
            moved = [name for name in local if (local[name] != bundle.weights[name]).any()]
            assert set(moved) == set(inside)
            sent = fleet.check_in(device).sent
            assert [(each.kind, each.refused) for each in sent] == [("marginals", None), ("deltas", None)]
            closed = fleet.operator.close(round_id)
            assert closed["state"] == "published", closed
            report = fleet.check_in(device)
            assert report.new_model and report.new_marginals and report.updates_refused == ()
            for name, array in device.base.weights.items():  # one device: the mean is its own model
                np.testing.assert_allclose(array, local[name], rtol=1e-4, atol=1e-5)
            fleet.publish("everything", 1, scale=1e-3)
            assert fleet.check_in(device).new_model and device.model_version == "everything"
            assert all((device.base.weights[name] != bundle.weights[name]).any() for name in bundle.weights)
            heard = device.recognize(clips()[0], 16_000)
            taught(device, 3)
            local = device.student.weights
        with Device.open(state, KEY, bundle, replace(calm, precision="int8"), trusted_root=fleet.root) as device:
            assert device.model_version == "everything"
            assert all((device.student.weights[name] == array).all() for name, array in local.items())
            assert device.recognize(clips()[0], 16_000).nbest and heard.nbest and device.learned().delta_reports == 1
