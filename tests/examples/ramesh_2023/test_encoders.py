from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from examples.ramesh_2023 import encoders
from examples.ramesh_2023.encoders import fresh, silo_rounds, some_silos, together
from examples.ramesh_2023.recipes import Federation, Sizes, Teaching
from export.networks.cpc import ContextShape, Contrast
from server.aggregation.optimizers import apply, init
from server.lab.training.clips import HeldClips
from server.lab.training.data import Example
from server.plans.optimizer import OptimizerSettings

OWNERS = st.lists(st.integers(1, 9), min_size=2, max_size=12)


@given(OWNERS, st.integers(1, 4), st.integers(1, 40), st.integers(1, 3), st.integers(0, 3))
def test_a_pass_takes_every_clip_once_and_in_the_order_of_time(
    owners: list[int], batch: int, rounds: int, passes: int, seed: int
) -> None:
    cohort = 1 + seed % len(owners)
    plan = silo_rounds(owners, cohort, batch, rounds, passes, seed)
    assert 1 <= len(plan) <= rounds and plan == silo_rounds(owners, cohort, batch, rounds, passes, seed)
    silo = np.repeat(np.arange(len(owners)), owners)
    seen = np.zeros(sum(owners), int)
    for clients in plan:
        assert len(clients) == cohort
        assert len({silo[own[0]] for own in clients}) == cohort, "a silo once a round"
        for own in clients:
            assert 1 <= len(own) <= batch and own == list(range(own[0], own[-1] + 1))
            assert len(set(silo[own])) == 1, "one speaker"
            first = int(np.flatnonzero(silo == silo[own[0]])[0])
            before = seen[first : own[0]]
            assert (before > seen[own[0]]).all(), "nothing is skipped"
            seen[own] += 1
    assert seen.max() <= passes


def test_a_part_is_the_beginning_of_every_silo_and_there_are_as_many_as_clients() -> None:
    clips = HeldClips([Example(np.full((1, 2), number, np.float16), "", "") for number in range(9)])
    part, owners = some_silos(clips, (4, 5), 0.4)
    assert owners == (2, 2)
    assert [part[index].features[0, 0] for index in range(4)] == [0, 1, 4, 5]
    with pytest.raises(ConfigurationError, match="3 silos"):
        silo_rounds([1, 1, 1], 4, 1, 1, 1, 0)


@pytest.mark.parametrize("way", ["clients", "gradients"])
def test_a_round_is_one_adam_step_on_the_mean_gradient_of_its_utterances(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedSGD weighted by utterances, client by client and as it goes on a GPU, against one step by torch."""
    if way == "gradients":
        monkeypatch.setattr(encoders, "_by_clients", encoders._by_gradients)
    sizes = Sizes(
        *("test", ContextShape(6, 3, 1, 8, 1, 10), Contrast(1, 2), 3, 2, 0.5, 0, 0, 1, 1, 1e-3),
        Federation(1, 2, 1e-2, 1),
        Teaching(1, 1e-3, 1, 8, 1, 4, 4, 4),
    )
    generator = np.random.default_rng(0)
    # Clips of two stacked frames: the one negative there can be is the same in every draw.
    clips = HeldClips([Example(generator.standard_normal((6, 6)).astype(np.float32), "", "") for _ in range(5)])
    network, reference = fresh(sizes, clips, 3), fresh(sizes, clips, 3)
    _, about = together(network, clips, (2, 2, 1), sizes, 3, seed=1)
    assert about["rounds"] == 1 and about["passes"] == 1.0
    features = torch.from_numpy(np.stack([clip.features for clip in clips.examples]))
    losses, _ = reference.losses(features, torch.full((5,), 2))
    base = {name: value.detach().numpy() for name, value in reference.named_parameters()}
    gradients = torch.autograd.grad(losses.mean(), list(reference.parameters()))
    minus = {name: -gradient.numpy() for name, gradient in zip(base, gradients, strict=True)}
    settings = OptimizerSettings(kind="adam", learning_rate=1e-2, second_momentum=0.98, epsilon=1e-8)
    expected, _ = apply(settings, init(settings, {name: value.shape for name, value in base.items()}), base, minus)
    for name, parameter in network.named_parameters():
        moved = np.abs(minus[name]) > 1e-4  # where the sign of a gradient is not a matter of rounding
        assert moved.any() or not minus[name].any()
        np.testing.assert_allclose(parameter.detach().numpy()[moved], expected[name][moved], rtol=1e-3, atol=1e-5)
