"""pfl on the cohorts of ``idiolect bench cohort``: the same networks, clients, steps, clipping and central noise.

Its releases pin versions of their own, so it lives in an environment of its own and this file is run there by path. It
imports nothing of this project. Prints one JSON object: seconds of CPU for one client's update, by network and steps.

    PYTHON cohort_peers.py COHORT EXAMPLES SECONDS
"""

from __future__ import annotations

import json
import sys
from time import process_time
from typing import Any

import torch

CLIENTS = 200


def main(cohort: int, examples: int, seconds: float) -> dict[str, float]:
    """``NETWORK-STEPS`` -> seconds of CPU for one update, with clipping and noise."""
    torch.set_num_threads(1)
    return {
        f"{name}-{steps}": measured(name, cohort, examples, steps, seconds)
        for name in ("mlp", "lstm")
        for steps in (1, 5)
    }


def perceptron() -> tuple[Any, tuple[int, ...], int]:
    """(network of 97,081 parameters, shape of an input, labels)."""
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 57)), (64,), 57


class Recurrent(torch.nn.Module):
    """An LSTM of 27,038 parameters over 10 vectors of 32 values, labelled by its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = torch.nn.LSTM(32, 64, batch_first=True)
        self.output = torch.nn.Linear(64, 30)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(self.recurrent(inputs)[0][:, -1])


def measured(name: str, cohort: int, examples: int, steps: int, seconds: float) -> float:
    """Rounds of federated averaging until so many seconds are over."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    torch.manual_seed(0)
    network, shape, labels = perceptron() if name == "mlp" else (Recurrent(), (10, 32), 30)
    criterion = torch.nn.CrossEntropyLoss()
    network.loss = lambda x, y, eval=False: criterion(network(x), y)
    network.metrics = lambda x, y, eval=False: {"loss": Weighted(0.0, len(x))}
    data = [[torch.randn(examples, *shape), torch.randint(labels, (examples,))] for _ in range(CLIENTS)]
    users = FederatedDataset(
        lambda user: Dataset(data[user], user_id=str(user)), get_user_sampler("random", list(range(CLIENTS)))
    )
    backend = SimulatedBackend(
        training_data=users,
        val_data=None,
        postprocessors=[CentrallyAppliedPrivacyMechanism(GaussianMechanism(0.5, 1.0))],
    )
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )

    class Callback(_Clock, TrainingProcessCallback):
        pass

    clock = Callback(seconds)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=100_000,
            evaluation_frequency=1_000_000,  # the first round only, which is not timed
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=steps, local_learning_rate=0.1, local_batch_size=examples
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=examples),
        callbacks=[clock],
    )
    return clock.spent / (clock.rounds * cohort)


class _Clock:
    """Counts rounds from the second on, and stops when the time is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.rounds, self.spent = seconds, -1, 0.0
        self.begun = 0.0

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        from pfl.metrics import Metrics

        self.rounds += 1
        if self.rounds == 0:
            self.begun = process_time()
        self.spent = process_time() - self.begun
        return self.rounds > 0 and self.spent > self.seconds, Metrics()


if __name__ == "__main__":
    arguments = sys.argv[1:4]
    print(json.dumps(main(int(arguments[0]), int(arguments[1]), float(arguments[2]))))
