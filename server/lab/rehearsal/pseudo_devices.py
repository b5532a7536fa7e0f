"""Pseudo-devices: transcribed speech on the server that takes part in rounds, so that a model keeps what it was trained
on (Rao et al. 2023, section 3). Each sends the gradient, or the outcome of local steps, of transcribed utterances.

The bundle's own training graph gives the gradients, so a pseudo-device computes what a device would that knew the
transcript: SpecAugment on the features, w = 1 on the transcript, the round's clipping. It adds no noise."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.errors import ConfigurationError, DataError, LearningError
from device_sdk.learning.delta import GradientSum, add, difference, empty, mean
from device_sdk.learning.rehearsal import Transcribed, lesson
from device_sdk.learning.settings import MaskSettings, StepSettings
from device_sdk.learning.step import Course, mask, precondition, scales, sgd
from device_sdk.privacy.clipping import clip
from device_sdk.runtimes.protocol import Gradients
from device_sdk.runtimes.training import TrainingSession
from device_sdk.transcripts import in_letters, transcript
from server.lab.corpora import open_corpus
from server.lab.corpora.roles import card_voices, rehearsal
from server.lab.corpora.utterance import Utterance
from server.plans.round import RoundSettings

Weights = Mapping[str, NDArray[np.float32]]


class PseudoDevices:
    """Owns the training session and the list of utterances; audio is read when its turn comes. One thread at a time."""

    def __init__(self, bundle: Bundle, utterances: Iterable[Utterance]) -> None:
        """utterances: those with a sure transcript in the bundle's pieces take part. Raises DataError: none has."""
        self._bundle = bundle
        self._utterances = tuple(utterance for utterance in utterances if _writable(utterance, bundle))
        if not self._utterances:
            raise DataError("rehearsal: no utterance with a transcript that the bundle's pieces can write; give others")
        self._session = TrainingSession(bundle)

    def __len__(self) -> int:
        """Utterances that take part."""
        return len(self._utterances)

    def __call__(self, weights: Weights, settings: RoundSettings, number: int) -> Iterator[Weights]:
        """What each pseudo-device of a round sends: clipped arrays, float32, of every trainable parameter. weights: the
        round's base, parameters and constants. number: of the round. Equal calls give equal arrays. Raises
        LearningError where its steps diverge."""
        plan, rehearsal = settings.deltas, settings.rehearsal
        assert plan is not None and rehearsal is not None
        shares = draw(len(self), rehearsal.pseudo_devices, rehearsal.batch_size, number, rehearsal.seed)
        for index, share in enumerate(shares):
            generator = np.random.default_rng((rehearsal.seed, number, index))
            if plan.kind == "gradient":
                found = self._gradient(weights, share, generator)
            else:
                found = self._difference(weights, share, StepSettings(rehearsal.learning_rate), generator)
            yield clip(found, plan.clip_norm, plan.clipping)[0]

    def _gradient(self, weights: Weights, share: list[int], generator: np.random.Generator) -> Weights:
        total: GradientSum = empty(self._bundle.architecture.parameter_shapes())
        for index in share:
            found = self._run(weights, self._utterances[index], generator)
            if found is not None:
                total = add(total, found.gradients)
        return mean(total)

    def _difference(
        self, weights: Weights, share: list[int], step: StepSettings, generator: np.random.Generator
    ) -> Weights:
        base = {name: weights[name] for name in self._bundle.architecture.parameter_shapes()}
        second_moments = self._bundle.second_moments if step.precondition else None
        factors = None if second_moments is None else scales(second_moments, step.damping)
        local, course = dict(weights), Course()
        for index in share:
            found = self._run(local, self._utterances[index], generator)
            if found is not None:
                gradients = found.gradients if factors is None else precondition(found.gradients, factors)
                local, course, _ = sgd(local, gradients, float(found.negative_log_likelihoods[0]), course, step)
        return difference({name: local[name] for name in base}, base)

    def _run(self, weights: Weights, utterance: Utterance, generator: np.random.Generator) -> Gradients | None:
        """The gradients of one transcript; None for audio that is too short to hear anything in."""
        try:
            features, loss = lesson(Transcribed(utterance.load(), utterance.text or ""), self._bundle)
        except LearningError:
            return None
        heard = mask(features, self._bundle.feature_mean, MaskSettings(), generator)
        return self._session.run(weights, heard, loss.hypotheses, loss.weights, loss.costs, loss.cost_scale)


def draw(utterances: int, shares: int, size: int, number: int, seed: int) -> list[list[int]]:
    """Utterances of each pseudo-device in a round, the same where it is resumed: ``shares`` lists of ``size`` indices.
    utterances: how many there are. number: of the round, from 1. Rounds go through the utterances in random order, all
    of them before any comes again, in another order then."""
    if min(utterances, shares, size, number) < 1:
        raise ConfigurationError(
            f"rehearsal: found {utterances} utterances, {shares} shares of {size}, round {number}; expected 1 or more"
        )
    first = (number - 1) * shares * size
    turns = range(first // utterances, (first + shares * size - 1) // utterances + 1)
    orders = [np.random.default_rng((seed, turn)).permutation(utterances) for turn in turns]
    begin = first - turns[0] * utterances
    chosen = np.concatenate(orders)[begin : begin + shares * size].tolist()
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


def pseudo_devices(bundle: Path | None, sources: Sequence[str]) -> PseudoDevices:
    """Of the corpora that ``idiolect serve --rehearsal`` names, but for voices that are for something else than
    training; bundle: None is the default one."""
    opened = Bundle.open(bundle)
    role = rehearsal(card_voices(opened))
    corpora = [open_corpus(source, ("base",), role=role) for source in sources]
    return PseudoDevices(opened, [utterance for corpus in corpora for utterance in corpus.utterances])


def _writable(utterance: Utterance, bundle: Bundle) -> bool:
    try:
        text = transcript(utterance.sure_text, "text", DataError)
        in_letters(text, bundle.tokenizer.letters, "text", DataError)
    except DataError:
        return False
    return True
