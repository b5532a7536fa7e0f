"""Devices that name words to a real server, with every byte of the line between them kept."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from device_sdk import Alternate, Bundle, ConfigurationError, Corrected, Device, DeviceSettings
from device_sdk.checkin.reports import restored_words
from device_sdk.state.outbox import Outgoing
from tests.bounds import ANYTHING
from tests.device_sdk.checkin.site import KEY, SETTINGS, fails, opened, site
from tests.device_sdk.privacy import canaries
from tests.device_sdk.privacy.canaries import Needles
from tests.live import Tap
from tests.server.parties import ENROLMENT, NO_NOISE, Operator
from tests.signals import noise

TWICE = {"epsilon": NO_NOISE, "max_words": 2}
"""Two words a device; what two devices name is released."""


@pytest.fixture
def line(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[tuple[Tap, Operator]]:
    with site(tmp_path / "server", tiny_bundle) as server, Tap(server.url, tmp_path / "line") as tap:
        yield tap, server.operator


def gave(device: Device, *texts: str) -> None:
    for number, text in enumerate(texts):
        heard = device.recognize(noise(9_600, number), 16_000)
        device.feedback(heard.utterance_id, (Alternate if number % 2 else Corrected)(text))


def said(folder: Path) -> bytes:
    """All that devices sent."""
    return b"".join(path.read_bytes() for path in sorted((folder / "line").glob("*.up")))


def offered(operator: Operator, **plan: Any) -> str:
    return operator.open(marginals=None, words=TWICE | plan)


def test_words_from_feedback_to_the_release(tmp_path: Path, tiny_bundle: Bundle, line: tuple[Tap, Operator]) -> None:
    """Two words are named by two devices, one by one; what was not reported, and what words stood in, never leaves."""
    tap, operator = line
    given = (
        ("turn on the cortado light", "cortado wizardry cortado", "babyccino on", "the babyccino borborygmus"),
        ("the babyccino turn", "stop cortado xylophonist", "babyccino stop cortado"),
        ("the zurichsee light", "the zurichsee zugzwang", "zurichsee"),
        ("the cortado rhododendron", "the babyccino kohlrabi"),
    )
    round_id = offered(operator)
    with ExitStack() as stack:
        fleet = []
        for number, texts in enumerate(given):
            device = stack.enter_context(opened(tmp_path / f"{number}", tiny_bundle, streams=("words",)))
            fleet.append(device)
            if number == 3:
                device.withdraw("words")
            gave(device, *texts)
            report = device.check_in(tap.url, ENROLMENT)
            assert report.round_id == round_id
            assert [(sent.kind, sent.refused) for sent in report.sent] == [("words", None)] * (number < 3)
            assert device.check_in(tap.url).sent == (), "once a round"
            assert device._model_state.given == {}, "and every word once"
            assert device.learned().word_reports == (number < 3)
        assert "named new words in 1 report, never audio or sentences" in str(fleet[0].learned())
        found = operator.close(round_id)
        assert found["reports"] == {"marginals": 0, "deltas": 0, "words": 3}
        assert found["releases"]["words"]["words"] == {"babyccino": 2, "cortado": 2}
        second = offered(operator)
        assert [device.check_in(tap.url).sent for device in fleet] == [()] * 4, "nothing was given since"
        gave(fleet[0], "the kohlrabi")
        assert [sent.refused for sent in fleet[0].check_in(tap.url).sent] == [None]
        assert operator.close(second)["releases"]["words"]["words"] == {}, "one device alone is not told of"
    sent = said(tmp_path)
    for word in ("cortado", "babyccino", "zugzwang", "kohlrabi"):
        assert Needles([canaries.text(word)]).found(sent), word
    # Of what the third device was given, "zurichsee" came most, and "zugzwang" is the only other.
    secret = ("wizardry", "borborygmus", "xylophonist", "rhododendron", "cortado light", "the zurichsee", "turn on the")
    assert Needles([canaries.text(each) for each in secret]).found(sent) == set()


def test_nothing_without_consent(tmp_path: Path, tiny_bundle: Bundle, line: tuple[Tap, Operator]) -> None:
    tap, operator = line
    operator.open(words=TWICE, deltas={})
    with opened(tmp_path / "new", tiny_bundle) as device:
        gave(device, "the zugzwang light")
        assert {sent.kind for sent in device.check_in(tap.url, ENROLMENT).sent} == {"marginals"}
        device.agree("words")
        assert device.check_in(tap.url).sent == (), "what was given before is not named"
        gave(device, "the wizardry light")
        assert {sent.kind for sent in device.check_in(tap.url).sent} == {"words"}
    sent = said(tmp_path)
    assert Needles([canaries.text("zugzwang")]).found(sent) == set()
    assert Needles([canaries.text("wizardry")]).found(sent)


def test_receipts_are_lost_and_words_come_back(tmp_path: Path, tiny_bundle: Bundle, line: tuple[Tap, Operator]) -> None:
    tap, operator = line
    first = offered(operator)
    with opened(tmp_path / "device", tiny_bundle, streams=("words",)) as device:
        gave(device, "the zugzwang light", "the wizardry zugzwang cortado")
        fails(device, tap.url, delivered=True)
    with Device.open(tmp_path / "device", KEY, tiny_bundle, SETTINGS) as device:
        (sent,) = device.check_in(tap.url).sent
        assert (sent.kind, sent.duplicate, sent.refused) == ("words", True, None)
        assert operator.close(first)["reports"]["words"] == 1
        second = offered(operator)
        gave(device, "the zugzwang light", "the borborygmus zugzwang cortado")
        fails(device, tap.url)
        assert device._model_state.given == {}
        operator.close(second)
        (sent,) = device.check_in(tap.url).sent
        assert (sent.round_id, "round_closed" in str(sent.refused)) == (second, True)
        assert device._model_state.given == {"zugzwang": 2, "borborygmus": 1, "cortado": 1}
        third = offered(operator)
        fails(device, tap.url)
        assert device.learned().waiting == 1
        device.withdraw("words")
        assert device.learned().waiting == 0 and device.check_in(tap.url).sent == ()
        assert operator.close(third)["reports"]["words"] == 0


@pytest.mark.parametrize(("plan", "own", "expected"), [(9, 5, 5), (3, 5, 3), (9, 1, 1)])
def test_a_report_is_bounded_by_the_round_and_by_the_app(tmp_path, tiny_bundle, line, plan, own, expected: int) -> None:
    tap, operator = line
    round_id = offered(operator, max_words=plan)
    names = ["cortado", "lungo", "zugzwang", "wizardry", "kohlrabi", "borborygmus", "babyccino"]
    for number in range(2):
        settings = DeviceSettings(max_new_words=own, bounds=ANYTHING)
        with opened(tmp_path / f"{number}", tiny_bundle, settings, streams=("words",)) as device:
            gave(device, " ".join(names), *(" ".join(names[: end + 1]) for end in range(len(names))))
            device.check_in(tap.url, ENROLMENT)
    found = operator.close(round_id)["releases"]["words"]["words"]
    assert found == dict.fromkeys(sorted(names[:expected]), 2), "those given most"


def test_words_that_joined_the_list_meanwhile_are_not_given_back(tiny_bundle: Bundle) -> None:
    refused = Outgoing("a" * 32, "s", "words", "r1", b"", b'{"light": 2, "zugzwang": 1}')
    assert restored_words({"zugzwang": 1, "lungo": 4}, refused, tiny_bundle.words) == {"lungo": 4, "zugzwang": 2}


def test_an_impossible_bound_is_named() -> None:
    with pytest.raises(ConfigurationError, match="max_new_words: found 0"):
        DeviceSettings(max_new_words=0)
