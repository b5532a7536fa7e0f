import numpy as np
import pytest

from device_sdk.errors import DataError
from server.lab.corpora import Utterance
from server.lab.training.recordings import Recording, join, record, trim
from tests.signals import tone

RATE = 16_000


def test_trim_leaves_the_speech_alone() -> None:
    sizes = {trim(tone(1.0, 0.6), np.random.default_rng(seed)).size for seed in range(8)}
    assert len(sizes) > 4 and all((1.0 + 2 * 0.12) * 16_000 - 400 <= size <= 2.2 * 16_000 for size in sizes)
    silence = np.zeros(1600, np.float32)
    assert trim(silence, np.random.default_rng(0)) is silence


def test_only_utterances_with_sure_words_are_recorded() -> None:
    given = (("yes", True), ("no", False), (None, True))
    sure, unsure, wordless = (Utterance("u", "s", text, None, score, lambda: tone(0.1)) for text, score in given)
    assert [r.text for r in record([sure, unsure, wordless], "folder")] == ["yes"]
    with pytest.raises(DataError, match="folder: found no utterance"):
        record([unsure, wordless], "folder")


def test_hours_of_recordings_are_held_in_half_the_memory() -> None:
    (held,) = record([Utterance("u", "s", "yes", None, True, lambda: tone(0.1))], "folder")
    assert held.kept.dtype == np.float16 and held.waveform.dtype == np.float32
    np.testing.assert_allclose(held.waveform, tone(0.1), atol=2e-4)


def test_joined_words_come_one_after_another() -> None:
    words = [Recording(tone(0.3), word, "jackson", "fsdd") for word in ("one", "two")]
    waveform, text = join(words, 4, np.random.default_rng(0))
    assert len(text.split()) == 4 and waveform.size >= 4 * 0.3 * RATE - 4 and waveform.dtype == np.float32
