"""Speech made in process by espeak-ng, and the voices it speaks with.

espeak-ng comes with the wheel ``espeakng-loader`` (GPL: only the ``simulate`` extra of the server needs it, never a
device) and is driven through its C interface by ctypes, a few hundred times faster than real time.

A voice is an accent (phonemes, from espeak's language files), a variant (the speaker: formants, breath, roughness, from
its ``!v`` files), and a pitch, a rate and a vocal tract length. Variants are split in fixed, disjoint sets, one for
each role (:mod:`server.lab.corpora.roles`); *base* has mainstream accents only, the others regional ones, too. Variants
of one family (``edward``, ``edward2``) and variants whose settings hardly differ (``john``, ``norbert``) are in one
set. Training hears no regional accent, but others (:mod:`server.lab.corpora.accents`)."""

import _ctypes
import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from device_sdk.checks import check_choice, check_interval
from device_sdk.errors import DataError, MissingExtraError
from server.lab.corpora.roles import Role
from server.lab.corpora.utterance import SAMPLE_RATE, Waveform

MAINSTREAM_ACCENTS = ("en-us", "en-gb", "en-gb-x-rp")
REGIONAL = 0.75
"""How often a voice that is not of the base set has a regional accent."""
REGIONAL_ACCENTS = ("en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc")

