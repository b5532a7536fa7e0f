"""FedSGD rounds of a cohort: labels and feedback, one mean gradient, a step of the server's optimizer, the teacher.

Rao et al. 2023, algorithm 1: every round a few devices take a batch of what was said to them since, their teacher
labels the clean features, the student sees masked ones, and the server adds the mean gradient by Adam. Every clip is
used in one pass. Pseudo-devices on the server rehearse transcribed clips of the old domain.

The loss of an utterance is that of the devices' training graph, sum_i w_i NLL_i + c E[M] with p = softmax(-NLL)
(:class:`device_sdk.learning.objectives.Objective`), so with one gradient a round the server's mean of the devices'
gradients is the gradient of the mean loss, which torch takes as one batch. B: utterances; R: their hypotheses, all in
one list; T: stacked frames (30 ms); M: mel bins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.bundle import Tokenizer
from device_sdk.errors import ConfigurationError, LearningError
from device_sdk.feedback.signals import Alternate, Semantics, costs
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.objectives import Objective, Tokens, expected_cost, label, posterior, supervision, total
from device_sdk.learning.step import mask
from device_sdk.learning.teacher import follow
from examples.rao_2023.domains import Sentence
from examples.rao_2023.lists import NBest, nbest
from examples.rao_2023.methods import CohortSettings, Method, TextModel, teacher_labels
from examples.rao_2023.noise import noisy_cost
from examples.rao_2023.speech import Clip
from export.losses.rnnt import rnnt_loss
from export.networks.rnnt import RNNT
from server.aggregation import optimizers
from server.lab.training.data import collate

__all__ = [
    "Learned",
    "alternate",
    "gradient",
    "learn",
    "likelihoods",
    "mean_loss",
    "policy_gradient",
    "transcribe",
    "weak_losses",
]

Arrays = Mapping[str, NDArray[np.float32]]

_BLANK = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """weights: the student's after the last round. losses: of every round, nats. curve: (round, what ``watch`` gave).
    diverged: the round in which the gradient stopped being a number, if any; weights are then the last that had one."""

    weights: Arrays
    losses: tuple[float, ...]
    curve: tuple[tuple[int, float], ...]
    diverged: int | None = None


def learn(
    architecture: Architecture,
    base: Arrays,
    tokenizer: Tokenizer,
    method: Method,
    settings: CohortSettings,
    said: Sequence[Clip],
    remembered: Sequence[Clip],
    words: Sequence[str],
    lexicon: SlotLexicon,
    text: TextModel,
    seed: int,
    watch: Callable[[int, RNNT], float | None] = lambda *_: None,
) -> Learned:
    """All rounds of one method.

    base: parameters and constants to begin with. said: the devices' clips in the order of time, used once each.
    remembered: transcribed clips of the old domain, used once each by rehearsal. words: what an
    alternate recognizer mistakes words for. lexicon: the slots' values. text: the second pass over a teacher's n-best.
    watch: called after every ``evaluate_every`` rounds with the round and the student; what it returns makes the curve.
    ConfigurationError: fewer clips than the rounds need.
    """
    each, extra = settings.devices * settings.batch, method.rehearsal * settings.batch
    for name, clips, needed in (("said", said, each), ("remembered", remembered, extra)):
        if len(clips) < needed * settings.rounds:
            raise ConfigurationError(f"{name}: found {len(clips)} clips, expected {needed * settings.rounds}, all new")
    generator = np.random.default_rng([seed, 0x70])
    student, teacher = RNNT(architecture).eval(), RNNT(architecture).eval()
    weights, trusted, taught = dict(base), base, {name: base[name] for name in architecture.parameter_shapes()}
    student.from_parameters(weights)
    teacher.from_parameters(weights)
    state = optimizers.init(settings.optimizer, architecture.parameter_shapes())
    losses: list[float] = []
    curve: list[tuple[int, float]] = []
    for number in range(settings.rounds):
        clips = said[number * each : (number + 1) * each]
        features = [clip.features.astype(np.float32) for clip in clips]
        lists = _lists(student, features, method, settings)
        labels = _labels(teacher, features, clips, tokenizer, method, settings, text)
        objectives: list[Objective] = []
        seen: list[NDArray[np.float32]] = []
        for clip, clean, hypotheses, chosen in zip(clips, features, lists, labels, strict=True):
            parts = [] if chosen is None else [label(chosen)]
            if hypotheses:
                given = (method, settings, tokenizer.decode, words, lexicon, generator)
                parts += weak_losses(hypotheses, chosen, clip.sentence, *given)
            if parts:
                objectives.append(total(parts))
                seen.append(mask(clean, base["features.mean"], settings.masks, generator))
        for clip in remembered[number * extra : (number + 1) * extra]:
            transcript = tuple(tokenizer.encode(clip.sentence.text))
            objectives.append(supervision(transcript))
            seen.append(mask(clip.features.astype(np.float32), base["features.mean"], settings.masks, generator))
        loss = 0.0
        if objectives:
            try:
                loss, step = gradient(student, seen, objectives, bfloat16=settings.bfloat16, pruning=settings.pruning)
            except LearningError:
                return Learned(trusted, tuple(losses), tuple(curve), number + 1)
            trusted = weights
            delta = {name: -value for name, value in step.items() if name.startswith(settings.trained)}
            weights, state = optimizers.apply(settings.optimizer_at(number), state, weights, delta)
            student.from_parameters(weights)
        losses.append(loss)
        if method.label == "teacher":
            before, taught = taught, dict(follow(taught, weights, number + 1, method.teacher))
            if any(taught[name] is not before[name] for name in taught):
                teacher.from_parameters({**weights, **taught})
        if (number + 1) % settings.evaluate_every == 0 and (value := watch(number + 1, student)) is not None:
            curve.append((number + 1, value))
    return Learned(weights, tuple(losses), tuple(curve))


def transcribe(
    network: RNNT, tokenizer: Tokenizer, clips: Sequence[Clip], beam: int = 4, at_once: int = 48
) -> list[str]:
    """The first hypothesis of each clip, by the devices' search, in batches of like length."""
    order = sorted(range(len(clips)), key=lambda index: clips[index].features.shape[0])
    texts = [""] * len(clips)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        for index, entries in zip(chosen, nbest(network, [clips[i].features for i in chosen], beam), strict=True):
            texts[index] = tokenizer.decode(entries[0][0])
    return texts


