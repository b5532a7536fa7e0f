"""Gradients of pieces and phones together against float64 autograd, whatever is said and whatever is moved."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import Subset
from device_sdk.errors import BundleError, LearningError
from device_sdk.runtimes.ctc import FILE as CTC_FILE
from device_sdk.runtimes.ctc import CtcHead
from device_sdk.runtimes.engine import Engine
from device_sdk.runtimes.phones import FILE, WEIGHT, PhoneTraining, places, room
from device_sdk.runtimes.training import TrainingSession
from export.graphs.ctc import head_parameters
from tests.export.graphs import oracle
from tests.tiny import with_ctc_head

torch = pytest.importorskip("torch")

Arrays = Mapping[str, NDArray[np.floating]]


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return with_ctc_head(tiny_bundle, tmp_path_factory.mktemp("phones"))


def heard(bundle: Bundle, frames: int, seed: int = 0) -> NDArray[np.float32]:
    shape = frames * bundle.lstm.subsampling_factor + 1, bundle.lstm.mel_bins
    return np.random.default_rng(seed).normal(-6.0, 3.0, shape).astype(np.float32)


def expected(
    bundle: Bundle, features: NDArray[np.float32], texts: Sequence[str], weights: Sequence[float], phones: set[int]
) -> Arrays:
    """Of sum w_i (NLL_i + WEIGHT * CTC_i), the latter of these texts alone, by torch's own CTC and autograd."""
    architecture, tokens = bundle.lstm, [bundle.tokenizer.encode(text) for text in texts]
    held = head_parameters(bundle.file(CTC_FILE).read_bytes())
    head = {name: torch.tensor(value, dtype=torch.float64) for name, value in held.items()}
    with torch.enable_grad():
        named = {name: torch.tensor(value, dtype=torch.float64) for name, value in bundle.weights.items()}
        leaves = [named[name].requires_grad_(True) for name in architecture.parameter_shapes()]
        audio, said = torch.tensor(features, dtype=torch.float64), CtcHead(bundle)
        loss = oracle.likelihoods(architecture, named, audio, tokens) @ torch.tensor(weights, dtype=torch.float64)
        encoded = oracle.encode(architecture, named, audio)
        ahead = oracle.lstm(encoded, *(head[f"forward.{part}"] for part in "WRB"))
        behind = oracle.lstm(encoded.flip(0), *(head[f"backward.{part}"] for part in "WRB")).flip(0)
        logits = torch.tanh(encoded) @ head["plain.weight"].T + torch.cat([ahead, behind], 1) @ head["output.weight"].T
        log_probs = (logits + head["output.bias"]).log_softmax(-1)
        for row in phones:
            wanted = torch.tensor([said.phones(texts[row])])
            lengths = torch.tensor([len(log_probs)]), torch.tensor([wanted.shape[1]])
            ctc = torch.nn.functional.ctc_loss(log_probs[:, None], wanted, *lengths, reduction="sum")
            loss = loss + WEIGHT * weights[row] * ctc
        found = torch.autograd.grad(loss, leaves, materialize_grads=True)
    return {name: each.numpy() for name, each in zip(architecture.parameter_shapes(), found, strict=True)}


CASES: dict[str, tuple[int, list[str], list[float], set[int]]] = {
    "one text": (40, ["call anna"], [1.0], {0}),
    "letters that come twice": (40, ["anna call llll"], [0.7], {0}),
    "several, one of them wanted less": (
        50,
        ["play jazz", "call", "a", "call anna"],
        [1.0, 0.25, -0.5, 0.5],
        {0, 1, 3},
    ),
    "nothing said": (20, ["", "a"], [1.0, 1.0], {1}),
    "no room for one": (6, ["play some jazz", "an"], [1.0, 1.0], {1}),
    "just room": (2, ["an"], [1.0], {0}),
    "one frame": (1, ["a", "an"], [1.0, 1.0], {0}),
    "nothing wanted": (10, ["call"], [-1.0], set()),
}


