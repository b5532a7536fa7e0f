"""What was corrected waits for learning over a restart, where the app and the user let it, and goes when it should."""

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Device, DeviceSettings, GuardSettings, Hotword, StateError
from device_sdk.feedback import Accepted, Cancelled, Corrected, Rating, Repeated, Semantics, SlotLexicon, combined
from device_sdk.learning import kept
from tests.device_sdk.devices import KEY, quick, tell
from tests.signals import noise

SETTINGS = replace(quick(), keep_corrected=True, guard=GuardSettings(watch=False), memory_utterances=8)
SAID = Corrected("turn on the borborygmus")


def opened(folder: Path, bundle: Bundle, settings: DeviceSettings = SETTINGS, *, keeping: bool = True) -> Device:
    device = Device.open(folder, KEY, bundle, settings)
    if keeping:
        device.agree("keeping")
    return device


def rows(device: Device) -> list[str]:
    return device._store.names("kept")


def test_a_correction_outlives_its_process_and_is_learned_from_once(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path, tiny_bundle) as device:
        heard = tell(device, signal=SAID)
        before = device._recent.get(heard)
        assert [(each.utterance_id, each.kept) for each in device.remembered()] == [(heard, True)]
    with opened(tmp_path, tiny_bundle) as device:
        (remembered,) = device.remembered()
        assert remembered.kept and remembered.feedback and remembered.sound
        assert 3600 < remembered.seconds_left <= 86_400
        after = device._recent.get(heard)
        assert before is not None and after is not None and after.signal == before.signal
        assert after.nbest == before.nbest and np.array_equal(after.features, before.features)
        assert "1 utterance" in device.learned().describe()[-4] and "on its disk" in str(device.learned())
        device.feedback(heard, Accepted())
        assert device.learn().steps == 1 and rows(device) == [] and device.learn().steps == 0
    with opened(tmp_path, tiny_bundle) as device:
        assert device.remembered() == () and device.student.utterances == 1


LEXICON = SlotLexicon({"place": ("kitchen", "bedroom")})


@pytest.mark.parametrize(
    ("signals", "stays"),
    [
        ((SAID,), True),
        ((Accepted(),), True),
        ((Semantics({"place": "kitchen"}, LEXICON), SAID, Rating(0.7)), True),
        ((Accepted(), Semantics({"place": "bedroom"}, LEXICON, "paper")), True),
        ((Rating(0.9),), False),
        ((Semantics({"place": "kitchen"}, LEXICON),), False),
        ((SAID, Cancelled()), False),
        ((SAID, Repeated(("turn it on",)), Accepted()), True),
        ((), False),
    ],
)
def test_only_what_was_confirmed_is_kept_with_all_that_was_said_of_it(tmp_path, tiny_bundle, signals, stays) -> None:
    with opened(tmp_path, tiny_bundle) as device:
        heard = device.recognize(noise(9_600, 1), 16_000)
        for each in signals:
            device.feedback(heard, each)
    with opened(tmp_path, tiny_bundle) as device:
        found = device._recent.get(heard.utterance_id)
        assert found.signal == reduce(combined, signals, None) if stays else found is None


def test_of_hotwords_only_those_that_it_may_hold_are_kept(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path, tiny_bundle) as device:
        hotwords = [Hotword("niamh", spellings=("neve",)), Hotword("saoirse", spellings=("seersha",))]
        result = device.recognize(noise(9_600, 1), 16_000, hotwords=hotwords)
        device.feedback(result, Corrected("call niamh"))
    with opened(tmp_path, tiny_bundle) as device:
        assert device._recent.get(result.utterance_id).expected.phrases == (hotwords[0],)


@pytest.mark.parametrize(
    ("settings", "keeping"), [(SETTINGS, False), (replace(SETTINGS, keep_corrected=False), True)], ids=["user", "app"]
)
def test_nothing_is_kept_unless_app_and_user_let_it(tmp_path, tiny_bundle, caplog, settings, keeping) -> None:
    with opened(tmp_path, tiny_bundle, settings, keeping=keeping) as device:
        tell(device, 1)
        tell(device, 2)
        device.recognize(noise(9_600, 3), 16_000)
        assert not any(each.kept for each in device.remembered()) and rows(device) == []
    (said,) = (each.getMessage() for each in caplog.records if "feedback" in each.getMessage())
    assert "2 utterances" in said and "close(learn_seconds=" in said
    with opened(tmp_path, tiny_bundle) as device:
        assert device.remembered() == ()


@pytest.mark.parametrize("samples", [6_400, 24_000], ids=["row", "file"])
@pytest.mark.parametrize(
    "go",
    [
        lambda device: device.learn(),
        lambda device: device.forget(),
        lambda device: device.withdraw("keeping"),
        lambda device: device.withdraw("learning"),
        lambda device: device.feedback(rows(device)[0], Cancelled()),
        lambda device: (device._recent.restore(replace(device._recent.get(rows(device)[0]), kept=1.0)), device.learn()),
    ],
    ids=["learned from", "forget", "withdraw keeping", "withdraw learning", "cancelled", "a day later"],
)
def test_what_was_kept_is_zeroed_when_it_goes(tmp_path: Path, tiny_bundle: Bundle, go, samples) -> None:
    with opened(tmp_path, tiny_bundle) as device:
        tell(device, samples=samples)
        value, file = device._store._rows("SELECT value, file FROM kept")[0]
        with (tmp_path / (file or "lock")).open("rb") as held:
            sealed = value or held.read()
            assert (file is None) == (samples < 9_000) and len(sealed) > 10_000
            go(device)
            assert rows(device) == [] and not any(each.kept for each in device.remembered())
            for path in tmp_path.iterdir():
                content = path.read_bytes()
                assert not any(sealed[at : at + 32] in content for at in range(0, len(sealed) - 32, 512)), path.name
            held.seek(0)
            assert not any(held.read()) and not (file and (tmp_path / file).exists())


