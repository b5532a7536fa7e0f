"""Pseudo-devices on a bundle of random weights: what they send is what a device with the transcripts would."""

from itertools import chain
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundle import Bundle
from device_sdk.errors import ConfigurationError, DataError
from device_sdk.features import logmel
from device_sdk.learning.settings import MaskSettings, StepSettings
from device_sdk.learning.step import Course, mask, sgd
from device_sdk.privacy.clipping import clip, layer_bounds
from device_sdk.runtimes.training import TrainingSession
from server.aggregation.weights_file import parse_weights
from server.lab.corpora import Utterance, open_corpus
from server.lab.corpora.roles import ROLES
from server.lab.rehearsal import PseudoDevices, draw
from server.lab.simulation.process import ServerProcess
from server.plans.round import RoundSettings
from server.registry.initial import initial_from_bundle
from tests.server.parties import ENROLMENT, Party
from tests.tiny import SENTENCES


def spoken(number: int, seconds: float = 0.4, **fields: object) -> Utterance:
    waveform = (np.random.default_rng(number).normal(size=int(16_000 * seconds)) * 0.05).astype(np.float32)
    values = {"text": SENTENCES[number], "slots": None, "score_words": True} | fields
    return Utterance(f"u{number}", "somebody", audio=lambda: waveform, **values)  # type: ignore[arg-type]


def plan(kind: str, deltas: dict[str, object] | None = None, **rehearsal: object) -> RoundSettings:
    fields = {"pseudo_devices": 3, "batch_size": 2, "seed": 5} | rehearsal
    moved = {"kind": kind, "clip_norm": 1e6} | (deltas or {})
    return RoundSettings.model_validate({"marginals": None, "deltas": moved, "rehearsal": fields})


def alone(bundle: Bundle, kind: str, number: int, index: int) -> dict[str, np.ndarray]:
    """What the index-th pseudo-device of a round sends, computed from the training graph by hand."""
    share = draw(6, 3, 2, number, 5)[index]
    generator, session = np.random.default_rng((5, number, index)), TrainingSession(bundle)
    weights, course, step = dict(bundle.weights), Course(), StepSettings(0.1)
    sums = {name: np.zeros(shape) for name, shape in bundle.architecture.parameter_shapes().items()}
    for position in share:
        features = logmel(spoken(position).load(), bundle.features)
        heard = mask(features, bundle.weights["features.mean"], MaskSettings(), generator)
        tokens = tuple(bundle.tokenizer.encode(SENTENCES[position]))
        found = session.run(weights, heard, (tokens,), np.ones(1, np.float32))
        if kind == "gradient":
            sums = {name: sums[name] + gradient / len(share) for name, gradient in found.gradients.items()}
        else:
            assert bundle.second_moments is None  # which gradients would be divided by
            loss = float(found.negative_log_likelihoods[0])
            weights, course, _ = sgd(weights, found.gradients, loss, course, step)
    return sums if kind == "gradient" else {name: weights[name] - bundle.weights[name] for name in sums}


@pytest.mark.parametrize("kind", ["gradient", "difference"])
def test_each_sends_what_a_device_with_the_transcripts_would(tiny_bundle: Bundle, kind: str) -> None:
    pseudo_devices = PseudoDevices(tiny_bundle, [spoken(number) for number in range(6)])
    found = list(pseudo_devices(tiny_bundle.weights, plan(kind), 2))
    assert len(found) == 3
    for index, sent in enumerate(found):
        expected = alone(tiny_bundle, kind, 2, index)
        assert sent.keys() == expected.keys() == tiny_bundle.architecture.parameter_shapes().keys()
        for name, array in expected.items():
            np.testing.assert_allclose(sent[name], array, rtol=1e-4, atol=1e-5)
    again = list(PseudoDevices(tiny_bundle, [spoken(n) for n in range(6)])(tiny_bundle.weights, plan(kind), 2))
    for one, other in zip(found, again, strict=True):  # a round that is resumed rehearses the same
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_what_it_sends_is_clipped_as_a_devices(tiny_bundle: Bundle) -> None:
    settings = plan("gradient", {"clip_norm": 0.5, "clipping": "uniform"})
    (sent, *_) = PseudoDevices(tiny_bundle, [spoken(number) for number in range(6)])(tiny_bundle.weights, settings, 1)
    bounds = layer_bounds(tiny_bundle.architecture.parameter_shapes(), 0.5, "uniform")
    whole = [float(np.linalg.norm(array)) for array in sent.values()]
    assert all(norm <= bounds[name] * (1 + 1e-5) for name, norm in zip(sent, whole, strict=True))
    assert clip(sent, 0.5 * (1 + 1e-5), "global")[1] == pytest.approx(np.linalg.norm(whole), rel=1e-6)


