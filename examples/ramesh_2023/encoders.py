"""Pre-training an encoder: centrally, over shuffled speech, or by a federation, over silos in the order of time.

F: feature frames (10 ms); M: bins; N: utterances of a client in a round."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from device_sdk.errors import ConfigurationError
from examples.ramesh_2023.recipes import Sizes
from export.networks.cpc import CPC
from server.aggregation import optimizers
from server.lab.training.clips import Clips, ClipSampler, CpcTask, SomeClips
from server.lab.training.data import batches, collate, moments
from server.lab.training.rnnt.learner import begin_lstm
from server.lab.training.trainer import Budget, Settings, Trainer
from server.plans.round import OptimizerSettings

Tell = Callable[[int, int], None]

_NORMALIZED_BY = 500  # clips are plenty for a mean and a deviation of every bin


def fresh(sizes: Sizes, clips: Clips, seed: int) -> CPC:
    """An untrained network that normalizes by the moments of some clips."""
    torch.manual_seed(seed)
    network = CPC(sizes.shape, sizes.contrast)
    begin_lstm(network.encoder)
    chosen = np.random.default_rng(0).permutation(len(clips.frames))[:_NORMALIZED_BY]
    mean, scale = moments(clips[int(index)] for index in sorted(chosen))
    network.mean.copy_(torch.from_numpy(mean))
    network.scale.copy_(torch.from_numpy(scale))
    return network


def centrally(network: CPC, clips: Clips, sizes: Sizes, steps: int, seed: int, folder: Path) -> CPC:
    """Adam over shuffled clips, as often as the steps take; the network has the weights of the last step's average."""
    sampler = ClipSampler(
        clips, None, subsampling=sizes.shape.stack, seconds=sizes.seconds, most=sizes.central_batch, seed=seed
    )
    settings = Settings(
        Budget(steps=steps),
        sizes.central_rate,
        max(1, steps // 15),
        seed=seed,
        weight_decay=0.0,
        average=0.99,
        bfloat16=torch.cuda.is_available(),
    )
    Trainer(CpcTask(network), sampler, settings, folder).run()
    return network.cpu()


def together(
    network: CPC,
    clips: Clips,
    owners: Sequence[int],
    sizes: Sizes,
    cohort: int,
    seed: int,
    share: float = 1.0,
    tell: Tell = lambda *_: None,
    passes: int | None = None,
) -> tuple[CPC, dict[str, Any]]:
    """FedSGD (Ramesh et al. 2023, algorithm 1): each client takes one step of rate 1 on one batch of one speaker, the
    server one of Adam on their mean by utterances. That mean is computed as what it is, minus the mean gradient of the
    round's utterances, whoever has them, on the network's device. share: of the usual rounds. passes: over the silos at
    most, the size's by default. Returns the network, on the processor, and figures of the run."""
    federation = sizes.federation
    rounds = max(1, round(share * federation.rounds))
    plan = silo_rounds(owners, cohort, federation.batch, rounds, passes or federation.passes, seed)
    optimizer = OptimizerSettings(kind="adam", learning_rate=federation.rate, second_momentum=0.98, epsilon=1e-8)
    own, device = dict(network.named_parameters()), network.mean.device
    weights = {name: value.detach().cpu().numpy().copy() for name, value in own.items()}
    state = optimizers.init(optimizer, {name: value.shape for name, value in weights.items()})
    torch.manual_seed(seed)
    for number, clients in enumerate(plan):
        network.zero_grad(set_to_none=True)
        chosen = [clips[index].features.astype(np.float32) for client in clients for index in client]
        lengths = [features.shape[0] for features in chosen]
        budget, order = round(100 * sizes.seconds), np.random.default_rng([seed, number])
        for group in batches(lengths, budget, len(chosen), order):
            batch = collate([(chosen[index], []) for index in group], sizes.shape.stack).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                losses, _ = network.losses(batch.features, batch.frames)
            (losses.sum() / len(chosen)).backward()  # type: ignore[no-untyped-call]
        delta = {
            name: np.zeros_like(weights[name]) if value.grad is None else -value.grad.cpu().numpy()
            for name, value in own.items()
        }
        weights, state = optimizers.apply(optimizer, state, weights, delta)
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(torch.from_numpy(weights[name]))
        tell(number + 1, len(plan))
    used = sum(len(client) for clients in plan for client in clients)
    return network.cpu(), {"rounds": len(plan), "passes": round(used / sum(owners), 2)}


def silo_rounds(
    owners: Sequence[int], cohort: int, batch: int, rounds: int, passes: int, seed: int
) -> list[list[list[int]]]:
    """Who does what in each round: clips by number, of each client of each round. A round draws ``cohort`` of the silos
    that have clips left; each gives its next ``batch`` at most, in the order of time, and never again in that pass.
    Where fewer silos are left than a cohort has, a new pass begins, up to ``passes``. Raises ConfigurationError where
    there are fewer silos than clients."""
    if cohort > len(owners):
        raise ConfigurationError(f"cohort: found {cohort}, expected at most the {len(owners)} silos there are")
    generator = np.random.default_rng([seed, cohort])
    starts = np.concatenate([[0], np.cumsum(owners)])
    done = np.zeros(len(owners), np.int64)
    plan: list[list[list[int]]] = []
    passed = 1
    while len(plan) < rounds:
        left = np.flatnonzero(done < np.asarray(owners))
        if len(left) < cohort:
            if passed == passes:
                break
            passed += 1
            done[:] = 0
            continue
        chosen = np.sort(generator.choice(left, cohort, replace=False))
        clients = []
        for silo in chosen.tolist():
            first, last = int(done[silo]), min(int(done[silo]) + batch, owners[silo])
            clients.append(list(range(int(starts[silo]) + first, int(starts[silo]) + last)))
            done[silo] = last
        plan.append(clients)
    return plan


def some_silos(clips: Clips, owners: Sequence[int], share: float, seed: int) -> tuple[Clips, tuple[int, ...]]:
    """``share`` of the silos, one at the least, drawn at random, each with all of its clips."""
    starts = np.concatenate([[0], np.cumsum(owners)])
    count = max(1, round(share * len(owners)))
    drawn = np.sort(np.random.default_rng([seed, count]).choice(len(owners), count, replace=False)).tolist()
    places = [int(starts[silo]) + place for silo in drawn for place in range(owners[silo])]
    return SomeClips(clips, places), tuple(owners[silo] for silo in drawn)
