"""A device whose teacher follows it at every step, on made speech: seen, said and undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk import Device, DeviceSettings, LearningSettings
from device_sdk.learning import StepSettings, TeacherSettings
from server.lab.corpora.made import made_corpus
from tests.speech import packaged


@pytest.mark.slow
def test_a_teacher_that_follows_at_once_is_caught(tmp_path: Path) -> None:
    """Rao et al. 2023, table 5, right: decay and interval that diverge, without feedback and without a filter."""
    bundle = packaged()
    learning = LearningSettings(
        wait_seconds=0.0,
        passes=4,
        step=StepSettings(learning_rate=0.5),
        teacher=TeacherSettings(decay=0.0, interval=1, confidence=0.0),
    )
    utterances = made_corpus("devices", people=2, each=50, seed=5).utterances
    with Device.open(tmp_path, bytes(32), bundle, DeviceSettings(learning=learning, use_marginals=False)) as device:
        rolled_back, heard = None, 0
        while rolled_back is None and heard < len(utterances):
            device.recognize(utterances[heard].load(), 16_000)
            rolled_back = device.learn().rolled_back
            heard += 1
        assert rolled_back is not None, f"not seen in {heard} utterances"
        assert heard >= 8, "not before there is evidence"
        for name, weights in device.student.weights.items():  # what was durable is the published model again
            assert (weights == bundle.weights[name]).all(), name
