from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import DataError
from server.lab.training.data import Example, alignable, batches, collate, moments, read_shard, write_shard


def examples(count: int = 7) -> list[Example]:
    made = (np.random.default_rng(n).normal(size=(10 + 5 * n, 64)).astype(np.float16) for n in range(count))
    return [Example(features, f"word {number}", "made") for number, features in enumerate(made)]


def test_a_shard_survives_the_disk_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    write_shard(path, examples())
    assert [p.name for p in tmp_path.iterdir()] == ["shard.safetensors"]
    for found, expected in zip(read_shard(path), examples(), strict=True):
        np.testing.assert_array_equal(found.features, expected.features)
        assert (found.text, found.source) == (expected.text, expected.source)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"shard\.safetensors: not a readable shard"):
        read_shard(path)


def test_moments_are_those_of_all_frames() -> None:
    joined = np.concatenate([example.features for example in examples()]).astype(np.float64)
    mean, scale = moments(examples())
    np.testing.assert_allclose(mean, joined.mean(0), atol=1e-5)
    np.testing.assert_allclose(scale, 1 / joined.std(0), rtol=1e-4)
    with pytest.raises(DataError, match="no frame"):
        moments([])


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=60), most=st.integers(1, 9), seed=st.integers(0, 99))
def test_batches_hold_every_utterance_once_within_the_budget(lengths: list[int], most: int, seed: int) -> None:
    found = batches(lengths, 1000, most, np.random.default_rng(seed))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 1000


def test_collate_pads_with_the_last_frame_and_blank() -> None:
    short, long = np.ones((7, 64), np.float32), np.full((9, 64), 2.0, np.float32)
    batch = collate([(short, [4]), (long, [5, 6, 7])], 3)
    assert batch.features.shape == (2, 9, 64) and batch.features[0, 8, 0] == 1.0
    assert (batch.frames.tolist(), batch.lengths.tolist()) == ([2, 3], [1, 3])
    assert batch.tokens.tolist() == [[4, 0, 0], [5, 6, 7]] and batch.labels.shape[0] == 0
    assert collate([(short, [4]), (long, [])], 3, [[2], [8, 9]]).labels.tolist() == [[2, 0], [8, 9]]


@pytest.mark.parametrize(("tokens", "frames"), [([1], 2), ([1, 2, 3, 4, 5], 6), ([3, 3, 3, 3], 8), ([], 1)])
def test_ctc_needs_a_frame_for_each_token_and_between_equal_ones(tokens: list[int], frames: int) -> None:
    assert alignable(frames, tokens) and not alignable(frames - 1, tokens)
