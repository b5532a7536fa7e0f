"""``/v1/listen``: a WebSocket of audio in and words out, what the page uses.

    ws://HOST/v1/listen?rate=16000[&person=NAME][&token=TOKEN]

In: binary frames of little-endian int16 samples, mono, at ``rate`` Hz; text frames of JSON: ``{"end": true}`` ends the
utterance, ``{"feedback": {"id": ..., ...}}`` as POST /v1/feedback. Out: text frames of JSON: ``{"type": "ready"}``,
``partial``, ``result`` (id, n-best, scores in parts), ``feedback`` (taken), ``error`` (in the form of other routes;
the connection goes on unless ``closed`` is true)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect

from device_sdk.errors import AudioError, IdiolectError
from device_sdk.hypothesis import Result
from device_sdk.listen import answers
from device_sdk.listen.feedback import tell
from device_sdk.listen.gate import Refused, gate, people, person, problem, rate

_LARGEST = 1 << 20  # bytes of a frame
_BACKLOG = 64  # frames that wait to be heard
_SEND_SECONDS = 10.0  # that a client may take for a message

_END = object()


async def listen(socket: WebSocket) -> None:
    await socket.accept()
    try:
        gate(socket).ask(socket.client.host if socket.client else "")
        who = person(socket)
        given = rate(socket)
        gate(socket).check_room()
    except IdiolectError as error:
        await _refuse(socket, error)
        return
    gate(socket).live += 1
    try:
        await _Conversation(socket, who, given).run()
    except (WebSocketDisconnect, TimeoutError, RuntimeError):
        pass  # it is gone, or too slow: nobody else waits for it
    except IdiolectError as error:
        await _refuse(socket, error)
    finally:
        gate(socket).live -= 1


class _Conversation:
    """One socket's: frames wait in a queue, so that a slow decoder and a fast client meet in the middle."""

    def __init__(self, socket: WebSocket, who: str, rate: int) -> None:
        self._socket, self._who, self._rate = socket, who, rate
        self._people = people(socket)
        self._frames: asyncio.Queue[Any] = asyncio.Queue(_BACKLOG)
        self._over = False

    async def run(self) -> None:
        device = await run_in_threadpool(self._people.device, self._who)
        session = device.session(self._rate)
        await self._say({"type": "ready", "rate": self._rate, "person": self._who})
        receiving = asyncio.create_task(self._received())
        try:
            while not self._over:
                async for event in session.stream(self._utterance()):
                    if isinstance(event, Result):
                        await self._say(answers.result(event))
                        self._people.wake()
                    else:
                        await self._say(answers.partial(event))
                if not self._over:
                    await self._say({"type": "end"})
        finally:
            receiving.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await receiving

    async def _utterance(self) -> AsyncIterator[NDArray[np.int16]]:
        """The samples until the client says that it ends."""
        while True:
            frame = await asyncio.wait_for(self._frames.get(), gate(self._socket).limits.idle_seconds)
            if frame is None:
                self._over = True
                return
            if frame is _END:
                return
            if isinstance(frame, IdiolectError):
                raise frame
            yield frame

    async def _received(self) -> None:
        """All frames; however the client leaves, the conversation is over then."""
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            await self._receive()
        await self._frames.put(None)

    async def _receive(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                if message.get("bytes") is not None:
                    await self._frames.put(_samples(message["bytes"]))
                else:
                    await self._told(message.get("text") or "")
            except AudioError as error:
                await self._frames.put(error)
                return
            except IdiolectError as error:
                await self._say({"type": "error", "error": problem(error), "closed": False})

    async def _told(self, text: str) -> None:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "no_json", f"frame: not JSON ({str(error)[:100]})") from error
        if given == {"end": True}:
            await self._frames.put(_END)
        elif isinstance(given, dict) and isinstance(given.get("feedback"), dict):
            await run_in_threadpool(tell, self._people, self._who, given["feedback"])
            await self._say({"type": "feedback", "id": given["feedback"]["id"]})
        else:
            raise Refused(422, "unknown_frame", 'frame: expected {"end": true} or {"feedback": {...}}')

    async def _say(self, message: dict[str, Any]) -> None:
        async with asyncio.timeout(_SEND_SECONDS):
            await self._socket.send_text(json.dumps(message))


def _samples(content: bytes) -> NDArray[np.int16]:
    if len(content) % 2 or len(content) > _LARGEST:
        raise AudioError(f"frame: found {len(content)} bytes, expected an even number of at most {_LARGEST}")
    return np.frombuffer(content, "<i2").astype(np.int16)


async def _refuse(socket: WebSocket, error: IdiolectError) -> None:
    with suppress(Exception):
        await socket.send_text(json.dumps({"type": "error", "error": problem(error), "closed": True}))
        await socket.close(1008, str(error)[:100])
