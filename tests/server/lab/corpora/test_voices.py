"""espeak-ng really speaks, the same each time, and the voice sets are disjoint."""

import itertools
import re
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import ConfigurationError, DataError, MissingExtraError
from server.lab.corpora import SAMPLE_RATE, voices
from server.lab.corpora.made import draw_people, made_corpus, say
from server.lab.corpora.roles import Role
from server.lab.corpora.voices import VARIANTS, Voice, accents_of, draw_voice, draw_voices, speak

espeakng_loader = pytest.importorskip("espeakng_loader", reason="not installed: idiolect-server[simulate]")

SKIPPED = {
    *("whisper", "whisperf", "croak"),  # whispers and creaks
    *("Demonic", "UniRobot", "anikaRobot", "Tweaky", "kaukovalta", "announcer"),  # effects, echo and distortion
    *("robosoft", *(f"robosoft{number}" for number in range(2, 9))),
    "fast",  # which changes only the limit of the speaking rate
}
SENTENCE = "can i get a light roast coffee"


def test_sets_are_disjoint_and_families_stay_together() -> None:
    everything = [variant for variants in VARIANTS.values() for variant in variants]
    assert len(everything) == len(set(everything))
    owner = {variant: name for name, variants in VARIANTS.items() for variant in variants}
    for variant, name in owner.items():
        family = variant.rstrip("0123456789")
        if len(family) > 1:  # f1 and f2 are different women, edward2 is a revision of edward
            assert owner.get(family, name) == name, variant
    assert accents_of("base") == voices.MAINSTREAM_ACCENTS
    assert set(accents_of("heldout")) == set(accents_of("devices")) > set(voices.REGIONAL_ACCENTS)


def test_no_voice_has_a_near_copy_in_another_set() -> None:
    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    named = {variant for variants in VARIANTS.values() for variant in variants}
    assert {path.name for path in folder.iterdir()} - named == SKIPPED, "every installed variant is accounted for"

    def settings(variant: str) -> frozenset[str]:
        text = (folder / variant).read_text(errors="ignore")
        lines = (re.split("//|#", line)[0].split() for line in text.splitlines())
        naming = {"language", "name", "gender", "maintainer", "status"}
        return frozenset(" ".join(words) for words in lines if words and words[0] not in naming)

    variants = [(settings(variant), name, variant) for name, group in VARIANTS.items() for variant in group]
    for (first, one, left), (second, other, right) in itertools.combinations(variants, 2):
        if one != other:
            assert len(first & second) <= 0.5 * len(first | second), (left, right)


@pytest.mark.parametrize("voice_set", list(VARIANTS))
def test_every_voice_speaks(voice_set: Role) -> None:
    accents = accents_of(voice_set)
    plain = {accent: speak(SENTENCE, Voice(accent, "fast")) for accent in accents}  # a variant that changes no sound
    for number, variant in enumerate(VARIANTS[voice_set]):
        accent = accents[number % len(accents)]
        waveform = speak(SENTENCE, Voice(accent, variant))
        assert waveform.dtype == np.float32 and 1.2 < waveform.size / SAMPLE_RATE < 3.5, variant
        assert np.isfinite(waveform).all() and np.abs(waveform).max() <= 1.0
        assert np.sqrt(np.mean(waveform**2)) > 0.02, variant
        assert not np.array_equal(waveform, plain[accent]), variant
    spoken = {speak("tomato water bath garage", Voice(accent, "m1")).tobytes() for accent in accents}
    assert len(spoken) == len(accents), "every accent sounds different"


def test_speech_is_a_function_of_its_input_in_processes_and_threads() -> None:
    voice = Voice("en-us", "klatt2")  # a variant with noise
    first = speak(SENTENCE, voice)
    speak("something else", Voice("en-gb", "m1"))
    assert np.array_equal(first, speak(SENTENCE, voice))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert np.array_equal(first, pool.submit(speak, SENTENCE, voice).result())
    jobs = [(f"number {word}", Voice("en-us", variant)) for word in ("one", "two") for variant in ("m1", "f1", "klatt")]
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(lambda job: speak(*job), jobs))
    assert all(np.array_equal(speak(*job), waveform) for job, waveform in zip(jobs, together, strict=True))


def test_rate_and_tract_do_what_they_say() -> None:
    voices = (Voice("en-us", "m1", rate=rate, tract=tract) for rate, tract in ((160, 1.0), (220, 1.0), (160, 1.15)))
    usual, faster, shorter = (speak(SENTENCE, voice) for voice in voices)
    assert faster.size < 0.85 * usual.size and shorter.size == pytest.approx(usual.size, rel=0.08)

    def centroid(waveform: np.ndarray) -> float:
        spectrum = np.abs(np.fft.rfft(waveform))
        return float((spectrum * np.arange(spectrum.size)).sum() / spectrum.sum() / waveform.size * SAMPLE_RATE)

    assert centroid(shorter) > 1.03 * centroid(usual)


@pytest.mark.parametrize(
    ("text", "accent", "variant", "message"),
    [
        ("hello", "en-us", "nobody", "no voice 'en-us[+]nobody'"),
        ("hello", "xx-yy", "m1", "no voice"),
        ("", "en-us", "m1", "said nothing"),
    ],
)
def test_what_cannot_be_said_is_refused(text: str, accent: str, variant: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        speak(text, Voice(accent, variant))


def test_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(MissingExtraError, match=r"idiolect-server\[simulate\]"):
        speak("hello", Voice("en-us", "m1"))


def test_drawn_voices_keep_to_their_set() -> None:
    generator = np.random.default_rng(0)
    for voice_set, variants in VARIANTS.items():
        drawn = [draw_voice(voice_set, generator) for _ in range(100)]
        assert {voice.variant for voice in drawn} <= set(variants)
        assert {voice.accent for voice in drawn} == set(accents_of(voice_set))
    people = draw_voices("devices", 20, generator)
    assert len(people) == 20 and len({voice.variant for voice in people}) == len(VARIANTS["devices"])
    with pytest.raises(ConfigurationError, match="heldout"):
        draw_voice("test", generator)  # type: ignore[arg-type]
    for name, value in {"pitch": 120, "pitch_range": -1, "rate": 20, "tract": 2.0}.items():
        with pytest.raises(ConfigurationError, match=f"voice.{name}: found {value}"):
            Voice("en-us", "m1", **{name: value})  # type: ignore[arg-type]


def test_made_people_speak_their_own_way() -> None:
    corpus = made_corpus("devices", people=3, each=2, seed=5)
    assert corpus.speakers == ("devices-00", "devices-01", "devices-02")
    assert len({utterance.id for utterance in corpus.utterances}) == 6
    again = made_corpus("devices", people=3, each=2, seed=5)
    for utterance, same in zip(corpus.utterances, again.utterances, strict=True):
        assert (utterance.text, utterance.slots) == (same.text, same.slots)
        assert np.array_equal(utterance.load(), same.load())
    people = draw_people("devices", 2, 5)
    assert people == draw_people("devices", 2, 5) != draw_people("devices", 2, 6)
    assert draw_people("heldout", 1, 5, with_profiles=False)[0].profile is None
    assert not np.array_equal(say("hello", people[0], (1,)), say("hello", people[0], (2,)))
    with pytest.raises(ConfigurationError, match="number of people: found 0"):
        draw_people("devices", 0, 1)