def test_an_app_that_lets_it_no_more_or_ships_another_bundle_finds_nothing(tmp_path, tiny_bundle, caplog) -> None:
    another = tiny_bundle.with_weights(tiny_bundle.weights, "another")
    for settings, bundle in ((replace(SETTINGS, keep_corrected=False), tiny_bundle), (SETTINGS, another)):
        with opened(tmp_path, tiny_bundle) as device:
            tell(device)
        caplog.clear()
        with opened(tmp_path, bundle, settings) as device:
            assert rows(device) == [] and device.remembered() == ()
        assert "1 utterance" in caplog.text


def test_a_day_after_it_was_heard_the_next_opening_erases_it(tmp_path, tiny_bundle, caplog) -> None:
    with opened(tmp_path, tiny_bundle) as device:
        for seed, age in ((1, 86_000), (2, 86_500), (3, -90_000)):
            example = device._recent.get(tell(device, seed))
            aged = kept.to_bytes(replace(example, kept=time.time() - age), device._model_state.handed_on())
            device._store.put("kept", example.utterance_id, aged)
    caplog.clear()
    with opened(tmp_path, tiny_bundle) as device:
        (left,) = device.remembered()
        assert rows(device) == [left.utterance_id] and 300 < left.seconds_left < 400 and device.learn().lost == 2
    assert "lost 2 utterances with feedback" in caplog.text


def test_a_damaged_one_is_left_out_and_said(tmp_path, tiny_bundle, caplog) -> None:
    with opened(tmp_path, tiny_bundle) as device:
        good, bad = tell(device, 1), tell(device, 2)
        for content in (b"", b"x" * 99, device._store.get("kept", good)[:-9]):  # type: ignore[index]
            with pytest.raises(StateError, match=f"kept/{bad}"):
                kept.from_bytes(content, bad, tiny_bundle)
        device._store.put("kept", bad, b"x" * 99)
    with opened(tmp_path, tiny_bundle) as device:
        assert [each.utterance_id for each in device.remembered()] == [good] == rows(device)
    assert f"kept/{bad}" in caplog.text


def test_closing_may_learn_first_and_for_so_long(tmp_path, tiny_bundle, caplog) -> None:
    settings = replace(SETTINGS, keep_corrected=False)
    device = opened(tmp_path, tiny_bundle, settings)
    for seed in range(3):
        tell(device, seed)
    device.close(learn_seconds=60.0)
    device.close(learn_seconds=60.0)
    assert caplog.text == ""
    device = opened(tmp_path, tiny_bundle, settings)
    assert device.student.utterances == 3
    tell(device)
    device.close(learn_seconds=0.0)
    assert "1 utterance with feedback" in caplog.text
    with opened(tmp_path, tiny_bundle, replace(settings, learn=False)) as device:
        device.recognize(noise(9_600, 1), 16_000)
        device.close(learn_seconds=1.0)


def test_what_is_withheld_to_check_learning_with_is_kept_no_more(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path, tiny_bundle, replace(SETTINGS, guard=GuardSettings(withhold=1))) as device:
        tell(device)
        assert device.learn().utterances == 0 and rows(device) == []
        assert [(each.withheld, each.kept) for each in device.remembered()] == [(True, False)]


LIFE = """
import sys
from device_sdk import Bundle
from tests.device_sdk.test_keep_corrected import *
with opened(Path(sys.argv[1]), Bundle.open(sys.argv[2])) as device:
    rng = random.Random(int(sys.argv[3]))
    while True:
        if rng.random() < 0.75:
            tell(device, rng.randrange(9), samples=rng.choice((4_800, 19_200)))
            print("corrected", flush=True)
        else:
            device.learn()"""


def test_a_kill_loses_nothing_and_nothing_is_learned_from_twice(tmp_path: Path, tiny_bundle: Bundle) -> None:
    told, rng = 0, random.Random(5)
    for life in range(6):
        command = [sys.executable, "-c", LIFE, tmp_path, tiny_bundle.path, str(life)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
            lines = [child.stdout.readline() for _ in range(rng.randrange(1, 12))]
            time.sleep(rng.random() * 0.1)
            child.kill()
            lines += child.stdout.readlines()
        told += sum(line == b"corrected\n" for line in lines)
        with opened(tmp_path, tiny_bundle) as device:
            waiting = [each.utterance_id for each in device.remembered()]
            assert waiting == rows(device)
            assert told <= device.student.utterances + len(waiting) <= told + life + 1, "one a kill was not told of"
    with opened(tmp_path, tiny_bundle) as device:
        everything = device.student.utterances + len(rows(device))
        device.learn()
        assert (device.student.utterances, rows(device)) == (everything, [])
