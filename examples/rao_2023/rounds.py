"""FedSGD rounds of a cohort: labels and feedback, one mean gradient, a step of the server's optimizer, the teacher.

Rao et al. 2023, algorithm 1: every round a few devices take a batch of what was said to them since, their teacher
labels the clean features, the student sees masked ones, and the server adds the mean gradient by Adam. Every clip is
used in one pass. Pseudo-devices on the server rehearse transcribed clips of the old domain.

The loss of an utterance is that of the devices' training graph, sum_i w_i NLL_i + c E[M] with p = softmax(-NLL)
(:class:`device_sdk.learning.objectives.Objective`), so with one gradient a round the server's mean of the devices'
gradients is the gradient of the mean loss, which torch takes as one batch. B: utterances; R: their hypotheses, all in
one list; T: stacked frames; M: mel bins."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.errors import LearningError
from device_sdk.feedback.signals import Alternate, Semantics, costs
from device_sdk.feedback.slots import SlotLexicon, read_slots
from device_sdk.learning.objectives import Objective, Tokens, expected_cost, label, posterior, reinforce, total
from device_sdk.learning.step import mask
from device_sdk.learning.teacher import follow
from examples.rao_2023.base import Start
from examples.rao_2023.domains import Sentence
from examples.rao_2023.lists import NBest, nbest
from examples.rao_2023.methods import CohortSettings, Method, TextModel, teacher_labels
from examples.rao_2023.speech import Clip, Said
from export.losses.rnnt import rnnt_loss
from export.networks.rnnt import RNNT
from server.aggregation import optimizers
from server.lab.training import greedy
from server.lab.training.data import collate

Arrays = Mapping[str, NDArray[np.float32]]

_BLANK = 0
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Learned:
    """weights: the student's after the last round. losses: of every round, nats. curve: (round, what ``watch`` gave).
    diverged: the round in which the gradient stopped being a number, if any; weights are then the last that had one."""

    weights: Arrays
    losses: tuple[float, ...]
    curve: tuple[tuple[int, float], ...]
    diverged: int | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What feedback and teachers know besides sound. words: what an alternate recognizer mistakes words for. lexicon:
    the slots' values. text: the second pass over a teacher's n-best."""

    words: Sequence[str]
    lexicon: SlotLexicon
    text: TextModel


def learn(
    start: Start,
    base: Arrays,
    method: Method,
    settings: CohortSettings,
    said: Said | list[Clip],
    remembered: Said | list[Clip],
    known: Knowledge,
    seed: int,
    watch: Callable[[int, RNNT], float | None] = lambda *_: None,
) -> Learned:
    """All rounds of one method. start: of the architecture and the tokenizer. base: parameters and constants to begin
    with. said: the devices' clips in the order of time, used once each. remembered: transcribed clips of the old
    domain, used once each by rehearsal. watch: called after every ``evaluate_every`` rounds with the round and the
    student; what it returns makes the curve."""
    architecture, tokenizer, mean = start.architecture, start.tokenizer, base["features.mean"]
    each, extra = settings.devices * settings.batch, method.rehearsal * settings.batch
    generator = np.random.default_rng([seed, 0x70])
    student, teacher = (RNNT(architecture).eval().from_parameters(base) for _ in range(2))
    weights, trusted, taught = dict(base), base, {name: base[name] for name in architecture.parameter_shapes()}
    state = optimizers.init(settings.optimizer, architecture.parameter_shapes())
    losses: list[float] = []
    curve: list[tuple[int, float]] = []
    for number in range(settings.rounds):
        clips = said[number * each : (number + 1) * each]
        features = [clip.features.astype(np.float32) for clip in clips]
        lists: list[NBest] = nbest(student, features, settings.beam) if method.weak else [()] * each
        labels: Sequence[tuple[int, ...] | None] = [None] * each
        if method.label == "transcript":
            labels = [tuple(tokenizer.encode(clip.sentence.text)) for clip in clips]
        elif method.label == "teacher":
            labels = teacher_labels(teacher, features, tokenizer.decode, known.text, settings.labels)
        objectives: list[Objective] = []
        seen: list[NDArray[np.float32]] = []
        for clip, clean, hypotheses, chosen in zip(clips, features, lists, labels, strict=True):
            told = chosen if chosen and _BLANK not in chosen else None  # blank: pieces cannot write it
            parts = [] if told is None else [label(told)]
            if hypotheses:
                given = (method, settings, tokenizer.decode, known, generator)
                parts += weak_losses(hypotheses, told, clip.sentence, *given)
            if parts:
                objectives.append(total(parts))
                seen.append(mask(clean, mean, settings.masks, generator))
        for clip in remembered[number * extra : (number + 1) * extra]:
            objectives.append(label(tuple(tokenizer.encode(clip.sentence.text))))
            seen.append(mask(clip.features.astype(np.float32), mean, settings.masks, generator))
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


def transcribe(network: RNNT, tokenizer: Tokenizer, clips: Sequence[Clip]) -> list[str]:
    """The first hypothesis of each clip, by the devices' search."""

    def decode(features: Sequence[NDArray[np.floating]]) -> list[str]:
        return [tokenizer.decode(entries[0][0]) for entries in nbest(network, features)]

    return greedy.transcribe([clip.features for clip in clips], decode, 48)


