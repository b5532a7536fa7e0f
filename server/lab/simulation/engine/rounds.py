"""Rounds as pure functions: cohort, local work, sum, noise, mean, the server's optimizer, the server's own step."""

import ctypes
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.errors import ConfigurationError, LearningError
from server.aggregation import deltas, optimizers
from server.aggregation.deltas import DeltaSum
from server.aggregation.optimizers import update_norm
from server.lab.simulation.engine.population import Arrays, Population, Task, Tensors, cohort, load, steps
from server.lab.simulation.engine.settings import EngineSettings
from server.lab.simulation.engine.state import State, add_noise, store
from server.lab.simulation.engine.state import load as load_state
from server.lab.simulation.engine.workers import Group, Loop, Sent, Worker, worker

Vector = NDArray[np.float64]
_HELD_OUT, _TORCH = 0x48, 0x70
STATE = "state.safetensors"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Engine:
    """What stays the same from round to round. remembered: transcribed examples of the server, one client's, for the
    held-out step; None without."""

    settings: EngineSettings
    task: Task
    population: Population
    worker: Worker
    remembered: Population | None = None


class Diverged(LearningError):
    """A round's mean delta is not a number. state: before that round."""

    def __init__(self, state: State) -> None:
        super().__init__(f"round {state.number + 1}: the mean delta is not a number; lower the learning rates")
        self.state = state


def engine(
    settings: EngineSettings, task: Task, population: Population, remembered: Population | None = None
) -> Engine:
    """Raises ConfigurationError for settings that the network or the data cannot follow."""
    if remembered is None and settings.held_out is not None:
        raise ConfigurationError("held_out: found a plan without examples of the server; give remembered")
    if settings.cohort > (most := len(population)):
        raise ConfigurationError(f"cohort: found {settings.cohort}, expected at most the {most} clients there are")
    return Engine(settings, task, population, worker(task, settings), remembered)


def parameters(task: Task) -> Arrays:
    """The network's parameters as they are."""
    return {name: p.detach().numpy().astype(np.float32).copy() for name, p in task.network.named_parameters()}


def init(run: Engine, weights: Arrays | None = None, key: bytes | None = None) -> State:
    """The state before the first round. weights: to begin with, the network's own by default. key: of the noise, a new
    one from the system's generator by default."""
    given = parameters(run.task) if weights is None else weights
    shapes = {name: given[name].shape for name in _trained(run.task)}
    accepted = np.zeros(len(run.population), np.int64)
    return State(0, given, optimizers.init(run.settings.optimizer, shapes), accepted, key or secrets.token_bytes(32))


def apply(run: Engine, state: State) -> State:
    """One more round. The same state gives the same result, bit for bit, on one machine with one number of threads.
    Raises Diverged where the mean delta is no longer a number."""
    settings, number = run.settings, state.number + 1
    reporting = cohort(settings, len(run.population), number)
    base = {name: torch.from_numpy(values) for name, values in state.weights.items()}
    mean, figures = _mean(run, base, reporting, number, state.key)
    if not all(np.isfinite(values).all() for values in mean.values()):
        raise Diverged(state)
    weights, optimizer = optimizers.apply(settings.optimizer, state.optimizer, state.weights, mean)
    if settings.held_out is not None:
        with _seeded(settings.seed, number, _HELD_OUT):
            weights = _held_out_step(run, weights, number)
    accepted = state.accepted.copy()
    accepted[reporting] += 1
    figures = {
        "round": number,
        "reports": len(reporting),
        **figures,
        "update_norm": update_norm(weights, state.weights),
    }
    return State(number, weights, optimizer, accepted, state.key, (*state.history, figures))


def _mean(
    run: Engine, base: Mapping[str, Tensor], reporting: Sequence[int], number: int, key: bytes
) -> tuple[Arrays, dict[str, Any]]:
    """The mean delta, noised. Figures: loss, norm: means of clients; effective: as many clients of equal weight would
    count as much, (sum w)^2 / sum w^2; layers: mean norms of their deltas by parameter (Pelikan et al. 2023,
    figure 5)."""
    settings = run.settings
    losses: list[float] = []
    norms: list[float] = []
    counted = np.zeros(0)
    layers: Counter[str] = Counter()
    total, reference = deltas.init({name: tuple(base[name].shape) for name in _trained(run.task)}), math.inf
    size = 1 if settings.weighting == "loss" and isinstance(run.worker, Loop) else settings.group
    for start in range(0, len(reporting), size):
        sent = _compute(run, base, number, start, reporting[start : start + size])
        losses += sent.losses.tolist()
        norms += sent.norms.tolist()
        layers.update({name: float(values.sum()) for name, values in sent.layers.items()})
        summed = {name: value.detach().float().numpy() for name, value in sent.sum.items()}
        part = DeltaSum(summed, float(sent.weights.sum()), len(sent.weights))
        if settings.weighting == "loss":
            # Weights are relative to the lowest loss of their group, and sums to the lowest so far: no exp underflows.
            lowest = float(sent.losses.min())
            earlier = math.exp(min(0.0, lowest - reference)) if math.isfinite(reference) else 1.0
            later = math.exp(min(0.0, reference - lowest))
            total, part = _times(total, earlier), _times(part, later)
            counted, sent = counted * earlier, replace(sent, weights=sent.weights * later)
            reference = min(reference, lowest)
        total, counted = deltas.merge(total, part), np.append(counted, sent.weights)
    figures = {
        "loss": float(np.mean(losses)),
        "norm": float(np.mean(norms)),
        "effective": float(counted.sum() ** 2 / np.square(counted).sum()),
    }
    by_layer = {name: value / len(losses) for name, value in layers.items()}
    privacy, count = settings.privacy, None
    if privacy is not None and settings.noisy:
        hidden = add_noise(dict(total.sum), privacy.noise_multiplier * privacy.clip_norm, key, number)
        total, count = replace(total, sum=hidden), settings.cohort
    return deltas.finish(total, count), {**figures, "layers": by_layer}


