"""Damaged inputs end in a named error or a valid result: no crash, no hang, no changed state folder."""

import os
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from tests.device_sdk.damage import cases
from tests.device_sdk.damage.driver import Ending, drive
from tests.device_sdk.damage.harm import damaged

SEED = 1


def _wrong(endings: list[Ending]) -> list[str]:
    return [f"case {ending.case} ({ending.kind}): {ending.how}" for ending in endings if not ending.good]


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_inputs(tiny_bundle: Bundle, count: int) -> None:
    endings = drive(tiny_bundle.path, range(count), SEED)
    assert len(endings) == count and not _wrong(endings) and {ending.kind for ending in endings} == set(cases.KINDS)
    refused = sum(ending.how != "valid" for ending in endings)
    assert count / 2 < refused < count, "most damage is found, some of it does no harm"


@pytest.mark.slow
def test_the_packaged_bundle_damaged() -> None:
    assert not _wrong(drive(Bundle.open().path, range(300), SEED + 1))


def test_crashes_hangs_and_foreign_errors_are_seen(tiny_bundle, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path.cwd())]))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if sys.argv[0] == '-m':\n"
        "    import tests.device_sdk.damage.cases as cases\n"
        "    def run(ground, seed, case):\n"
        "        if case == 1: os.abort()\n"
        "        if case == 3: time.sleep(60)\n"
        "        if case == 4: raise KeyError('foreign')\n"
        "        return 'valid'\n"
        "    cases.run = run\n"
    )
    endings = drive(tiny_bundle.path, range(6), SEED, patience=2.0)
    assert [ending.good for ending in endings] == [True, False, True, False, False, True]
    assert [ending.case for ending in endings] == list(range(6))
    assert "SIGABRT" in endings[1].how and "hung for 2 s" in endings[3].how and "KeyError" in endings[4].how


def test_the_same_number_makes_the_same_case(tiny_bundle: Bundle) -> None:
    content = (tiny_bundle.path / "encoder.onnx").read_bytes()
    made = [damaged(content, np.random.default_rng([SEED, case])) for case in (7, 7, 8)]
    assert made[0] == made[1] != made[2]
