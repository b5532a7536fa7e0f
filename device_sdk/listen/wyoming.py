"""Wyoming, the protocol of Home Assistant's voice services: over tcp, a unix socket or standard streams.

    describe -> info: a model a person.        transcribe {name, transcript_names, transcript_terms}: whose, and
    audio-start, audio-chunk*, audio-stop          phrases to expect
    -> transcript-start, transcript-chunk (an utterance each), transcript, transcript-stop
    user-event "idiolect-feedback" {id, text | accepted | cancelled | slots} -> the same event, taken
    whatever goes wrong -> error {text, code}; the connection goes on

The context of a transcript has the ids that feedback names. The protocol has no login and no encryption."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.user_event import UserEvent

from device_sdk.audio import check_sample_rate
from device_sdk.decoding.hotwords import LONGEST_PHRASE, Hotword
from device_sdk.errors import AudioError, ConfigurationError, IdiolectError, ProtocolError
from device_sdk.hypothesis import Result
from device_sdk.listen.feedback import tell
from device_sdk.listen.gate import Gate, problem
from device_sdk.listen.people import EVERYBODY, People
from device_sdk.transcripts import spelled

log = logging.getLogger(__name__)

FEEDBACK = "idiolect-feedback"
LANGUAGES = ["en"]
_LARGEST = 1 << 20  # bytes of an event's data, and of its audio
_LINE = 1 << 16
_BACKLOG = 64
_TERM_NATS = 1.0  # of terms, which count less than names

_Samples = NDArray[np.int16]


class Wyoming:
    """Owns the listening socket."""

    def __init__(self, people: People, gate: Gate) -> None:
        self._people, self._gate = people, gate
        self._server: asyncio.Server | None = None

    async def start(self, uri: str) -> str:
        """Listens at ``tcp://HOST:PORT`` or ``unix:///PATH``; returns where, with the port that was free for 0. Raises
        ConfigurationError for any other."""
        place = place_of(uri)
        if place.scheme == "unix":
            self._server = await asyncio.start_unix_server(self._met, place.path, limit=_LINE)
            return uri
        self._server = await asyncio.start_server(self._met, place.hostname, place.port, limit=_LINE)
        return f"tcp://{place.hostname}:{self._server.sockets[0].getsockname()[1]}"

    async def standard_streams(self) -> None:
        """One client, on standard input and output, until it ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_LINE)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):  # it is gone, or too slow
            await _Client(self._people, self._gate, reader, writer).run()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Client(self._people, self._gate, reader, writer).run()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it is gone, or too slow
        finally:
            writer.close()


def place_of(uri: str) -> SplitResult:
    """Raises ConfigurationError for what is no place to listen at."""
    expected = "expected tcp://HOST:PORT, unix:///PATH or stdio://"
    try:
        place = urlsplit(uri)
        port = place.port if place.scheme == "tcp" else None
    except ValueError as error:
        raise ConfigurationError(f"--wyoming: found {uri!r} ({error}), {expected}") from error
    if place.scheme == "unix" and place.netloc:  # what stands between // and the next / is read as a host
        raise ConfigurationError(
            f"--wyoming: found {uri!r}, expected the absolute path of a socket, after three slashes: unix:///PATH"
        )
    known = {"tcp": place.hostname is not None and port is not None, "unix": bool(place.path), "stdio": True}
    if not known.get(place.scheme, False):
        raise ConfigurationError(f"--wyoming: found {uri!r}, {expected}")
    return place


