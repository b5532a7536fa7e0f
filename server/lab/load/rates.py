"""How many requests of each kind a server answers, a second and for each second of CPU that it takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from device_sdk.benchmarks import Figure
from device_sdk.errors import StateError
from device_sdk.wire.messages import MarginalPlan
from server.lab.load import traffic
from server.lab.load.devices import Target
from server.lab.load.ground import PROCESSES, Ground, cpu_seconds
from server.lab.load.traffic import Crowd, Tally
from server.lab.simulation.process import ServerProcess
from server.lab.simulation.progress import Tell
from server.plans.round import GroupPlan, RoundSettings
from server.registry.initial import initial_from_bundle

TARGETS = {"check-ins": 100.0, "reports": 100.0, "stages of secure aggregation": 50.0, "marginals": 100.0}
"""A second, at least. The first is what a server tells its fleet that it stands, unless its operator says otherwise."""
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
GROUP, SURVIVORS = 20, 2


def rates(ground: Ground, tell: Tell) -> list[Figure]:
    """Check-ins, reports, stages of secure aggregation and downloads. Raises StateError where one is not answered as it
    should be."""
    sizes, found = ground.sizes, list[Figure]()
    place = f"{NAMES[ground.kind]}, {PROCESSES[ground.kind]} of the server"
    with serving(ground) as (server, target), Crowd(sizes.signing) as crowd:

        def measure(what: str, work: Callable[..., Tally], *more: Any) -> None:
            tell(f"requests, {ground.kind}", len({figure.metric for figure in found}), 5)
            roots = (server.process.pid if server.process else None, ground.postgres)
            before = cpu_seconds(*roots)
            tally = crowd.run(work, target, *more)
            after = cpu_seconds(*roots)
            if tally.problems or not tally.answered:
                raise StateError(f"{what}: found {tally.problems.most_common(2)}, expected answers to all of them")
            metric = f"{what}; {place}"
            found.append(Figure(metric, "a second", tally.answered / tally.seconds, target=TARGETS.get(what)))
            if before is not None and after is not None and after > before:
                found.append(Figure(metric, "for a second of its CPU", tally.answered / (after - before)))
            found.append(Figure(metric, "ms for 95 % of them", 1e3 * float(np.quantile(tally.waits, 0.95))))

        measure("check-ins", traffic.check_ins, sizes.seconds)
        opened = server.operator.create_round(RoundSettings(marginals=MarginalPlan())).id
        measure("reports", traffic.reports, sizes.seconds, opened)
        server.operator.abandon_round(opened)
        each = min(sizes.members // traffic.SENDERS, sizes.signing // traffic.SENDERS)
        opened = server.operator.create_round(aggregated(traffic.SENDERS * each)).id
        measure("stages of secure aggregation", traffic.stages, opened, each, SURVIVORS)
        released = server.operator.close_round(opened)
        if released.state != "published":
            raise StateError(f"secure aggregation: found a round {released.state}, expected it published")
        version = server.operator.status().marginals_version
        measure("marginals", traffic.downloads, sizes.seconds, f"/v1/marginals/{version}")
        measure("models", traffic.downloads, sizes.seconds, f"/v1/models/{target.model_version}")
    return found


def aggregated(members: int) -> RoundSettings:
    """A round of secure aggregation of so many devices."""
    plan = MarginalPlan(
        trust="distributed", mechanism="discrete_gaussian", epsilon=8.0, max_weight=1.0, minimum_survivors=SURVIVORS
    )
    groups = GroupPlan(size=min(GROUP, members), stage_seconds=60.0)
    return RoundSettings(marginals=plan, goal=members, minimum=SURVIVORS, groups=groups)


@contextmanager
def serving(ground: Ground, *options: str) -> Iterator[tuple[ServerProcess, Target]]:
    """A running server, and what its devices have to know."""
    initial = initial_from_bundle(None)
    with ground.server(*options) as server:
        words = len(initial.background)
        yield server, Target(server.url, ground.secret, initial.version, initial.words_digest, words)
