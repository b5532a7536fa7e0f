"""Accents that training hears: every sound of them is one that espeak-ng has, and they sound different."""

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.errors import DataError
from server.lab.corpora.accents import MOTHER_TONGUES, SOUNDS, draw_rhythm, draw_sounds, foreign
from server.lab.corpora.utterance import SAMPLE_RATE
from server.lab.corpora.voices import MAINSTREAM_ACCENTS, Voice, espeak, phonemes, speak

pytest.importorskip("espeakng_loader", reason="not installed: idiolect-server[simulate]")

ENGLISH = Voice("en-us", "m1")
SENTENCE = "turn the light in the hall down a little before the next hour"
WORDS = (
    "and", "a", "oh", "or", "are", "eye", "ear", "air", "hour", "owe", "ooh", "err", "ah", "all", "boy", "up", "it"
)  # fmt: skip


@pytest.mark.parametrize("tongue", MOTHER_TONGUES)
def test_a_foreigner_can_say_every_vowel(tongue: str) -> None:
    """espeak leaves out what a language does not have, so that a lone vowel would be nothing."""
    generator, drawn = np.random.default_rng(1), set[tuple[tuple[str, str], ...]]()
    while len(drawn) < 5:
        voice = foreign(ENGLISH, generator)
        if voice.tongue == tongue:
            drawn.add(voice.sounds)
            for word in WORDS:
                assert speak(word, voice).size > 0.1 * SAMPLE_RATE, (word, voice.sounds)


def test_foreigners_differ_and_say_the_same_words_in_about_the_same_time() -> None:
    generator = np.random.default_rng(2)
    usual = speak(SENTENCE, ENGLISH)
    voices = [foreign(ENGLISH, generator) for _ in range(60)]
    assert len({voice.tongue for voice in voices}) > 15
    spoken = [speak(SENTENCE, voice) for voice in voices]
    assert len({waveform.tobytes() for waveform in spoken}) == len(set(voices))
    assert all(0.6 < waveform.size / usual.size < 1.6 for waveform in spoken)


def test_no_sound_of_english_is_lost() -> None:
    """All that the accents of training say is either a sound that foreigners replace or one that every language has."""
    generator = np.random.default_rng(3)
    replaced = dict(foreign(ENGLISH, generator).sounds)
    said = set[str]()
    with espeak() as (library, _):
        for accent in ("en-us", "en", "en-gb-x-rp"):
            library.espeak_SetVoiceByName(accent.encode())
            for text in (*WORDS, *SOUNDS, SENTENCE, "measure the poor boy's pleasure", "either way they choose"):
                said.update(sound.strip("',%=|_;-") for sound in phonemes(library, text).replace(" ", "/").split("/"))
    vowels = {sound for sound in said if sound and sound[0] in "aeiouAEIOUV@03"}
    assert len(vowels) > 20 and vowels - replaced.keys() <= {"o", "e", "u"}


@pytest.mark.parametrize("accent", MAINSTREAM_ACCENTS)
def test_rhythm_lengthens_what_it_says(accent: str) -> None:
    even, uneven = (
        speak(SENTENCE, Voice(accent, "m1", rhythm=rhythm)) for rhythm in ((200,) * 4, (110, 110, 150, 310))
    )
    long = speak(SENTENCE, Voice(accent, "m1", rhythm=(300, 300, 300, 400)))
    assert long.size > 1.1 * even.size and not np.array_equal(even, uneven)
    assert even.size == speak(SENTENCE, Voice(accent, "m1", rhythm=(200,) * 4)).size
    with pytest.raises(DataError, match=r"no voice 'xx-yy[+]m1'"):
        speak(SENTENCE, Voice("xx-yy", "m1", rhythm=(200,) * 4))


def test_own_accents_are_drawn_anew_each_time() -> None:
    generator = np.random.default_rng(4)
    drawn = [(draw_sounds(generator), draw_rhythm(generator)) for _ in range(50)]
    assert len(set(drawn)) == 50 and all(set(dict(sounds)) <= set(SOUNDS) for sounds, _ in drawn)
    assert all(weak < 210 and strong >= 190 for _, (weak, _, _, strong) in drawn)
    voices = [replace(ENGLISH, sounds=sounds, rhythm=rhythm) for sounds, rhythm in drawn[:5]]
    assert len({speak(SENTENCE, voice).tobytes() for voice in voices}) == 5
