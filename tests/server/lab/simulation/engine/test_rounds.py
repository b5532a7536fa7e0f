"""The algebra that every strategy must keep, and the same numbers as the server's own aggregation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError, DataError, PrivacyError
from server.aggregation import deltas, optimizers
from server.lab.simulation.engine.population import Arrays, Task, cohort, reassign
from server.lab.simulation.engine.population import load as put
from server.lab.simulation.engine.rounds import apply, engine, init, parameters
from server.lab.simulation.engine.settings import EngineSettings, HeldOutStep, LocalWork, Privacy, Way
from server.lab.simulation.engine.state import State, add_noise, charge, load, spent, store
from server.lab.simulation.engine.tasks import evaluate, summary
from server.plans.round import OptimizerSettings
from server.privacy.composition import Spent, compose
from tests.server.lab.simulation.engine.networks import Held, made

SIZE = 6
KEY = bytes(32)
WAYS: tuple[Way, ...] = ("ghost", "grouped", "loop")
WHOLE = LocalWork(batch=9)


def perceptrons(seed: int = 0) -> tuple[Task, Held]:
    return made("perceptron", SIZE, seed, torch.float32)


def move(given: EngineSettings, held: Held | None = None, seed: int = 0) -> tuple[Arrays, State]:
    """(what one round adds to the weights of the perceptron, the state after it)."""
    task, own = perceptrons(seed)
    run = engine(given, task, held or own)
    before = init(run, key=KEY)
    after = apply(run, before)
    return {name: after.weights[name] - before.weights[name] for name in before.weights}, after


def close(one: Arrays, other: Arrays, tolerance: float = 2e-6) -> None:
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, rtol=0, atol=tolerance)


SEVERAL = LocalWork(kind="steps", count=3, batch=9, learning_rate=0.2)


@pytest.mark.parametrize(
    ("way", "weights", "local"),
    [
        *((way, weights, WHOLE) for way in WAYS for weights in ("uniform", "examples", "loss")),
        *((way, weights, SEVERAL) for way in WAYS[1:] for weights in ("uniform", "loss")),
        ("loop", "word_error", WHOLE),
    ],
)
def test_a_round_is_the_weighted_mean_of_rounds_of_one_client(way: Way, weights: Any, local: LocalWork) -> None:
    """By equations 8 to 10 of Gao et al. 2022, whose coefficients sum to 1, as the server computes them."""
    given = EngineSettings(cohort=SIZE, local=local, weighting=weights, way=way, group=2)
    task, held = perceptrons()
    kept = perceptrons(1)[1]  # word errors are those of what no client learns from
    alone = given.model_copy(update={"cohort": 1, "weighting": "uniform"})
    own, states = zip(*(move(alone, Held([clip])) for clip in held.clients), strict=True)
    scores = [evaluate(task, {n: torch.from_numpy(v) for n, v in s.weights.items()}, kept, range(SIZE)) for s in states]
    examples = np.array([held.examples(client) for client in range(SIZE)])
    shares = {
        "uniform": np.full(SIZE, 1 / SIZE),
        "examples": examples / examples.sum(),
        "loss": deltas.cost_shares([state.history[0]["loss"] for state in states]),
        "word_error": deltas.cost_shares([each[n].wrong / each[n].counted for n, each in enumerate(scores)]),
    }[weights]
    assert shares.sum() == pytest.approx(1)
    found, after = move(given, Held(held.clients, kept.clients))
    close(found, {n: sum(share * delta[n] for share, delta in zip(shares, own, strict=True)) for n in own[0]})
    assert after.history[0]["effective"] == pytest.approx(1 / np.square(shares).sum(), rel=1e-5)


def test_whoever_holds_nothing_back_cannot_be_judged() -> None:
    with pytest.raises(ConfigurationError, match="client 0 by examples that it holds back"):
        move(EngineSettings(cohort=SIZE, local=WHOLE, weighting="word_error"))


@pytest.mark.parametrize("way", WAYS)
def test_losses_far_apart_do_not_underflow(way: Way) -> None:
    """exp of minus a loss in the thousands is 0 in any float; only differences count."""
    loud = Held([(inputs * 3e4, labels) for inputs, labels in perceptrons()[1].clients])
    found, _ = move(EngineSettings(cohort=SIZE, local=WHOLE, weighting="loss", way=way, group=2), loud)
    assert all(np.isfinite(values).all() for values in found.values())
    assert any(values.any() for values in found.values())


@given(
    group=st.integers(1, SIZE),
    order=st.permutations(range(SIZE)),
    way=st.sampled_from(WAYS),
    seed=st.integers(0, 50),
    privacy=st.sampled_from([None, Privacy(clip_norm=0.1), Privacy(clip_norm=0.1, clipping="dim")]),
)
@settings(max_examples=25, deadline=None)
def test_how_clients_are_ordered_and_grouped_changes_nothing_but_rounding(group, order, way, seed, privacy) -> None:
    given = EngineSettings(cohort=SIZE, local=WHOLE, privacy=privacy, way=way, group=SIZE)
    turned = Held([perceptrons(seed)[1].clients[place] for place in order])
    close(move(given, seed=seed)[0], move(given.model_copy(update={"group": group}), turned, seed)[0], 5e-7)


@given(seed=st.integers(0, 100), bound=st.floats(1e-3, 2.0), clipping=st.sampled_from(["global", "uniform", "dim"]))
@settings(max_examples=15, deadline=None)
def test_no_client_moves_the_sum_by_more_than_its_bound(seed: int, bound: float, clipping: Any) -> None:
    given = EngineSettings(cohort=1, local=WHOLE, privacy=Privacy(clip_norm=bound, clipping=clipping))
    found, _ = move(given, Held(perceptrons(seed)[1].clients[:1]), seed)
    norm = np.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in found.values()))
    assert norm <= bound * (1 + 1e-4)


@pytest.mark.parametrize("kind", ["perceptron", "convolution"])
def test_fedsgd_with_all_clients_is_one_big_batch_step(kind: str) -> None:
    task, held = made(kind, SIZE, 0, torch.float32)
    adam = OptimizerSettings(kind="adam", learning_rate=0.01)
    run = engine(EngineSettings(cohort=SIZE, local=WHOLE, weighting="examples", optimizer=adam), task, held)
    before = init(run)
    after = apply(run, before)
    gradients = torch.autograd.grad(task.losses(task.network, together(held)).mean(), list(task.network.parameters()))
    step = {name: -g.numpy() for (name, _), g in zip(task.network.named_parameters(), gradients, strict=True)}
    expected, _ = optimizers.apply(adam, before.optimizer, before.weights, step)
    close(expected, after.weights, 2e-5)


def together(held: Held) -> tuple[torch.Tensor, ...]:
    return tuple(torch.cat(values) for values in zip(*held.clients, strict=True))


def test_noise_is_drawn_once_and_bound_to_what_it_hides() -> None:
    values: Arrays = {"a": np.zeros((300, 200), np.float32), "b": np.ones(7, np.float32)}
    one = add_noise(values, 0.5, KEY, 1)
    assert all((one[name] == add_noise(values, 0.5, KEY, 1)[name]).all() for name in values)
    changed = {**values, "b": values["b"] * np.float32(1.000001)}
    for hidden, key, number in ((changed, KEY, 1), (values, KEY, 2), (values, b"k" * 32, 1)):
        assert abs(np.corrcoef(one["a"].ravel(), add_noise(hidden, 0.5, key, number)["a"].ravel())[0, 1]) < 0.02
    assert one["a"].std() == pytest.approx(0.5, rel=0.02) and abs(one["a"].mean()) < 0.01
    with pytest.raises(PrivacyError, match="standard deviation"):
        add_noise(values, float("nan"), KEY, 1)


def test_noise_of_a_round_has_the_size_that_is_charged() -> None:
    """Noise of the sum is z C on every value, over the number of clients."""
    noisy = Privacy(clip_norm=1e-9, noise_multiplier=1e9)  # all noise, of standard deviation 1 in the sum
    given = EngineSettings(cohort=4, local=WHOLE, privacy=noisy, seed=3)
    values = np.concatenate([v.ravel() for seed in range(30) for v in move(given, seed=seed)[0].values()])
    assert values.std() == pytest.approx(1 / 4, rel=0.1)


def test_cohorts_and_what_is_assigned_anew() -> None:
    given = EngineSettings(cohort=20)
    drawn = [cohort(given, 100, number) for number in range(1, 101)]
    assert drawn == [cohort(given, 100, number) for number in range(1, 101)]
    assert all(len(set(clients)) == 20 and clients == sorted(clients) for clients in drawn)
    assert np.bincount(np.concatenate(drawn), minlength=100).min() > 5
    with pytest.raises(ConfigurationError, match="cohort"):
        engine(given, *perceptrons())
    owners = reassign([0] * 50 + [1] * 3, 20, seed=1)
    assert set(owners) == set(range(20)) and owners == reassign([0] * 50 + [1] * 3, 20, seed=1)
    with pytest.raises(ConfigurationError, match="one each"):
        reassign([0, 1], 3, seed=1)


def test_the_held_out_step_is_of_the_servers_own_examples() -> None:
    task, held = perceptrons()
    server = Held([together(held)])
    count = server.examples(0)
    alone = EngineSettings(cohort=1, local=LocalWork(batch=count))
    given = alone.model_copy(update={"held_out": HeldOutStep(learning_rate=0.5, batch=count)})
    run = engine(given, task, held, server)
    after, middle = apply(run, init(run)), move(alone, held)[1].weights
    own = dict(task.network.named_parameters())
    put(task.network, middle)
    loss = task.losses(task.network, server.clients[0]).mean()
    for (name, values), gradient in zip(own.items(), torch.autograd.grad(loss, list(own.values())), strict=True):
        np.testing.assert_allclose(after.weights[name], (values - 0.5 * gradient).detach().numpy(), atol=2e-6)
    with pytest.raises(ConfigurationError, match="remembered"):
        engine(given, task, held)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weighting": "loss"}, "weighting"),
        ({"local": {"kind": "gradient", "count": 2}}, "count"),
        ({"way": "ghost", "local": {"kind": "steps", "count": 2}}, "way"),
    ],
)
def test_settings_that_exclude_each_other(changes: dict[str, Any], named: str) -> None:
    noisy: dict[str, Any] = {"privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0}}
    with pytest.raises(ValueError, match=named):
        EngineSettings.model_validate(noisy | changes)


def test_the_ledger_is_the_servers() -> None:
    privacy = Privacy(clip_norm=0.1, noise_multiplier=2.0, delta=1e-6)
    given = EngineSettings(cohort=3, local=WHOLE, privacy=privacy, rounds=4)
    run = engine(given, *perceptrons())
    state = init(run)
    for _ in range(4):
        state = apply(run, state)
    assert spent(given, state)["epsilon"] == compose(Spent({charge(privacy): int(state.accepted.max())}), 1e-6)[0]
    assert spent(given.model_copy(update={"privacy": None}), state)["epsilon"] == "Infinity"
    assert state.accepted.sum() == sum(entry["reports"] for entry in state.history)


def test_state_on_disk(tmp_path: Path) -> None:
    given, path = EngineSettings(cohort=2, optimizer=OptimizerSettings(kind="lamb")), tmp_path / "state.safetensors"
    run = engine(given, *perceptrons())
    state = apply(run, init(run))
    store(path, state, given.digest())
    assert path.stat().st_mode & 0o077 == 0
    again = load(path, given.digest())
    assert same_bits(state, again) and same_bits(apply(run, state), apply(run, again))
    with pytest.raises(DataError, match="other settings"):
        load(path, "0")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="not a readable state"):
        load(path, given.digest())


def same_bits(one: State, other: State) -> bool:
    def bits(state: State) -> tuple[Any, ...]:
        parts = (state.weights, state.optimizer.first, state.optimizer.second)
        arrays = [{name: values.tobytes() for name, values in part.items()} for part in parts]
        return state.number, state.optimizer.step, arrays, state.accepted.tolist(), [dict(e) for e in state.history]

    return bits(one) == bits(other)


def test_scores_of_clients_leave_filling_out() -> None:
    task, held = perceptrons()
    weights = {name: torch.from_numpy(values) for name, values in parameters(task).items()}
    full, alone = (evaluate(task, weights, held, range(SIZE), at_once=size) for size in (SIZE, 1))
    assert [(s.wrong, s.counted, s.examples) for s in full] == [(s.wrong, s.counted, s.examples) for s in alone]
    assert [s.examples for s in alone] == [held.examples(client) for client in range(SIZE)]
    whole = summary(full)
    assert whole["error"] == sum(s.wrong for s in alone) / sum(s.counted for s in alone)
    assert whole["worst_tenth"] >= whole["mean"]
