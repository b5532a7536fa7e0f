"""At DEBUG a device says what it does, in counts and times; never what was said."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk import Bundle, Cancelled, CheckInError, Corrected, Device, Semantics, SlotLexicon
from tests.device_sdk.devices import KEY, quick
from tests.signals import noise

SETTINGS = replace(quick(), keep_corrected=True)
SAID = "borborygmus"

EVENTS = (
    r"opened: model \S+, \d+ steps, \d+ utterances counted, \d+ kept, in \d+ ms",
    r"agreed to keeping, marginals",
    r"recognized \d+\.\d\d s: \d+ hypotheses, ended in \d+ ms",
    r"heard: \d+ utterances? in memory",
    r"feedback Corrected",
    r"feedback Semantics",
    r"kept 1 utterance for learning",
    r"learned from \d+ utterances?: \d+ steps in \d+ ms, nothing left to learn from",
    r"committed: \d+ steps",
    r"check-in with http://127\.0\.0\.1:9 failed after \d+ ms: CheckInError",
    r"withdrew marginals",
    r"forgot everything in \d+ ms",
    r"closed",
)


def test_a_life_in_counts_and_times(tmp_path: Path, tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    lexicon, heard = SlotLexicon({"place": ("kitchen", SAID)}), set()
    with (
        caplog.at_level(logging.DEBUG, logger="device_sdk"),
        Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device,
    ):
        device.agree("keeping", "marginals")
        for signal in (Corrected(f"turn on the {SAID}"), Semantics({"place": SAID}, lexicon), Cancelled()):
            result = device.recognize(noise(9_600, 3), 16_000, hotwords=[SAID])
            heard |= {word for hypothesis in result.nbest for word in hypothesis.text.split() if len(word) > 3}
            device.feedback(result, signal)
        device.learn()
        with pytest.raises(CheckInError):
            device.check_in("http://127.0.0.1:9", "a token")
        device.withdraw("marginals")
        device.forget()
    records = [each for each in caplog.records if each.name.startswith("device_sdk")]
    messages = [each.getMessage() for each in records]
    for event in EVENTS:
        assert any(re.fullmatch(event, message) for message in messages), (event, messages)
    assert heard
    words = {word for message in messages for word in re.findall(r"[a-z']+", message)}
    assert not words & (heard | {SAID, "kitchen", "token"} | {"turn"}), words


def test_every_logger_is_the_modules_own() -> None:
    for path in (Path(__file__).parents[2] / "device_sdk").rglob("*.py"):
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text("utf-8")):
            assert name == "__name__", path


def test_nothing_is_said_unasked(tmp_path: Path, tiny_bundle: Bundle, capfd: pytest.CaptureFixture[str]) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, replace(SETTINGS, learn=False)) as device:
        device.recognize(noise(9_600, 3), 16_000)
    assert capfd.readouterr() == ("", "")
