"""What the user has agreed to, and what withdrawing it undoes."""

import itertools
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, ConfigurationError, Corrected, Device, DeviceSettings, StateError
from device_sdk.consent import STREAMS, Consent, Stream, from_bytes, to_bytes
from device_sdk.learning import StepSettings
from device_sdk.state import Store
from device_sdk.state.outbox import Outgoing, discard, keep, waiting
from tests.device_sdk.devices import KEY, LIGHT, quick, tell
from tests.signals import noise

SETTINGS = quick(cost_weight=0.0, step=StepSettings(learning_rate=0.05))
SERVER = "http://server.test"
ZUGZWANG = Corrected("stop the zugzwang")


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle):
    with Device.open(tmp_path / "state", KEY, tiny_bundle, SETTINGS) as opened:
        yield opened


def taught(device: Device, seed: int = 1) -> None:
    tell(device, seed)
    device.learn()


def heard(device: Device, seed: int = 1) -> str:
    return device.recognize(noise(9600, seed), 16_000).utterance_id


def due(device: Device) -> float:
    return float(device._model_state.cache.pending.sum())


def test_every_consent_is_stored_as_it_is() -> None:
    assert Consent() == Consent(counting=True, learning=True, marginals=False, deltas=False, words=False)
    for choice in itertools.product((True, False), repeat=len(STREAMS)):
        consent = Consent(*choice)
        assert from_bytes(to_bytes(consent)) == consent
        for stream in STREAMS:
            assert getattr(consent.agreed(stream), stream) and not getattr(consent.withdrawn(stream), stream)
            assert consent.agreed(stream).withdrawn(stream) == consent.withdrawn(stream)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"counting": 1}', b"\xff", to_bytes(Consent()) + b","])
def test_an_unreadable_consent_is_refused(content: bytes) -> None:
    with pytest.raises(StateError, match="settings/consent"):
        from_bytes(content)


def test_a_stream_that_is_none_changes_nothing(device: Device) -> None:
    for change in (device.agree, device.withdraw):
        with pytest.raises(ConfigurationError, match="found 'audio', expected one of 'counting', 'learning'"):
            change("marginals", "audio")  # type: ignore[arg-type]
    assert device.consent == Consent()


