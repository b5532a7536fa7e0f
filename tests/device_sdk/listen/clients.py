"""Clients as their makers wrote them: Wyoming's, OpenAI's, and a WebSocket."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import numpy as np
import soundfile
from numpy.typing import NDArray
from websockets.asyncio.client import connect
from wyoming.asr import Transcribe
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.user_event import UserEvent

RATE = 16_000
Float = NDArray[np.float32]
Messages = list[dict[str, Any]]


def samples(clip: Float) -> bytes:
    return (np.clip(clip, -1.0, 1.0) * 32767).astype("<i2").tobytes()


def heard_as(clip: Float) -> NDArray[np.int16]:
    """What of a clip goes over any of the protocols."""
    return np.frombuffer(samples(clip), "<i2").astype(np.int16)


def wave(clip: Float) -> io.BytesIO:
    content = io.BytesIO()
    soundfile.write(content, heard_as(clip), RATE, format="WAV", subtype="PCM_16")
    content.seek(0)
    content.name = "clip.wav"
    return content


async def by_wyoming(port: int, clip: Float, person: str = "", **asked: Any) -> Event:
    """The transcript, or the error."""
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Transcribe(name=person or None, **asked).event())
        await client.write_event(AudioStart(RATE, 2, 1).event())
        content = samples(clip)
        for at in range(0, len(content), 2048):
            await client.write_event(AudioChunk(RATE, 2, 1, content[at : at + 2048]).event())
        await client.write_event(AudioStop().event())
        while (event := await client.read_event()) is not None:
            if event.type in ("transcript", "error"):
                return event
    raise AssertionError("no transcript came")


async def tell_by_wyoming(port: int, given: Mapping[str, Any]) -> Event:
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(UserEvent("idiolect-feedback", dict(given)).event())
        event = await client.read_event()
        assert event is not None
        return event


async def by_socket(http: str, clip: Float, person: str = "", rate: int = RATE, chunk: int = 640) -> Messages:
    """All messages of an utterance, to its end."""
    url = f"{http.replace('http', 'ws', 1)}/v1/listen?{urlencode({'rate': rate, 'person': person})}"
    async with connect(url) as socket:
        content = samples(clip)
        for at in range(0, len(content), 2 * chunk):
            await socket.send(content[at : at + 2 * chunk])
        await socket.send(json.dumps({"end": True}))
        return await until(socket, "end")


async def until(socket: Any, last: str) -> Messages:
    messages: Messages = []
    while not messages or messages[-1]["type"] != last:
        messages.append(json.loads(await socket.recv()))
    return messages


def texts(messages: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(each["text"] for each in messages if each["type"] == "result")
