"""Sums that get noise: one device more or less moves them by its clipping bound at most, whatever the others sent."""

import math
from contextlib import closing
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save
from scipy.stats import kstest

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes
from device_sdk.wire.messages import DeltaPlan
from server.aggregation import deltas
from server.aggregation.processes import Processes
from server.aggregation.tree_reduction import LEAF, Accepted, LocalWorkers, leaves, merge_all
from server.aggregation.weights_file import parse_weights
from server.plans.round import RoundSettings
from server.privacy.noise import key_stream
from server.registry import models as model_registry
from server.rounds.release_keys import ReleaseKey, digest_of
from server.rounds.releases import Lineage, release_deltas
from server.storage.blobs import BlobStore, FolderBlobs

NAME = "joiner.output.bias"
DEVICES = 1 << 15


def contribution(blobs: BlobStore, number: int, value: float) -> Any:
    """A report of one value. Equal ones lie in one blob."""
    content = save({NAME: np.array([value], np.float32)})
    digest = sha256(content).hexdigest()
    blob = f"deltas/r1/{digest}.safetensors"
    if not blobs.has(blob):
        blobs.put(blob, content)
    return SimpleNamespace(id=f"{number:08d}", body_sha256=digest, blob=blob, utterances=1)


def released(blobs: BlobStore, contributions: list[Any], settings: RoundSettings) -> float:
    """The sum that a round releases, where the model begins at zero and the optimizer's step is one."""
    stored = model_registry.store(blobs, {NAME: np.zeros(1, np.float32)}, {})
    base = SimpleNamespace(version="base-1", sha256=stored.sha256, optimizer_sha256=None)
    key = ReleaseKey("r1", "deltas", digest_of(contributions), bytes(32))
    lineage, row = Lineage(base, None, 0), SimpleNamespace(number=1, eligible=None)  # type: ignore[arg-type]
    made = release_deltas(blobs, settings, contributions, None, lineage, row, None, LocalWorkers(blobs), key)  # type: ignore
    return float(parse_weights(blobs.get(model_registry.blob_name(made.stored.sha256)))[NAME][0]) * (settings.goal or 1)


def test_one_device_more_moves_a_noised_sum_by_its_bound_whatever_the_others_sent(tmp_path: Path) -> None:
    """The others sent what rounds one way where a sum in float32 takes 32 at a time, and the other way where the first
    of them is a stranger: half of the last bit every time, which adds up."""
    blobs = FolderBlobs(tmp_path)
    plan = {"deltas": DeltaPlan(clip_norm=1.0), "noise_multiplier": 1e-3, "weighting": "uniform", "goal": DEVICES}
    settings = RoundSettings.model_validate({"marginals": None, **plan})
    lower = 1.0 - 2.0**-15 - 2.0**-19
    pattern = [lower] * 32 + [lower - 2.0**-11] * 32
    others = [contribution(blobs, number + 1, pattern[number % 64]) for number in range(DEVICES - 1)]
    without = released(blobs, others, settings)
    with_one = released(blobs, [contribution(blobs, 0, lower), *others], settings)
    # The bound, the noise, and the model's own float32.
    assert abs(with_one - without) <= 1.0 + 6 * 2**0.5 * 1e-3 + 4e-3


SHAPES = {"encoder.0.W": (2, 3), NAME: (5,)}
Delta = dict[str, NDArray[np.float32]]


def clipped(values: list[float], clip_norm: float) -> Delta:
    """Values scaled to the bound in float32, as a device does it: a little above it, often enough."""
    flat = np.array(values)
    norm = float(np.sqrt(np.square(flat).sum()))
    flat *= clip_norm / norm if norm > 1e-100 else 0.0
    return {"encoder.0.W": flat[:6].astype(np.float32).reshape(2, 3), NAME: flat[6:].astype(np.float32)}


def square(total: deltas.DeltaSum, other: deltas.DeltaSum, grid: deltas.Grid) -> Fraction:
    """Of the L2 norm of the difference, in fractions."""
    steps = [int(step) for name in SHAPES for step in (total.sum[name] - other.sum[name]).flat]
    return Fraction(sum(step * step for step in steps)) * Fraction(grid.step) ** 2


