"""The additional iteration on held-out speech of the server's own, after a round's step (Gao et al. 2022, section
3.1)."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import LearningError, StateError
from device_sdk.wire.messages import DeltaPlan
from server.plans.round import RehearsalPlan, RoundSettings, ServerStep

Weights = Mapping[str, NDArray[np.float32]]
Rehearse = Callable[[Weights, RoundSettings, int], Iterable[Weights]]
"""(base weights, settings, number of the round) -> what each pseudo-device sends, the same at every call."""


def take_server_step(
    plan: ServerStep, weights: Weights, number: int, rehearse: Rehearse | None
) -> dict[str, NDArray[np.float32]]:
    """``weights``, what a round has made, after one step on each of the utterances drawn for its ``number``. The steps
    are a pseudo-device's: the same gradients, masks and clipping, begun at these weights; equal calls give equal
    weights. Raises StateError for a server without transcribed speech, LearningError where the steps diverge."""
    if rehearse is None:
        raise StateError("server_step: this server has no transcribed speech; start it with --rehearsal KIND:PATH")
    own = {"batch_size": plan.utterances, "learning_rate": plan.learning_rate, "seed": plan.seed}
    rehearsal = RehearsalPlan.model_validate({"pseudo_devices": 1} | own)
    alone = RoundSettings(marginals=None, deltas=DeltaPlan(clip_norm=plan.clip_norm), rehearsal=rehearsal)
    moved = {name: np.array(values) for name, values in weights.items()}
    for difference in rehearse(weights, alone, number):
        for name, values in difference.items():
            moved[name] += values
            if not np.isfinite(moved[name]).all():
                raise LearningError(f"server_step: {name}: the steps diverged; lower its learning rate")
    return moved
