"""Unmodified clients hear what a device hears and are learned from; nobody learns from another's words."""

import asyncio
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from openai import NotFoundError, OpenAI, UnprocessableEntityError
from starlette.requests import Request as StarletteRequest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.event import Event

from device_sdk import Bundle, Device
from device_sdk.formatting import written_form
from device_sdk.hypothesis import Result
from device_sdk.listen.openai import _form
from tests.device_sdk.listen.clients import (
    RATE,
    Messages,
    by_socket,
    by_wyoming,
    heard_as,
    samples,
    tell_by_wyoming,
    texts,
    wave,
)
from tests.device_sdk.listen.servers import Server, listening
from tests.device_sdk.listen.voices import spoken
from tests.pages import WITH_A_SERVER, blocks
from tests.speech import Float, clips, needs_data, packaged


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    packaged()
    with listening(tmp_path_factory.mktemp("listen") / "state", "--no-learn") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a device hears of the same samples."""
    with Device.open(tmp_path_factory.mktemp("device"), bytes(32), Bundle.open()) as device:
        found = []
        for clip in clips():
            session = device.session(RATE)
            events = [event for event in session.segments([heard_as(clip)]) if isinstance(event, Result)]
            found.append(" ".join(event.text for event in events))
        return found


def test_every_protocol_hears_what_a_device_hears(server: Server, client: OpenAI, expected: list[str]) -> None:
    assert sum(map(len, expected)) > 100
    for number, (clip, text) in enumerate(zip(clips(), expected, strict=True)):
        person = f"hearer {number}"
        event = asyncio.run(by_wyoming(server.port, clip, f"{person} one"))
        assert event.data["text"] == text and event.data["context"]["person"] == f"{person} one"
        assert texts(asyncio.run(by_socket(server.http, clip, f"{person} two"))) == text
        found = client.audio.transcriptions.create(model=f"{person} three", file=wave(clip))
        assert found.text == written_form(text)


def test_other_answers_of_the_file_api(server: Server, client: OpenAI, expected: list[str]) -> None:
    clip, written = clips()[0], written_form(expected[0])
    ask = client.audio.transcriptions.create
    plain = ask(model="idiolect", file=wave(clip), response_format="text")
    assert str(plain).strip() == written
    verbose = ask(
        model="whisper-1", file=wave(clip), response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert verbose.text == written and verbose.duration == pytest.approx(len(clip) / RATE, abs=0.01)
    assert [word.word for word in verbose.words or []] == expected[0].split()
    starts = [word.start for word in verbose.words or []]
    assert starts == sorted(starts) and (verbose.segments or [])[0].avg_logprob < 0.0
    subtitles = str(ask(model="idiolect", file=wave(clip), response_format="srt"))
    assert "-->" in subtitles and subtitles.startswith("1\n")
    assert str(ask(model="idiolect", file=wave(clip), response_format="vtt")).startswith("WEBVTT")
    events = list(ask(model="idiolect", file=wave(clip), stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text == written  # type: ignore[union-attr]
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == written
    assert "idiolect" in [model.id for model in client.models.list()]


@pytest.mark.parametrize("lines", [each for each in blocks("python") if WITH_A_SERVER in each])
def test_the_lines_of_the_pages_run(server: Server, tmp_path: Path, lines: str) -> None:
    soundfile.write(tmp_path / "note.wav", clips()[0], RATE)
    lines = lines.replace(WITH_A_SERVER, server.http.removeprefix("http://"))
    done = subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(done.stdout.split()) > 3, done.stderr


def test_what_the_file_api_refuses_is_named(server: Server, client: OpenAI) -> None:
    ask = client.audio.transcriptions.create
    with pytest.raises(UnprocessableEntityError, match=r"note\.wav"):
        ask(model="idiolect", file=("note.wav", b"no audio at all"))
    with pytest.raises(UnprocessableEntityError, match="response_format: found 'poem'"):
        ask(model="idiolect", file=wave(clips()[0]), response_format="poem")  # type: ignore[call-overload]
    with pytest.raises(UnprocessableEntityError, match="person: found 'a/b'"):
        ask(model="a/b", file=wave(clips()[0]))
    with pytest.raises(NotFoundError):
        client.audio.speech.create(model="idiolect", voice="alloy", input="x")
    headers = {"content-type": "multipart/form-data; boundary=none"}
    for content, status in ((b"x", 400), (b"", 422), (b"--none--", 422)):
        found = httpx.post(f"{server.http}/v1/audio/transcriptions", content=content, headers=headers)
        assert found.status_code == status and found.json()["error"]["message"]


def test_a_body_in_chunks_is_no_larger_than_another(server: Server) -> None:
    headers = {"content-type": "multipart/form-data; boundary=none"}
    chunks = (bytes(1 << 20) for _ in range(26))
    found = httpx.post(f"{server.http}/v1/audio/transcriptions", content=chunks, headers=headers)
    assert found.status_code == 413 and "more than 26214400 bytes" in found.json()["error"]["message"]


def test_a_form_is_one_however_its_name_is_written(server: Server) -> None:
    headers = {"content-type": "Multipart/Form-Data; boundary=none"}
    found = httpx.post(f"{server.http}/v1/audio/transcriptions", content=b"--none--", headers=headers)
    assert found.json()["error"]["message"] == "file: found none, expected a recording"


def test_a_small_file_of_hours_is_not_decoded(server: Server) -> None:
    """Nor are few that hold many channels."""
    for seconds, channels, rate in ((3_601, 1, 4_000), (500, 8, 48_000)):
        content = io.BytesIO()
        soundfile.write(content, np.zeros((seconds * rate, channels), np.int16), rate, format="FLAC")
        files = {"file": ("silence.flac", content.getvalue())}
        found = httpx.post(f"{server.http}/v1/audio/transcriptions", files=files, timeout=60)
        assert found.status_code == 413 and len(content.getvalue()) < 2 << 20
        assert f"silence.flac: found {seconds} s, channels: {channels}" in found.json()["error"]["message"]


def test_chunks_of_another_kind_are_refused_and_the_rest_is_heard(server: Server, expected: list[str]) -> None:
    content = samples(clips()[0])

    async def said() -> list[Event]:
        async with AsyncTcpClient("127.0.0.1", server.port) as client:
            await client.write_event(AudioStart(RATE, 2, 1).event())
            for chunk in (AudioChunk(RATE, 2, 0, content), AudioChunk(8_000, 2, 1, content)):
                await client.write_event(chunk.event())
            await client.write_event(AudioChunk(RATE, 2, 1, content).event())
            await client.write_event(AudioStop().event())
            events: list[Event] = []
            while not events or events[-1].type != "transcript":
                event = await client.read_event()
                assert event is not None, events
                events.append(event)
            return events

    events = asyncio.run(said())
    assert [event.data["text"] for event in events if event.type == "error"] == [
        "audio-chunk: found 0 channels, expected one or two",
        "audio-chunk: found 8000 Hz, expected 16000, as audio-start said; resample it, or start anew",
    ]
    assert events[-1].data["text"] == expected[0]


def test_a_recording_is_never_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its size: forms are usually spooled to a temporary file beyond a megabyte."""

    def never(_: object) -> None:
        raise AssertionError("a recording went to the disk")

    monkeypatch.setattr(SpooledTemporaryFile, "rollover", never)
    recording = np.random.default_rng(0).bytes(3 << 20)
    asked = httpx.Request("POST", "http://x", files={"file": ("a.wav", recording)}, data={"model": "idiolect"})
    content = asked.read()
    scope = {"type": "http", "method": "POST", "headers": [(k.lower(), v) for k, v in asked.headers.raw]}

    async def receive() -> Any:
        return {"type": "http.request", "body": content, "more_body": False}

    form = asyncio.run(_form(StarletteRequest(scope, receive), 25 << 20))
    assert form.content == recording and form.name == "a.wav" and form.text == {"model": "idiolect"}


