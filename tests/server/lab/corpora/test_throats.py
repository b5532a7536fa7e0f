"""Throats that training hears: espeak-ng speaks with each, they differ, and say the same in the same time."""

from dataclasses import replace

import numpy as np
import pytest

from server.lab.corpora.accents import draw_rhythm, foreign
from server.lab.corpora.throats import draw_throat
from server.lab.corpora.voices import VARIANTS, Voice, speak

pytest.importorskip("espeakng_loader", reason="not installed: idiolect-server[simulate]")

SENTENCE = "turn the light in the hall down a little"


def test_throats_are_drawn_anew_each_time() -> None:
    generator = np.random.default_rng(1)
    drawn = [draw_throat(generator) for _ in range(60)]
    assert len(set(drawn)) == 60
    named = {line.split()[0] for lines in drawn for line in lines}
    assert named == {"formant", "voicing", "consonants", "roughness", "flutter", "tone", "klatt", "breath"}
    numbers = [int(number) for lines in drawn for line in lines for number in line.split()[1:]]
    assert min(numbers) >= 0 and max(numbers) <= 3000
    first = [int(lines[1].split()[2]) for lines in drawn]
    assert 90 < np.mean(first) < 110 and 5 < np.std(first) < 15, "percent of the language's first formant"


def test_somebody_with_a_throat_sounds_like_nobody_and_speaks_as_fast() -> None:
    generator, plain = np.random.default_rng(2), Voice("en-us", "m1")
    usual = speak(SENTENCE, plain)
    voices = [replace(plain, throat=draw_throat(generator)) for _ in range(20)]
    spoken = [speak(SENTENCE, voice) for voice in voices]
    assert len({waveform.tobytes() for waveform in (usual, *spoken)}) == 21
    assert all(0.9 < waveform.size / usual.size < 1.1 for waveform in spoken)
    assert all(np.square(waveform).mean() > 1e-4 for waveform in spoken)


@pytest.mark.parametrize("variant", VARIANTS["base"])
def test_every_variant_can_have_one(variant: str) -> None:
    """What a throat does not say is the variant's."""
    throat = draw_throat(np.random.default_rng(3))
    voice = Voice("en-gb", variant, throat=throat)
    assert speak(SENTENCE, voice).size > 8_000
    lower, higher = (speak(SENTENCE, replace(voice, throat=(f"formant 1 {share} 100 100",))) for share in (85, 115))
    assert not np.array_equal(lower, higher)


def test_a_throat_goes_with_a_rhythm_and_a_mother_tongue() -> None:
    generator = np.random.default_rng(4)
    voice = replace(foreign(Voice("en-gb", "f1"), generator), throat=draw_throat(generator))
    plain, long = speak(SENTENCE, voice), speak(SENTENCE, replace(voice, rhythm=(300, 300, 300, 400)))
    assert long.size > 1.1 * plain.size and not np.array_equal(plain, speak(SENTENCE, replace(voice, throat=())))
    assert speak(SENTENCE, replace(voice, rhythm=draw_rhythm(generator))).size > 8_000