value = st.one_of(st.floats(-1, 1), st.sampled_from([1e6, -1e6, 1e-30, 0.0, 1.0]))
eleven = st.lists(value, min_size=11, max_size=11)


@examples(max_examples=60, deadline=None)
@given(
    others=st.lists(eleven, max_size=2 * LEAF + 3),
    one=eleven,
    place=st.integers(0, 2 * LEAF + 3),
    clip_norm=st.sampled_from([1e-3, 0.1, 1.0, 3.7, 1e6]),
    z=st.sampled_from([1e-3, 0.3, 1.0, 7.7]),
    crowd=st.integers(1, 100_000),
)
def test_any_device_moves_the_sum_by_its_bound_at_most_exactly(others, one, place, clip_norm, z, crowd) -> None:
    """crowd: so many devices send the same as the first."""
    grid = deltas.noise_grid(clip_norm, z)
    sent = [clipped(values, clip_norm) for values in others]
    stranger = clipped(one, clip_norm)

    def total(of: list[Delta]) -> deltas.DeltaSum:
        found = summed(of, grid)
        if sent:
            for name, steps in deltas.in_steps(sent[0], grid).items():
                found.sum[name][...] += crowd * steps
        return found

    without, with_one = total(sent), total([*sent[:place], stranger, *sent[place:]])
    assert square(with_one, without, grid) <= Fraction(clip_norm) ** 2


@examples(max_examples=100, deadline=None)
@given(values=eleven, clip_norm=st.floats(1e-6, 1e6), z=st.floats(1e-5, 1e3))
def test_cutting_to_the_grid_takes_less_than_a_step_of_each_value(values, clip_norm: float, z: float) -> None:
    grid = deltas.noise_grid(clip_norm, z)
    delta = clipped(values, clip_norm)
    for name, found in deltas.in_steps(delta, grid).items():
        lost = np.abs(delta[name].astype(np.float64)) - np.abs(found * grid.step)
        assert (lost >= 0).all() and (lost <= grid.step + 1e-6 * np.abs(delta[name])).all()


def summed(deltas: list[Delta], grid: deltas.Grid) -> deltas.DeltaSum:
    blobs = Memory({f"deltas/r1/{number}": save(delta) for number, delta in enumerate(deltas)})
    accepted = [Accepted(name, sha256(content).hexdigest(), 1.0) for name, content in blobs.items()]
    return merge_all(LocalWorkers(blobs).fold(leaves(accepted, SHAPES, DeltaPlan(), grid)), SHAPES, grid)


class Memory(dict[str, bytes]):
    """Blobs that are only read."""

    def get(self, name: str) -> bytes:  # type: ignore[override]
        return self[name]


@pytest.mark.parametrize("grid", [deltas.Grid(2.0**-30), deltas.noise_grid(1.0, 0.5)])
def test_any_number_of_workers_make_the_same_bits(tmp_path: Path, grid: deltas.Grid) -> None:
    rng = np.random.default_rng(3)
    blobs, accepted, exact = FolderBlobs(tmp_path), [], np.zeros(11)
    for number in range(3 * LEAF + 7):
        delta = clipped(list(rng.standard_normal(11)), 1.0)
        blob, content = f"deltas/r1/{number:04d}.safetensors", save(delta)
        blobs.put(blob, content)
        accepted.append(Accepted(blob, sha256(content).hexdigest(), 1.0))
        exact += np.concatenate([delta[name].ravel().astype(np.float64) for name in SHAPES])
    with closing(Processes(tmp_path, 2)) as several:
        workers = (LocalWorkers(blobs), accepted), (LocalWorkers(blobs), accepted[::-1]), (several, accepted)
        here, *others = (
            merge_all(each.fold(leaves(reports, SHAPES, DeltaPlan(), grid)), SHAPES, grid) for each, reports in workers
        )
    for other in others:
        assert all(np.array_equal(here.sum[name], other.sum[name]) for name in SHAPES)
        assert (other.weight, other.reports) == (len(accepted), len(accepted))
    found = np.concatenate([values.ravel() for values in deltas.in_units(here.sum, grid).values()])
    assert np.abs(found - exact).max() < len(accepted) * grid.step + 1e-4


