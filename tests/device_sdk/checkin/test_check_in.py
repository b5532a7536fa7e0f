"""A device against the real server on a real port."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, CheckInError, Client, Device, DeviceSettings
from device_sdk.features import logmel
from device_sdk.learning import MaskSettings, TeacherSettings
from device_sdk.runtimes.training import TrainingSession
from tests.device_sdk.checkin.site import KEY, SETTINGS, Site, fails, heard, opened, taught
from tests.live import LosesReports
from tests.server.parties import ENROLMENT
from tests.signals import hiss

COLLECTED = {"kind": "gradient", "batch_size": 2, "clip_norm": 1e6}


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Device]:
    with opened(tmp_path / "device", tiny_bundle) as found:
        yield found


def test_a_round_from_enrolment_to_the_new_model(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    round_id = server.open(deltas={"clip_norm": 10.0})
    with opened(tmp_path / "device", tiny_bundle) as device:
        with pytest.raises(CheckInError, match="not enrolled there"):
            device.check_in(server.url)
        taught(device)
        local = device.student.weights
        report = device.check_in(server.url, ENROLMENT)
        assert report.round_id == round_id
        assert [(sent.kind, sent.refused) for sent in report.sent] == [("marginals", None), ("deltas", None)]
        assert report.bytes_up > sum(sent.size for sent in report.sent) > 0 and not report.new_model
        assert device.check_in(server.url).sent == ()
        assert device.student.steps == 1, "local weights stay until a new base comes"
        closed = server.close(round_id)
        assert closed["state"] == "published", closed
        report = device.check_in(server.url)
        assert report.new_model and report.new_marginals
        assert device.model_version == closed["model_version"] != tiny_bundle.version and device.student.steps == 0
        for name, array in device.base.weights.items():
            expected = local[name] if name in local else tiny_bundle.weights[name]
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)  # one device: the mean is its own model
        light = tiny_bundle.words.id("light")
        assert device._model_state.marginals[light] > tiny_bundle.background[light]
        learned = device.learned()
        assert (learned.marginal_reports, learned.delta_reports, learned.utterances) == (1, 1, 1)
    with opened(tmp_path / "device", tiny_bundle) as device:
        assert device.model_version == closed["model_version"]
        assert device.learned().marginals_version == report.marginals_version
        device.recognize(np.zeros(9600, np.float32), 16_000)


def test_what_was_taught_stays_on_a_new_base_and_leaves_once(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    first = server.open(deltas={"clip_norm": 10.0})
    kept = replace(SETTINGS, learning=replace(SETTINGS.learning, keep=1.0))
    with (
        opened(tmp_path / "one", tiny_bundle, kept) as one,
        opened(tmp_path / "other", tiny_bundle, kept, bytes(32)) as other,
    ):
        taught(one, 1)
        taught(other, 2)
        moved = {name: array - tiny_bundle.weights[name] for name, array in one.student.weights.items()}
        for device in (one, other):
            device.check_in(server.url, ENROLMENT)
        server.close(first)
        assert one.check_in(server.url).new_model
        start = one.student.start
        assert start is not None and one.student.steps == 0
        own = sum(float(np.vdot(start[name] - one.base.weights[name], array)) for name, array in moved.items())
        assert own > 0.0, "of its own move, what the mean has not taken up is still there"
        second = server.open(deltas={"clip_norm": 10.0})
        taught(one, 3)
        step = {name: array - start[name] for name, array in one.student.weights.items()}
        other.check_in(server.url)  # takes the new base, and has learned nothing on it
        one.check_in(server.url)
        before = {name: np.array(array) for name, array in one.base.weights.items()}
        server.close(second)
        assert one.check_in(server.url).new_model
        for name, array in step.items():  # the one report of this round is of the steps of this round
            np.testing.assert_allclose(one.base.weights[name] - before[name], array, atol=1e-6)
    with Device.open(tmp_path / "one", KEY, tiny_bundle, kept) as one:
        assert one.student.start is not None
        one.recognize(np.zeros(9600, np.float32), 16_000)


def test_without_the_users_consent_nothing_is_sent(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    server.open(deltas={})
    with Device.open(tmp_path / "new", KEY, tiny_bundle) as device:
        taught(device)
        assert device.check_in(server.url, ENROLMENT).sent == ()
    with opened(tmp_path / "silent", tiny_bundle, DeviceSettings(share_marginals=False, share_deltas=False)) as device:
        taught(device)
        assert device.check_in(server.url, ENROLMENT).sent == (), "the app does not offer it"


def test_a_server_that_is_down_costs_nothing(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    """A report whose receipt was lost is counted once; one of a round that ended meanwhile goes into the next."""
    first = server.open(deltas={"clip_norm": 10.0})
    with opened(tmp_path / "device", tiny_bundle) as device:
        taught(device)
        fails(device, server.url, delivered=True)
        fails(device, "http://127.0.0.1:9")
    with opened(tmp_path / "device", tiny_bundle) as device:
        report = device.check_in(server.url)
        assert [(sent.kind, sent.duplicate) for sent in report.sent] == [("marginals", True), ("deltas", False)]
        assert server.operator.get(f"rounds/{first}")["reports"] == {"marginals": 1, "deltas": 1, "words": 0}
        server.close(first)
        second = server.open()
        heard(device)
        fails(device, server.url)
        assert device._model_state.cache.pending.sum() == 0
        server.close(second)
        third = server.open()
        report = device.check_in(server.url)
        assert [(sent.round_id, sent.refused is None) for sent in report.sent] == [(second, False), (third, True)]
        assert "round_closed" in str(report.sent[0].refused) and device.learned().marginal_reports == 2


def test_a_check_in_that_fails_names_what_was_sent_before(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    server.open(deltas={"clip_norm": 10.0})
    with opened(tmp_path / "device", tiny_bundle) as device:
        taught(device)
        line = Client(server.url, transport=LosesReports("/deltas"), pause=lambda seconds: None)
        with line as client, pytest.raises(CheckInError, match="no usable answer") as raised:
            device.check_in(client, ENROLMENT)
        assert [(sent.kind, sent.refused) for sent in raised.value.sent] == [("marginals", None)]
        assert [(sent.kind, sent.duplicate) for sent in device.check_in(server.url).sent] == [("deltas", False)]


def test_mode_paper_sends_all_counts_so_far_in_every_round(device: Device, server: Site) -> None:
    """Released counts grow from round to round as the device's own do; what the user takes back is not sent again."""
    for seed, expected in ((1, 4.0), (2, 8.0), (3, 4.0)):
        round_id = server.open(marginals={"mode": "paper", "epsilon": 1e6})
        heard(device, seed)
        assert [sent.refused for sent in device.check_in(server.url, ENROLMENT).sent] == [None]
        server.close(round_id)
        current = server.operator.get("marginals")["current"]
        found = server.operator.get(f"marginals/{current}", params={"top": 10000})["top"]
        words = [device.base.words.id(word) for word in ("turn", "on", "the", "light")]
        released = sum(entry["released_count"] for entry in found if entry["word_id"] in words)
        assert released == pytest.approx(expected, abs=0.1)
        if seed == 2:
            device.withdraw("marginals")
            device.agree("marginals")


