"""Audio that arrives while it is recognized: standard input and the microphone."""

import math
import queue
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio import SAMPLE_RATE, check_sample_rate, read_audio
from device_sdk.audio.files import READABLE
from device_sdk.errors import AudioError, MissingExtraError

ENCODINGS = ("s16le", "f32le")
STDIN = "standard input"


@dataclass(frozen=True, slots=True)
class Format:
    """How bytes are samples. encoding: u8, s16le, s24le, s32le, f32le or f64le; rate: Hz; channels: interleaved. size:
    how many bytes, what comes after them is something else; None: all that come."""

    rate: int
    encoding: str = "s16le"
    channels: int = 1
    size: int | None = None

    @property
    def width(self) -> int:
        """Bytes of one sample of every channel."""
        return int(self.encoding.strip("usfle")) // 8 * self.channels


def standard_input(
    stream: IO[bytes], form: Format | None, seconds: float, *, mono: bool = False, strict: bool = False
) -> tuple[int, Iterator[NDArray[np.float32] | NDArray[np.int16]]]:
    """The rate and the samples of a file on a stream of bytes: of WAV as they arrive, at most ``seconds`` at a time; of
    any other format once all of it is there, in memory. form: of bare samples. Raises :class:`AudioError`."""
    consumed = bytearray()
    if form is None:
        consumed += stream.read(12)
        if not consumed:
            raise AudioError(f"{STDIN}: is empty, expected {READABLE}, or with --raw samples")
        if bytes(consumed[:4]) in (b"RIFF", b"RF64") and consumed[8:] == b"WAVE":
            form = _wav_format(stream, consumed)
    if form is not None:
        if strict and form.rate != SAMPLE_RATE:
            raise AudioError(f"{STDIN}: found a sample rate of {form.rate} Hz, expected {SAMPLE_RATE}; resample it")
        return form.rate, samples(stream, form, seconds, mono=mono)
    try:
        whole = read_audio(consumed + stream.read(), mono=mono, strict=strict, name=STDIN)
    except AudioError as error:
        hint = ", or with --raw samples" if str(error).endswith(READABLE) else ""
        raise AudioError(f"{error}{hint}") from error
    size = max(1, round(seconds * SAMPLE_RATE))
    return SAMPLE_RATE, (whole[at : at + size] for at in range(0, len(whole), size))


def _wav_format(stream: IO[bytes], consumed: bytearray) -> Format | None:
    """Reads a WAV header up to where the samples begin; None for an encoding that is not read as it arrives. consumed:
    takes in every byte that is read. Raises :class:`AudioError` for a header that is none."""
    found: Format | None = None
    described = False
    while True:
        name, size = struct.unpack("<4sI", _exactly(stream, 8, consumed))
        if name == b"data":
            if not described:
                raise AudioError(f"{STDIN}: found samples before the WAV header says what they are")
            unknown = size in (0, 0xFFFFFFFF)  # when the header was written
            return found and replace(found, size=None if unknown else size)
        if size > 1 << 20:
            raise AudioError(f"{STDIN}: found a header chunk {name!r} of {size} bytes, expected a WAV file")
        content = _exactly(stream, size + size % 2, consumed)
        if name == b"fmt ":
            found, described = _read_format(content), True


def _read_format(content: bytes) -> Format | None:
    if len(content) < 16:
        raise AudioError(f"{STDIN}: found a WAV header of {len(content)} bytes, expected 16 or more")
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", content[:16])
    if tag == 0xFFFE and len(content) >= 26:  # WAVE_FORMAT_EXTENSIBLE
        (tag,) = struct.unpack("<H", content[24:26])
    encodings = {(1, 8): "u8", (1, 16): "s16le", (1, 24): "s24le", (1, 32): "s32le", (3, 32): "f32le", (3, 64): "f64le"}
    if (tag, bits) not in encodings or not channels:
        return None
    return Format(check_sample_rate(rate, STDIN), encodings[tag, bits], channels)


