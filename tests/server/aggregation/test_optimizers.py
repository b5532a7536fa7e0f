"""Server optimizers against torch's own, and what the server makes of a delta against what torch makes of it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from device_sdk.wire.delta_codec import encode
from device_sdk.wire.messages import DeltaPlan
from server.aggregation import deltas
from server.aggregation.optimizers import apply, init, learning_rate, state_from_arrays, state_to_arrays, update_norm
from server.aggregation.validation import read_delta
from server.aggregation.weights_file import dump_weights, parse_weights, read_metadata
from server.plans.round import OptimizerSettings, ScheduleSettings

SHAPES = {"w": (3, 2)}


def rounds(settings: OptimizerSettings, count: int, resume: bool = False) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    base: dict[str, Any] = {"w": np.ones((3, 2), np.float32), "features.mean": np.full(2, 7, np.float32)}
    state = init(settings, SHAPES)
    for _ in range(count):
        base, state = apply(settings, state, base, {"w": rng.normal(size=(3, 2)).astype(np.float32)})
        if resume:
            content = dump_weights(*state_to_arrays(state))
            state = state_from_arrays(parse_weights(content), read_metadata(content))
    assert base["features.mean"].tolist() == [7, 7]
    return np.asarray(base["w"])


@pytest.mark.parametrize(
    "settings",
    [OptimizerSettings(learning_rate=0.7), OptimizerSettings(kind="adam", learning_rate=0.05, second_momentum=0.95)],
)
def test_against_torch(settings: OptimizerSettings) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.ones(3, 2))
    betas = settings.momentum, settings.second_momentum
    peer: Any = torch.optim.SGD([weights], settings.learning_rate)
    if settings.kind == "adam":
        peer = torch.optim.Adam([weights], settings.learning_rate, betas=betas, eps=settings.epsilon)
    rng = np.random.default_rng(0)
    for _ in range(6):
        weights.grad = -torch.from_numpy(rng.normal(size=(3, 2)).astype(np.float32))
        peer.step()
    assert np.allclose(rounds(settings, 6), weights.detach().numpy(), atol=1e-5)
    schedule = ScheduleSettings(warmup=3, decay=0.5, start=4)
    for other in (settings, OptimizerSettings(kind="lamb", learning_rate=0.05, schedule=schedule)):
        assert np.array_equal(rounds(other, 6), rounds(other, 6, resume=True)), "a resumed state repeats the same bits"


def test_sgd_with_rate_one_moves_onto_the_mean() -> None:
    sgd, base, delta = OptimizerSettings(), *({"w": np.full((3, 2), value, np.float32)} for value in (0.0, 0.25))
    moved, state = apply(sgd, init(sgd, SHAPES), base, delta)
    assert np.array_equal(moved["w"], delta["w"]) and not base["w"].any() and state.step == 1
    assert update_norm(moved, base) == pytest.approx(0.25 * 6**0.5)
    _, other = apply(OptimizerSettings(kind="adam"), state, base, delta)
    assert (other.kind, other.step) == ("adam", 1), "a state of another kind starts again"


def norm(values: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(values.astype(np.float64)))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_moves_a_parameter_by_its_own_length(decay: float) -> None:
    settings = OptimizerSettings(kind="lamb", learning_rate=0.01, weight_decay=decay)
    rng = np.random.default_rng(1)
    base = {name: rng.normal(size=(20, 3)).astype(np.float32) * scale for name, scale in (("a", 1), ("b", 100))}
    delta = {name: rng.normal(size=(20, 3)).astype(np.float32) for name in base}
    base["zero"], delta["zero"] = np.zeros(2, np.float32), np.array([1.0, 0.0], np.float32)
    moved, _ = apply(settings, init(settings, {name: values.shape for name, values in base.items()}), base, delta)
    for name in ("a", "b"):
        assert norm(moved[name] - base[name]) == pytest.approx(0.01 * norm(base[name]), rel=1e-3)
    assert moved["zero"] == pytest.approx([0.01, 0.0], abs=1e-4), "a parameter without a length moves like Adam's"


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (ScheduleSettings(), [2.0, 2.0, 2.0, 2.0]),
        (ScheduleSettings(warmup=4), [0.5, 1.0, 1.5, 2.0]),
        (ScheduleSettings(start=2, decay=0.25, transition=2), [2.0, 2.0, 1.0, 0.5]),
        (ScheduleSettings(decay=0.1, least=0.05), [0.2, 0.1, 0.1, 0.1]),
    ],
)
def test_schedules(schedule: ScheduleSettings, rates: list[float]) -> None:
    settings = OptimizerSettings(learning_rate=2.0, schedule=schedule)
    assert [learning_rate(settings, step) for step in (1, 2, 3, 4)] == pytest.approx(rates)


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_a_delta_moves_the_weights_by_itself_to_the_bit(encoding: Any) -> None:
    """The server's way: read the body, add up, mean, a step of SGD with rate 1, the weights file."""
    rng, settings = np.random.default_rng(0), OptimizerSettings()
    base, sent = ({"w": rng.normal(0, size, SHAPES["w"]).astype(np.float32)} for size in (1.0, 0.05))
    given = read_delta(save(encode(sent, encoding)), SHAPES, DeltaPlan(clip_norm=1e3, encoding=encoding))
    assert encoding != "float32" or np.array_equal(given["w"], sent["w"])
    mean = deltas.finish(deltas.add(deltas.init(SHAPES), given, 1.0))
    moved = parse_weights(dump_weights(apply(settings, init(settings, SHAPES), base, mean)[0]))
    assert moved["w"].tobytes() == (base["w"] + given["w"]).tobytes()
