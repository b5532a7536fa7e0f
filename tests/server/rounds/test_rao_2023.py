"""The setting of Rao et al. 2023 with few of everything: real devices, FedSGD, Adam, a teacher, pseudo-devices, a
series."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.checkin.client import Client
from device_sdk.device import Device
from device_sdk.feedback import Corrected
from device_sdk.learning import LearningSettings, TeacherSettings
from device_sdk.settings import DeviceSettings
from server.lab.corpora.utterance import Utterance
from server.lab.rehearsal import PseudoDevices
from server.plans.round import PRESETS
from server.registry.initial import initial_from_bundle
from tests.bounds import ANYTHING
from tests.server.parties import ENROLMENT, Operator, settings
from tests.tiny import SENTENCES

DEVICES, ROUNDS, BATCH = 2, 3, 2
FOLLOWS = DeviceSettings(
    learning=LearningSettings(wait_seconds=0.0, teacher=TeacherSettings(schedule="server")), bounds=ANYTHING
)


class InProcess(httpx.BaseTransport):
    """Hands a device's requests to starlette's test client."""

    def __init__(self, http: Any) -> None:
        self._http = http

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        answer = self._http.request(request.method, str(request.url), headers=headers, content=request.read())
        stream = httpx.ByteStream(answer.content)  # which may be read as it comes
        return httpx.Response(answer.status_code, headers=dict(answer.headers), stream=stream)


def sound(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=8000) * 0.05).astype(np.float32)


@pytest.fixture
def http(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Any]:
    from fastapi.testclient import TestClient

    from server.app import create_app

    corpus = [Utterance(f"u{n}", "old", SENTENCES[n], None, True, lambda n=n: sound(100 + n)) for n in range(5)]
    app = create_app(
        settings(tmp_path / "server", keep_models=2),
        initial_from_bundle(tiny_bundle.path),
        rehearse=PseudoDevices(tiny_bundle, corpus),
    )
    with TestClient(app) as client:
        yield client


def test_its_setting_in_small(tmp_path: Path, tiny_bundle: Bundle, http: Any, operator: Operator) -> None:
    whole = PRESETS["rao-2023"].model_dump(mode="json")
    small = whole | {"goal": DEVICES, "minimum": DEVICES, "rounds": ROUNDS}
    small["deltas"] = whole["deltas"] | {"batch_size": BATCH, "encoding": "int8", "clipping": "dim", "clip_norm": 50.0}
    small["teacher"] = {"decay": 0.5, "interval": 1}
    small["rehearsal"] = whole["rehearsal"] | {"pseudo_devices": 2, "batch_size": BATCH}
    round_id = str(operator.post("rounds", json={"settings": small})["id"])
    client = Client("http://testserver", transport=InProcess(http), plain_http=True)
    with ExitStack() as stack:
        devices = []
        for number in range(DEVICES):
            device = stack.enter_context(
                Device.open(tmp_path / str(number), bytes([number]) * 32, tiny_bundle, FOLLOWS)
            )
            device.agree("deltas")
            device.check_in(client, ENROLMENT)
            devices.append(device)
        versions, teachers = [], []
        for turn in range(ROUNDS):
            for number, device in enumerate(devices):
                for each in range(BATCH):
                    result = device.recognize(sound(10 * turn + 3 * number + each), 16_000)
                    device.feedback(result.utterance_id, Corrected(SENTENCES[number]))
                report = device.learn()
                assert (report.utterances, report.steps) == (BATCH, 0)
                kinds = [sent.kind for sent in device.check_in(client).sent if sent.refused is None]
                assert kinds == ["deltas"]
            found = operator.close(round_id)  # it closes by itself at its goal; this waits for the result
            assert found["state"] == "published", found
            mechanism = found["releases"]["deltas"]["mechanism"]
            assert (mechanism["pseudo_devices"], mechanism["denominator"]) == (2, 4)
            for device in devices:
                report = device.check_in(client)
                assert (report.new_model, report.model_version) == (True, found["model_version"])
                assert report.teacher_version == found["teacher_version"] == device.student.teacher_version
            versions.append(found["model_version"])
            teachers.append(found["teacher_version"])
            underway = operator.get("status")["rounds"]
            round_id = underway[0]["id"] if underway else ""
        assert round_id == "", "the series is over"
        assert len(set(versions)) == len(set(teachers)) == ROUNDS
        student, teacher = devices[0].base.weights, devices[0].student.teacher
        step = whole["optimizer"]["learning_rate"]
        for name, array in teacher.items():
            moved = np.abs(student[name] - tiny_bundle.weights[name]).max()
            assert 0 < moved <= ROUNDS * step * 1.5, "Adam's steps are of the length of its learning rate"
            assert np.abs(array - tiny_bundle.weights[name]).max() < moved, "the teacher follows more slowly"
