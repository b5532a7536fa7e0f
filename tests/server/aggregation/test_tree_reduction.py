"""Leaves folded by any number of workers: the same bits, whoever they are and whatever becomes of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from device_sdk.errors import ConfigurationError, StateError
from device_sdk.wire.messages import DeltaPlan
from server.aggregation.deltas import BLOCK, UPDATES, DeltaSum
from server.aggregation.processes import Processes
from server.aggregation.tree_reduction import LEAF, Accepted, LocalWorkers, Workers, bounded_map, leaves, merge_all
from server.storage.blobs import FolderBlobs
from tests.architecture.sources import ROOT
from tests.forks import is_running
from tests.server import parties
from tests.server.parties import Operator, Party, serving, settings, until

SHAPES = {"encoder.0.W": (3, 41), "joiner.output.bias": (BLOCK + 5,)}
REPORTS = 3 * LEAF + 5

Reports = list[Accepted]


def stored(folder: Path, count: int) -> tuple[Reports, list[dict[str, NDArray[Any]]]]:
    """(what the database knows of ``count`` deltas in ``folder``, their values)."""
    blobs, rng, reports, values = FolderBlobs(folder, tidy=False), np.random.default_rng(count), [], []
    for number in range(count):
        delta = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
        content = save(delta)
        blob = f"deltas/r1/{number:04d}.safetensors"
        blobs.put(blob, content)
        reports.append(Accepted(blob, sha256(content).hexdigest(), 1.0 + number % 3))
        values.append(delta)
    return reports, values


def total(workers: Workers, reports: Reports) -> DeltaSum:
    return merge_all(workers.fold(leaves(reports, SHAPES, DeltaPlan())), SHAPES)


def bits(found: DeltaSum) -> tuple[bytes, float, int]:
    return b"".join(found.sum[name].tobytes() for name in SHAPES), found.weight, found.reports


@pytest.fixture(scope="module")
def round_of_many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reports, DeltaSum]:
    folder = tmp_path_factory.mktemp("blobs")
    reports, values = stored(folder, REPORTS)
    alone = total(LocalWorkers(FolderBlobs(folder)), reports)
    weights = [report.weight for report in reports]
    for name in SHAPES:
        exact = np.tensordot(weights, np.stack([each[name] for each in values]).astype(np.float64), 1)
        assert np.linalg.norm(alone.sum[name] - exact) < 1e-6 * np.linalg.norm(exact)
    assert (alone.weight, alone.reports) == (sum(weights), REPORTS) and LEAF % UPDATES == 0
    return folder, reports, alone


@pytest.mark.parametrize("count", [1, 2, 7])
def test_processes_make_the_same_bits(round_of_many: tuple[Path, Reports, DeltaSum], count: int) -> None:
    folder, reports, alone = round_of_many
    with closing(Processes(folder, count)) as workers:
        for _ in range(2):  # a second round finds them waiting
            assert bits(total(workers, reports)) == bits(alone)


def ray_cluster(folder: Path) -> Workers:
    pytest.importorskip("ray")
    from server.aggregation.ray_cluster import RayWorkers

    return RayWorkers(folder, "local", 2)


@pytest.mark.parametrize("begin", [lambda folder: Processes(folder, 2), ray_cluster], ids=["processes", "ray"])
def test_a_delta_that_was_changed_is_named(round_of_many, begin: Callable[[Path], Workers]) -> None:
    folder, reports, alone = round_of_many
    with closing(begin(folder)) as workers:
        assert bits(total(workers, reports[:3])) == bits(total(LocalWorkers(FolderBlobs(folder)), reports[:3]))
        with pytest.raises(StateError, match=r"0100\.safetensors: differs from what was accepted"):
            total(workers, [*reports[:-1], Accepted(reports[-1].blob, "0" * 64, 1.0)])
        assert bits(total(workers, reports)) == bits(alone)


def test_a_worker_that_is_killed_costs_one_attempt(round_of_many: tuple[Path, Reports, DeltaSum]) -> None:
    folder, reports, alone = round_of_many
    with closing(Processes(folder, 2)) as workers:
        partial = workers.fold(leaves(reports, SHAPES, DeltaPlan()))
        next(partial)
        for process in list(workers._pool._processes.values()):
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(StateError, match="a worker ended"):
            list(partial)
        assert bits(total(workers, reports)) == bits(alone)


def test_no_workers_are_refused(tmp_path: Path) -> None:
    for begin in (lambda: Processes(tmp_path, 0), lambda: settings(tmp_path, workers=0)):
        with pytest.raises(ConfigurationError, match="workers: found 0"):
            begin()


@given(st.integers(0, 30), st.integers(1, 9))
def test_few_are_under_way_and_all_come_in_order(tasks: int, count: int) -> None:
    waiting: list[int] = []

    def submit(task: int) -> int:
        waiting.append(task)
        assert len(waiting) <= count
        return task

    done = bounded_map(range(tasks), submit, lambda task: waiting.pop(waiting.index(task)), count)
    assert list(done) == list(range(tasks))


def test_a_round_does_not_tell_how_many_workers_it_had(tmp_path: Path) -> None:
    """Two servers, the same devices' reports under the same ids: the same weights to the bit."""
    assert published(tmp_path / "one") == published(tmp_path / "two", workers=2)


