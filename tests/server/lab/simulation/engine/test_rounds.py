"""The algebra that every strategy must keep, and the same numbers as the server's own aggregation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError, PrivacyError
from server.aggregation import deltas, optimizers
from server.lab.simulation.engine.population import Arrays, Held, cohort, reassign
from server.lab.simulation.engine.rounds import apply, engine, init, parameters
from server.lab.simulation.engine.settings import EngineSettings, HeldOutStep, LocalWork, Privacy
from server.lab.simulation.engine.state import State, add_noise, charge, load, spent, store
from server.lab.simulation.engine.tasks import Classification, evaluate, summary
from server.plans.optimizer import OptimizerSettings
from server.privacy.composition import Spent, compose
from tests.server.lab.simulation.engine.networks import made

SIZE = 6
KEY = bytes(32)


def moved(given: EngineSettings, seed: int = 0, held: Held | None = None, remembered: Held | None = None) -> Arrays:
    """What one round adds to the weights of the perceptron."""
    task, own = made("perceptron", SIZE, seed, torch.float32)
    run = engine(given, task, held or own, remembered)
    before = init(run, key=KEY)
    after = apply(run, before)
    return {name: after.weights[name] - before.weights[name] for name in before.weights}


def close(one: Arrays, other: Arrays, tolerance: float = 2e-6) -> None:
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, rtol=0, atol=tolerance)


def recorded(weights: EngineSettings) -> tuple[list[Arrays], list[float], list[float], Held]:
    """Every client's delta, loss and number of examples, from rounds of one client each."""
    task, held = made("perceptron", SIZE, 0, torch.float32)
    alone = weights.model_copy(update={"cohort": 1, "weighting": "uniform"})
    found: tuple[list[Arrays], list[float], list[float], Held] = ([], [], [], held)
    for client in range(SIZE):
        run = engine(alone, task, Held([held.clients[client]]))
        before = init(run, key=KEY)
        after = apply(run, before)
        found[0].append({name: after.weights[name] - before.weights[name] for name in before.weights})
        found[1].append(after.history[0]["loss"])
        found[2].append(held.examples(client))
    return found


@pytest.mark.parametrize("way", ["ghost", "grouped", "loop"])
@pytest.mark.parametrize("weights", ["uniform", "examples", "loss"])
def test_weights_are_those_of_the_server(way: Any, weights: Any) -> None:
    """A round is the mean of its clients by equations 8 to 10 of Gao et al. 2022, whose coefficients sum to 1."""
    given = EngineSettings(cohort=SIZE, local=LocalWork(batch=9), weighting=weights, way=way, group=2)
    own, losses, examples, _ = recorded(given)
    ways = {
        "uniform": np.full(SIZE, 1 / SIZE),
        "examples": np.asarray(examples) / sum(examples),
        "loss": deltas.cost_shares(losses),
    }
    assert ways[weights].sum() == pytest.approx(1)
    expected = {
        name: sum(share * delta[name] for share, delta in zip(ways[weights], own, strict=True)) for name in own[0]
    }
    close(moved(given), expected)


def test_word_error_weights() -> None:
    given = EngineSettings(cohort=SIZE, local=LocalWork(batch=9), weighting="word_error")
    task, held = made("perceptron", SIZE, 0, torch.float32)
    own, *_ = recorded(given)
    errors = []
    for client, delta in enumerate(own):
        weights = {name: torch.from_numpy(values + delta[name]) for name, values in parameters(task).items()}
        score = evaluate(task, weights, held, [client])[0]
        errors.append(score.wrong / score.counted)
    shares = deltas.cost_shares(errors)
    expected = {name: sum(a * delta[name] for a, delta in zip(shares, own, strict=True)) for name in own[0]}
    close(moved(given), expected)


def test_losses_far_apart_do_not_underflow() -> None:
    """exp of minus a loss in the thousands is 0 in any float; only differences count."""
    task, held = made("perceptron", SIZE, 0, torch.float32)
    loud = Held([(inputs * 3e4, labels) for inputs, labels in held.clients])
    for way in ("ghost", "grouped", "loop"):
        given = EngineSettings(cohort=SIZE, local=LocalWork(batch=9), weighting="loss", way=way, group=2)  # type: ignore[arg-type]
        found = moved(given, held=loud)
        assert all(np.isfinite(values).all() for values in found.values())
        assert any(values.any() for values in found.values())
    assert task is not None


