"""The peers of ``idiolect bench aggregate`` and ``bench cohort`` on the same arrays, networks and clients.

Their releases pin versions of their own, so they live in an environment of their own and this file is run there by
path. It imports nothing of this project. Prints one JSON object: seconds of CPU for one update, by name.

    PYTHON bench_peers.py aggregation VALUES LAYERS UPDATES DISTINCT
    PYTHON bench_peers.py cohort COHORT EXAMPLES SECONDS"""

import json
import sys
from time import process_time
from typing import Any

import numpy as np

CLIENTS = 200


def aggregation(values: int, layers: int, updates: int, distinct: int) -> dict[str, float]:
    """flwr's and pfl's own weighted averages of ``updates`` updates of ``values`` float32 in ``layers`` arrays."""
    rng = np.random.default_rng(0)
    arrays = [[rng.standard_normal(values // layers, dtype=np.float32) for _ in range(layers)] for _ in range(distinct)]
    seconds = {}
    for name, peer in {"flwr": by_flwr, "pfl": by_pfl}.items():
        try:
            seconds[name] = peer(arrays, updates) / updates
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return seconds


def by_flwr(arrays: list[Any], updates: int) -> float:
    """``aggregate`` takes all results at once, and keeps a weighted copy of each: as many as memory lets it have."""
    from flwr.server.strategy.aggregate import aggregate

    results = [(arrays[number % len(arrays)], number + 1) for number in range(min(updates, 40))]
    begin = process_time()
    aggregate(results)
    return (process_time() - begin) * updates / len(results)


def by_pfl(arrays: list[Any], updates: int) -> float:
    """Statistics are weighted in place and added up as they come."""
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.stats import MappedVectorStatistics

    set_framework_module(numpy_ops)
    total: Any = None
    spent = 0.0
    for number in range(updates):
        own = {str(layer): array.copy() for layer, array in enumerate(arrays[number % len(arrays)])}
        statistics = MappedVectorStatistics(own, 1.0)
        begin = process_time()
        statistics.reweight(float(number + 1))
        total = statistics if total is None else total + statistics
        spent += process_time() - begin
    return spent


def cohort(clients: int, examples: int, seconds: float) -> dict[str, float]:
    """Local steps -> seconds of CPU for one update by pfl's cohorts of ``clients``, with clipping and central noise."""
    return {str(steps): federated(steps, clients, examples, seconds) for steps in (1, 5)}


def network() -> Any:
    """An MLP of 97,081 parameters, from 64 values to 57 labels."""
    from torch import nn

    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 57))


def federated(steps: int, clients: int, examples: int, seconds: float) -> float:
    """Rounds of federated averaging until so many seconds are over, the first of which is not timed."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class Clock(TrainingProcessCallback):
        rounds, begun, spent = -1, 0.0, 0.0

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            self.rounds += 1
            self.begun = self.begun if self.rounds else process_time()
            self.spent = process_time() - self.begun
            return self.rounds > 0 and self.spent > seconds, Metrics()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, criterion = network(), torch.nn.CrossEntropyLoss()
    model.loss = lambda x, y, eval=False: criterion(model(x), y)
    model.metrics = lambda x, y, eval=False: {"loss": Weighted(0.0, len(x))}
    data = [[torch.randn(examples, 64), torch.randint(57, (examples,))] for _ in range(CLIENTS)]
    sampler = get_user_sampler("random", list(range(CLIENTS)))
    users = FederatedDataset(lambda user: Dataset(data[user], user_id=str(user)), sampler)
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(0.5, 1.0))
    central = torch.optim.SGD(model.parameters(), 1.0)
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=100_000,
            evaluation_frequency=1_000_000,  # the first round only
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=None, postprocessors=[noise]),
        model=PyTorchModel(model=model, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=steps, local_learning_rate=0.1, local_batch_size=examples
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=examples),
        callbacks=[clock],
    )
    return clock.spent / (clock.rounds * clients)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(json.loads, sys.argv[2:]))))
