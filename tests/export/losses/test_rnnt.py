import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from export.losses import rows
from export.losses.rnnt import lattice, rnnt_loss
from tests.export.graphs.oracle import path_sum


def naive(logits: Tensor, tokens: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
    """Every cell of every utterance by the textbook recursion, gradients by autograd."""
    cut = zip(logits, tokens, frames, lengths, strict=True)
    return torch.stack([-path_sum(each[:t, : u + 1].log_softmax(-1), said[:u].tolist()) for each, said, t, u in cut])


def problem(seed: int, size: int, width: int, most: int, joiner: int, pieces: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    parameters = [normal(size, width, joiner), normal(size, most + 1, joiner), normal(pieces, joiner), normal(pieces)]
    bounds = ((1, pieces, (size, most)), (1, width + 1, (size,)), (0, most + 1, (size,)))
    return parameters, [torch.randint(*each, generator=generator) for each in bounds]


SIZES = {"seed": st.integers(0, 10_000), "size": st.integers(1, 3), "width": st.integers(1, 7)}
SIZES |= {"most": st.integers(0, 4), "pieces": st.integers(2, 9)}


@settings(max_examples=15, deadline=None)
@given(**SIZES)
def test_loss_and_gradients_agree_with_the_naive_recursion(seed, size, width, most, pieces):
    (encoded, predicted, weight, bias), (tokens, frames, lengths) = problem(seed, size, width, most, 5, pieces)
    shares = torch.linspace(-1.0, 2.0, size, dtype=torch.float64)
    found = rnnt_loss(encoded, predicted, weight, bias, tokens, frames, lengths)
    expected = naive(torch.tanh(encoded[:, :, None] + predicted[:, None]) @ weight.T + bias, tokens, frames, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    inputs = (encoded, predicted, weight, bias)
    ours = torch.autograd.grad((found * shares).sum(), inputs)
    for one, other in zip(ours, torch.autograd.grad((expected * shares).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0])
def test_scores_are_those_of_log_softmax(spread: float) -> None:
    """Also where a share of blank or label is far below what float32 holds."""
    generator = torch.Generator().manual_seed(1)
    logits = spread * torch.randn(200, 9, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 9, (200,), generator=generator)
    expected = logits.log_softmax(-1)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        blank, label = rows.score(logits.to(dtype), labels)
        torch.testing.assert_close(blank.double(), expected[:, 0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(label.double(), expected.gather(1, labels[:, None])[:, 0], rtol=tolerance, atol=1e-5)


def test_a_lattice_of_long_speech_stays_exact() -> None:
    """600 frames with blanks of thousands of nats in all, against the recursion over single cells."""
    blank, emit = -30.0 * torch.rand(2, 2, 600, 13, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    frames, lengths = torch.tensor([600, 420]), torch.tensor([12, 7])
    losses, _, _ = lattice(blank, emit, frames, lengths)
    for row, (t, u) in enumerate(zip(frames.tolist(), lengths.tolist(), strict=True)):
        expected = -path_sum(torch.stack([blank[row, :t, : u + 1], emit[row, :t, : u + 1]], -1), [1] * u)
        assert float(losses[row]) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "pruning", "tolerance"),
    [(torch.float32, 0.0, 1e-4), (torch.float32, 1e-4, 2e-3), (torch.bfloat16, 1e-4, 0.05)],
)
def test_faster_settings_stay_close(dtype: torch.dtype, pruning: float, tolerance: float) -> None:
    """Relative L2 distance of all gradients to the exact ones, over more cells than fit in one chunk."""
    parameters, (tokens, frames, lengths) = problem(5, 6, 90, 12, 16, 20)
    frames += 60 - frames.clamp(max=60)
    exact = torch.autograd.grad(rnnt_loss(*parameters, tokens, frames, lengths).sum(), parameters)
    rough = [value.detach().float().requires_grad_() for value in parameters]
    found = torch.autograd.grad(rnnt_loss(*rough, tokens, frames, lengths, dtype=dtype, pruning=pruning).sum(), rough)
    joined, other = (np.concatenate([g.double().numpy().ravel() for g in side]) for side in (exact, found))
    assert np.linalg.norm(joined - other) / np.linalg.norm(joined) < tolerance


def test_shapes_that_do_not_fit_are_refused() -> None:
    parameters, (tokens, frames, lengths) = problem(1, 2, 5, 3, 4, 6)
    with pytest.raises(ValueError, match="frames: found"):
        rnnt_loss(*parameters, tokens, frames + 5, lengths)
    with pytest.raises(ValueError, match="one position more"):
        rnnt_loss(*parameters, tokens[:, :2], frames, lengths.clamp(max=2))