def samples(
    stream: IO[bytes], form: Format, seconds: float, *, mono: bool = False
) -> Iterator[NDArray[np.float32] | NDArray[np.int16]]:
    """The samples of a stream of bytes as they arrive, at most ``seconds`` at a time: [S], or [S, channels] where they
    are to be mixed down (mono). Raises :class:`AudioError` for several channels otherwise."""
    if form.channels > 1 and not mono:
        raise AudioError(f"{STDIN}: found {form.channels} channels, expected one; mix them down (--mono)")
    most = max(1, round(seconds * form.rate)) * form.width
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    waiting, left = b"", math.inf if form.size is None else form.size
    while True:
        content = read(int(min(most - len(waiting), left)))
        left -= len(content)
        waiting += content
        usable = len(waiting) - len(waiting) % form.width
        if usable and (usable == most or not content or form.rate * form.width <= 20 * usable):
            decoded = _decoded(waiting[:usable], form.encoding)
            yield decoded.reshape(-1, form.channels) if form.channels > 1 else decoded
            waiting = waiting[usable:]
        if not content:
            return


def _decoded(content: bytes, encoding: str) -> NDArray[np.float32] | NDArray[np.int16]:
    if encoding == "s16le":
        return np.frombuffer(content, "<i2").astype(np.int16)
    if encoding in ("f32le", "f64le"):
        return np.frombuffer(content, "<f4" if encoding == "f32le" else "<f8").astype(np.float32)
    if encoding == "u8":
        return (np.frombuffer(content, np.uint8).astype(np.float32) - np.float32(128.0)) / np.float32(128.0)
    if encoding == "s24le":
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        content = padded.tobytes()
    return (np.frombuffer(content, "<i4") / 2.0**31).astype(np.float32)


def _exactly(stream: IO[bytes], size: int, consumed: bytearray) -> bytes:
    content = stream.read(size)
    consumed += content
    if len(content) < size:
        raise AudioError(f"{STDIN}: ends inside the WAV header, expected samples after it")
    return content


def check_microphone() -> None:
    """Raises :class:`MissingExtraError` where nothing can be heard: the extra or PortAudio is missing."""
    _sounddevice()


def microphone(device: str | None, seconds: float) -> Iterator[NDArray[np.float32]]:
    """What the microphone hears, [S] float32 at 16 kHz, in pieces of ``seconds``, until the program is interrupted.
    device: its number or part of its name; None is the system's own. Raises :class:`MissingExtraError` where the extra
    or PortAudio is missing, :class:`AudioError` where there is no such microphone."""
    sounddevice = _sounddevice()
    heard: queue.SimpleQueue[NDArray[np.float32]] = queue.SimpleQueue()

    def listen(block: NDArray[np.float32], *_: object) -> None:
        heard.put(block[:, 0].copy())

    chosen: str | int | None = int(device) if device is not None and device.isdigit() else device
    block = max(1, round(seconds * SAMPLE_RATE))
    try:
        form = {"samplerate": SAMPLE_RATE, "channels": 1, "dtype": "float32", "blocksize": block}
        stream = sounddevice.InputStream(**form, device=chosen, callback=listen)
        stream.start()
    except (sounddevice.PortAudioError, ValueError) as error:  # ValueError: no device of this name, or several
        chooses = f"--microphone chooses one of: {_inputs(sounddevice)}"
        raise AudioError(f"--mic: the microphone cannot be opened ({error}); {chooses}") from error
    try:
        while True:
            try:
                yield heard.get(timeout=0.2)
            except queue.Empty:
                if not stream.active:
                    raise AudioError("--mic: the microphone stopped; was it unplugged?") from None
    except KeyboardInterrupt:
        return
    finally:
        stream.close()


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        install = "pip install 'idiolect[mic]'"
        raise MissingExtraError(f"--mic needs the module 'sounddevice'; install it with: {install}") from error
    except OSError as error:  # its own message when the C library is not there
        install = "apt install libportaudio2, or brew install portaudio"
        raise MissingExtraError(f"--mic needs PortAudio ({error}); install it with: {install}") from error
    return sounddevice


def _inputs(sounddevice: Any) -> str:
    try:
        devices = list(sounddevice.query_devices())
    except sounddevice.PortAudioError:
        devices = []
    names = [f"{index} {device['name']}" for index, device in enumerate(devices) if device["max_input_channels"] > 0]
    return ", ".join(names) or "none, the system has no microphone"
