"""Listening on and on: a stream of chunks as partials and results, utterance by utterance."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_sdk.hypothesis import Partial, Result

log = logging.getLogger(__name__)

Event = Partial | Result
Chunk = NDArray[np.generic]
Float = NDArray[np.float32]
T = TypeVar("T")


class Listening(Protocol):
    """Listens on and on, with what a :class:`device_sdk.decoding.RecognitionSession` does with one utterance."""

    @property
    def open(self) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def sample_rate(self) -> int: ...
    def check(self, samples: Chunk) -> Float: ...
    def reset(self) -> None: ...
    def partial(self) -> Partial: ...
    def hear(self, samples: Chunk) -> tuple[Partial, Float]: ...
    def skip(self) -> None: ...
    def end(self) -> Result | None: ...

    def segments(self, chunks: Iterable[Chunk]) -> Iterator[Event]:
        """Listens on and on: partials as they change, and a result at each endpoint and at the end of the chunks. The
        session resets itself after each result, so that this may go on for hours in the same memory. What holds no
        speech gives no result. ``Result.offset`` places an utterance in the stream; its words' times count from there.
        Where utterances begin and end does not depend on the chunks. Raises what :meth:`hear` does, of a chunk
        unheard."""
        for chunk in chunks:
            yield from _heard(self, chunk)
        yield from _ended(self)

    def listen(
        self,
        chunks: Iterable[Chunk],
        on_partial: Callable[[Partial], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
    ) -> None:
        """:meth:`segments` with callbacks, until the chunks end. An exception in a callback never loses audio: the
        chunk is heard to its end, further callbacks included, and then the exception is raised. Listening may go on."""
        for chunk in chunks:
            _tell(_heard(self, chunk), on_partial, on_result)
        _tell(_ended(self), on_partial, on_result)

    async def stream(self, chunks: AsyncIterable[Chunk]) -> AsyncIterator[Event]:
        """:meth:`segments` for an event loop, which is never blocked: decoding runs in a thread. Cancelling waits for
        the block that is being decoded, so that the session can be used at once."""
        async for chunk in chunks:
            rest = _begun(self, chunk)
            while rest.size:
                events, rest = await _in_thread(_step, self, rest)
                for event in events:
                    yield event
        for event in await _in_thread(_ended, self):
            yield event


def _tell(
    events: Iterable[Event],
    on_partial: Callable[[Partial], object] | None,
    on_result: Callable[[Result], object] | None,
) -> None:
    failure: Exception | None = None
    for event in events:
        callback: Callable[..., object] | None = on_result if isinstance(event, Result) else on_partial
        try:
            if callback is not None:
                callback(event)
        except Exception as error:
            if failure is not None:
                log.exception("a further callback of one chunk failed")
            failure = failure or error
    if failure is not None:
        raise failure


def _heard(session: Listening, chunk: Chunk) -> Iterator[Event]:
    """What one chunk brings."""
    rest = _begun(session, chunk)
    while rest.size:
        events, rest = _step(session, rest)
        yield from events


def _begun(session: Listening, chunk: Chunk) -> Float:
    """The whole chunk, checked before any of it is heard, with a session that is open for it."""
    waveform = session.check(chunk)
    if not session.open:
        session.reset()
    return waveform


def _step(session: Listening, waveform: Float) -> tuple[list[Event], Float]:
    """Hears a second of ``waveform``, or less where an utterance ends in it. Returns what that brings, and the rest."""
    before = session.partial()
    piece = waveform[: session.sample_rate]
    partial, after = session.hear(piece)
    events: list[Event] = []
    if (
        partial.endpoint and not partial.text and partial.rule != "length"
    ):  # where it is full, its end is not decoded yet
        session.skip()
    else:
        if (partial.text, partial.stable, partial.endpoint) != (before.text, before.stable, before.endpoint):
            events.append(partial)
        if partial.endpoint:
            events += _ended(session)
    return events, waveform[piece.size - after.size :]


def _ended(session: Listening) -> list[Event]:
    """What the end of an utterance brings, or the end of the chunks."""
    result = session.end() if session.seconds and session.open else None
    return [] if result is None else [result]


async def _in_thread(call: Callable[..., T], *arguments: object) -> T:
    """The result of a call in a thread. A session is for one thread at a time: who is cancelled waits for the call."""
    import asyncio  # here, because it takes longer to load than the rest of this package

    running = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # seen; what is raised is that this was cancelled
        raise
