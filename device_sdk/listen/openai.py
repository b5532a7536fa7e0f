"""The file API that dictation programs know: a recording in, its text out, learned from like any other.

https://platform.openai.com/docs/api-reference/audio/createTranscription"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from device_sdk.audio import SAMPLE_RATE, read_audio
from device_sdk.decoding.hotwords import LONGEST_PHRASE
from device_sdk.device import Device
from device_sdk.formatting import Cue, cues, srt, webvtt, written_form
from device_sdk.hypothesis import Result, in_stream
from device_sdk.listen.answers import Json, log_probability, timed
from device_sdk.listen.gate import Refused, gate, people, person, received, token
from device_sdk.transcripts import spelled

FORMATS = ("json", "verbose_json", "text", "srt", "vtt")
OWNER = "idiolect"
MODEL = "idiolect"
"""The model of whoever asks; other models are people."""
_PROMPT_WORDS = 5
_FIELDS = 50
_FINEST = 48_000  # Hz
_UNKNOWN = 1 << 62  # frames, where a header does not say how many
_CHUNK = SAMPLE_RATE


async def get_models(request: Request) -> Response:
    """A model a person, besides the one of whoever asks."""
    who = person(request)
    names = [MODEL, *((who,) if people(request).closed else people(request).names)]
    return JSONResponse({"object": "list", "data": [_model(name) for name in dict.fromkeys(names)]})


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


async def post_transcription(request: Request) -> Response:
    """Fields: file, model, prompt (phrases to expect), response_format, stream, timestamp_granularities[]."""
    limits = gate(request).limits
    people(request).who(token(request))  # nobody without one fills the memory; whom the form names comes below
    given = await _form(request, limits.upload_bytes)
    content, name, text = given.content, given.name, given.text
    kind = text.get("response_format", "json")
    if kind not in FORMATS:
        raise Refused(422, "unknown_format", f"response_format: found {kind[:40]!r}, expected {', '.join(FORMATS)}")
    model = text.get("model", MODEL)
    who = person(request, None if model == MODEL or model.startswith(("whisper", "gpt-")) else model)
    prompt, streamed = text.get("prompt", ""), text.get("stream", "false") == "true"
    waveform = await run_in_threadpool(_waveform, content, name, limits.upload_seconds)
    device = await run_in_threadpool(people(request).device, who)
    utterances = _utterances(device, waveform, _expected(prompt, device))
    if streamed:
        return StreamingResponse(_events(utterances, request), media_type="text/event-stream")
    found = await run_in_threadpool(list, utterances)
    people(request).wake()
    return _answer(found, kind, len(waveform) / SAMPLE_RATE, given.words)


@dataclass(frozen=True, slots=True)
class _Form:
    """content, name: of the file. text: fields by name. words: whether times of words are wanted."""

    content: bytes
    name: str
    text: dict[str, str]
    words: bool


class _InMemory(MultiPartParser):
    """Starlette's own writes what is larger than a megabyte to the disk, and this is somebody's voice."""

    spool_max_size = sys.maxsize


async def _form(request: Request, most: int) -> _Form:
    """Raises :class:`Refused`. most: bytes of the body."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Refused(
            422, "no_file", "file: found none, expected a form (multipart/form-data) with a recording", "file"
        )
    content = await received(request, most, f"more than {most} bytes")

    async def once() -> AsyncGenerator[bytes, None]:
        yield content

    parser = _InMemory(request.headers, once(), max_files=1, max_fields=_FIELDS, max_part_size=most)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refused(400, "no_form", f"body: not a form with a file ({error.message[:100]})") from error
    given = form.get("file")
    if not isinstance(given, UploadFile):
        raise Refused(422, "no_file", "file: found none, expected a recording", "file")
    text = {name: value for name, value in form.items() if isinstance(value, str)}
    words = "word" in form.getlist("timestamp_granularities[]")
    return _Form(await given.read(), (given.filename or "file")[:100], text, words)


