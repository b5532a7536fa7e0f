"""What a CTC head says of texts, beside an enumeration of alignments and torch's loss; what a session makes of it."""

from dataclasses import replace
from itertools import groupby, product
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import BundleError
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.runtimes.ctc import FILE, IMPOSSIBLE, CtcHead, log_likelihoods
from device_sdk.runtimes.protocol import encode_whole
from export.bundles import mean, widen
from tests.signals import noise
from tests.tiny import tiny_pronunciation, with_ctc_head

SYMBOLS = 3


def log_probs(frames: int, symbols: int = SYMBOLS, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(0.0, 2.0, (frames, symbols))
    return np.asarray(drawn - np.logaddexp.reduce(drawn, axis=1, keepdims=True), np.float32)


def enumerated(scores: np.ndarray, wanted: tuple[int, ...]) -> float:
    """Every alignment of a few frames, one by one."""
    found = [
        sum(float(scores[frame, symbol]) for frame, symbol in enumerate(path))
        for path in product(range(scores.shape[1]), repeat=len(scores))
        if tuple(symbol for symbol, _ in groupby(path) if symbol) == wanted
    ]
    return float(np.logaddexp.reduce(found)) if found else -np.inf


@pytest.mark.parametrize("wanted", [(), (1,), (1, 2), (1, 1), (2, 1, 2), (1, 1, 2)])
def test_all_alignments_are_summed(wanted: tuple[int, ...]) -> None:
    scores = log_probs(5)
    others = [(2,), wanted, (), (1, 2, 1)]
    assert log_likelihoods(scores, others)[1] == pytest.approx(enumerated(scores, wanted), abs=1e-6)


@given(st.lists(st.lists(st.integers(1, 8), max_size=12), min_size=1, max_size=5), st.integers(24, 60))
def test_torch_says_the_same(texts: list[list[int]], frames: int) -> None:
    scores = log_probs(frames, 9, seed=frames)
    expected = [
        -torch.nn.functional.ctc_loss(
            torch.from_numpy(scores).double()[:, None],
            torch.tensor([text or [1]])[:, : len(text)],
            torch.tensor([frames]),
            torch.tensor([len(text)]),
            reduction="sum",
        ).item()
        for text in texts
    ]
    np.testing.assert_allclose(log_likelihoods(scores, texts), expected, atol=1e-6)


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=40), min_size=2, max_size=6), st.integers(1, 90), st.integers(1, 15)
)
def test_the_others_change_nothing(texts: list[list[int]], frames: int, sharpness: int) -> None:
    """However far one lies behind another (a network's phones lie 30 nats apart, here it is up to 100), and whatever
    beginnings they share."""
    drawn = sharpness * log_probs(frames, 4, seed=frames)
    scores = (drawn - np.logaddexp.reduce(drawn, axis=1, keepdims=True)).astype(np.float32)
    alone = [log_likelihoods(scores, [text])[0] for text in texts]
    np.testing.assert_allclose(log_likelihoods(scores, texts), alone, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_is_finite() -> None:
    scores = log_probs(2)
    found = log_likelihoods(scores, [(1, 2), (1, 1), (1, 2, 1, 2)])
    assert np.isfinite(found).all() and found[0] > -20 and (found[1:] < -500).all()
    assert log_likelihoods(scores[:0], [(), (1,)]).tolist() == [0.0, IMPOSSIBLE]
    assert log_likelihoods(scores, []).shape == (0,)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> Bundle:
    """The tiny bundle with a head of random weights that counts."""
    return with_ctc_head(tiny_bundle, tmp_path_factory.mktemp("heads"))


def test_a_session_weighs_what_the_head_hears(bundle: Bundle) -> None:
    recognizer = Recognizer(bundle, DecodingSettings(pause_seconds=np.inf), Rescorer(bundle).rescore)
    clip = noise(24_000, seed=4)
    session = recognizer.session(16_000)
    session.feed(clip)
    result = session.finish()
    heard = CtcHead(bundle)(encode_whole(recognizer.transducer, session.features))
    tokenizer, spelled = bundle.tokenizer, tiny_pronunciation(bundle)
    expected = log_likelihoods(heard, [spelled.encode(tokenizer.decode(each.tokens)) for each in result.nbest])
    np.testing.assert_allclose([each.scores.ctc for each in result.nbest], expected, atol=0.02)
    without = Recognizer(bundle, DecodingSettings(pause_seconds=np.inf)).recognize(clip, 16_000)
    assert {each.scores.ctc for each in without.nbest} == {0.0}, "there is no second pass"
    muted = Rescorer(bundle, replace(bundle.combination, ctc=0.0))
    deaf = Recognizer(bundle, DecodingSettings(pause_seconds=np.inf), muted.rescore).recognize(clip, 16_000)
    gained = {each.text: each.score for each in result.nbest}
    for each in deaf.nbest:
        assert gained[each.text] == pytest.approx(each.score + 0.5 * each.scores.ctc, abs=1e-6)


def test_chunks_of_any_size_give_the_same_bits(bundle: Bundle) -> None:
    recognizer, clip = Recognizer(bundle, rescore=Rescorer(bundle).rescore), noise(32_000, seed=5)
    whole, session = recognizer.recognize(clip, 16_000), recognizer.session(16_000)
    for start in range(0, clip.size, 777):
        session.feed(clip[start : start + 777])
    assert session.finish().nbest == whole.nbest


def test_a_mean_keeps_the_head_and_a_wider_network_has_none(bundle: Bundle, tmp_path: Path) -> None:
    assert Bundle.open(mean(bundle, {bundle.path: 0.5}, tmp_path / "mean", version="3")).has(FILE)
    assert not Bundle.open(widen(bundle, tmp_path / "wide", 40, version="3")).has(FILE)


def damaged(bundle: Bundle, how: str) -> bytes:
    graph = onnx.load(bundle.file(FILE))
    if how == "bytes":
        return b"none"
    keys = {"architecture": "idiolect.architecture", "pronunciation": "idiolect.pronunciation"}
    if how == "inputs":
        graph.graph.input[0].name = "heard"
        for node in graph.graph.node:
            node.input[:] = ["heard" if name == "encoded" else name for name in node.input]
    else:
        next(each for each in graph.metadata_props if each.key == keys[how]).value = "a a"
    return graph.SerializeToString()


@pytest.mark.parametrize("how", ["bytes", "architecture", "pronunciation", "inputs"])
def test_a_damaged_head_is_refused_by_name(how: str, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(damaged(bundle, how))
    with pytest.raises(BundleError, match=FILE):
        mean(bundle, {}, tmp_path / "out", version="3", models=[tmp_path / FILE])
    assert not (tmp_path / "out").exists()
