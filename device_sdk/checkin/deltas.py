"""What a device has to say of its learning in a round: the change of its weights, or its mean gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.learning.delta import difference, mean
from device_sdk.wire.delta_codec import parts

if TYPE_CHECKING:
    from device_sdk.learning.delta import Measures
    from device_sdk.learning.step import Arrays
    from device_sdk.model_state import ModelState
    from device_sdk.settings import DeviceSettings
    from device_sdk.wire.messages import DeltaPlan

_UNMEASURED = {
    "loss": (
        "deltas: found a round that weighs devices by their training loss, and no loss of at least 0 since the model "
        "came (REINFORCE has none); use another objective, or rounds that weigh devices in another way"
    ),
    "word_error": (
        "deltas: found a round that weighs devices by their word error, and no utterance since the model came whose "
        "words the user gave"
    ),
}
_NO_GRADIENTS = (
    "deltas: found a round that collects gradients of the published weights, and learning.subset 'adapters', which has "
    "gradients of its factors only; use another subset, or collect differences"
)


@dataclass(frozen=True, slots=True)
class Due:
    """arrays: of the plan's kind and part, neither clipped nor noised. utterances: how many they are of."""

    arrays: Arrays
    utterances: int
    measures: Measures


def due(model_state: ModelState, settings: DeviceSettings, model_version: str, plan: DeltaPlan) -> Due | str | None:
    """What was learned on the round's model, where it is enough for the plan; else why it is left out, None where there
    is just too little of it yet. A plan of another kind than the last takes effect with what is recognized from now on:
    gradients are of the published weights, and are summed up instead of taking steps."""
    if plan.kind == "gradient" and settings.learning.subset == "adapters":
        return _NO_GRADIENTS
    limit = plan.batch_size if plan.kind == "gradient" else None
    gradients = model_state.student.gradients
    if limit != (None if gradients is None else gradients.limit):
        model_state.collect(limit)
    student = model_state.student
    utterances = student.utterances if student.gradients is None else student.gradients.utterances
    if model_version != model_state.base.version or utterances < plan.minimum_utterances:
        return None
    measures = student.measures
    measured = {"none": 0.0, "loss": measures.mean_loss, "word_error": measures.word_error}
    if measured[plan.measure] is None:
        return _UNMEASURED[plan.measure]
    if student.gradients is not None:
        delta = mean(student.gradients)
    else:
        start = student.start or {name: model_state.base.weights[name] for name in student.weights}
        delta = difference(student.weights, start)
    sent = parts({name: value.shape for name, value in delta.items()}, plan.part)
    return Due({name: delta[name] for name in sent}, utterances, measures)


def taken(model_state: ModelState, plan: DeltaPlan) -> None:
    """What was due goes into a report: every gradient leaves in one."""
    if plan.kind == "gradient":
        model_state.collect(plan.batch_size)
