"""Rounds of a cohort on tiny networks and made-up features: what must hold whatever is learned."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.settings import MaskSettings, TeacherSettings
from examples.rao_2023.base import Start
from examples.rao_2023.domains import Sentence
from examples.rao_2023.lists import nbest
from examples.rao_2023.methods import CohortSettings, Label, LabelSettings, Method
from examples.rao_2023.rounds import Arrays, Knowledge, Learned, learn, transcribe
from examples.rao_2023.speech import Clip
from export.networks.rnnt import RNNT
from server.lab.training.greedy import greedy
from server.plans.round import OptimizerSettings
from tests.tiny import SENTENCES, tiny_weights

SETTINGS = CohortSettings(
    rounds=6,
    devices=4,
    optimizer=OptimizerSettings(kind="adam", learning_rate=3e-3, epsilon=1e-6),
    masks=MaskSettings(0, 0, 0, 0),
    evaluate_every=3,
    floor=1.0,
    trained=("",),
    labels=LabelSettings(text_weight=0.0, sure=-1e9),
    bfloat16=False,
    pruning=0.0,
)
KNOWN = Knowledge(["lamp", "door"], SlotLexicon({"room": ("kitchen", "bedroom")}), lambda text: 0.0)


def said(bundle: Bundle, count: int, seed: int = 0) -> list[Clip]:
    """Each sentence has a sound of its own, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        text = SENTENCES[number % 2]
        sound = np.random.default_rng(number % 2).normal(-6, 3, (60, bundle.architecture.mel_bins))
        features = (sound + generator.normal(0, 0.3, sound.shape)).astype(np.float16)
        found.append(Clip(features, Sentence(text, {"room": text.split()[-1]}), f"person {number % 3}"))
    return found


def begun(bundle: Bundle) -> Arrays:
    return tiny_weights(bundle.architecture)


def run(bundle: Bundle, method: Method, settings: CohortSettings = SETTINGS, **given: Any) -> Learned:
    clips = said(bundle, settings.rounds * settings.devices)
    remembered = said(bundle, method.rehearsal * settings.rounds, 9)
    return learn(Start.of(bundle), begun(bundle), method, settings, clips, remembered, KNOWN, 1, **given)


def same(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], value) for name, value in other.items())


def test_transcripts_are_learned(tiny_bundle: Bundle) -> None:
    found = run(tiny_bundle, Method("oracle", "transcript"), replace(SETTINGS, rounds=40))
    assert found.losses[-1] < 0.4 * found.losses[0]
    network = RNNT(tiny_bundle.architecture).eval().from_parameters(found.weights)
    heard = greedy(network, [clip.features for clip in said(tiny_bundle, 2, seed=5)])
    assert [tiny_bundle.tokenizer.decode(tokens) for tokens in heard] == list(SENTENCES[:2])


def test_a_transcription_is_the_first_of_the_list_whatever_is_beside_it(tiny_bundle: Bundle) -> None:
    network, clips = RNNT(tiny_bundle.architecture).eval().from_parameters(begun(tiny_bundle)), said(tiny_bundle, 3)
    first = [nbest(network, [clip.features])[0][0][0] for clip in clips]
    assert transcribe(network, tiny_bundle.tokenizer, clips) == [tiny_bundle.tokenizer.decode(t) for t in first]


@pytest.mark.parametrize(
    ("label", "weak", "rehearsal"),
    [
        ("teacher", (), 0),
        ("teacher", ("slots",), 0),
        ("none", ("binary",), 0),
        ("teacher", ("score",), 0),
        ("teacher", ("transcript", "slots"), 2),
    ],
)
def test_every_method_is_repeated_by_its_seed(tiny_bundle: Bundle, label: Label, weak, rehearsal: int) -> None:
    method = Method("m", label, weak=weak, rehearsal=rehearsal)
    one, other = (run(tiny_bundle, method, watch=lambda number, network: float(number)) for _ in range(2))
    assert one.losses == other.losses and len(one.losses) == 6 and one.curve == ((3, 3.0), (6, 6.0))
    assert not same(one.weights, begun(tiny_bundle)) and same(one.weights, other.weights)
    if rehearsal:
        assert one.losses[0] != run(tiny_bundle, replace(method, rehearsal=0)).losses[0], "it takes part in the mean"


def test_a_teacher_that_is_updated_changes_what_is_learned_and_an_unsure_one_nothing(tiny_bundle: Bundle) -> None:
    still = run(tiny_bundle, Method("m"))
    never, follows = (run(tiny_bundle, Method("m", teacher=TeacherSettings(0.0, every, 0.0))) for every in (1000, 1))
    assert still.losses == never.losses
    assert still.losses[0] == follows.losses[0] and still.losses[-1] != follows.losses[-1]
    found = run(tiny_bundle, Method("m"), replace(SETTINGS, labels=LabelSettings(sure=0.0)))
    assert set(found.losses) == {0.0} and same(found.weights, begun(tiny_bundle))


def test_only_what_is_trained_changes(tiny_bundle: Bundle) -> None:
    found = run(tiny_bundle, Method("o", "transcript"), replace(SETTINGS, trained=("encoder.0", "joiner.encoder")))
    for name, value in begun(tiny_bundle).items():
        assert (found.weights[name] != value).any() == name.startswith(("encoder.0", "joiner.encoder")), name


def test_the_rate_falls_to_its_floor() -> None:
    settings = CohortSettings(rounds=5, floor=0.2, optimizer=OptimizerSettings(kind="sgd", learning_rate=1.0))
    rates = [settings.optimizer_at(number).learning_rate for number in range(5)]
    np.testing.assert_allclose(rates, [1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_divergence_ends_the_rounds_with_the_last_good_weights(tiny_bundle: Bundle) -> None:
    settings = replace(SETTINGS, optimizer=OptimizerSettings(kind="sgd", learning_rate=1e38))
    found = run(tiny_bundle, Method("oracle", "transcript"), settings)
    assert found.diverged == 2 and same(found.weights, begun(tiny_bundle))