def gradient_of(bundle: Bundle, seed: int) -> dict[str, np.ndarray]:
    """The gradient at the bundle's weights that a device without masks takes of :func:`taught`'s utterance."""
    tokens = bundle.tokenizer.encode("turn on the light")
    found = TrainingSession(bundle).run(
        dict(bundle.weights), logmel(hiss(seed), bundle.features), (tuple(tokens),), np.ones(1, np.float32)
    )
    return dict(found.gradients)


def test_gradients_are_of_the_published_weights_and_sent_once(tmp_path: Path, tiny_bundle, server: Site) -> None:
    """FedSGD in a single pass: the server descends the mean of exactly the gradients of what was heard."""
    unmasked = MaskSettings(frequency_masks=0, time_masks=0)
    settings = replace(SETTINGS, learning=replace(SETTINGS.learning, masks=unmasked))
    asked = {"deltas": COLLECTED, "optimizer": {"kind": "sgd", "learning_rate": 0.01}}
    first = server.open(**asked)
    with opened(tmp_path / "device", tiny_bundle, settings) as device:
        assert [sent.kind for sent in device.check_in(server.url, ENROLMENT).sent] == [], "it learns what to collect"
        for seed in (1, 2, 3):
            heard(device, seed)
        report = device.learn()
        assert (report.utterances, report.steps) == (2, 0), "a batch, and no local step"
        assert "gradient" in report.stopped
        for name, array in device.student.weights.items():
            np.testing.assert_array_equal(array, tiny_bundle.weights[name])
    with opened(tmp_path / "device", tiny_bundle, settings) as device:  # it is kept over a restart
        assert device.student.gradients is not None and device.student.gradients.utterances == 2
        assert "deltas" in [sent.kind for sent in device.check_in(server.url).sent]
        assert device.student.gradients is not None and device.student.gradients.utterances == 0
        closed = server.close(first)
        assert device.check_in(server.url).new_model
        sums = [gradient_of(tiny_bundle, seed) for seed in (1, 2)]
        for name, array in device.base.weights.items():
            mean = sum(each[name] for each in sums) / 2 if name in sums[0] else 0.0
            np.testing.assert_allclose(array, tiny_bundle.weights[name] - 0.01 * mean, rtol=1e-4, atol=1e-5)
        second = server.open(**asked)
        device.check_in(server.url)
        assert device.check_in(server.url).sent == (), "nothing that was sent is sent again"
        assert server.close(second)["reports"] == {"marginals": 1, "deltas": 0, "words": 0}
        assert closed["reports"] == {"marginals": 0, "deltas": 1, "words": 0}
        third = server.open(deltas={"clip_norm": 10.0})
        device.check_in(server.url)
        assert device.student.gradients is None, "and steps are taken again where a plan asks for differences"
        taught(device, 4)
        assert device.student.steps == 1 and "deltas" in [sent.kind for sent in device.check_in(server.url).sent]
        assert server.close(third)["state"] == "published"