@pytest.mark.parametrize(("subset", "apart"), [("whole", 1e-5), ("acoustic", 1e-5), ("top", 0.05), ("joint", 0.05)])
@pytest.mark.parametrize("name", CASES)
def test_every_gradient_agrees_with_float64(name: str, subset: Subset, apart: float, bundle: Bundle) -> None:
    """apart: of the whole length, at most. Layers that steps leave alone are int8."""
    frames, texts, weights, phones = CASES[name]
    features, session = heard(bundle, frames), Engine().training(bundle, subset)
    assert isinstance(session, PhoneTraining)
    tokens = [bundle.tokenizer.encode(text) for text in texts]
    found = session.run(bundle.weights, features, tokens, weights)
    wanted = expected(bundle, features, texts, weights, phones)
    plain = TrainingSession(bundle, subset=subset).run(bundle.weights, features, tokens, weights)
    np.testing.assert_array_equal(found.negative_log_likelihoods, plain.negative_log_likelihoods)
    assert tuple(found.gradients) == session.trainable == tuple(plain.gradients)
    ours, theirs = (
        np.concatenate([each[name].ravel() for name in session.trainable]) for each in (found.gradients, wanted)
    )
    assert np.linalg.norm(ours - theirs) <= apart * np.linalg.norm(theirs)
    moved = any((plain.gradients[name] != found.gradients[name]).any() for name in session.trainable)
    assert moved == bool(phones), "phones say something wherever there are some"


def test_what_phones_say_of_adapters_is_their_part_of_the_matrices(bundle: Bundle) -> None:
    """With up down = 0 because up is 0: d(up) = d(matrix) down^T, and nothing reaches down."""
    rng, name = np.random.default_rng(3), "encoder.0.W"
    session, whole = Engine().training(bundle, "adapters"), Engine().training(bundle, "whole")
    parameters = dict(bundle.weights)
    for each in session.trainable:
        matrix, _, part = each.rpartition(".")
        out, width = bundle.weights[matrix].shape
        parameters[each] = np.zeros((out, 2), np.float32) if part == "up" else rng.normal(size=(2, width)).astype("f4")
    given = heard(bundle, 30), [bundle.tokenizer.encode("call anna")], [1.0]
    found, wanted = session.run(parameters, *given).gradients, whole.run(bundle.weights, *given).gradients
    np.testing.assert_allclose(found[f"{name}.up"], wanted[name] @ parameters[f"{name}.down"].T, rtol=1e-3, atol=1e-4)
    assert not found[f"{name}.down"].any()


def test_a_bundle_without_the_graph_learns_from_pieces(tiny_bundle: Bundle) -> None:
    assert isinstance(Engine().training(tiny_bundle), TrainingSession)


def test_places_of_texts() -> None:
    symbols, ends = places([[3, 3, 1], [2]])
    assert symbols.tolist() == [[0, 3, 0, 3, 0, 1, 0], [0, 2, 0, 0, 0, 0, 0]]
    assert ends.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 1, 1, 0, 0, 0, 0]]
    assert [room(phones) for phones in ([], [1], [1, 1], [1, 2, 2, 2])] == [0, 1, 3, 6]


def test_what_is_no_parameter_is_refused_by_name(bundle: Bundle) -> None:
    session, weights = Engine().training(bundle), dict(bundle.weights)
    weights["encoder.0.R"] = weights["encoder.0.R"][:1]
    with pytest.raises(LearningError, match=r"parameters: 'encoder\.0\.R': found float32 \[1"):
        session.run(weights, heard(bundle, 9), [[3]], [1.0])


@pytest.mark.parametrize(("content", "message"), [(b"no graph", "cannot be read"), (b"", "holds no 'plain.weight")])
def test_another_file_than_a_head(content: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=f"ctc.onnx: {message}"):
        head_parameters(content)


def test_a_damaged_graph_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    damaged = shutil.copytree(bundle.path, tmp_path / "bundle")
    (damaged / FILE).write_bytes(b"no graph")
    with pytest.raises(BundleError, match=FILE):
        Bundle.open(damaged)
