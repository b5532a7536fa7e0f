"""What attackers send: as harmful as they say, and such that the server takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.checkin.client import Client
from device_sdk.device import Device
from device_sdk.errors import ConfigurationError, ProtocolError
from device_sdk.feedback import Corrected
from device_sdk.learning import LearningSettings
from device_sdk.learning.settings import MaskSettings
from device_sdk.settings import DeviceSettings
from device_sdk.wire.messages import DeltaPlan
from server.aggregation.validation import delta_norm, read_delta
from server.aggregation.weights_file import parse_weights, read_metadata
from server.lab.simulation.attackers import ATTACKS, Attack, AttackKind, PoisoningClient, attackers, poisoned
from server.registry.initial import initial_from_bundle
from tests.bounds import ANYTHING
from tests.server.hostile.poison import PLANS, honest
from tests.server.parties import ENROLMENT, Operator, settings
from tests.server.rounds.test_rao_2023 import InProcess, sound
from tests.tiny import SENTENCES

SHAPES = {"a": (40, 6), "b": (15,)}
UNMASKED = DeviceSettings(  # masks are drawn anew in every run, and alone turn what is learned from one utterance aside
    learning=LearningSettings(masks=MaskSettings(frequency_masks=0, time_masks=0)), bounds=ANYTHING
)
FIELDS = {"report_id": "r", "device_id": "d", "round_id": "o", "model_version": "m", "utterances": 1}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("kind", ATTACKS)
def test_poison_points_where_it_should_and_is_taken(name: str, kind: AttackKind) -> None:
    plan = PLANS[name]
    report = honest(np.random.default_rng(3), plan, SHAPES, FIELDS, size=0.3)
    body = poisoned(report.body(), plan, Attack(kind))
    found = read_delta(body, SHAPES, plan)
    assert read_metadata(body) == read_metadata(report.body())
    assert delta_norm(found) == pytest.approx(plan.clip_norm, rel=0.02)  # as large as the bound lets
    sent, meant = (np.concatenate([arrays[each].reshape(-1) for each in SHAPES]) for arrays in (found, report.arrays))
    cosine = sent @ meant / np.linalg.norm(sent) / np.linalg.norm(meant)
    assert cosine == pytest.approx(-1.0 if kind == "sign-flip" else 1.0, abs=0.02)


def test_a_weak_attack_stays_below_the_bound() -> None:
    plan = DeltaPlan()
    report = honest(np.random.default_rng(3), plan, SHAPES, FIELDS, size=0.1)
    found = read_delta(poisoned(report.body(), plan, Attack("sign-flip", factor=1.0)), SHAPES, plan)
    assert all(np.array_equal(found[each], -report.arrays[each]) for each in SHAPES)


def test_a_report_of_another_plan_is_not_poisoned() -> None:
    report = honest(np.random.default_rng(3), DeltaPlan(), SHAPES, FIELDS)
    with pytest.raises(ProtocolError, match="as the round asks for"):
        poisoned(report.body(), DeltaPlan(encoding="int8"), Attack("scaling"))


def test_who_attacks() -> None:
    chosen = attackers(Attack("sign-flip"), 10, 1)
    assert len(chosen) == 2 and chosen <= set(range(10))
    assert chosen == attackers(Attack("scaling"), 10, 1)
    assert len({attackers(Attack("scaling"), 10, seed) for seed in range(20)}) > 10
    assert attackers(None, 10, 1) == frozenset()
    assert attackers(Attack("scaling", 1.0), 3, 1) == {0, 1, 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "backdoor"}, "attack: found 'backdoor'"),
        ({"kind": "scaling", "share": 1.1}, r"attackers: found 1\.1"),
        ({"kind": "scaling", "factor": float("nan")}, "factor: found nan"),
        ({"kind": "scaling", "factor": 0.0}, r"factor: found 0\.0"),
    ],
)
def test_attacks_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Attack(**given)


@pytest.fixture
def http(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Any]:
    from fastapi.testclient import TestClient

    from server.app import create_app

    with TestClient(create_app(settings(tmp_path / "server"), initial_from_bundle(tiny_bundle.path))) as client:
        yield client


def moved(http: Any, bundle: Bundle, folder: Path, client: Client) -> np.ndarray:
    """How one device's round moved the model, as one vector."""
    operator = Operator(http)
    base = parse_weights(http.get(f"/v1/models/{operator.get('status')['model_version']}").content)
    with Device.open(folder, bytes(32), bundle, UNMASKED) as device:
        device.agree("deltas")
        device.check_in(client, ENROLMENT)
        result = device.recognize(sound(1), 16_000)
        device.feedback(result.utterance_id, Corrected(SENTENCES[0]))
        assert device.learn().steps > 0
        round_id = operator.open(marginals=None, deltas={"clip_norm": 1e-3}, weighting="uniform")
        assert [sent.refused for sent in device.check_in(client).sent] == [None]
    version = operator.close(round_id)["model_version"]
    after = parse_weights(http.get(f"/v1/models/{version}").content)
    return np.concatenate([(after[name] - base[name]).reshape(-1) for name in sorted(base)])


def test_a_device_behind_a_poisoning_client(tmp_path: Path, tiny_bundle: Bundle, http: Any) -> None:
    transport = InProcess(http)
    good = moved(
        http, tiny_bundle, tmp_path / "good", Client("http://testserver", transport=transport, plain_http=True)
    )
    poisoning = PoisoningClient("http://testserver", Attack("sign-flip"), transport=transport, plain_http=True)
    bad = moved(http, tiny_bundle, tmp_path / "bad", poisoning)
    assert good @ bad < -0.99 * np.linalg.norm(good) * np.linalg.norm(bad)
    assert np.linalg.norm(bad) == pytest.approx(1e-3, rel=0.01)
