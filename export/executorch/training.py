"""The training program in torch: what :mod:`export.graphs.training` is for onnxruntime, padded to a bucket's sizes.

The number of frames may be any multiple of :data:`FRAMES_AT_ONCE` up to the bucket's and that of distinct prefixes any
that fits, so padding costs little; tokens and hypotheses are padded, for ExecuTorch's loops carry states of one shape.
ExecuTorch's own kernels run all of it: inside loops XNNPACK would pack the weights, which are inputs here, anew."""

import torch
from torch import Tensor, nn

from device_sdk.bundle.architecture import Architecture
from device_sdk.runtimes.executorch.manifest import FRAMES_AT_ONCE, Bucket
from export.executorch.joint import Joint, Layer, lattice, lstm, lstm_gradients


class TrainingStep(nn.Module):
    """loss = sum_i w_i NLL_i + c E[M] over one utterance's hypotheses (Rao et al. 2023, eq. 1), and its gradients."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.names = tuple(architecture.constant_shapes() | architecture.parameter_shapes())

    def forward(
        self,
        features: Tensor,
        frames: Tensor,
        tokens: Tensor,
        lengths: Tensor,
        representatives: Tensor,
        prefix_of: Tensor,
        weights: Tensor,
        costs: Tensor,
        cost_scale: Tensor,
        pull: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        """T: stacked frames; K: frames stacked; M: mel bins; N: hypotheses; U: tokens; P: distinct prefixes; J: joiner
        size.

        features: [T, K, M] raw log-mel, of which ``frames`` [1] int64 are the utterance's. tokens: [N, U] int64, padded
        with 0; lengths: [N] int64, -1 for a row that is no hypothesis. representatives [P] and prefix_of [(U + 1) N]
        int64: which rows (u, i), numbered u * N + i, have the same first u tokens. weights, costs: [N]; cost_scale: [].
        pull: [T, J], the derivative of what else the loss is of by the joiner's encoder term. parameters: constants,
        then parameters, in the canonical order. Returns negative log-likelihoods [N] (0 for what is no hypothesis),
        expected cost [], and every gradient."""
        a, named = self.architecture, dict(zip(self.names, parameters, strict=True))
        count, longest = tokens.shape
        normalized = (features - named["features.mean"]) * named["features.scale"]
        stacked = normalized.reshape(-1, 1, a.mel_bins * features.shape[1])
        encoder_hidden = self._layers("encoder", a.encoder_layers, stacked, named)
        encoder_rows = encoder_hidden[-1].y[:, 0]
        encoded = encoder_rows @ named["joiner.encoder.weight"].t() + named["joiner.encoder.bias"]

        blanks = torch.zeros(1, count, dtype=torch.int64)
        previous = torch.cat([blanks, tokens.t()]).reshape(-1)
        embedded = named["predictor.embedding"].index_select(0, previous)
        embedded = embedded.reshape(-1, count, a.embedding_size)
        predictor_hidden = self._layers("predictor", a.predictor_layers, embedded, named)
        predictor_rows = predictor_hidden[-1].y.reshape(-1, a.predictor_size)
        prefixes = predictor_rows.index_select(0, representatives) @ named["joiner.predictor.weight"].t()

        labels = torch.cat([tokens.t(), blanks]).reshape(-1)
        joint = Joint(encoded, prefixes, prefix_of, labels, named["joiner.output.weight"], named["joiner.output.bias"])
        blank, label = (each.reshape(-1, longest + 1, count).to(torch.float64) for each in joint.log_probabilities())
        likelihoods, by_blank, by_label = lattice(blank, label, frames, lengths)

        # dE[M]/dNLL_i = p_i (E[M] - M_i), p = softmax(-NLL) over what is a hypothesis.
        absent = (lengths < 0).to(torch.float64) * 1e30
        posterior = torch.softmax(-likelihoods - absent, 0)
        expected = (posterior * costs.to(torch.float64)).sum()
        by_expectation = posterior * (expected - costs.to(torch.float64))
        d_likelihoods = weights.to(torch.float64) + cost_scale.to(torch.float64) * by_expectation
        flat = [(each * d_likelihoods).to(torch.float32).reshape(-1, joint.rows) for each in (by_blank, by_label)]

        d_joint = joint.gradients(flat[0], flat[1], representatives)
        gradients = {"joiner.output.weight": d_joint["weight"], "joiner.output.bias": d_joint["bias"]}
        gradients["joiner.predictor.weight"] = d_joint["rows"].t() @ predictor_rows
        d_predictor = d_joint["rows"] @ named["joiner.predictor.weight"]
        d_embedded = self._gradients("predictor", predictor_hidden, d_predictor, named, gradients)
        at = previous[:, None].expand(-1, a.embedding_size)
        gradients["predictor.embedding"] = torch.zeros(a.pieces, a.embedding_size).scatter_add(0, at, d_embedded)
        d_frames = d_joint["frames"] + pull
        gradients["joiner.encoder.weight"] = d_frames.t() @ encoder_rows
        gradients["joiner.encoder.bias"] = d_frames.sum(0)
        self._gradients("encoder", encoder_hidden, d_frames @ named["joiner.encoder.weight"], named, gradients)
        ordered = (gradients[name] for name in a.parameter_shapes())
        return likelihoods.to(torch.float32), expected.to(torch.float32), *ordered

    def _layers(self, name: str, layers: int, x: Tensor, named: dict[str, Tensor]) -> list[Layer]:
        found: list[Layer] = []
        for layer in range(layers):
            found.append(lstm(x, *(named[f"{name}.{layer}.{part}"] for part in "WRB")))
            x = found[-1].y
        return found

    def _gradients(
        self, name: str, layers: list[Layer], dy: Tensor, named: dict[str, Tensor], gradients: dict[str, Tensor]
    ) -> Tensor:
        """Adds a stack's gradients to ``gradients``; returns that of its input, rows of all steps and hypotheses."""
        for number in reversed(range(len(layers))):
            layer, weights = layers[number], (named[f"{name}.{number}.{part}"] for part in "WR")
            found, dy = lstm_gradients(layer, dy.reshape(layer.y.shape), *weights)
            gradients |= {f"{name}.{number}.{part}": value for part, value in found.items()}
        return dy


def training_example(architecture: Architecture, bucket: Bucket) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    """Inputs of a bucket's full size to trace a :class:`TrainingStep` with, and which of their sizes may vary."""
    count, longest, rows = bucket.hypotheses, bucket.tokens, (bucket.tokens + 1) * bucket.hypotheses
    shapes = architecture.constant_shapes() | architecture.parameter_shapes()
    features = torch.zeros(bucket.frames, architecture.subsampling_factor, architecture.mel_bins)
    tokens, lengths = torch.ones(count, longest, dtype=torch.int64), torch.full((count,), longest)
    prefixes, objective = (torch.arange(rows), torch.arange(rows)), (torch.zeros(count), torch.zeros(count))
    last = torch.tensor(0.0), torch.zeros(bucket.frames, architecture.joiner_size)
    given = (features, torch.full((1,), bucket.frames), tokens, lengths, *prefixes, *objective, *last)
    inputs = (*given, *(torch.zeros(shape) for shape in shapes.values()))
    chunks = torch.export.Dim("chunks", min=1, max=bucket.frames // FRAMES_AT_ONCE)
    varying: list[object] = [None] * len(given)
    varying[0], varying[4] = {0: FRAMES_AT_ONCE * chunks}, {0: torch.export.Dim("prefixes", min=1, max=rows)}
    varying[-1] = {0: FRAMES_AT_ONCE * chunks}
    return inputs, (*varying, tuple(None for _ in shapes))
