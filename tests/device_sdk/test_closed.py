"""A closed device, and its sessions, say so whatever is asked of them."""

import asyncio
import gc
import inspect
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk import Bundle, Corrected, Device, RecognitionSession, SessionError
from tests.device_sdk.devices import KEY, quick
from tests.signals import noise

SOUND = noise(9_600, 1)

CALLS: dict[str, Callable[[Device], object]] = {
    "session": lambda device: device.session(16_000),
    "recognize": lambda device: device.recognize(SOUND, 16_000),
    "feedback": lambda device: device.feedback("an utterance", Corrected("lights on")),
    "edit": lambda device: device.edit("an utterance", "lights on"),
    "learn": lambda device: device.learn(),
    "enrolment": lambda device: device.enrolment(),
    "remembered": lambda device: device.remembered(),
    "check_in": lambda device: device.check_in("http://127.0.0.1:9", "token"),
    "due_in_seconds": lambda device: device.due_in_seconds("http://127.0.0.1:9"),
    "agree": lambda device: device.agree("marginals"),
    "withdraw": lambda device: device.withdraw("marginals"),
    "learned": lambda device: device.learned(),
    "spent": lambda device: device.spent(),
    "forget": lambda device: device.forget(),
    "__enter__": lambda device: device.__enter__(),
}
HARMLESS = {"open", "close", "model_version", "base", "vocabulary", "student", "consent", "settings"}


async def heard(session: RecognitionSession) -> list[Any]:
    async def chunks() -> AsyncIterator[np.ndarray]:
        yield SOUND

    return [event async for event in session.stream(chunks())]


SESSION_CALLS: dict[str, Callable[[RecognitionSession], object]] = {
    "feed": lambda session: session.feed(SOUND),
    "hear": lambda session: session.hear(SOUND),
    "check": lambda session: session.check(SOUND),
    "partial": lambda session: session.partial(),
    "finish": lambda session: session.finish(),
    "end": lambda session: session.end(),
    "reset": lambda session: session.reset(),
    "skip": lambda session: session.skip(),
    "segments": lambda session: list(session.segments([SOUND])),
    "listen": lambda session: session.listen([SOUND]),
    "stream": lambda session: asyncio.run(heard(session)),
}


def public(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind) if not name.startswith("_") and callable(value)}


def test_no_call_is_left_out() -> None:
    assert public(Device) - HARMLESS <= set(CALLS) and public(RecognitionSession) <= set(SESSION_CALLS)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> tuple[Device, list[RecognitionSession]]:
    with Device.open(tmp_path_factory.mktemp("state"), KEY, tiny_bundle) as device:
        sessions = [device.session(16_000) for _ in SESSION_CALLS]
        for session in sessions:
            session.feed(SOUND)
    device.close()  # once more is harmless
    assert device._recent.contents() == (), "nothing of what was heard is left"
    return device, sessions


@pytest.mark.parametrize("call", [*CALLS, *SESSION_CALLS])
def test_a_closed_device_and_its_sessions_say_what_to_do(closed: tuple[Device, list[RecognitionSession]], call) -> None:
    device, sessions = closed
    with pytest.raises(SessionError, match=r"device: found it closed, expected open; call Device\.open"):
        CALLS[call](device) if call in CALLS else SESSION_CALLS[call](sessions[list(SESSION_CALLS).index(call)])


def test_a_closed_device_is_freed_at_once(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """An app that opens one after the other would hold the sessions of many until the garbage collector comes by."""
    gc.disable()
    try:
        device = Device.open(tmp_path, KEY, tiny_bundle, quick())
        device.feedback(device.recognize(SOUND, 16_000), Corrected("lights on"))
        assert device.learn().steps
        assert device._loaded is not None
        held = [device, device._loaded[1].transducer, device._local._training, device._local._teacher[1]]  # type: ignore[index]
        alive = [weakref.ref(each) for each in held]
        device.close()
        del device, held
        assert not any(each() for each in alive)
    finally:
        gc.enable()
