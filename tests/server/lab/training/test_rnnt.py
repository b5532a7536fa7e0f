import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from device_sdk.bundle.architecture import PRESETS
from device_sdk.errors import BundleError, ConfigurationError, DataError
from export.imports.importer import import_sherpa
from export.networks.rnnt import RNNT
from export.networks.stateless import StatelessTransducer
from server.lab.training.data import Batch, Example, collate
from server.lab.training.greedy import ctc_greedy, greedy, word_errors
from server.lab.training.pieces import train_pieces
from server.lab.training.rnnt import Recipe, run, train_rnnt
from server.lab.training.rnnt.learner import Learner, flat_targets, new_network
from server.lab.training.speech import Mixture, make_shard, sentence
from server.lab.training.trainer import Budget
from tests.tiny import tiny_weights

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")

SHARES = {"flat_share": 0.2, "easy_share": 0.3, "ctc_share": 0.6, "sparse_share": 0.0}
SMALL = {"shard": 12, "window": 2, "batch": 6, "threads": 1, "checkpoint_steps": 2, "snapshot_minutes": 0.0}
TINY = Recipe("tiny", budget=Budget(steps=10), **SHARES, **SMALL)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pieces() -> bytes:
    generator = np.random.default_rng(0)
    return train_pieces([sentence(Mixture(), generator) for _ in range(1500)], 64)


def watched() -> list[Example]:
    return [Example(np.random.default_rng(0).normal(-8, 3, (60, 64)).astype(np.float32), "stop the music", "noise")]


def test_a_run_goes_through_all_phases_and_writes_its_files(tmp_path: Path, pieces: bytes) -> None:
    result = train_rnnt(TINY, Mixture(), pieces, tmp_path / "run", watched(), {"data": []})
    assert (result["steps"], result["phase"], set(result["wer"])) == (10, "rnnt", {"noise"})
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    phases = [line["phase"] for line in lines]
    assert lines[0]["flat"] > 0 and lines[-1]["phones"] > 0 and lines[-1]["finished"]
    assert phases == sorted(phases) and set(phases) == {"ctc", "rnnt"}
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    expected = PRESETS["tiny"].constant_shapes() | PRESETS["tiny"].parameter_shapes()
    assert {name: value.shape for name, value in weights.items()} == expected
    assert all(np.isfinite(value).all() for value in weights.values())
    described = json.loads((tmp_path / "run" / "training.json").read_text())
    assert (described["recipe"]["preset"], described["data"]) == ("tiny", [])
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == pieces
    RNNT(PRESETS["tiny"]).from_parameters(weights)


def test_a_zipformer_is_trained_in_the_same_way_and_can_be_imported(tmp_path: Path, pieces: bytes) -> None:
    recipe = replace(TINY, preset="zipformer-tiny", pieces=64, budget=Budget(steps=6))
    heard = replace(watched()[0], features=np.zeros((60, 80), np.float32))
    result = train_rnnt(recipe, Mixture(features=recipe.features), pieces, tmp_path / "run", [heard])
    assert (result["phase"], set(result["wer"])) == ("rnnt", {"noise"})
    imported = import_sherpa(tmp_path / "run" / "sherpa")
    trained = load_file(tmp_path / "run" / "weights.safetensors")
    assert imported.features == recipe.features
    np.testing.assert_array_equal(imported.weights["joiner.output.weight"], trained["joiner_output.weight"])
    network = StatelessTransducer(recipe.architecture).from_parameters(trained)
    with pytest.raises(BundleError, match="are not those of this network"):
        network.from_parameters(tiny_weights(PRESETS["tiny"]))


