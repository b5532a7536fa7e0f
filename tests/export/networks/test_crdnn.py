from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from device_sdk.errors import ConfigurationError
from export.graphs.crdnn import crdnn_graphs
from export.networks.crdnn import CRDNN, CRDNNS, CRDNNShape

TINY = CRDNNS["tiny"]


def network(**changes: object) -> CRDNN:
    torch.manual_seed(0)
    return CRDNN(replace(TINY, **changes)).eval()  # type: ignore[arg-type]


def test_the_sizes_it_is_known_by() -> None:
    with torch.device("meta"):
        made = CRDNN(CRDNNS["paper"])
    assert made.lstm.input_size == 80 // 8 * 256 and made.lstm.bidirectional and made.lstm.num_layers == 5
    assert made.decoder.gru.num_layers == 1 and made.decoder.gru.hidden_size == 1024
    assert made.decoder.output.out_features == 500


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_padding_changes_nothing(bidirectional: bool, count: int) -> None:
    made = network(bidirectional=bidirectional)
    features, tokens, lengths = torch.randn(1, count, 16), torch.tensor([[4, 9, 1]]), torch.tensor([3])
    alone = made.encode(features, torch.tensor([count]))
    assert alone.shape == (1, -(-count // 2), 20)
    padded = torch.cat([features, 30.0 * torch.randn(1, 9, 16)], 1)
    batch, frames = torch.cat([padded, torch.randn(1, count + 9, 16)]), torch.tensor([count, count + 9])
    both = made.encode(batch, frames)
    torch.testing.assert_close(both[:1, : alone.shape[1]], alone, rtol=1e-4, atol=1e-5)
    one = made.losses(features, torch.tensor([count]), tokens, lengths)
    several = made.losses(batch, frames, torch.tensor([[4, 9, 1, 7, 7], [2, 2, 3, 5, 6]]), torch.tensor([3, 5]))
    for own, other in zip(one, several, strict=True):
        torch.testing.assert_close(other[:1], own, rtol=1e-4, atol=1e-4)
    assert made.greedy(batch, frames)[0] == made.greedy(features, torch.tensor([count]))[0]


def test_the_loss_is_a_weighted_sum_of_its_parts() -> None:
    made = network()
    batch = (torch.randn(2, 40, 16), torch.tensor([40, 31]), torch.tensor([[4, 9, 1], [2, 5, 0]]), torch.tensor([3, 2]))
    for mu in (0.0, 0.3, 1.0):
        total, attended, aligned = made.losses(*batch, mu=mu)
        torch.testing.assert_close(total, mu * attended + (1 - mu) * aligned)


@torch.no_grad()
def test_teacher_forcing_is_one_step_after_the_other_and_attention_sums_to_one() -> None:
    made = network()
    features, frames, tokens = torch.randn(2, 24, 16), torch.tensor([24, 17]), torch.tensor([[4, 9, 1], [2, 5, 8]])
    encoded = made.encode(features, frames)
    heard = made.heard(frames, encoded.shape[1])
    forced = made.decoder(encoded, heard, tokens)
    assert forced.shape == (2, 4, 30)
    torch.testing.assert_close(forced.exp().sum(-1), torch.ones(2, 4))
    state, keys = made.decoder.begin(heard), made.decoder.attention.keys(encoded)
    for step, column in enumerate(torch.nn.functional.pad(tokens, (1, 0)).unbind(1)):
        scores, state = made.decoder.step(column, encoded, keys, heard, state)
        torch.testing.assert_close(scores, forced[:, step])
        torch.testing.assert_close(state[2].sum(1), torch.ones(2))
        assert (state[2][~heard] == 0).all()


def test_it_learns_two_utterances_and_writes_them() -> None:
    made = network().train()
    sounds = 2.0 * torch.randn(30, 16)
    tokens, lengths = torch.tensor([[3, 1, 20], [5, 6, 0]]), torch.tensor([3, 2])
    features = sounds[tokens].repeat_interleave(4, 1) + 0.1 * torch.randn(2, 12, 16)
    frames = 4 * lengths
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    for _ in range(60):
        total, _, _ = made.losses(features, frames, tokens, lengths)
        optimizer.zero_grad()
        total.sum().backward()
        optimizer.step()
    assert made.eval().greedy(features, frames) == [[3, 1, 20], [5, 6]]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_graphs_compute_what_the_network_does(bidirectional: bool) -> None:
    made = network(bidirectional=bidirectional)
    graphs = crdnn_graphs(made)
    encoder, decoder = (
        onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        for graph in (graphs.encoder, graphs.decoder)
    )
    for count in (2, 9, 51):
        features, frames = torch.randn(1, count, 16), torch.tensor([count])
        encoded, keys, aligned = encoder.run(None, {"features": features.numpy()})
        with torch.no_grad():
            expected = made.encode(features, frames)
            tokens = torch.tensor([[7, 2, 29]])
            forced = made.decoder(expected, made.heard(frames, expected.shape[1]), tokens)
            ctc = made.ctc_log_probs(expected)
        np.testing.assert_allclose(encoded, expected.numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(aligned, ctc.numpy(), rtol=1e-4, atol=1e-4)
        length = encoded.shape[1]
        state = (
            np.zeros((1, 1, TINY.decoder), np.float32),
            np.zeros((1, TINY.attention), np.float32),
            np.full((1, length), 1 / length, np.float32),
        )
        for step, token in enumerate((0, 7, 2, 29)):
            fed = dict(zip(("hidden", "context", "attention"), state, strict=True))
            scores, *state = decoder.run(  # type: ignore[assignment]
                None, {"tokens": np.array([token]), "encoded": encoded, "keys": keys, **fed}
            )
            np.testing.assert_allclose(scores, forced[:, step].numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": 2}, "odd"),
        ({"location_kernel": 4}, "odd"),
        ({"mel_bins": 3}, "at least 4"),
        ({"channels": ()}, "channels"),
        ({"dropout": 1.0}, "below 1"),
        ({"decoder": 0}, "1 or more"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CRDNNShape(**{**TINY.to_mapping(), **changes})  # type: ignore[arg-type]