def _lists(
    student: RNNT, features: Sequence[NDArray[np.float32]], method: Method, settings: CohortSettings
) -> list[NBest]:
    if not method.weak:
        return [()] * len(features)
    return nbest(student, features, settings.beam)


def _labels(
    teacher: RNNT,
    features: Sequence[NDArray[np.float32]],
    clips: Sequence[Clip],
    tokenizer: Tokenizer,
    method: Method,
    settings: CohortSettings,
    text: TextModel,
) -> list[tuple[int, ...] | None]:
    """The tokens to teach, None for none: the teacher is not sure, heard nothing, or pieces cannot write it."""
    if method.label == "none":
        return [None] * len(clips)
    found: Sequence[tuple[int, ...] | None]
    if method.label == "transcript":
        found = [tuple(tokenizer.encode(clip.sentence.text)) for clip in clips]
    else:
        found = teacher_labels(teacher, features, tokenizer.decode, text, settings.labels)
    return [tokens if tokens and _BLANK not in tokens else None for tokens in found]


def alternate(text: str, words: Sequence[str], rate: float, generator: np.random.Generator) -> str:
    """The text as another recognizer may hear it: each word with probability ``rate`` is another one or left out."""
    heard = []
    for word in text.split():
        if generator.random() >= rate:
            heard.append(word)
        elif generator.random() < 0.7:
            heard.append(words[int(generator.integers(len(words)))])
    return " ".join(heard) or text


def policy_gradient(
    hypotheses: Sequence[Tokens], chances: NDArray[np.float64], served: int, weight: float
) -> Objective:
    """REINFORCE under the policy that the served hypothesis was drawn from, the normalized n-best p (section 2.3.2).

    weight: b - M, baseline minus cost. grad log p_s = -(grad NLL_s - sum_j p_j grad NLL_j), so the weights on the NLLs
    are (b - M)(1 - p_s) for the served one and -(b - M) p_j for the others. They add up to zero: what is made less
    likely gives its probability to the list, where log p(y) alone would be pushed down without an end.
    chances: p, float64 [N].
    """
    weights = -weight * chances
    weights[served] += weight
    return Objective(tuple(hypotheses), weights.astype(np.float32), np.zeros(len(weights), np.float32))


