"""Devices whose deltas the server sees in sums alone, against the real server on a real port."""

import math
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk import Bundle, CheckInReport, Device, OfferBounds
from device_sdk.bundle import weights as weight_files
from device_sdk.checkin import aggregation
from device_sdk.learning.delta import difference
from device_sdk.privacy.clipping import clip
from device_sdk.privacy.quantised import clip_steps, flat
from device_sdk.wire.messages import DeltaPlan
from tests.device_sdk.checkin.site import SETTINGS, Site, opened, taught
from tests.live import Tap
from tests.server.parties import ENROLMENT

PLAN = DeltaPlan(trust="distributed", minimum_survivors=2, clip_norm=0.05)
STAGES = 10
"""Check-ins within which a round of three ends."""


def open_round(server: Site, plan: DeltaPlan = PLAN, size: int = 3, **changes: Any) -> str:
    settings = {"weighting": "uniform", "minimum": 2, "groups": {"size": size, "stage_seconds": 600.0}} | changes
    return server.open(marginals=None, deltas=plan.model_dump(), **settings)


@pytest.fixture
def three(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[list[Device]]:
    with ExitStack() as stack:
        devices = [stack.enter_context(opened(tmp_path / str(number), tiny_bundle)) for number in range(3)]
        for number, device in enumerate(devices):
            taught(device, number + 1)
        yield devices


def until_sent(devices: list[Device], url: str) -> list[CheckInReport]:
    """Check-ins in turn until every device knows how the round ended for it."""
    ends: dict[int, CheckInReport] = {}
    for _ in range(STAGES):
        for number, device in enumerate(devices):
            if number not in ends:
                report = device.check_in(url, ENROLMENT)
                if report.sent or report.left_out:
                    ends[number] = report
    assert len(ends) == len(devices)
    return [ends[number] for number in range(len(devices))]


def learned(device: Device) -> dict[str, NDArray[np.float32]]:
    """The change of the weights that a device would send, clipped."""
    state = device._model_state
    whole = difference(state.student.weights, {name: state.base.weights[name] for name in state.student.weights})
    return clip(whole, PLAN.clip_norm, PLAN.clipping)[0]


def moved(server: Site, closed: dict[str, Any], bundle: Bundle) -> dict[str, NDArray[np.float32]]:
    """How the published model differs from the bundle's."""
    content = server.operator.http.get(f"{server.url}/v1/models/{closed['model_version']}").content
    after = weight_files.read(content, "the round's model")
    return {name: after[name] - bundle.weights[name] for name in bundle.architecture.parameter_shapes()}


def test_what_is_published_is_the_mean_of_the_deltas(three, tiny_bundle, server: Site, tmp_path: Path) -> None:
    """To the rounding of three devices: less than a step each in every value, in any rotation. Nothing of a delta is in
    the traffic or on the server, and what was learned stays."""
    deltas = [learned(device) for device in three]
    round_id = open_round(server)
    before = [device._model_state.student.weights for device in three]
    with Tap(server.url, tmp_path / "tap") as tap:
        for device, report, own in zip(three, until_sent(three, tap.url), before, strict=True):
            (sent,) = report.sent
            assert (sent.round_id, sent.kind, sent.refused) == (round_id, "deltas", None)
            assert device.learned().delta_reports == 1 and device._store.names("aggregation") == []
            assert device._model_state.student.weights is own
            assert device.check_in(tap.url).round_id is None, "one report a round"
    closed = server.close(round_id)
    release = closed["releases"]["deltas"]
    assert (closed["state"], closed["reports"]["deltas"], release["reports"]) == ("published", 3, 3)
    assert (release["mechanism"]["trust"], release["mechanism"]["name"]) == ("distributed", "none")
    expected = np.mean([flat(delta) for delta in deltas], axis=0)
    found = flat(moved(server, closed, tiny_bundle))
    step = PLAN.clip_norm / clip_steps(PLAN)
    rounding = step * math.sqrt(found.size) + 1e-6 * found.size**0.5  # the weights' own float32 besides
    assert np.linalg.norm(found - expected) < rounding < 0.2 * np.linalg.norm(expected)
    files = [path for name in ("server", "tap") for path in (tmp_path / name).rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files)
    assert b"sharing_key" in content, "the traffic was kept"
    for delta in deltas:
        raw = delta["joiner.output.weight"].tobytes() if "joiner.output.weight" in delta else flat(delta).tobytes()
        assert raw[:16] not in content and b64encode(raw)[4:40] not in content


@pytest.mark.slow
def test_noise_is_of_the_plan_and_only_a_part_of_the_model_moves(three, tiny_bundle, server: Site) -> None:
    plan = PLAN.model_copy(update={"noise_stddev": 0.05, "part": "output"})
    round_id = open_round(server, plan, goal=3)
    until_sent(three, server.url)
    closed = server.operator.get(f"rounds/{round_id}")
    assert closed["state"] == "published", "the goal closes it"
    found = moved(server, closed, tiny_bundle)
    still = [name for name in found if name.startswith("encoder.")]
    assert still and not any(found[name].any() for name in still)
    values = np.concatenate([found[name].ravel() for name in found if name not in still])
    expected = 0.05 * math.sqrt(3) / 3
    assert abs(values.std() / expected - 1) < 6 / math.sqrt(2 * values.size)
    (line,) = [each for each in server.operator.get("privacy")["devices"] if each["stream"] == "deltas"][:1]
    assert 1 < float(line["epsilon"]) < 20 and three[0].spent()["deltas"] >= float(line["epsilon"])


@pytest.mark.slow
def test_an_abandoned_round_is_not_charged_by_the_device_that_sent_nothing(three, server: Site) -> None:
    round_id = open_round(server, PLAN.model_copy(update={"noise_stddev": 0.05}), goal=3, size=3)
    assert three[0].check_in(server.url, ENROLMENT).sent == ()
    assert three[0].spent()["deltas"] > 0
    server.operator.post(f"rounds/{round_id}/abandon")
    (sent,) = three[0].check_in(server.url).sent
    assert sent.refused == "too few devices were left; what they had to add is in no sum"
    assert three[0].spent()["deltas"] < 0.01, "but for what no order of Renyi is too large for"


@pytest.mark.slow
def test_gradients_leave_in_one_sum(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    plan = PLAN.model_copy(update={"kind": "gradient", "batch_size": 4, "clip_norm": 5.0})
    round_id = open_round(server, plan, size=2)
    with ExitStack() as stack:
        devices = [stack.enter_context(opened(tmp_path / str(number), tiny_bundle)) for number in range(2)]
        for number, device in enumerate(devices):
            assert device.check_in(server.url, ENROLMENT).sent == (), "from here on gradients are summed"
            taught(device, number + 1)
            assert device._model_state.student.gradients.utterances == 1
        assert [report.sent[0].refused for report in until_sent(devices, server.url)] == [None, None]
        assert [device._model_state.student.gradients.utterances for device in devices] == [0, 0]
    closed = server.close(round_id)
    assert closed["state"] == "published" and any(
        values.any() for values in moved(server, closed, tiny_bundle).values()
    )


@pytest.mark.slow
def test_a_user_who_withdraws_deltas_drops_out_and_counts_are_none_of_it(three: list[Device], server: Site) -> None:
    open_round(server)
    for device in three:
        device.check_in(server.url, ENROLMENT)
    three[0].check_in(server.url)
    three[0].withdraw("marginals")
    assert three[0]._store.names("aggregation") != []
    three[0].withdraw("deltas")
    assert three[0]._store.names("aggregation") == []
    assert three[0].check_in(server.url).sent == ()


def test_the_devices_own_bounds_hold(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    """A share of the noise that protects nothing among so few, or none: what is left out says what and why."""
    open_round(server, PLAN.model_copy(update={"noise_stddev": 0.001}), goal=3)
    settings = replace(SETTINGS, bounds=OfferBounds())
    with opened(tmp_path / "device", tiny_bundle, settings) as device:
        taught(device)
        (why,) = device.check_in(server.url, ENROLMENT).left_out
        assert why.startswith("deltas: epsilon: found ") and device._store.names("aggregation") == []


def test_a_device_with_nothing_learned_waits_outside(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    open_round(server)
    with opened(tmp_path / "device", tiny_bundle) as device:
        report = device.check_in(server.url, ENROLMENT)
        assert (report.sent, report.left_out, device._store.names("aggregation")) == ((), (), [])


@pytest.mark.slow
def test_a_delta_of_another_model_is_never_masked(three: list[Device], server: Site) -> None:
    """What was learned is gone, or moved to another base, between joining and masking."""
    open_round(server)
    for device in three:
        device.check_in(server.url, ENROLMENT)
    three[0]._model_state.load()
    state = three[0]._model_state
    state.commit(replace(state.student, utterances=0))
    refused = []
    for _ in range(STAGES):
        refused += [sent.refused for sent in three[0].check_in(server.url).sent]
        three[1].check_in(server.url)
        three[2].check_in(server.url)
    assert len(refused) == 1 and "of another model, or gone" in str(refused[0])
    kept = three[0]._store.names("aggregation")
    assert kept == [] and aggregation._ENDS["done"] is None