def _corrected(http: str, person: str, given: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{http}/v1/feedback", json=given, headers={"X-Idiolect-Person": person}, timeout=60)


def test_feedback_names_a_result_of_ones_own(server: Server) -> None:
    messages = asyncio.run(by_socket(server.http, clips()[1], "ana"))
    utterance = next(each["id"] for each in messages if each["type"] == "result")
    refused = _corrected(server.http, "ben", {"id": utterance, "accepted": True})
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "unknown_utterance"
    assert _corrected(server.http, "ana", {"id": utterance, "accepted": True}).status_code == 200
    for wrong, said in (
        ({"id": utterance}, "expected one of text, accepted, cancelled, slots"),
        ({"id": utterance, "text": 7}, "text: found int"),
        ({"id": utterance, "accepted": True, "cancelled": True}, "found accepted, cancelled"),
        ({"id": utterance, "slots": []}, "slots: expected an object"),
        ({"text": "x"}, "id: found None"),
    ):
        found = _corrected(server.http, "ana", wrong)
        assert found.status_code == 422 and said in found.json()["error"]["message"], wrong
    bad = asyncio.run(tell_by_wyoming(server.port, {"id": "none", "person": "ana", "accepted": True}))
    assert bad.type == "error" and "id: found 'none'" in bad.data["text"]


@pytest.mark.parametrize("protocol", ["wyoming", "openai", "socket"])
def test_wrong_then_corrected_then_right(protocol: str, tmp_path: Path) -> None:
    """Of each of five voices the first command that is misheard."""
    packaged()
    right = list[bool]()
    with listening(tmp_path / "state") as server:
        for number, commands in enumerate(spoken()):
            person = f"{protocol} {number}"
            for said in commands:
                first, ids = _say(server, protocol, said.load(), person)
                if first.lower() not in (said.text, written_form(said.text or "").lower()):
                    break
            if protocol == "wyoming":
                told = asyncio.run(tell_by_wyoming(server.port, {"id": ids[0], "person": person, "text": said.text}))
                assert told.type == "user-event", told
            else:
                assert _corrected(server.http, person, {"id": ids[0], "text": said.text}).status_code == 200
            _wait_until_learned(server, person)
            again, _ = _say(server, protocol, said.load(), person)
            right.append(again.lower() in (said.text, written_form(said.text or "").lower()))
    assert right == [True] * 5


def _wait_until_learned(server: Server, person: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if httpx.get(f"{server.http}/v1/me", headers={"X-Idiolect-Person": person}, timeout=60).json()["steps"]:
            return
        time.sleep(0.05)
    raise AssertionError("nothing was learned")


def _say(server: Server, protocol: str, clip: Any, person: str) -> tuple[str, list[str]]:
    if protocol == "wyoming":
        event = asyncio.run(by_wyoming(server.port, clip, person))
        return event.data["text"], event.data["context"]["utterance_ids"]
    if protocol == "socket":
        messages = asyncio.run(by_socket(server.http, clip, person))
        return texts(messages), [each["id"] for each in messages if each["type"] == "result"]
    found = OpenAI(base_url=f"{server.http}/v1", api_key="none").audio.transcriptions.create(
        model=person, file=wave(clip)
    )
    return found.text, found.model_extra["utterance_ids"]  # type: ignore[index]


def test_nobody_learns_from_anothers_words(server: Server) -> None:
    async def all_at_once() -> list[Messages]:
        people = enumerate(clips())
        return await asyncio.gather(*(by_socket(server.http, clip, f"one of {number}") for number, clip in people))

    together = asyncio.run(all_at_once())
    alone = [asyncio.run(by_socket(server.http, clip, f"alone {number}")) for number, clip in enumerate(clips())]
    assert [texts(each) for each in together] == [texts(each) for each in alone]
    for number, messages in enumerate(together):
        me = httpx.get(f"{server.http}/v1/me", headers={"X-Idiolect-Person": f"one of {number}"}, timeout=60).json()
        lists = [each["nbest"] for each in messages if each["type"] == "result"]
        own = {word for nbest in lists for hypothesis in nbest for word in hypothesis["text"].split()}
        assert me["utterances"] == len(lists) and {word for word, _ in me["words"]} <= own


@pytest.mark.data
@needs_data
def test_twelve_people_at_once_hear_what_a_device_each_hears(server: Server, tmp_path: Path) -> None:
    """Coffee orders of twelve people, three each: what one says changes nothing for another."""
    from server.lab.corpora import open_corpus

    corpus = open_corpus(f"barista:{os.environ['IDIOLECT_DATA']}/barista", ("devices", "heldout"))
    said = {name: [one.load() for one in corpus.of_speakers(name).utterances[:3]] for name in corpus.speakers[:12]}
    assert len(said) == 12

    async def person(name: str, clips: list[Float]) -> list[str]:
        return [texts(await by_socket(server.http, clip, f"order {name}")) for clip in clips]

    async def everybody() -> list[list[str]]:
        return await asyncio.gather(*(person(name, clips) for name, clips in said.items()))

    together = dict(zip(said, asyncio.run(everybody()), strict=True))
    for name, recordings in said.items():
        with Device.open(tmp_path / name, bytes(32), Bundle.open()) as device:
            for clip, text in zip(recordings, together[name], strict=True):
                events = device.session(RATE).segments([heard_as(clip)])
                assert " ".join(event.text for event in events if isinstance(event, Result)) == text, name