def _compute(run: Engine, base: Mapping[str, Tensor], number: int, start: int, clients: Sequence[int]) -> Sent:
    """What clients of a round send that are computed at once, added up. base: the published weights by parameter.
    start: place of the first of them among those that report."""
    settings, population = run.settings, run.population
    with _seeded(settings.seed, number, _TORCH, start):
        batches = [steps(settings.local, population, client, (settings.seed, number)) for client in clients]
        examples = np.array([population.examples(client) for client in clients], np.float64)
        held_back = _held_back(population, clients) if settings.weighting == "word_error" else None
        return run.worker(base, Group(batches, _weigh(settings, examples), held_back))


def _held_back(population: Population, clients: Sequence[int]) -> list[Tensors]:
    """Raises ConfigurationError for a client that holds nothing back."""
    found = []
    for client in clients:
        own = population.held_back(client)
        if own is None:
            raise ConfigurationError(
                f"weighting: 'word_error' judges client {client} by examples that it holds back, and it has none; give "
                "each client one, or weigh by 'examples' or 'loss'"
            )
        found.append(own)
    return found


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """The processor's generator of torch as this key sets it, inside."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(np.random.default_rng(key).integers(2**62)))
        yield


def _weigh(settings: EngineSettings, examples: Vector) -> Callable[[Vector, Vector | None], Vector]:
    """Equations 8 to 10 of Gao et al. 2022, but for the sum that they are divided by, which the mean's denominator
    is."""
    clients = iter(examples)

    def weigh(losses: Vector, errors: Vector | None) -> Vector:
        if settings.weighting == "examples":
            return np.array([next(clients) for _ in losses])
        if settings.weighting == "loss":
            return np.asarray(np.exp(losses.min() - losses))
        if settings.weighting == "word_error":
            assert errors is not None
            return np.asarray(np.exp(1.0 - errors))
        return np.ones(len(losses))

    return weigh


def _held_out_step(run: Engine, weights: Arrays, number: int) -> Arrays:
    plan, remembered = run.settings.held_out, run.remembered
    assert plan is not None and remembered is not None
    generator = np.random.default_rng([run.settings.seed, number, _HELD_OUT])
    held = remembered.examples(0)
    chosen = generator.choice(held, min(plan.batch, held), replace=False).tolist()
    network = run.task.network
    load(network, weights)
    own, trained = dict(network.named_parameters()), _trained(run.task)
    loss = run.task.losses(network, remembered.batch(0, chosen, lambda: generator)).mean()
    gradients = torch.autograd.grad(loss, [own[name] for name in trained], materialize_grads=True)
    rate = np.float32(plan.learning_rate)
    moves = {name: rate * gradient.float().numpy() for name, gradient in zip(trained, gradients, strict=True)}
    return weights | {name: np.asarray(weights[name] - move, np.float32) for name, move in moves.items()}


def _trained(task: Task) -> list[str]:
    return [name for name, parameter in task.network.named_parameters() if parameter.requires_grad]


def _times(total: DeltaSum, factor: float) -> DeltaSum:
    if factor == 1.0:
        return total
    scaled = {name: values * np.float32(factor) for name, values in total.sum.items()}
    return DeltaSum(scaled, total.weight * factor, total.reports)


def run_rounds(
    plan: Engine,
    folder: Path | None = None,
    weights: Arrays | None = None,
    tell: Callable[[int, int], None] = lambda *_: None,
    save_every: int = 1,
) -> State:
    """All rounds of the settings, from the folder's state where there is one. folder: None keeps nothing. weights: to
    begin with. tell: called with (rounds done, all). Between the saves nothing leaves this function, so a round that is
    repeated after a kill has released nothing before. DataError: the folder holds a run with other settings."""
    keep_freed_memory()
    digest = plan.settings.digest()
    path = None if folder is None else folder / STATE
    if path is not None and path.exists():
        state = load_state(path, digest)
    else:
        state = init(plan, weights)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            store(path, state, digest)  # with its key, before anything is noised
    while state.number < plan.settings.rounds:
        state = apply(plan, state)
        tell(state.number, plan.settings.rounds)
        if path is not None and (state.number % save_every == 0 or state.number == plan.settings.rounds):
            store(path, state, digest)
    return state


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed for the next round: giving it back to the system and fetching it again takes up to
    a third of a round of small networks. Holds for the whole process, whose memory then stays at its peak. Returns
    False, and changes nothing, where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER) and mallopt(_MMAP_THRESHOLD, _NEVER))
