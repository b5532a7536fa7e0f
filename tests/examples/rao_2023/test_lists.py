"""The batched search against the devices' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from device_sdk.bundle.architecture import Architecture
from device_sdk.decoding.beam import advance, paths, start
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.runtimes.protocol import RecurrentState
from examples.rao_2023.lists import nbest
from export.networks.rnnt import RNNT
from tests.tiny import tiny_weights

SHAPE = Architecture(1, 8, 1, 8, 6, 7, 5, mel_bins=4)


class OneStep:
    """The torch network as the devices' search wants it."""

    def __init__(self, network: RNNT) -> None:
        self.network = network

    @torch.no_grad()
    def predict(self, tokens: np.ndarray, state: RecurrentState | None) -> tuple[np.ndarray, RecurrentState]:
        held = None if state is None else (torch.from_numpy(state[0]), torch.from_numpy(state[1]))
        output, (h, c) = self.network.predictor(self.network.embedding(torch.from_numpy(tokens)[:, None]), held)
        return self.network.joiner_predictor(output)[:, 0].numpy(), RecurrentState(h.numpy(), c.numpy())

    @torch.no_grad()
    def join(self, encoded: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        return self.network.join(torch.from_numpy(encoded), torch.from_numpy(predicted)).numpy()


@pytest.mark.parametrize(("seed", "most"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)])
def test_all_hypotheses_of_short_speech_are_found_with_exact_scores(seed: int, most: int) -> None:
    """With a beam wider than there are token sequences, nothing is dropped and both searches sum all alignments."""
    generator = np.random.default_rng(seed)
    network = RNNT(SHAPE).eval().from_parameters(tiny_weights(SHAPE, seed))
    features = [generator.normal(0, 1, (3 * frames, 4)).astype(np.float32) for frames in (1, 4 - most, 1)]
    beam = {1: 128, 2: 350}[most]
    found = nbest(network, features, beam, threshold=1e9, most_per_frame=most)
    settings = DecodingSettings(beam=beam, nbest=beam, symbols_per_frame=most, threshold=1e9)
    for clip, entries in zip(features, found, strict=True):
        with torch.no_grad():
            encoded = network.encode(torch.from_numpy(clip)[None])[0].numpy()
        joint = OneStep(network)
        expected = {path.tokens: path.score for path in paths(advance(start(joint), encoded, joint, settings))}
        assert {tokens for tokens, _ in entries} == set(expected)
        for tokens, score in entries:
            assert score == pytest.approx(expected[tokens], abs=1e-4)
        assert [score for _, score in entries] == sorted((score for _, score in entries), reverse=True)


def test_a_list_does_not_depend_on_its_companions() -> None:
    generator = np.random.default_rng(3)
    network = RNNT(SHAPE).eval().from_parameters(tiny_weights(SHAPE, 3))
    features = [generator.normal(0, 1, (frames, 4)).astype(np.float32) for frames in (30, 12, 21)]
    together = nbest(network, features, beam=4)
    for clip, entries in zip(features, together, strict=True):
        (alone,) = nbest(network, [clip], beam=4)
        assert [tokens for tokens, _ in alone] == [tokens for tokens, _ in entries]
        np.testing.assert_allclose([s for _, s in alone], [s for _, s in entries], atol=1e-4)
        assert len(entries) <= 4 and len({tokens for tokens, _ in entries}) == len(entries)
