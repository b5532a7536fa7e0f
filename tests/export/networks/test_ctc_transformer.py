import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from export.networks.ctc_transformer import ALPHABETS, CTCTransformer, CTCTransformerShape, PositionNoise, sinusoids

TINY = CTCTransformerShape(size=32, feed_forward=64, layers=2, heads=2, dropout=0.0, layer_drop=0.0)


def network(norm: str = "pre", **changes: float) -> CTCTransformer:
    torch.manual_seed(0)
    return CTCTransformer(replace(TINY, norm=norm, **changes)).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("language", "text", "written"),
    [
        ("en", "Don't stop -- me", "don't stop -- me"),
        ("en", "  çay, twice  ", "ay twice"),
        ("fr", "Où ça, mère?", "où ça mère"),
        ("de", "größer", "größer"),
    ],
)
def test_a_text_comes_back_as_it_can_be_written(language: str, text: str, written: str) -> None:
    alphabet = ALPHABETS[language]
    tokens = alphabet.encode(text)
    assert alphabet.decode(tokens) == written and all(0 < token < alphabet.size for token in tokens)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("count", [1, 2, 3, 30, 31])
def test_frames_after_striding_and_padding_that_changes_nothing(norm: str, count: int) -> None:
    made, features = network(norm), torch.randn(1, count, 80)
    alone = made(features, torch.tensor([count]))
    assert alone.shape == (1, -(-count // 3), TINY.tokens)
    assert int(made.strided(torch.tensor(count))) == alone.shape[1]
    padded = torch.cat([features, 50.0 * torch.randn(1, 14, 80)], dim=1)
    both = made(torch.cat([padded, torch.randn(1, count + 14, 80)]), torch.tensor([count, count + 14]))
    torch.testing.assert_close(both[:1, : alone.shape[1]], alone, rtol=1e-4, atol=1e-5)


def test_gain_of_a_microphone_changes_nothing() -> None:
    made, features, frames = network(), torch.randn(1, 40, 80), torch.tensor([40])
    torch.testing.assert_close(made(3.0 * features - 7.0, frames), made(features, frames), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_losses_are_sums_over_paths(norm: str) -> None:
    """Against the sum over every path of a short utterance, by brute force."""
    made = CTCTransformer(replace(TINY, tokens=4, norm=norm)).eval()  # type: ignore[arg-type]
    features, frames = torch.randn(1, 13, 80), torch.tensor([13])
    probabilities, total = made(features, frames)[0].exp().detach().numpy().astype(np.float64), 0.0
    for path in np.ndindex(*[4] * probabilities.shape[0]):
        if [t for i, t in enumerate(path) if t and (i == 0 or path[i - 1] != t)] == [2, 2, 1]:
            total += math.prod(probabilities[i, t] for i, t in enumerate(path))
    found = made.losses(features, frames, torch.tensor([[2, 2, 1]]), torch.tensor([3]))
    assert float(found.detach()) == pytest.approx(-math.log(total), rel=1e-4)


def test_layer_drop_leaves_layers_out_in_training_only() -> None:
    made = network(layer_drop=0.999)
    called: list[int] = []
    for index, layer in enumerate(made.layers):
        layer.register_forward_hook(lambda *_, index=index: called.append(index))
    features, frames = torch.randn(1, 9, 80), torch.tensor([9])
    made.train()(features, frames)
    assert not called
    made.eval()(features, frames)
    assert called == [0, 1]


def test_positions_are_seconds_from_the_middle_and_keep_their_order_in_training() -> None:
    noise, heard = PositionNoise(0.03), torch.arange(7) < torch.tensor([[7], [3]])
    positions = noise.eval()(heard)
    torch.testing.assert_close(positions[1, :3], torch.tensor([-0.03, 0.0, 0.03]))
    torch.testing.assert_close(positions[0].diff(), torch.full((6,), 0.03))
    moved = [noise.train()(heard) for _ in range(20)]
    assert all((m.diff() > 0).all() for m in moved) and max(float((m - positions).abs().max()) for m in moved) > 1.0
    embedded = sinusoids(positions, 8)
    assert embedded.shape == (2, 7, 8)
    torch.testing.assert_close(embedded[..., :4].square() + embedded[..., 4:].square(), torch.ones(2, 7, 4))