class _Client:
    def __init__(self, people: People, gate: Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._people, self._gate, self._reader, self._writer = people, gate, reader, writer
        match writer.get_extra_info("peername"):
            case (str(host), *_):
                self._address = host
            case _:  # a unix socket, or standard streams
                self._address = "wyoming"
        self._asked = Transcribe()
        self._chunks: asyncio.Queue[_Samples | None] = asyncio.Queue(_BACKLOG)
        self._hearing: asyncio.Task[None] | None = None
        self._rate = 0

    async def run(self) -> None:
        try:
            while (event := await self._read()) is not None:
                try:
                    self._gate.ask(self._address) if not AudioChunk.is_type(event.type) else None
                    await self._take(event)
                except IdiolectError as error:
                    await self._fail(error)
                except (KeyError, TypeError, ValueError, AttributeError) as error:  # of fields that are not there
                    await self._fail(ProtocolError(f"{event.type[:40]}: found fields that make no sense ({error})"))
        except ProtocolError as error:  # where the next event begins is not known
            await self._fail(error)
        finally:
            await self._drop()

    async def _take(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await self._say(info(self._people).event())
        elif Ping.is_type(event.type):
            await self._say(Pong(Ping.from_event(event).text).event())
        elif Transcribe.is_type(event.type):
            self._asked = Transcribe.from_event(event)
        elif AudioStart.is_type(event.type):
            await self._begin(AudioStart.from_event(event))
        elif AudioChunk.is_type(event.type):
            await self._hear(AudioChunk.from_event(event))
        elif AudioStop.is_type(event.type):
            await self._end()
        elif UserEvent.is_type(event.type):
            await self._told(UserEvent.from_event(event))

    async def _begin(self, start: AudioStart) -> None:
        await self._drop()
        rate, who = check_sample_rate(start.rate, "audio-start: rate"), self._who()
        if start.width != 2 or start.channels not in (1, 2):
            found = f"{8 * start.width} bits, {start.channels} channels"
            raise AudioError(f"audio-start: found {found}, expected samples of 16 bits, one or two channels")
        self._gate.check_room()
        self._chunks, self._rate = asyncio.Queue(_BACKLOG), rate
        self._hearing = asyncio.create_task(self._listen(who, rate))

    def _who(self) -> str:
        name = self._asked.name
        return self._people.who(None, None if name in (None, "", "idiolect") else name)

    async def _hear(self, chunk: AudioChunk) -> None:
        if self._hearing is None:
            raise ProtocolError("audio-chunk: found no audio-start before it")
        if chunk.channels not in (1, 2):
            raise AudioError(f"audio-chunk: found {str(chunk.channels)[:40]} channels, expected one or two")
        if chunk.rate != self._rate:
            found = f"found {str(chunk.rate)[:40]} Hz, expected {self._rate}, as audio-start said"
            raise AudioError(f"audio-chunk: {found}; resample it, or start anew")
        if chunk.width != 2 or len(chunk.audio) % (2 * chunk.channels):
            raise AudioError(f"audio-chunk: found {len(chunk.audio)} bytes, expected whole samples of 16 bits")
        samples = np.frombuffer(chunk.audio, "<i2").astype(np.int16)
        if chunk.channels > 1:
            samples = samples.reshape(-1, chunk.channels).mean(axis=1).astype(np.int16)
        putting = asyncio.ensure_future(self._chunks.put(samples))
        await asyncio.wait({putting, self._hearing}, return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():  # it heard enough, or failed and said so
            putting.cancel()

    async def _end(self) -> None:
        if self._hearing is None:
            raise ProtocolError("audio-stop: found no audio-start before it")
        hearing, self._hearing = self._hearing, None
        putting = asyncio.ensure_future(self._chunks.put(None))
        await asyncio.wait({putting, hearing}, return_when=asyncio.FIRST_COMPLETED)
        await hearing
        self._asked = Transcribe()

    async def _listen(self, who: str, rate: int) -> None:
        self._gate.live += 1
        try:
            device = await run_in_threadpool(self._people.device, who)
            letters = device.base.tokenizer.letters
            session, found = device.session(rate, hotwords=_expected(self._asked, letters)), list[Result]()
            await self._say(TranscriptStart(language="en").event())
            async for event in session.stream(self._samples()):
                if isinstance(event, Result):
                    found.append(event)
                    await self._say(TranscriptChunk(f"{' ' if len(found) > 1 else ''}{event.text}").event())
            self._people.wake()
            context = {"utterance_ids": [each.utterance_id for each in found], "person": who}
            text = " ".join(each.text for each in found)
            await self._say(Transcript(text, context=context, language="en").event())
            await self._say(TranscriptStop().event())
        except IdiolectError as error:
            await self._fail(error)
        finally:
            self._gate.live -= 1

    async def _samples(self) -> AsyncIterator[_Samples]:
        while True:
            samples = await asyncio.wait_for(self._chunks.get(), self._gate.limits.idle_seconds)
            if samples is None:
                return
            yield samples

    async def _told(self, event: UserEvent) -> None:
        if event.name != FEEDBACK:
            return
        given = event.data or {}
        await run_in_threadpool(tell, self._people, self._people.who(None, given.get("person") or self._who()), given)
        await self._say(UserEvent(FEEDBACK, {"id": given["id"], "taken": True}).event())

    async def _drop(self) -> None:
        """What is being heard, if anything, is heard no further."""
        if self._hearing is not None:
            self._hearing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._hearing
            self._hearing = None

    async def _read(self) -> Event | None:
        """The next event; None where there is none. Raises ProtocolError."""
        try:
            line = await self._reader.readline()
        except ValueError as error:
            raise ProtocolError(f"event: a line of more than {_LINE} bytes") from error
        if not line:
            return None
        try:
            head = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"event: not JSON ({str(error)[:80]})") from error
        if not isinstance(head, dict) or not isinstance(head.get("type"), str):
            raise ProtocolError("event: expected an object with a type")
        data = head.get("data") or {}
        sizes = [head.get("data_length") or 0, head.get("payload_length") or 0]
        if not isinstance(data, dict) or not all(type(size) is int and 0 <= size <= _LARGEST for size in sizes):
            raise ProtocolError(f"event: found lengths {str(sizes)[:60]}, expected at most {_LARGEST} bytes")
        further, payload = [await self._reader.readexactly(size) for size in sizes]
        if further:
            try:
                more = json.loads(further)
                data = {**data, **more}
            except (ValueError, RecursionError, TypeError) as error:
                raise ProtocolError(f"event: data is no JSON object ({str(error)[:80]})") from error
        return Event(head["type"], data, payload or None)

    async def _say(self, event: Event) -> None:
        head: dict[str, Any] = {"type": event.type, "version": version("wyoming")}
        data = json.dumps(event.data).encode()
        head |= {"data_length": len(data)}
        async with asyncio.timeout(10.0):
            self._writer.write(json.dumps(head).encode() + b"\n" + data)
            await self._writer.drain()

    async def _fail(self, error: IdiolectError) -> None:
        log.info("wyoming: %s", error)
        with suppress(ConnectionError, TimeoutError):
            await self._say(Error(str(error), problem(error)["code"]).event())


def _expected(asked: Transcribe, letters: frozenset[str]) -> list[str | Hotword] | None:
    """Names and terms that the client expects, of those that the model can spell."""

    names, others = (
        dict.fromkeys(each for each in spelled(map(str, many or []), letters) if len(each) <= LONGEST_PHRASE)
        for many in (asked.transcript_names, asked.transcript_terms)
    )
    terms = [Hotword(each, _TERM_NATS) for each in others if each not in names]
    return [*names, *terms] or None


def info(people: People) -> Info:
    """A model a person."""
    by = Attribution("idiolect", "https://pypi.org/project/idiolect")
    models = [
        AsrModel(
            name=name,
            description=f"learns how {name} speaks" if name != EVERYBODY else "learns how you speak",
            attribution=by,
            installed=True,
            version=version("idiolect"),
            languages=LANGUAGES,
        )
        for name in people.names
    ]
    return Info(
        asr=[
            AsrProgram(
                name="idiolect",
                description="Speech recognition that learns its user",
                attribution=by,
                installed=True,
                version=version("idiolect"),
                models=models,
                supports_transcript_streaming=True,
            )
        ]
    )