def test_only_sure_transcripts_take_part(tiny_bundle: Bundle) -> None:
    unusable = [spoken(2, text=None), spoken(3, score_words=False), spoken(4, text="日本")]
    pseudo_devices = PseudoDevices(tiny_bundle, [spoken(0), spoken(1, seconds=0.01), *unusable])
    assert len(pseudo_devices) == 2
    with pytest.raises(DataError, match="no utterance with a transcript"):
        PseudoDevices(tiny_bundle, unusable)
    (sent,) = pseudo_devices(tiny_bundle.weights, plan("gradient", pseudo_devices=1), 1)  # one is too short to be heard
    assert any(array.any() for array in sent.values())
    silent = PseudoDevices(tiny_bundle, [spoken(1, seconds=0.01)])
    (sent,) = silent(tiny_bundle.weights, plan("gradient", pseudo_devices=1, batch_size=1), 1)
    assert not any(array.any() for array in sent.values())


def test_a_served_round_rehearses(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """``idiolect serve --rehearsal`` in a process of its own: its round moves the model by the pseudo-device's gradient
    and the device's, whose shares are as the plan has them."""
    speech = tmp_path / "speech"
    speech.mkdir()
    for number in range(2):
        soundfile.write(speech / f"{number}.wav", spoken(number).load(), 16_000, subtype="FLOAT")
        (speech / f"{number}.txt").write_text(SENTENCES[number])
    moves, step = {"kind": "gradient", "clip_norm": 1e6}, {"learning_rate": 0.5}
    rehearsal = {"pseudo_devices": 1, "batch_size": 2, "weight": 3.0}
    fields = {"marginals": None, "deltas": moves, "weighting": "uniform", "rehearsal": rehearsal, "optimizer": step}
    rounds = RoundSettings.model_validate(fields | {"no_privacy": True})
    server = ServerProcess(tmp_path / "server", str(tiny_bundle.path), "--rehearsal", f"folder:{speech}")
    server.token = ENROLMENT
    with server, httpx.Client(timeout=120) as http:
        opened = server.operator.create_round(rounds).id
        zero = {name: np.zeros(s, np.float32) for name, s in tiny_bundle.architecture.parameter_shapes().items()}
        device = Party(http, server.url).enrol()
        answer = device.send_delta(opened, zero, kind="gradient", model_version=tiny_bundle.version)
        assert answer.status_code == 200, answer.text
        closed = server.operator.close_round(opened)
        assert closed.state == "published", closed
        model = http.get(f"{server.url}/v1/models/{closed.model_version}").content
    here = PseudoDevices(tiny_bundle, open_corpus(f"folder:{speech}", ROLES).utterances)
    (sent,) = here(initial_from_bundle(tiny_bundle.path).weights, rounds, 1)
    for name, array in parse_weights(model).items():
        moved = -0.5 * 3.0 / 4.0 * sent[name] if name in sent else 0.0
        np.testing.assert_allclose(array, tiny_bundle.weights[name] + moved, rtol=1e-5, atol=1e-6)


SMALL = st.integers(1, 9)


@given(st.integers(1, 40), SMALL, SMALL, st.integers(1, 12), st.integers(0, 5))
def test_every_utterance_as_often_as_any_other(utterances: int, shares: int, size: int, rounds: int, seed: int) -> None:
    drawn = [draw(utterances, shares, size, number, seed) for number in range(1, rounds + 1)]
    assert drawn == [draw(utterances, shares, size, number, seed) for number in range(1, rounds + 1)]
    assert all([len(share) for share in round_] == [size] * shares for round_ in drawn)
    whole = list(chain.from_iterable(chain.from_iterable(drawn)))
    assert set(whole) <= set(range(utterances))
    for start in range(0, len(whole) - utterances + 1, utterances):
        assert len(set(whole[start : start + utterances])) == utterances


def test_seeds_differ_and_nothing_cannot_be_drawn() -> None:
    assert draw(100, 4, 8, 1, seed=0) != draw(100, 4, 8, 1, seed=1)
    for arguments in ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        with pytest.raises(ConfigurationError, match="expected 1 or more"):
            draw(*arguments, seed=0)