@pytest.mark.parametrize("way", ["ghost", "grouped", "loop"])
@pytest.mark.parametrize("privacy", [None, Privacy(clip_norm=0.1), Privacy(clip_norm=0.1, clipping="dim")])
def test_permutation_of_clients(way: Any, privacy: Privacy | None) -> None:
    _, held = made("perceptron", SIZE, 0, torch.float32)
    given = EngineSettings(cohort=SIZE, local=LocalWork(batch=9), privacy=privacy, way=way, weighting="examples")
    turned = Held([held.clients[place] for place in (3, 0, 5, 1, 4, 2)])
    close(moved(given, held=held), moved(given, held=turned), 5e-7)


@given(group=st.integers(1, SIZE), way=st.sampled_from(["ghost", "grouped", "loop"]), seed=st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_partial_sums_merge(group: int, way: Any, seed: int) -> None:
    """How clients are grouped changes nothing but rounding."""
    given = EngineSettings(cohort=SIZE, local=LocalWork(batch=9), privacy=Privacy(clip_norm=0.2), way=way)
    whole, parts = (given.model_copy(update={"group": size}) for size in (SIZE, group))
    close(moved(whole, seed), moved(parts, seed), 5e-7)


@given(seed=st.integers(0, 100), bound=st.floats(1e-3, 2.0), clipping=st.sampled_from(["global", "uniform", "dim"]))
@settings(max_examples=15, deadline=None)
def test_no_client_moves_the_sum_by_more_than_its_bound(seed: int, bound: float, clipping: Any) -> None:
    privacy = Privacy(clip_norm=bound, clipping=clipping)
    one = EngineSettings(cohort=1, local=LocalWork(batch=9), privacy=privacy)
    task, held = made("perceptron", 1, seed, torch.float32)
    assert task is not None
    norm = np.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in moved(one, seed, held).values()))
    assert norm <= bound * (1 + 1e-4)


@pytest.mark.parametrize("kind", ["perceptron", "recurrent", "convolution"])
def test_fedsgd_with_all_clients_is_one_big_batch_step(kind: str) -> None:
    task, held = made(kind, SIZE, 0, torch.float32)
    given = EngineSettings(
        cohort=SIZE,
        local=LocalWork(batch=9),
        weighting="examples",
        optimizer=OptimizerSettings(kind="adam", learning_rate=0.01),
    )
    run = engine(given, task, held)
    before = init(run)
    after = apply(run, before)
    inputs, labels = (torch.cat(values) for values in zip(*held.clients, strict=True))
    loss = task.losses(task.network, (inputs, labels)).mean()
    gradients = torch.autograd.grad(loss, list(task.network.parameters()))
    step = {name: -g.numpy() for (name, _), g in zip(task.network.named_parameters(), gradients, strict=True)}
    expected, _ = optimizers.apply(given.optimizer, before.optimizer, before.weights, step)
    close(expected, after.weights, 2e-5)


def test_noise_is_drawn_once_and_bound_to_what_it_hides() -> None:
    values: Arrays = {"a": np.zeros((300, 200), np.float32), "b": np.ones(7, np.float32)}
    one = add_noise(values, 0.5, KEY, 1)
    assert all((one[name] == add_noise(values, 0.5, KEY, 1)[name]).all() for name in values)
    changed = {**values, "b": values["b"] * np.float32(1.000001)}
    for other in (
        add_noise(changed, 0.5, KEY, 1),
        add_noise(values, 0.5, KEY, 2),
        add_noise(values, 0.5, b"k" * 32, 1),
    ):
        assert abs(np.corrcoef(one["a"].ravel(), other["a"].ravel())[0, 1]) < 0.02
    assert one["a"].std() == pytest.approx(0.5, rel=0.02)
    assert abs(one["a"].mean()) < 0.01
    with pytest.raises(PrivacyError, match="standard deviation"):
        add_noise(values, float("nan"), KEY, 1)


def test_noise_of_a_round_has_the_size_that_is_charged() -> None:
    """Noise of the sum is z C on every value, over the number of clients."""
    noisy = Privacy(clip_norm=1e-9, noise_multiplier=1e9)  # all noise, of standard deviation 1 in the sum
    given = EngineSettings(cohort=4, local=LocalWork(batch=9), privacy=noisy, seed=3)
    values: NDArray[np.float32] = np.concatenate([v.ravel() for seed in range(30) for v in moved(given, seed).values()])
    assert values.std() == pytest.approx(1 / 4, rel=0.1)


def test_cohorts() -> None:
    given = EngineSettings(cohort=20)
    drawn = [cohort(given, 100, number) for number in range(1, 101)]
    assert drawn == [cohort(given, 100, number) for number in range(1, 101)]
    assert all(len(set(clients)) == 20 and clients == sorted(clients) for clients in drawn)
    assert np.bincount(np.concatenate(drawn), minlength=100).min() > 5
    task, held = made("perceptron", SIZE)
    with pytest.raises(ConfigurationError, match="cohort"):
        engine(given, task, held)


