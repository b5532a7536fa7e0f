"""A device's sessions, which go on listening and remember what they heard."""

from pathlib import Path

import pytest

from device_sdk import Bundle, Device, Endpointing, EndpointRule, RecognitionSession, Result
from tests.device_sdk.devices import KEY, LIGHT
from tests.signals import noise
from tests.speech import cut

HALF_A_SECOND = Endpointing(None, None, EndpointRule(min_utterance_length=0.6))


@pytest.fixture
def device(tmp_path: Path, tiny_bundle: Bundle):
    with Device.open(tmp_path / "state", KEY, tiny_bundle) as opened:
        yield opened


def test_every_utterance_of_a_stream_is_remembered(device: Device) -> None:
    session = device.session(16_000, endpointing=HALF_A_SECOND)
    found = [event for event in session.segments(cut(iter([noise(4 * 9_600)]), 2_000)) if isinstance(event, Result)]
    assert [result.offset for result in found] == pytest.approx([0.0, 0.6, 1.2, 1.8])
    assert len({result.utterance_id for result in found}) == device.learned().utterances == 4
    for result in found:
        device.feedback(result.utterance_id, LIGHT)
    assert device.learn().utterances == 4


def test_the_next_utterance_has_the_newest_model(device: Device) -> None:
    def hear(session: RecognitionSession) -> Result:
        session.feed(noise(9_600))
        return session.finish()

    session = device.session(16_000)
    first = hear(session)
    device.feedback(first.utterance_id, LIGHT)
    assert device.learn().steps > 0
    session.reset()
    second, fresh = hear(session), hear(device.session(16_000))
    assert second.offset == pytest.approx(0.6)
    acoustic = [[hypothesis.scores.acoustic for hypothesis in each.nbest] for each in (first, second, fresh)]
    assert acoustic[0] != acoustic[1] == acoustic[2]
