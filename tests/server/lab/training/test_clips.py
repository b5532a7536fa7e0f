"""Clips, and the tasks that learn from them, through the one training loop."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch

from device_sdk.errors import ConfigurationError
from export.networks.cpc import CPC, ContextRNNT, ContextShape, Contrast
from server.lab.corpora.utterance import Utterance
from server.lab.training.clips import ClipSampler, CpcTask, HeldClips, ReadClips
from server.lab.training.data import Example
from server.lab.training.pieces import train_pieces
from server.lab.training.rnnt.task import Phases, RnntTask
from server.lab.training.spectra import BINS, log_spectra
from server.lab.training.trainer import Budget, Settings, Trainer

TEXTS = ("one two", "two", "six one", "one", "two six two", "six")
WORDS = {word: number for number, word in enumerate(("one", "two", "six"))}
SHAPE = ContextShape(8, 3, 1, 12, 1, 16)


def clips(each: int = 24) -> HeldClips:
    """Every word is a sound of its own for ``each`` frames, which glides, so that frames of a word are told apart."""
    generator = np.random.default_rng(0)
    sounds = generator.standard_normal((len(WORDS), 8)) * 2
    glide = np.linspace(-2, 2, each)[:, None] * generator.standard_normal(8)
    made = []
    for text in TEXTS:
        features = np.concatenate([sounds[WORDS[word]] + glide for word in text.split()])
        made.append(Example((features + 0.1 * generator.standard_normal(features.shape)).astype(np.float32), text, "x"))
    return HeldClips(made)


def tokenizer() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=train_pieces([*TEXTS] * 20, 12))


def transducer(phases: Phases = Phases()) -> RnntTask:
    torch.manual_seed(0)
    network = ContextRNNT(SHAPE, predictor_layers=1, predictor_size=8, embedding_size=8, joiner_size=12, pieces=12)
    return RnntTask(network, tokenizer(), phases)


def cpc() -> CpcTask:
    torch.manual_seed(0)
    return CpcTask(CPC(SHAPE, Contrast(2, 4)))


CASES: dict[str, tuple[Callable[[], Any], Callable[[str], list[int]] | None, int]] = {
    "cpc": (cpc, None, 15),
    "context rnn-t": (transducer, lambda text: tokenizer().encode(text), 40),
}


@pytest.mark.parametrize("name", CASES)
def test_a_task_learns_in_the_training_loop(name: str, tmp_path: Path) -> None:
    make, encode, steps = CASES[name]
    task, own = make(), clips()
    sampler = ClipSampler(own, encode, subsampling=3, most=6)
    settings = Settings(Budget(steps=steps), 1e-2, 5, average=0.9, bfloat16=False, watch_minutes=1e9)
    losses: list[float] = []

    def observe(step: int, progress: float, told: Mapping[str, float]) -> None:
        losses.append(sum(value for name, value in told.items() if name.startswith("loss/")))

    watched = () if encode is None else [replace(one, source="all") for one in own]
    Trainer(task, sampler, settings, tmp_path, watched=watched, observers=[observe]).run()
    assert np.isfinite(losses).all()
    assert min(losses[len(losses) // 2 :]) < (1.0 if encode is None else 0.8) * losses[0]
    assert set(task.weights()) and all(np.isfinite(values).all() for values in task.weights().values())


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_a_batch_is_the_sum_over_its_parts(name: str) -> None:
    make, encode, _ = CASES[name]
    task = make()
    if name == "cpc":
        task.module.candidates = lambda frames, longest, generator=None: (
            (torch.arange(longest)[None, :, None] + torch.arange(4)) % frames[:, None, None]
        )
    task.module.eval()
    sampler = ClipSampler(clips(), encode, subsampling=3)
    parts = [task.loss(sampler.load(0, chosen), 0.3) for chosen in ([0, 1, 2], [3, 4, 5])]
    whole = task.loss(sampler.load(0, range(6)), 0.3)
    assert float(whole.total.detach()) == pytest.approx(sum(float(part.total.detach()) for part in parts), rel=1e-4)
    assert whole.count == sum(part.count for part in parts)


def test_phases_follow_the_budget_survive_a_stop_and_have_an_order() -> None:
    task = transducer(Phases(0.1, 0.5, 0.2))
    batch = ClipSampler(clips(), tokenizer().encode, subsampling=3).load(0, [0, 1])
    assert set(task.loss(batch, 0.0).parts) == {"flat"} and set(task.loss(batch, 0.2).parts) == {"ctc"}
    assert not task.advance(0.4) and task.advance(0.5) and not task.advance(0.6)
    assert set(task.loss(batch, 0.6).parts) == {"rnnt", "ctc"}
    other = transducer(Phases(0.1, 0.5, 0.2))
    other.restore(task.state())
    assert other.transducer and set(transducer(Phases(0, 0, 0)).loss(batch, 0.0).parts) == {"rnnt"}
    batch.lengths[0] += -int(batch.lengths.sum()) % 3 - 1
    sparse = transducer(Phases(0, 0, 0.2, sparse=0.5))
    assert [set(sparse.loss(batch, progress).parts) for progress in (0.4, 0.5)] == [{"ctc"}, {"rnnt", "ctc"}]
    with pytest.raises(ConfigurationError, match=r"flat=0\.5, ctc=0\.1"):
        Phases(0.5, 0.1)


def test_a_share_of_the_learning_rate_for_what_was_trained_before(tmp_path: Path) -> None:
    def moved(shares: dict[str, float]) -> dict[str, float]:
        task = cpc()
        before = {name: value.detach().clone() for name, value in task.module.named_parameters()}
        settings = Settings(Budget(steps=1), 1e-3, 0, bfloat16=False, weight_decay=0.0, shares=shares)
        Trainer(task, ClipSampler(clips(), None, subsampling=3), settings, tmp_path / str(len(shares))).epoch()
        return {
            name: float((value.detach() - before[name]).abs().max()) for name, value in task.module.named_parameters()
        }

    plain, slow = moved({}), moved({"encoder.": 0.1, "features.": 0.0})
    for name, distance in plain.items():
        share = 0.1 if name.startswith("encoder.") else 0.0 if name.startswith("features.") else 1.0
        assert slow[name] == pytest.approx(share * distance, rel=0.05, abs=1e-9), name


def test_clips_that_are_too_short_are_left_out() -> None:
    def letters(text: str) -> list[int]:
        return [1 + ord(letter) % 8 for letter in text]

    assert ClipSampler(clips(5), letters, subsampling=3).load(0, [0, 1]) is None
    kept = ClipSampler(clips(24), letters, subsampling=3).load(0, [0, 1])
    assert kept is not None and kept.lengths.tolist() == [7, 3]


def test_clips_are_read_when_they_are_needed() -> None:
    read: list[str] = []

    def audio(name: str) -> np.ndarray:
        read.append(name)
        return np.random.default_rng(0).standard_normal(8_000).astype(np.float32)

    utterances = [Utterance(n, "s", "one", None, True, lambda n=n: audio(n)) for n in ("a", "b")]  # type: ignore[misc]
    given = ReadClips(utterances, [0.5, 0.5], log_spectra)
    assert given.frames == [50, 50] and not read and given[1].features.shape == (48, BINS) and read == ["b"]


def test_spectra_have_a_bin_for_every_31_hertz() -> None:
    time = np.arange(16_000) / 16_000
    for hertz in (500, 3000, 7500):
        spectrum = log_spectra(np.sin(2 * np.pi * hertz * time).astype(np.float32))
        assert spectrum.shape == (1 + (16_000 - 400) // 160, BINS)
        assert (spectrum.argmax(1) == round(hertz / 31.25) - 1).all()
    assert log_spectra(np.zeros(10, np.float32)).shape == (1, BINS)