VARIANTS: Mapping[Role, tuple[str, ...]] = {
    "base": (
        *("Alex", "Alicia", "Andy", "AnxiousAndy", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Jacky"),
        *("Mario", "Michael", "Mr serious", "Reed", "RicishayMax", "RicishayMax2", "RicishayMax3", "adam"),
        *("aunty", "caleb", "david", "edward", "edward2", "f1", "f2", "f4"),
        *("gustave", "iven", "iven2", "iven3", "iven4", "john", "klatt", "klatt2", "klatt3", "klatt4"),
        *("klatt5", "klatt6", "m1", "m2", "m4", "m6", "m7", "max", "michel", "miguel", "norbert", "paul"),
        *("rob", "steph", "steph2", "steph3", "victor", "zac"),
    ),
    "development": ("Lee", "antonio", "benjamin", "boris", "grandma", "marcelo", "quincy", "sandro"),
    "devices": (
        *("Andrea", "Marco", "Nguyen", "Storm", "anika", "ed", "f3", "grandpa", "ian", "m3", "m8", "pablo", "robert"),
        *("shelby", "travis"),
    ),
    "heldout": ("Annie", "Mike", "belinda", "f5", "linda", "m5", "mike2", "pedro"),
}


@dataclass(frozen=True, slots=True)
class Voice:
    """How someone sounds. accent, variant: names of espeak's language and variant files. pitch: 0 to 99, 50 is the
    variant's own; pitch_range: 0 to 99, 50 is usual, 0 monotone. rate: words a minute, as espeak counts them. tract:
    scale of all frequencies (formants and pitch); above 1 is a shorter vocal tract. The rate is unaffected. word_gap:
    extra pause between words, in tenths of a second at the usual rate. sounds: pairs of espeak's phonemes, one that the
    accent has and what this voice says in its place. rhythm: how long an unstressed, a reduced, a half stressed and a
    stressed syllable is, in units of espeak's ``stressLength``; empty: as the language has it. tongue: a language
    of espeak's in whose sounds all is said; ``sounds`` has to replace those that it lacks. throat: lines of a variant
    file that take the place of the variant's own."""

    accent: str
    variant: str
    pitch: int = 50
    rate: int = 170
    pitch_range: int = 50
    tract: float = 1.0
    word_gap: int = 0
    sounds: tuple[tuple[str, str], ...] = ()
    rhythm: tuple[int, ...] = ()
    tongue: str = ""
    throat: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ranges = {"pitch": "[0, 99]", "pitch_range": "[0, 99]", "rate": "[80, 450]", "tract": "[0.7, 1.4]"}
        for name, interval in ranges.items():
            check_interval(f"voice.{name}", getattr(self, name), interval)

    @property
    def name(self) -> str:
        """accent+variant."""
        return f"{self.accent}+{self.variant}"


def accents_of(voice_set: Role) -> tuple[str, ...]:
    """The accents that the voices of a set may have."""
    return MAINSTREAM_ACCENTS if voice_set == "base" else MAINSTREAM_ACCENTS + REGIONAL_ACCENTS


def draw_voice(
    voice_set: Role, generator: np.random.Generator, variant: str | None = None, regional: float = REGIONAL
) -> Voice:
    """A random voice of a set. regional: how often those of other sets than base have a regional accent."""
    check_choice("voice set", voice_set, tuple(VARIANTS))
    accents = REGIONAL_ACCENTS if (voice_set != "base" and generator.random() < regional) else MAINSTREAM_ACCENTS
    return Voice(
        accent=accents[generator.integers(len(accents))],
        variant=variant or VARIANTS[voice_set][generator.integers(len(VARIANTS[voice_set]))],
        pitch=int(generator.integers(25, 76)),
        rate=int(generator.integers(112, 216)),
        pitch_range=int(generator.integers(20, 81)),
        tract=float(np.round(generator.uniform(0.88, 1.14), 3)),
        word_gap=int(generator.integers(0, 3)) if generator.random() < 0.25 else 0,
    )


def draw_voices(
    voice_set: Role, count: int, generator: np.random.Generator, regional: float = REGIONAL
) -> tuple[Voice, ...]:
    """``count`` voices of a set, each with its own variant as long as the set has variants left."""
    variants = VARIANTS[voice_set]
    order = [
        variants[index] for _ in range(-(-count // len(variants))) for index in generator.permutation(len(variants))
    ]
    return tuple(draw_voice(voice_set, generator, variant, regional) for variant in order[:count])


def speak(text: str, voice: Voice) -> Waveform:
    """Speech, float32 [S] at 16 kHz, peak at most 1: the same samples for the same input in every process. Safe to call
    from several threads and forked processes. Raises MissingExtraError where espeak-ng is not installed, DataError
    where it has no such voice or says nothing."""
    pieces: list[bytes] = []

    def collect(samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            pieces.append(ctypes.string_at(samples, count * 2))
        return 0

    if not (_variants_path() / voice.variant).is_file():  # which the library would ignore
        raise DataError(f"espeak-ng has no voice {voice.name!r}; its variants are in {_variants_path()}")
    text, callback = _MORNING.sub(r"\1 a.m.", text), _CALLBACK(collect)
    with espeak() as (library, native_rate):
        library.espeak_SetSynthCallback(callback)
        _choose(library, voice.accent, voice)
        if voice.sounds:
            sounds = dict(voice.sounds)
            said = _SOUND.sub(lambda found: sounds.get(found[0], found[0]), phonemes(library, text))
            text = f"[[{said.replace('/', '|')}]]"
        if voice.tongue:
            _choose(library, voice.tongue, voice)
        for parameter, value in (
            (_RATE, round(voice.rate / voice.tract)),
            (_PITCH, voice.pitch),
            (_RANGE, voice.pitch_range),
            (_WORD_GAP, voice.word_gap),
        ):
            library.espeak_SetParameter(parameter, value, 0)
        data = text.encode()
        library.espeak_Synth(data, ctypes.c_size_t(len(data) + 1), 0, 0, 0, _UTF8 | _PHONEMES, None, None)
    samples = np.frombuffer(b"".join(pieces), np.int16).astype(np.float32) / 32768.0
    if not samples.any():
        raise DataError(f"espeak-ng said nothing for {text!r} with voice {voice.name!r}")
    # Played back `tract` times faster, then taken to 16 kHz: scales every frequency, undoes the slower rate.
    waveform = soxr.resample(samples, native_rate * voice.tract, SAMPLE_RATE, quality="MQ")
    return np.clip(waveform, -1.0, 1.0).astype(np.float32)


def _choose(library: Any, language: str, voice: Voice) -> None:
    """Speak a language of espeak's, with the variant, the throat and the rhythm of a voice."""
    name = _ACCENT_FILES.get(language, language)
    if (voice.rhythm or voice.throat) and (own := _language_files().get(name)):
        lines, variant = [own.read_text("utf-8")], f"+{voice.variant}"
        if voice.rhythm:
            weak, reduced, half, strong = voice.rhythm
            lines.append(f"stressLength {weak} {reduced} {half} {half} 0 0 {strong} {strong + 20}")
        if voice.throat:  # a variant that the library adds itself would undo it
            lines += [(_variants_path() / voice.variant).read_text("utf-8", "replace"), *voice.throat]
            variant = ""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "voice")
            path.write_text("\n".join([*lines, ""]), "utf-8")
            found = library.espeak_ng_SetVoiceByFile(f"{path}{variant}".encode())
    else:
        found = library.espeak_SetVoiceByName(f"{name}+{voice.variant}".encode())
    if found != 0:
        raise DataError(f"espeak-ng has no voice {voice.name!r}; accents are {', '.join(accents_of('devices'))}")


@cache
def _language_files() -> Mapping[str, Path]:
    """espeak's accents and languages, in lower case."""
    return {path.name.lower(): path for path in (_data_path() / "lang").glob("*/*")}


def phonemes(library: Any, text: str, between: str = "/") -> str:
    """espeak's names of the sounds of a text in the voice that is set, ``between`` those of a word."""
    rest = ctypes.cast(ctypes.c_char_p(text.encode()), ctypes.c_void_p)
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    clauses = []
    while rest.value:
        clauses.append(library.espeak_TextToPhonemes(ctypes.pointer(rest), _UTF8, ord(between) << 8).decode())
    return " ".join(clauses)


_SOUND = re.compile(r"[^ /',%=|]+")
"""A phoneme's name, without its stress."""

_HOURS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty"
_MORNING = re.compile(rf"\b({_HOURS}) am\b")
"""Else the synthesizer would say the verb."""

# espeak-ng's C interface (speak_lib.h)
_SYNCHRONOUS, _UTF8, _PHONEMES = 2, 1, 0x100
_RATE, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_ACCENT_FILES = {"en-gb": "en"}  # the library looks voices up by file name

_LOCK = threading.Lock()  # the library holds global state and is not reentrant


def _renew_lock() -> None:
    """A forked child must not inherit a lock that a thread of its parent holds."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _loader() -> Any:
    try:
        import espeakng_loader
    except ImportError as error:
        raise MissingExtraError(
            "speech is made by espeak-ng, which is not installed; run: pip install 'idiolect-server[simulate]'"
        ) from error
    return espeakng_loader


def _data_path() -> Path:
    return Path(_loader().get_data_path())


def _variants_path() -> Path:
    return _data_path() / "voices" / "!v"


@contextmanager
def espeak() -> Iterator[tuple[Any, int]]:
    """The library, freshly loaded and this process's alone, with its sample rate (Hz). Its flutter and noise go on from
    one utterance to the next in static variables that no call resets, so that the same words would sound different each
    time. Loading it anew takes 0.4 ms and makes speech a function of its input."""
    with _LOCK:
        library = ctypes.CDLL(_loader().get_library_path())
        try:
            rate = int(library.espeak_Initialize(_SYNCHRONOUS, 0, str(_data_path().parent).encode(), 0))
            if rate <= 0:
                raise DataError(f"espeak-ng could not read its data at {_data_path()}; reinstall espeakng-loader")
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
            yield library, rate
        finally:
            library.espeak_Terminate()
            if hasattr(_ctypes, "dlclose"):
                _ctypes.dlclose(library._handle)