def test_consent_and_words_given_outlive_the_process(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        device.agree("deltas", "words")
        device.withdraw("counting")
        tell(device, 1, ZUGZWANG)
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        assert device.consent == Consent(counting=False, deltas=True, words=True)
        assert device._model_state.given == {"zugzwang": 1}
        device.forget()
        assert device.consent == Consent(), "whoever comes next has agreed to nothing"
        assert device._model_state.given == {} and device._store.names("counts") == []


def test_what_was_said_before_the_user_agreed_is_never_due(device: Device) -> None:
    before = heard(device)
    assert due(device) == 0.0
    device.agree("marginals")
    device.feedback(before, LIGHT)  # late, of an utterance before the consent
    assert device._model_state.cache.counts.sum() == 4.0 and due(device) == 0.0
    tell(device, 2, Corrected("stop the radio"))
    assert due(device) == 3.0 and device._model_state.cache.pending_utterances == 1


def test_what_was_learned_before_the_user_agreed_is_no_part_of_a_delta(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        taught(device)
        before = device.student.weights
        device.agree("deltas")
        assert device.student.utterances == 0
        taught(device, 2)
    with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
        assert (device.student.steps, device.student.utterances) == (2, 1) and device.student.start is not None
        for name, array in before.items():
            np.testing.assert_array_equal(device.student.start[name], array)
        assert any(not np.array_equal(device.student.weights[name], before[name]) for name in before)


def test_agreeing_again_does_not_start_again(device: Device) -> None:
    device.agree("marginals", "deltas")
    taught(device)
    before = due(device)
    device.agree("marginals", "deltas", "learning")
    assert device.student.start is None and device.student.utterances == 1 and due(device) == before > 0


def test_withdrawing_deletes_what_waits_of_that_stream_alone(tmp_path: Path) -> None:
    with closing(Store(tmp_path, KEY)) as store:
        for number, kind in enumerate(("marginals", "deltas", "marginals")):
            keep(store, Outgoing(f"{number:032x}", SERVER, kind, "r1", b"body"))  # type: ignore[arg-type]
        under_way = waiting(store, SERVER)
        assert next(under_way).report_id == f"{0:032x}" and discard(store, "marginals") == 2
        assert [report.kind for report in under_way] == ["deltas"], "a check-in under way sends no more of it"


def test_withdrawing_marginals_takes_back_what_is_due(device: Device) -> None:
    device.agree("marginals")
    utterance = heard(device)
    device.feedback(utterance, Corrected("turn on"))
    counted = device._model_state.cache.counts.copy()
    assert due(device) > 0.0
    device.withdraw("marginals")
    assert due(device) == 0.0
    np.testing.assert_array_equal(device._model_state.cache.counts, counted)
    device.agree("marginals")
    device.feedback(utterance, LIGHT)
    assert due(device) == 0.0, "what was withdrawn stays withdrawn"


def test_words_are_noted_from_the_consent_on_and_gone_with_it(device: Device) -> None:
    before = heard(device)
    device.feedback(before, Corrected("turn on the lungo"))
    device.agree("words")
    device.feedback(before, Corrected("turn on the cortado"))  # late, of an utterance before the consent
    assert device._model_state.given == {}
    after = heard(device, 2)
    device.feedback(after, Corrected("stop the babyccino"))
    device.feedback(after, Corrected("stop the zugzwang"))
    assert device._model_state.given == {"zugzwang": 1}
    device.withdraw("words")
    assert device._model_state.given == {} and device._store.get("counts", "given") is None
    device.agree("words")
    device.feedback(after, Corrected("stop the zugzwang at once"))
    assert device._model_state.given == {}, "what was withdrawn stays withdrawn"


@pytest.mark.parametrize("others", [("counting",), ("learning",), ("counting", "learning")])
def test_words_need_no_other_consent(device: Device, others: tuple[Stream, ...]) -> None:
    device.withdraw(*others)
    device.agree("words")
    tell(device, 1, ZUGZWANG)
    assert device._model_state.given == {"zugzwang": 1}


def test_words_that_an_app_does_not_share_are_not_noted(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings(share_words=False)) as device:
        device.agree("words")
        tell(device, 1, ZUGZWANG)
        assert device._model_state.given == {} and "never sent but for" in device.learned().describe()[1]


def test_without_counting_nothing_is_counted(device: Device) -> None:
    device.withdraw("counting")
    silent = heard(device)
    device.feedback(silent, LIGHT)
    assert device.learned().utterances == 0
    device.agree("counting")
    device.feedback(silent, LIGHT)
    assert device.learned().utterances == 0, "what was never counted is not mended"
    heard(device, 2)
    assert device.learned().utterances == 1


def test_without_learning_nothing_is_learned_nor_kept_for_it(device: Device) -> None:
    device.feedback(heard(device), LIGHT)
    device.withdraw("learning")
    assert device.learn().stopped == "the user has not agreed to learning"
    late = heard(device, 2)
    assert {len(example.features) for example in device._recent._examples.values()} == {0}
    device.agree("learning")
    device.feedback(late, Corrected("stop the radio"))  # still mends the counts
    assert device.learn().utterances == 0
    taught(device, 3)
    assert device.student.steps == 1


def test_learning_under_way_stops_between_utterances(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        tell(device, seed)
    asked = []

    def withdraw_at_the_second() -> bool:
        asked.append(True)
        if len(asked) == 2:
            device.withdraw("learning")
        return False

    report = device.learn(stop=withdraw_at_the_second)
    assert report.utterances <= 2 and device.student.steps == report.steps


def test_consent_that_cannot_be_kept_is_not_given(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, table: str, name: str, value: bytes) -> None:
        raise StateError("state.sqlite: database or disk is full")

    taught(device)
    student = device.student
    with monkeypatch.context() as patch, pytest.raises(StateError, match="full"):
        patch.setattr(Store, "put", full)
        device.agree("marginals", "deltas")
    assert device.consent == Consent() and device.student is student