def test_the_held_out_step_is_of_the_servers_own_examples() -> None:
    task, held = made("perceptron", SIZE, 0, torch.float32)
    server = Held([tuple(torch.cat(values) for values in zip(*held.clients, strict=True))])
    count = server.examples(0)
    given = EngineSettings(cohort=1, local=LocalWork(batch=count))
    alone = moved(given, held=held)
    stepped = engine(
        given.model_copy(update={"held_out": HeldOutStep(learning_rate=0.5, batch=count)}), task, held, server
    )
    before = init(stepped)
    after = apply(stepped, before)
    middle = Classification(task.network)
    own = dict(task.network.named_parameters())
    with torch.no_grad():
        for name, delta in alone.items():
            own[name].copy_(torch.from_numpy(before.weights[name] + delta))
    loss = middle.losses(task.network, server.clients[0]).mean()
    for (name, values), gradient in zip(own.items(), torch.autograd.grad(loss, list(own.values())), strict=True):
        np.testing.assert_allclose(after.weights[name], (values - 0.5 * gradient).detach().numpy(), atol=2e-6)
    with pytest.raises(ConfigurationError, match="remembered"):
        engine(given.model_copy(update={"held_out": HeldOutStep(learning_rate=0.5)}), task, held)


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
    given = EngineSettings(cohort=3, local=LocalWork(batch=9), privacy=privacy, rounds=4)
    task, held = made("perceptron", SIZE, 0, torch.float32)
    run = engine(given, task, held)
    state = init(run)
    for _ in range(4):
        state = apply(run, state)
    found, most = spent(given, state), int(state.accepted.max())
    assert found["epsilon"] == compose(Spent({charge(privacy): most}), 1e-6)[0]
    assert spent(given.model_copy(update={"privacy": None}), state)["epsilon"] == "Infinity"
    assert state.accepted.sum() == sum(entry["reports"] for entry in state.history)


def test_state_on_disk(tmp_path: Any) -> None:
    given = EngineSettings(cohort=2, optimizer=OptimizerSettings(kind="lamb"))
    task, held = made("perceptron", SIZE, 0, torch.float32)
    run = engine(given, task, held)
    state = apply(run, init(run))
    path = tmp_path / "state.safetensors"
    store(path, state, given.digest())
    assert path.stat().st_mode & 0o077 == 0
    again = load(path, given.digest())
    for mine, theirs in ((state, again), (apply(run, state), apply(run, again))):
        assert same_bits(mine, theirs)
    from device_sdk.errors import DataError

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
    task, held = made("perceptron", SIZE, 0, torch.float32)
    weights = {name: torch.from_numpy(values) for name, values in parameters(task).items()}
    together, alone = (evaluate(task, weights, held, range(SIZE), at_once=size) for size in (SIZE, 1))
    assert [(s.wrong, s.counted, s.examples) for s in together] == [(s.wrong, s.counted, s.examples) for s in alone]
    assert [s.examples for s in alone] == [held.examples(client) for client in range(SIZE)]
    whole = summary(together)
    assert whole["error"] == sum(s.wrong for s in alone) / sum(s.counted for s in alone)
    assert whole["worst_tenth"] >= whole["mean"]


def test_reassign_keeps_every_client() -> None:
    owners = reassign([0] * 50 + [1] * 3, 20, seed=1)
    assert set(owners) == set(range(20))
    assert owners == reassign([0] * 50 + [1] * 3, 20, seed=1)
    with pytest.raises(ConfigurationError, match="one each"):
        reassign([0, 1], 3, seed=1)


def test_the_sum_is_the_live_servers() -> None:
    """Deltas of single clients, added by the live round's sum, give the round's mean."""
    given = EngineSettings(cohort=SIZE, local=LocalWork(kind="steps", count=3, batch=2), way="grouped", group=4)
    task, held = made("perceptron", SIZE, 0, torch.float32)
    weights = {name: p.detach().clone() for name, p in task.network.named_parameters()}
    from server.lab.simulation.engine.population import steps
    from server.lab.simulation.engine.workers import Group, Loop

    total = deltas.init({name: tuple(values.shape) for name, values in weights.items()})
    for client in range(SIZE):
        group = Group([steps(given.local, held, client, (given.seed, 1))], lambda losses, _: np.ones(len(losses)))
        delta = Loop(task, given.local, None)(weights, group).sum
        total = deltas.add(total, {name: values.numpy() for name, values in delta.items()}, 1.0)
    close(deltas.finish(total), moved(given))