def truncated_normal(sigma: float, size: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """U' ~ N(0, sigma^2) given that it lies in [0, 1], float64 [size]; 0 for sigma 0. By inversion of the distribution
    function, so exact to rounding, with one uniform number a value."""
    uniform = generator.random(size)
    if sigma == 0:
        return np.zeros(size)
    mass = _NORMAL.cdf(1.0 / sigma) - 0.5
    # Through the lower tail: 0.5 - u * mass is never 0, while 0.5 + u * mass may round to 1.
    drawn = [-sigma * _NORMAL.inv_cdf(0.5 - share * mass) for share in uniform.tolist()]
    return np.clip(np.array(drawn, np.float64), 0.0, 1.0)


def noisy_cost(cost: bool, sigma: float, generator: np.random.Generator) -> float:
    """M' = M + (-1)^M U', in [0, 1]: what a user who errs reports of a binary cost (Rao et al. 2023, results on noisy
    feedback). U': see :func:`truncated_normal`. E[M'] = (1 - 2 mu) E[M] + mu with mu = E[U'], so that learning keeps
    its direction while mu < 1/2."""
    noise = float(truncated_normal(sigma, 1, generator)[0])
    return 1.0 - noise if cost else noise


def alternate(text: str, words: Sequence[str], rate: float, generator: np.random.Generator) -> str:
    """The text as another recognizer may hear it: each word with probability ``rate`` is another one or left out."""
    heard = []
    for word in text.split():
        if generator.random() >= rate:
            heard.append(word)
        elif generator.random() < 0.7:
            heard.append(words[int(generator.integers(len(words)))])
    return " ".join(heard) or text


def weak_losses(
    hypotheses: NBest,
    taught: Tokens | None,
    sentence: Sentence,
    method: Method,
    settings: CohortSettings,
    decode: Callable[[Sequence[int]], str],
    known: Knowledge,
    generator: np.random.Generator,
) -> list[Objective]:
    """The losses of one utterance by what feedback says of its n-best; none where it says the same of every entry.

    taught: the label beside them, if any, whose cost is then part of the expectation, as the devices have it (a sum of
    losses is over one set of hypotheses).

    Scores are the devices' REINFORCE (section 2.3.2): the served hypothesis is drawn from the normalized n-best, and
    its weight is the baseline minus what it cost."""
    tokens = [entry for entry, _ in hypotheses]
    texts = [decode(entry) for entry in tokens]
    heard = alternate(sentence.text, known.words, settings.alternate_errors, generator)
    understood = Semantics(dict(read_slots(heard, known.lexicon)), known.lexicon, "paper")
    if {"score", "binary"} & set(method.weak):
        served = int(generator.choice(len(tokens), p=posterior([score for _, score in hypotheses])))
        if "binary" in method.weak:
            cost = noisy_cost(texts[served] != sentence.text, method.sigma, generator)
        else:
            cost = float(costs(understood, [texts[served]], texts[served])[0])
        return [reinforce(tokens[served], cost, settings.baseline, method.weight)] if cost != settings.baseline else []
    if taught is not None and taught not in tokens:
        tokens, texts = [*tokens, taught], [*texts, decode(taught)]
    losses = []
    for kind in method.weak:
        values = costs(Alternate(heard) if kind == "transcript" else understood, texts, texts[0])
        if np.ptp(values) > 0:
            losses.append(expected_cost(tokens, values, method.weight))
    return losses


def gradient(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    objectives: Sequence[Objective],
    *,
    bfloat16: bool = False,
    pruning: float = 0.0,
) -> tuple[float, Arrays]:
    """(mean loss over B utterances of sum_i w_i NLL_i + c E[M], nats (Rao et al. 2023, eq. 1 and section 2.3.2); its
    gradient by public parameter name, LSTMs in ONNX layout). features: B times [F, M] raw log-mel. bfloat16: the
    networks' matrix products in it; the lattice stays float64. pruning: of the joint, see
    :func:`export.losses.rnnt.rnnt_loss`. LearningError: no longer a number."""
    network.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        nll = _likelihoods(network, features, objectives, torch.bfloat16 if bfloat16 else None, pruning)
        loss = nll @ torch.from_numpy(np.concatenate([each.weights for each in objectives]).astype(np.float64))
        own = torch.split(nll, [len(each.hypotheses) for each in objectives])
        for objective, values in zip(objectives, own, strict=True):
            if objective.cost_scale:
                expected = torch.softmax(-values, 0) @ torch.from_numpy(objective.costs.astype(np.float64))
                loss = loss + objective.cost_scale * expected
        loss = loss / len(objectives)
    loss.backward()  # type: ignore[no-untyped-call]
    found, value = network.to_gradients(), float(loss.detach())
    if not (math.isfinite(value) and all(np.isfinite(array).all() for array in found.values())):
        raise LearningError("cohort: the gradient is not a number; lower the server's learning rate")
    return value, found


def _likelihoods(
    network: RNNT,
    features: Sequence[NDArray[np.floating]],
    objectives: Sequence[Objective],
    dtype: torch.dtype | None,
    pruning: float,
) -> Tensor:
    """Negative log-likelihoods [R] (nats, float64) of all hypotheses, over one encoder pass."""
    places, rows = zip(*((b, tokens) for b, each in enumerate(objectives) for tokens in each.hypotheses), strict=True)
    index, lengths = torch.tensor(places), torch.tensor([len(tokens) for tokens in rows])
    batch = collate([(f.astype(np.float32), ()) for f in features], network.architecture.subsampling_factor)
    tokens = torch.zeros((len(rows), max(1, int(lengths.max()))), dtype=torch.int64)
    for row, given in enumerate(rows):
        tokens[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    encoded, predicted = network.encode(batch.features).float()[index], network.predict(tokens).float()
    output, frames = network.joiner_output, batch.frames[index]
    return rnnt_loss(
        encoded, predicted, output.weight, output.bias, tokens, frames, lengths, dtype=dtype, pruning=pruning
    )
