from dataclasses import replace

import numpy as np
import pytest
import torch

from device_sdk.bundle.architecture import PRESETS
from device_sdk.errors import ConfigurationError
from export.networks.cpc import CPC, CPCS, ContextRNNT, ContextShape, Contrast, begin_encoder
from export.networks.rnnt import RNNT

TINY = CPCS["tiny"]


def network(contrast: Contrast = Contrast(3, 5), seed: int = 0) -> CPC:
    torch.manual_seed(seed)
    made = CPC(TINY, contrast)
    made.mean.uniform_(-1, 1)
    made.scale.uniform_(0.5, 2)
    return made


def recognizer(shape: ContextShape = TINY) -> ContextRNNT:
    torch.manual_seed(1)
    return ContextRNNT(shape, predictor_layers=2, predictor_size=12, embedding_size=10, joiner_size=14, pieces=16)


@torch.no_grad()
def test_infonce_is_the_paper_s_formula() -> None:
    """Against the equation written out in loops, in float64, on the same negatives."""
    made = network(replace(Contrast(3, 5), temperature=0.7)).double()
    frames, features = torch.tensor([9, 6, 2]), torch.randn(3, 29, TINY.bins, dtype=torch.float64)
    found, _ = made.losses(features, frames, torch.Generator().manual_seed(4))
    z = made.latents(features)
    c, _ = made.encoder(z)
    chosen = made.candidates(frames, z.shape[1], torch.Generator().manual_seed(4))
    for row, length in enumerate(frames.tolist()):
        total = 0.0
        for step in range(1, 4):
            weight, bias = made.predictions[step - 1].weight, made.predictions[step - 1].bias  # type: ignore[union-attr]
            inner = 0.0
            for t in range(length - step):
                predicted = weight @ c[row, t] + bias  # type: ignore[operator]
                scores = [float(z[row, j] @ predicted) / 0.7 for j in chosen[row, t + step].tolist()]
                inner -= scores[0] - np.log(np.exp(scores).sum())
            if length > step:
                total += inner / (length - step)
        assert float(found[row]) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("length", [2, 3, 40])
def test_negatives_are_other_frames_of_the_same_utterance(length: int) -> None:
    chosen = network(Contrast(3, 200)).candidates(torch.tensor([length, 40]), 40, torch.Generator().manual_seed(0))
    assert (chosen[0, :length, 0] == torch.arange(length)).all()
    others = chosen[0, :length, 1:]
    assert (others != torch.arange(length)[:, None]).all()
    assert sorted(set(others.flatten().tolist())) == list(range(length))


def test_padding_changes_nothing() -> None:
    made, features = network(), torch.randn(1, 30, TINY.bins)
    longer = torch.cat([features, 9.0 * torch.randn(1, 12, TINY.bins)], 1)
    places = torch.arange(14)[None, :, None] * 7 + torch.arange(5)
    made.candidates = lambda frames, longest, _=None: places[:, :longest] % frames[:, None, None]  # type: ignore
    alone, _ = made.losses(features, torch.tensor([10]))
    padded, _ = made.losses(longer, torch.tensor([10]))
    torch.testing.assert_close(alone, padded)


def begun(target: RNNT, pretrained: CPC, bins: int) -> torch.Tensor:
    """Features, [2, 21, bins], of which both then have the same hidden states."""
    begin_encoder(target, pretrained)
    features = torch.randn(2, 21, bins)
    context, _ = pretrained.encoder(pretrained.latents(features))
    torch.testing.assert_close(target.hidden(target.stack(features)), context)
    return features


def test_a_recognizer_begins_with_the_pretrained_encoder() -> None:
    pretrained, target = network(), recognizer()
    features = begun(target, pretrained, TINY.bins)
    other = recognizer().from_parameters(target.to_parameters())
    torch.testing.assert_close(other.encode(features), target.encode(features))


def test_a_device_s_recognizer_takes_an_encoder_without_feature_layers() -> None:
    a = PRESETS["tiny"]
    shape = ContextShape(a.mel_bins, a.subsampling_factor, 0, 1, a.encoder_layers, a.encoder_size)
    pretrained, target = CPC(shape, Contrast(2, 4)), RNNT(a)
    begun(target, pretrained, a.mel_bins)
    with pytest.raises(ConfigurationError, match="expected"):
        begin_encoder(recognizer(), pretrained)
