"""Gradients of prediction network and joiner over an encoder that a bundle brings, beside torch in float64."""

import numpy as np
import pytest
import torch

from device_sdk.bundle.streaming import EncoderState, LstmPredictor, StatelessPredictor, StreamingArchitecture
from device_sdk.runtimes.training import TrainingSession
from export.graphs import training
from tests.export.graphs.oracle import lstm, path_sum

PIECES, JOINER = 11, 10
HYPOTHESES = ([3, 4, 5, 3, 9], [3, 4, 2], [], [1, 2], [7])
WEIGHTS, COSTS, SCALE = (1.0, 0.3, -0.2, 0.0, 0.5), (0.0, 1.0, 2.0, 0.5, 0.25), 0.7


class Rows:
    """Gives an encoder's output."""

    outputs = ("encoder_hidden",)

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def run(self, *_: object) -> dict[str, np.ndarray]:
        return {"encoder_hidden": self.rows}


def architecture(predictor, activation="tanh") -> StreamingArchitecture:
    state = EncoderState("cache", (1, 2))
    return StreamingArchitecture(
        8, 9, 8, 4, JOINER, PIECES, (state,), (("encoder.weight", (3, 3)),), predictor, activation
    )


def predicted(sizes: StreamingArchitecture, p: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """[U + 1, J] of a hypothesis."""
    shape = sizes.predictor
    if isinstance(shape, LstmPredictor):
        said = p["predictor.embedding"][torch.tensor([0, *tokens])]
        for layer in range(shape.layers):
            said = lstm(said, *(p[f"predictor.{layer}.{part}"] for part in "WRB"))
    else:
        before = [-1] * (shape.context - 1) + [0, *tokens]
        contexts = torch.tensor([before[at : at + shape.context] for at in range(len(tokens) + 1)])
        embedded = p["predictor.embedding"][contexts.clamp(min=0)] * (contexts >= 0).unsqueeze(-1)
        if shape.context > 1:
            groups = shape.size // shape.group
            mixed = torch.nn.functional.conv1d(embedded.transpose(1, 2), p["predictor.convolution"], groups=groups)
        else:
            mixed = embedded.transpose(1, 2)
        said = torch.relu(mixed[:, :, 0])
    return said @ p["joiner.predictor.weight"].T


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    "predictor",
    [StatelessPredictor(2, 12, 4), StatelessPredictor(3, 8, 8), StatelessPredictor(1, 6, 1), LstmPredictor(2, 9, 7)],
    ids=["context of 2", "context of 3", "context of 1", "lstm"],
)
def test_gradients_are_torchs(predictor, activation) -> None:
    sizes, random = architecture(predictor, activation), np.random.default_rng(0)
    weights = {
        name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in sizes.parameter_shapes().items()
    }
    rows = random.normal(size=(7, JOINER)).astype(np.float32)
    session = TrainingSession(graph=training(sizes, "output"), architecture=sizes, beneath=Rows(rows))
    found = session.run(weights, np.zeros((28, 8), np.float32), HYPOTHESES, WEIGHTS, COSTS, SCALE)

    p = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in weights.items()}
    encoded = torch.tensor(rows, dtype=torch.float64) + p["joiner.encoder.bias"]
    likelihoods = []
    for tokens in HYPOTHESES:
        mixed = encoded[:, None] + predicted(sizes, p, tokens)[None]
        mixed = torch.tanh(mixed) if activation == "tanh" else torch.relu(mixed)
        scores = mixed @ p["joiner.output.weight"].T + p["joiner.output.bias"]
        likelihoods.append(-path_sum(scores.log_softmax(-1), tokens))
    losses = torch.stack(likelihoods)
    cost = (torch.softmax(-losses, 0) * torch.tensor(COSTS, dtype=torch.float64)).sum()
    ((torch.tensor(WEIGHTS, dtype=torch.float64) * losses).sum() + SCALE * cost).backward()

    np.testing.assert_allclose(found.negative_log_likelihoods, losses.detach().numpy(), rtol=1e-5)
    assert found.expected_cost == pytest.approx(float(cost.detach()), abs=1e-5)
    assert set(found.gradients) == {name for name in weights if not name.startswith("encoder.")}
    for name, gradient in found.gradients.items():
        expected = p[name].grad.numpy()
        assert np.linalg.norm(gradient - expected) < 1e-5 * np.linalg.norm(expected), name
