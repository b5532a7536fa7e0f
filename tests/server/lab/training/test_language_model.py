import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from device_sdk.errors import ConfigurationError, DataError
from export.networks.language_model import LanguageModel
from export.networks.language_model_shape import LanguageModelShape
from server.lab.training import ngram
from server.lab.training.language_model import LanguageModelSettings, perplexity, train_language_model
from server.lab.training.trainer import Budget
from tests.server.lab.training.test_ngram import WORDS, markov_text

SHAPE = LanguageModelShape(len(WORDS), size=16, feed_forward=32, blocks=1, heads=2, positions=8)


def test_it_learns_what_follows_what_and_says_how_far_it_is(tmp_path: Path) -> None:
    text, seen = markov_text(400, 0), list[tuple[float, float]]()
    settings = LanguageModelSettings(budget=Budget(steps=150), batch_words=256, warmup=10, average=0.9)
    model = train_language_model(text, SHAPE, settings, lambda *told: seen.append(told), tmp_path / "one")
    unigrams = ngram.estimate(text, WORDS, 2, (1, 10_000))
    assert perplexity(model, text[:100]) < 0.8 * ngram.perplexity(unigrams, text[:100])
    assert [share for share, _ in seen] == [step / 150 for step in range(1, 151)] and seen[-1][1] < seen[0][1]
    again = train_language_model(text, SHAPE, settings, None, tmp_path / "two")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 11, 12, 40])
def test_every_word_of_a_long_sentence_is_scored_once(length: int) -> None:
    """A model without attention and positions scores a word alike in every window, so the sum is known."""
    torch.manual_seed(0)
    model = LanguageModel(SHAPE).eval()
    with torch.no_grad():
        model.positions.zero_()
        for name, value in model.named_parameters():
            if "attention_output" in name:
                value.zero_()
    sentence = np.random.default_rng(length).integers(0, len(WORDS), length).tolist()
    symbols = torch.tensor([len(WORDS), *sentence, len(WORDS)])
    with torch.no_grad():
        expected = [float(model(word.view(1, 1), after.view(1, 1))) for word, after in pairwise(symbols)]
    assert len(expected) == length + 1
    assert math.log(perplexity(model, [sentence])) == pytest.approx(-np.mean(expected), abs=1e-5)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sentence"):
        train_language_model([], SHAPE, LanguageModelSettings(), None, tmp_path)
    with pytest.raises(ConfigurationError, match="unlisted"):
        LanguageModelSettings(unlisted=1.0)
    assert math.isnan(perplexity(LanguageModel(SHAPE), []))