def _waveform(content: bytes, name: str, most: float) -> NDArray[np.float32]:
    """most: seconds, which the header is asked for, since a small file may decode to more than the memory holds. Raises
    :class:`Refused` (413), AudioError."""
    import soundfile

    try:
        info = soundfile.info(BytesIO(content))
    except soundfile.SoundFileError:
        return read_audio(content, mono=True, name=name)  # which says what is wrong with it
    if info.frames < _UNKNOWN and max(info.duration, info.frames * info.channels / _FINEST) > most:
        found = f"{math.ceil(info.duration)} s, channels: {info.channels}, {info.samplerate} Hz"
        expected = f"expected at most {most:g} s, and no more than of one channel at {_FINEST} Hz; send it in parts"
        raise Refused(413, "too_long", f"{name}: found {found}, {expected}", "file")
    return read_audio(content, mono=True, name=name)


def _expected(prompt: str, device: Device) -> list[str]:
    """The phrases of a prompt, which other models take as text before the recording: what stands between commas, lines
    and full stops and is short enough to be a name, in letters that the model has."""
    parts = prompt.replace("\n", ",").replace(".", ",").replace(";", ",").split(",")
    kept = spelled(parts, device.base.tokenizer.letters)
    return [part for part in kept if len(part.split()) <= _PROMPT_WORDS and len(part) <= LONGEST_PHRASE]


def _utterances(device: Device, waveform: NDArray[np.float32], expected: Sequence[str]) -> Iterator[Result]:
    session = device.session(SAMPLE_RATE, hotwords=expected or None)
    chunks = (waveform[at : at + _CHUNK] for at in range(0, len(waveform), _CHUNK))
    return (event for event in session.segments(chunks) if isinstance(event, Result))


def _answer(found: Sequence[Result], kind: str, seconds: float, words: bool) -> Response:
    text = " ".join(written_form(each.text) for each in found)
    match kind:
        case "text":
            return PlainTextResponse(f"{text}\n")
        case "srt":
            return PlainTextResponse(srt(_cues(found)), media_type="application/x-subrip")
        case "vtt":
            return PlainTextResponse(webvtt(_cues(found)), media_type="text/vtt")
    ids = [each.utterance_id for each in found]
    if kind == "json":
        return JSONResponse({"text": text, "utterance_ids": ids})
    segments = [_segment(number, each) for number, each in enumerate(found)]
    whole = {"task": "transcribe", "language": "english", "duration": seconds, "text": text, "segments": segments}
    heard = [word for each in found for word in timed(in_stream(each))]
    return JSONResponse(whole | ({"words": heard} if words or not segments else {}) | {"utterance_ids": ids})


def _cues(found: Sequence[Result]) -> list[Cue]:
    return list(cues([word for each in found for word in in_stream(each)]))


def _segment(number: int, found: Result) -> Json:
    best = found.nbest[0]
    pieces = max(1, len(best.tokens))
    return {
        "id": number,
        "seek": 0,
        "start": found.offset + (best.words[0].start if best.words else 0.0),
        "end": found.offset + (best.words[-1].end if best.words else found.seconds),
        "text": written_form(found.text),
        "tokens": list(best.tokens),
        "temperature": 0.0,
        "avg_logprob": best.scores.acoustic / pieces,
        "compression_ratio": 1.0,
        "no_speech_prob": 0.0,
        "log_probability": log_probability(best.confidence),
        "utterance_id": found.utterance_id,
    }


async def _events(utterances: Iterator[Result], request: Request) -> AsyncIterator[str]:
    """Server-sent events: text as utterances end, then all of it."""
    texts: list[str] = []
    async for found in iterate_in_threadpool(utterances):
        delta = f"{' ' if texts else ''}{written_form(found.text)}"
        texts.append(delta)
        yield _event({"type": "transcript.text.delta", "delta": delta, "utterance_id": found.utterance_id})
    people(request).wake()
    yield _event({"type": "transcript.text.done", "text": "".join(texts)})


def _event(data: Json) -> str:
    return f"data: {json.dumps(data)}\n\n"