@cache
def shard(index: int) -> list[Example]:
    return make_shard(Mixture(), TINY.seed, index, TINY.shard)


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards made once and kept: what is tested is the loop, not espeak-ng."""
    window = SimpleNamespace(window=lambda first, last: [e for index in range(first, last + 1) for e in shard(index)])
    monkeypatch.setattr(run, "ShardMaker", lambda *_: nullcontext(window))


@pytest.mark.usefixtures("present")
def test_a_run_may_go_on_from_a_trained_network(tmp_path: Path, pieces: bytes) -> None:
    """It begins with that network, its constants too, and by RNN-T at once."""
    given = tiny_weights(PRESETS["tiny"], 3)
    recipe = replace(TINY, budget=Budget(steps=2), helper=0.0, peak=1e-9, average=0.0)
    result = train_rnnt(recipe, Mixture(), pieces, tmp_path / "run", begin=given)
    assert result["phase"] == "rnnt" and result["rnnt"] > 0 and not {"ctc", "flat"} & result.keys()
    for name, value in load_file(tmp_path / "run" / "weights.safetensors").items():
        half = given[name].astype(np.float16)
        np.testing.assert_allclose(value, half, rtol=2e-3, atol=1e-6, err_msg=name)  # of a step, and one last bit
        assert value.dtype == np.float16


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path, pieces: bytes) -> None:
    with pytest.raises(DataError, match="64 pieces, expected 256 as the network has"):
        train_rnnt(replace(TINY, preset="small"), Mixture(), pieces, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"preset": "huge"}, "preset: found 'huge'"), ({"ctc_share": 1.0}, "flat_share, easy_share")],
)
def test_recipes_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(TINY, **change)


def learner() -> Learner:
    torch.manual_seed(0)
    return Learner(new_network(replace(PRESETS["tiny"], encoder_layers=2), 0.0), phones=9)


def batch() -> Batch:
    generator = np.random.default_rng(0)
    given = [(generator.normal(size=(frames, 64)).astype(np.float32), [3, 4, 5]) for frames in (30, 45)]
    return collate(given, 3, [[1, 2, 8, 2], [7]])


def test_the_transducer_begins_as_the_ctc_model() -> None:
    made = learner()
    made.begin_transducer()
    network = made.network
    with torch.no_grad():
        network.joiner_predictor.weight.zero_()
        hidden = network.hidden(network.stack(batch().features))
        joint = network.join(network.joiner_encoder(hidden), network.predict(batch().tokens)[:, :1])
        torch.testing.assert_close(joint, made.ctc_log_probs(hidden))


@pytest.mark.parametrize(
    "loss",
    [
        lambda made, hidden: made.flat_loss(hidden, batch(), torch.ones(64))[0],
        lambda made, hidden: made.ctc_loss(hidden, batch()),
        lambda made, hidden: made.rnnt_loss(hidden, batch(), torch.float32, 0.0),
        lambda made, hidden: made.phone_loss(hidden, batch()),
    ],
    ids=["flat", "ctc", "rnnt", "phones"],
)
def test_a_step_on_each_loss_lowers_it(loss: Callable[[Learner, torch.Tensor], torch.Tensor]) -> None:
    made, found = learner(), []
    optimizer = torch.optim.SGD(made.parameters(), 0.005)
    for _ in range(2):
        found.append(loss(made, made.network.hidden(made.network.stack(batch().features))))
        found[-1].backward()
        optimizer.step()
    assert found[1] < found[0]


def test_phones_are_heard_by_the_layer_below_the_last() -> None:
    made = learner()
    network, given = made.network, batch()
    below, last = network.layers(network.stack(given.features))
    torch.testing.assert_close(last, network.hidden(network.stack(given.features)))
    made.phone_loss(below, given).backward()
    touched = {name for name, value in network.named_parameters() if value.grad is not None and value.grad.any()}
    assert touched == {f"encoder.{part}_l0" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}


def test_flat_targets_share_the_speech_by_letters() -> None:
    letters = torch.ones(64)
    letters[4] = 2.0
    given = collate([(np.zeros((54, 64), np.float32), [3, 4, 5])], 3)
    assert flat_targets(given, letters)[0].tolist() == [0] * 3 + [-100] * 2 + [3] * 3 + [4] * 6 + [5] * 3 + [-100]
    assert flat_targets(collate([(np.zeros((9, 64), np.float32), [3, 4])], 3), letters).shape == (1, 3)


def test_greedy_follows_the_best_path_one_by_one_as_in_batches_and_ctc_merges_repeats() -> None:
    network = learner().network.eval()
    with torch.no_grad():
        network.joiner_output.bias.normal_(0.0, 1.0, generator=torch.Generator().manual_seed(1))
    generator = np.random.default_rng(2)
    features = [generator.normal(size=(frames, 64)).astype(np.float32) for frames in (30, 48, 12)]
    together = greedy(network, features)
    assert together == [greedy(network, [one])[0] for one in features] and any(together)
    for one, tokens in zip(features, together, strict=True):
        encoded = network.encode(torch.from_numpy(one)[None])[0]
        path: list[int] = []
        for frame in encoded:
            for _ in range(4):
                predicted = network.predict(torch.tensor([path], dtype=torch.int64))[0, -1]
                best = int(network.join(frame, predicted).argmax())
                if best == 0:
                    break
                path.append(best)
        assert path == tokens
    path = torch.nn.functional.one_hot(torch.tensor([[0, 3, 3, 0, 3, 4, 4, 0]]), 6).float()
    assert ctc_greedy(path, torch.tensor([7])) == [[3, 3, 4]]


def test_word_errors_by_source() -> None:
    said = {"a b c": ("a x c", "here"), "a b": ("", "here"), "a": ("a b c", "there")}
    examples = [Example(np.full((3 + n, 64), n), truth, source) for n, (truth, (_, source)) in enumerate(said.items())]
    heard = [found for found, _ in said.values()]
    rates = word_errors(examples, lambda features: [heard[int(one[0, 0])] for one in features])
    assert rates == {"here": pytest.approx(3 / 5), "there": 2.0}
