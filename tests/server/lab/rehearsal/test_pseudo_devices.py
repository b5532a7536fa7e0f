"""Pseudo-devices on a bundle of random weights: what they send is what a device with the transcripts would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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
from device_sdk.learning.step import Momentum, mask, precondition, scales, sgd
from device_sdk.privacy.clipping import clip, layer_bounds
from device_sdk.runtimes.training import TrainingSession
from server.lab.corpora.utterance import Utterance
from server.lab.rehearsal import PseudoDevices, draw
from server.plans.round import RoundSettings
from server.registry.initial import initial_from_bundle
from tests.tiny import SENTENCES

ROOT = Path(__file__).parents[4]


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
    weights, momentum, step = dict(bundle.weights), Momentum(), StepSettings(0.1)
    sums = {name: np.zeros(shape) for name, shape in bundle.architecture.parameter_shapes().items()}
    for position in share:
        features = logmel(spoken(position).load(), bundle.features)
        heard = mask(features, bundle.weights["features.mean"], MaskSettings(), generator)
        tokens = tuple(bundle.tokenizer.encode(SENTENCES[position]))
        found = session.run(weights, heard, (tokens,), np.ones(1, np.float32))
        if kind == "gradient":
            sums = {name: sums[name] + gradient / len(share) for name, gradient in found.gradients.items()}
        else:
            gradients = found.gradients
            if bundle.second_moments is not None:
                gradients = precondition(gradients, scales(bundle.second_moments, step.damping))
            loss = float(found.negative_log_likelihoods[0])
            weights, momentum, _ = sgd(weights, gradients, loss, momentum, step)
    if kind == "gradient":
        return sums
    return {name: weights[name] - bundle.weights[name] for name in sums}


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
    usable = [spoken(0), spoken(1, seconds=0.01)]
    unusable = [spoken(2, text=None), spoken(3, score_words=False), spoken(4, text="日本")]
    pseudo_devices = PseudoDevices(tiny_bundle, [*usable, *unusable])
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
    from tests.server.parties import Party

    speech = tmp_path / "speech"
    speech.mkdir()
    for number in range(2):
        soundfile.write(speech / f"{number}.wav", spoken(number).load(), 16_000, subtype="FLOAT")
        (speech / f"{number}.txt").write_text(SENTENCES[number])
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "device_sdk.cli", "serve", "--bundle", str(tiny_bundle.path), "--port", "0"]
    command += ["--database", str(tmp_path / "a.db"), "--ready-file", str(ready), "--rehearsal", f"folder:{speech}"]
    command += ["--enrolment-token", "enrolment-token", "--operator-token", "operator-token"]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        deadline = time.monotonic() + 120
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        url = json.loads(ready.read_text())["url"]
        with httpx.Client(timeout=120) as http:
            operator = {"Authorization": "Bearer operator-token"}
            settings = {
                "marginals": None,
                "deltas": {"kind": "gradient", "clip_norm": 1e6},
                "weighting": "uniform",
                "rehearsal": {"pseudo_devices": 1, "batch_size": 2, "weight": 3.0},
                "optimizer": {"learning_rate": 0.5},
            }
            opened = http.post(f"{url}/v1/operator/rounds", headers=operator, json={"settings": settings}).json()
            device = Party(http, url).enrol()
            zero = {name: np.zeros(s, np.float32) for name, s in tiny_bundle.architecture.parameter_shapes().items()}
            answer = device.send_delta(opened["id"], zero, kind="gradient", model_version=tiny_bundle.version)
            assert answer.status_code == 200, answer.text
            closed = http.post(f"{url}/v1/operator/rounds/{opened['id']}/close", headers=operator).json()
            assert closed["state"] == "published", closed
            model = http.get(f"{url}/v1/models/{closed['model_version']}").content
    finally:
        process.kill()
        process.wait()
    from server.aggregation.weights_file import parse_weights
    from server.lab.corpora import open_corpus

    rounds = RoundSettings.model_validate(settings)
    here = PseudoDevices(tiny_bundle, open_corpus(f"folder:{speech}").utterances)
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