def test_weights_other_than_one_are_refused_with_noise() -> None:
    with pytest.raises(ValueError, match="count alike"):
        list(leaves([Accepted("deltas/r1/1", "", 2.0)], SHAPES, DeltaPlan(), deltas.noise_grid(1.0, 1.0)))


ZEROS = {"b": np.zeros(3, np.int64), "a": np.zeros((150, 40), np.int64)}
VARIANCE = deltas.COARSE**2 * deltas.COARSE_VARIANCE + deltas.FINE_VARIANCE


def key(letter: bytes = b"k") -> RandomBytes:
    return key_stream(letter * 32, "noise")


def test_the_noise_is_gaussian_of_the_deviation_stated() -> None:
    found = deltas.noised_sum(ZEROS, 0.5, 2.0, key())
    deviation = VARIANCE**0.5 * 2.0 * 0.5 / deltas.STEPS
    assert 1.0 < deviation < 1.000001, "z C, and a little more"
    assert found["a"].shape == (150, 40) and found["a"].dtype == np.float32
    assert kstest(found["a"].ravel() / deviation, "norm").pvalue > 1e-4


def test_the_same_key_draws_the_same_noise_whatever_the_order_of_names() -> None:
    one, other = deltas.noised_sum(ZEROS, 1.0, 1.0, key()), deltas.noised_sum(ZEROS, 1.0, 1.0, key(b"l"))
    same = deltas.noised_sum(dict(reversed(ZEROS.items())), 1.0, 1.0, key())
    assert all(np.array_equal(one[name], same[name]) for name in ZEROS) and not np.array_equal(one["a"], other["a"])


def test_values_lie_on_the_grid_whatever_the_sum_was() -> None:
    """Not a bit below the grid is in it."""
    found = deltas.noised_sum({"a": np.full(64, 3_294_199, np.int64)}, 1.0, 0.25, key())["a"].astype(np.float64)
    steps = found / (0.25 / deltas.STEPS)
    assert np.abs(steps - np.rint(steps)).max() <= 0.5 * 2.0**-24 * np.abs(steps).max()


@pytest.mark.parametrize("clip_norm", [1e-3, 0.3, 1.0, 1e9 - 1])
@pytest.mark.parametrize("z", [1e-5, 0.3, 1.0, 10.0, 1e6])
def test_the_ratio_of_bound_and_noise_is_what_was_asked_for(clip_norm: float, z: float) -> None:
    """In fractions: nothing here is rounded."""
    bound = Fraction(clip_norm) / Fraction(deltas.noise_grid(clip_norm, z).step)
    ratio = bound**2 / VARIANCE * Fraction(z) ** 2
    assert 1 - Fraction(1, 10**6) <= ratio <= 1, "nor is there more noise than that"


def test_the_finer_part_smooths_the_coarser() -> None:
    """Micciancio and Peikert's condition: s >= k sqrt(ln(2 + 2 / e) / pi) at e = 2^-128."""
    smoothing = math.sqrt(math.log(2 + 2.0**129) / math.pi)
    assert math.sqrt(2 * math.pi * deltas.FINE_VARIANCE) >= math.sqrt(2) * deltas.COARSE * smoothing


@pytest.mark.parametrize(
    ("total", "clip_norm", "z", "message"),
    [
        (ZEROS, 0.0, 1.0, "clip_norm"),
        (ZEROS, 1.0, math.inf, "noise_multiplier"),
        (ZEROS, 1.0, 1e-6, "noise_multiplier"),
        ({"a": np.array([1 << 62], np.int64)}, 1.0, 1.0, "a: found a sum"),
        ({"a": np.array([-(1 << 63)], np.int64)}, 1.0, 1.0, "a: found a sum"),
    ],
)
def test_what_is_refused(total: dict[str, np.ndarray], clip_norm: float, z: float, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        deltas.noised_sum(total, clip_norm, z, key())
