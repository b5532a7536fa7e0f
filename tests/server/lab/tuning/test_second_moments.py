import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from device_sdk.learning.settings import MaskSettings
from server.lab.corpora.utterance import Utterance
from server.lab.tuning import second_moments
from tests.signals import chirp
from tests.tiny import SENTENCES


def utterance(number: int, text: str | None) -> Utterance:
    return Utterance(f"u{number}", "anna", text, None, True, lambda: chirp(16_000, number))


def test_shares_sum_to_one_and_every_utterance_counts_the_same(tiny_bundle: Bundle) -> None:
    said = [utterance(number, text) for number, text in enumerate(SENTENCES[:3])] + [utterance(9, None)]
    found, used = second_moments.measure(tiny_bundle, said)
    assert used == 3
    shapes = tiny_bundle.architecture.parameter_shapes()
    total = sum(float(found[name][0].mean(dtype=np.float64)) * np.prod(shape) for name, shape in shapes.items())
    assert total == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(DataError, match="no utterance with a transcript"):
        second_moments.measure(tiny_bundle, said[3:])


def test_one_utterance_gives_its_own_gradient(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from device_sdk.features import logmel
    from device_sdk.runtimes.training import TrainingSession

    monkeypatch.setattr(second_moments, "MaskSettings", lambda: MaskSettings(frequency_masks=0, time_masks=0))
    found, _ = second_moments.measure(tiny_bundle, [utterance(1, SENTENCES[0])])
    tokens = tuple(tiny_bundle.tokenizer.encode(SENTENCES[0]))
    features = logmel(chirp(16_000, 1), tiny_bundle.features)
    gradients = TrainingSession(tiny_bundle).run(dict(tiny_bundle.weights), features, (tokens,), np.ones(1)).gradients
    norm = np.sqrt(sum(float(np.vdot(value, value)) for value in gradients.values()))
    expected = np.square(gradients["encoder.0.W"] / norm).mean(axis=1)
    np.testing.assert_allclose(found["encoder.0.W"][0], expected, rtol=1e-4, atol=1e-12)