@pytest.mark.parametrize(("encoding", "clipping", "most"), [("float16", "uniform", 2.1), ("int8", "dim", 1.3)])
def test_encoding(device: Device, tiny_bundle: Bundle, server: Site, encoding: str, clipping: str, most: float) -> None:
    round_id = server.open(deltas={"clip_norm": 10.0, "encoding": encoding, "clipping": clipping})
    taught(device)
    (sent,) = [each for each in device.check_in(server.url, ENROLMENT).sent if each.kind == "deltas"]
    assert sent.refused is None
    local = dict(device.student.weights)
    assert sent.size < most * sum(array.size for array in local.values())
    server.close(round_id)
    assert device.check_in(server.url).new_model
    off = sum(float(np.square(device.base.weights[name] - array).sum()) for name, array in local.items())
    moved = sum(float(np.square(array - tiny_bundle.weights[name]).sum()) for name, array in local.items())
    assert off < 0.03**2 * moved


def test_adapters_take_no_part_in_rounds_of_gradients(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    """Their gradients are of factors; they go on with steps of their own, also where another subset had collected."""
    round_id = server.open(deltas=COLLECTED)
    with opened(tmp_path / "device", tiny_bundle) as device:
        assert device.check_in(server.url, ENROLMENT).left_out == () and device.student.gradients is not None
    adapters = replace(SETTINGS, learning=replace(SETTINGS.learning, subset="adapters"))
    with opened(tmp_path / "device", tiny_bundle, adapters) as device:
        assert device.student.gradients is None
        taught(device)
        assert device.student.steps == 1
        report = device.check_in(server.url)
        (why,) = report.left_out
        assert why.startswith("deltas: found a round that collects gradients") and "'adapters'" in why
        assert "deltas" not in [sent.kind for sent in report.sent]
        server.close(round_id)
        server.open(deltas={"clip_norm": 10.0})
        report = device.check_in(server.url)
        assert report.left_out == () and "deltas" in [sent.kind for sent in report.sent]


def test_the_servers_teacher_labels_where_the_app_wants_it(tmp_path: Path, tiny_bundle: Bundle, server: Site) -> None:
    plan = {"deltas": {"clip_norm": 10.0}, "teacher": {"decay": 0.5, "interval": 1}}
    first = server.open(**plan)
    scheduled = TeacherSettings(schedule="server", interval=1, decay=0.0)
    follows = replace(SETTINGS, learning=replace(SETTINGS.learning, teacher=scheduled))
    with (
        opened(tmp_path / "one", tiny_bundle, follows) as one,
        opened(tmp_path / "other", tiny_bundle, key=bytes(32)) as other,
    ):
        taught(one)
        assert one.student.teacher_version is None, "there is none yet: the local one follows"
        one.check_in(server.url, ENROLMENT)
        server.close(first)
        report = one.check_in(server.url)
        assert report.teacher_version is not None
        assert report.teacher_version == one.student.teacher_version != one.model_version
        for name, array in one.student.teacher.items():  # half of what it was, half of the new model
            half = 0.5 * tiny_bundle.weights[name] + 0.5 * one.base.weights[name]
            np.testing.assert_allclose(array, half, rtol=1e-5, atol=1e-6)
        before = one.student.teacher
        taught(one, 2)
        assert one.student.steps == 1
        assert all(np.array_equal(one.student.teacher[name], array) for name, array in before.items())
        assert {"local", "published_teacher"} <= set(one._store.names("weights"))
        assert one._store.get("weights", "teacher") is None, "what the server has published is not stored again"
        assert other.check_in(server.url, ENROLMENT).teacher_version is None, "another app keeps its own"
    with opened(tmp_path / "one", tiny_bundle, follows) as one:
        assert (one.student.teacher_version, one.student.steps) == (report.teacher_version, 1)
        assert all(np.array_equal(one.student.teacher[name], array) for name, array in before.items())
        second = server.open(deltas=plan["deltas"])
        one.check_in(server.url)
        server.close(second)
        assert one.check_in(server.url).teacher_version is None, "the server keeps none any more"
        assert all(np.array_equal(one.student.teacher[name], one.student.weights[name]) for name in before)
    with opened(tmp_path / "one", tiny_bundle) as one:
        one.recognize(np.zeros(9600, np.float32), 16_000)