def weak_losses(
    hypotheses: NBest,
    taught: Tokens | None,
    sentence: Sentence,
    method: Method,
    settings: CohortSettings,
    decode: Callable[[Sequence[int]], str],
    words: Sequence[str],
    lexicon: SlotLexicon,
    generator: np.random.Generator,
) -> list[Objective]:
    """The losses of one utterance by what feedback says of its n-best; none where it says the same of every entry.

    taught: the label beside them, if any, whose cost is then part of the expectation, as the devices have it (a sum of
    losses is over one set of hypotheses). words: what the alternate recognizer mistakes words for. lexicon: the slots'
    values.
    """
    tokens = [entry for entry, _ in hypotheses]
    texts = [decode(entry) for entry in tokens]
    if "score" in method.weak:
        chances = posterior([score for _, score in hypotheses])
        served = int(generator.choice(len(tokens), p=chances))
        cost = noisy_cost(float(texts[served] != sentence.text), method.sigma, generator)
        return [policy_gradient(tokens, chances, served, settings.weight * (settings.baseline - cost))]
    if taught is not None and taught not in tokens:
        tokens, texts = [*tokens, taught], [*texts, decode(taught)]
    losses = []
    for kind in method.weak:
        if kind == "transcript":
            heard = alternate(sentence.text, words, settings.alternate_errors, generator)
            values = costs(Alternate(heard), texts, texts[0])
        else:
            values = costs(Semantics(sentence.slots, lexicon, "paper"), texts, texts[0])
        if np.ptp(values) > 0:
            losses.append(expected_cost(tokens, values, settings.weight))
    return losses


def likelihoods(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    hypotheses: Sequence[Sequence[Tokens]],
    *,
    dtype: torch.dtype | None = None,
    pruning: float = 0.0,
) -> Tensor:
    """Negative log-likelihoods [R] (nats, float64) of all hypotheses of B utterances, over one encoder pass.

    features: B times [F, M] raw log-mel; hypotheses: each utterance's. dtype, pruning: of the joint, see
    :func:`export.losses.rnnt.rnnt_loss`.
    """
    index = torch.tensor([place for place, entries in enumerate(hypotheses) for _ in entries])
    rows = [tokens for entries in hypotheses for tokens in entries]
    batch = collate([(f.astype(np.float32), ()) for f in features], network.architecture.subsampling_factor)
    lengths = torch.tensor([len(tokens) for tokens in rows])
    tokens = torch.zeros((len(rows), max(1, int(lengths.max()))), dtype=torch.int64)
    for row, given in enumerate(rows):
        tokens[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    return rnnt_loss(
        network.encode(batch.features).float()[index],
        network.predict(tokens).float(),
        network.joiner_output.weight,
        network.joiner_output.bias,
        tokens,
        batch.frames[index],
        lengths,
        dtype=dtype,
        pruning=pruning,
    )


def mean_loss(nll: Tensor, objectives: Sequence[Objective]) -> Tensor:
    """Mean over B utterances of sum_i w_i NLL_i + c E[M], nats, float64 (Rao et al. 2023, eq. 1 and section 2.3.2).

    nll: [R] of all their hypotheses, utterance after utterance.
    """
    loss = nll @ torch.from_numpy(np.concatenate([o.weights for o in objectives]).astype(np.float64))
    start = 0
    for objective in objectives:
        count = len(objective.hypotheses)
        if objective.cost_scale:
            chances = torch.softmax(-nll[start : start + count], 0)
            loss = loss + objective.cost_scale * (chances @ torch.from_numpy(objective.costs.astype(np.float64)))
        start += count
    return loss / len(objectives)


def gradient(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    objectives: Sequence[Objective],
    *,
    bfloat16: bool = False,
    pruning: float = 0.0,
) -> tuple[float, Arrays]:
    """(mean loss, its gradient by public parameter name, LSTMs in ONNX layout) of a cohort.

    bfloat16: the networks' matrix products in it; the lattice stays float64. LearningError: no longer a number.
    """
    network.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        dtype = torch.bfloat16 if bfloat16 else None
        hypotheses = [objective.hypotheses for objective in objectives]
        loss = mean_loss(likelihoods(network, features, hypotheses, dtype=dtype, pruning=pruning), objectives)
    loss.backward()  # type: ignore[no-untyped-call]
    found = network.to_gradients()
    value = float(loss.detach())
    if not (np.isfinite(value) and all(np.isfinite(array).all() for array in found.values())):
        raise LearningError("cohort: the gradient is not a number; lower the server's learning rate")
    return value, found