def published(folder: Path, **changes: Any) -> bytes:
    folder.mkdir()
    with serving(folder, **changes) as client:
        operator, rng = Operator(client), np.random.default_rng(1)
        round_id = operator.open(marginals=None, deltas={}, weighting="utterances")
        for number in range(LEAF + 3):
            arrays = {
                name: rng.normal(scale=0.02, size=shape).astype(np.float32) for name, shape in parties.SHAPES.items()
            }
            named = {"report_id": f"report-{number:03d}", "utterances": 1 + number % 4}
            sent = Party(client).enrol().send_delta(round_id, arrays, **named)
            assert sent.status_code == 200, sent.text
        content = client.get(f"/v1/models/{operator.close(round_id)['model_version']}").content
        length = int.from_bytes(content[:8], "little")
        return bytes(content[8 + length :])  # the header names the round's inputs, whose devices differ


PARENT = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from server.aggregation.processes import _begin
pool = ProcessPoolExecutor(2, get_context("spawn"), initializer=_begin)
list(pool.map(abs, range(2)))
print(*pool._processes, flush=True)
time.sleep(600)"""


def test_no_worker_outlives_a_killed_server() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(number) for number in parent.stdout.readline().split()]
        assert workers
        parent.kill()
        assert until(lambda: not any(map(is_running, workers)))


MEMORY = """
import resource, sys
from pathlib import Path
from device_sdk.wire.messages import DeltaPlan
from server.aggregation.tree_reduction import LEAF, Accepted, LocalWorkers, leaves, merge_all
from server.aggregation.processes import Processes
from server.storage.blobs import FolderBlobs
folder, size, digest, count = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
workers = Processes(folder, count) if count else LocalWorkers(FolderBlobs(folder, tidy=False))
shapes = {"w": (size,)}
reports = [Accepted("deltas/r/one.safetensors", digest, 1.0)] * (3 * LEAF)
total = merge_all(workers.fold(leaves(reports, shapes, DeltaPlan())), shapes)
assert total.sum["w"][:10].tolist() == [3.0 * LEAF] * 10
workers.close()
print(*(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))"""


@pytest.mark.slow
@pytest.mark.parametrize(("count", "models"), [(0, (2 + UPDATES + 1, 0)), (2, (2, 1 + UPDATES + 1))])
def test_memory_is_two_models_and_a_block_of_updates_a_worker(tmp_path: Path, count: int, models) -> None:
    """In units of a model of 16 MB, beside the same with next to none: of the process that merges, and of a worker.
    A block has one update more while the last is read."""

    def peaks(size: int) -> tuple[float, float]:
        folder = tmp_path / str(size)
        content = save({"w": np.ones(size, np.float32)})
        FolderBlobs(folder).put("deltas/r/one.safetensors", content)
        command = [sys.executable, "-c", MEMORY, str(folder), str(size), sha256(content).hexdigest(), str(count)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        own, workers = subprocess.check_output(command, text=True, env=environment).split()
        return float(own), float(workers)

    small, large = peaks(1000), peaks(1 << 22)
    spent = [(after - before) / (1 << 14) for before, after in zip(small, large, strict=True)]
    assert spent[0] <= models[0] + 0.5, spent
    assert not count or spent[1] <= models[1] + 0.5, spent
