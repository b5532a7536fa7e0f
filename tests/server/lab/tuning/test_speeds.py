from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import ConfigurationError
from server.lab.corpora.utterance import Corpus, Utterance
from server.lab.tuning.lists import at_speeds


def test_each_speaker_once_a_speed_in_order() -> None:
    tone = np.sin(np.arange(1600) / 5).astype(np.float32)
    said = tuple(Utterance(f"u{number}", "ann", "play", None, True, lambda: tone) for number in range(2))
    made = at_speeds(Corpus("made", said), [0.8, 1.0, 1.25])
    assert [(utterance.id, utterance.speaker) for utterance in made.utterances] == [
        ("u0-x0.8", "ann-x0.8"),
        ("u1-x0.8", "ann-x0.8"),
        ("u0", "ann"),
        ("u1", "ann"),
        ("u0-x1.25", "ann-x1.25"),
        ("u1-x1.25", "ann-x1.25"),
    ]
    assert [utterance.load().size for utterance in made.utterances[::2]] == [2000, 1600, 1280]


@pytest.mark.parametrize("factors", [[], [9.0], [1.0, float("nan")]])
def test_impossible_speeds_are_refused(factors: list[float]) -> None:
    with pytest.raises(ConfigurationError, match=r"0\.5 to 2"):
        at_speeds(Corpus("made", ()), factors)
