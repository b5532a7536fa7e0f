"""A state folder is as large after many rounds as after the first few."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from device_sdk import Bundle, Device
from device_sdk.bundle import weights as weight_files
from device_sdk.state import records
from tests.device_sdk.devices import KEY, quick, tell

SETTINGS = replace(quick(), keep_corrected=True, memory_utterances=8)
ROUNDS = 12


def published(bundle: Bundle, number: int) -> records.Published:
    """Another model of the same shapes."""
    generator, weights = np.random.default_rng(number), dict(bundle.weights)
    for name, shape in bundle.architecture.parameter_shapes().items():
        weights[name] = (weights[name] + 1e-3 * generator.standard_normal(shape)).astype(np.float32)
    return records.Published(f"round-{number}", weight_files.serialize(weights))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_folder_does_not_grow_from_round_to_round(tmp_path: Path, tiny_bundle: Bundle) -> None:
    model = len(published(tiny_bundle, 0).content)
    adopted, learned = [], []
    for number in range(ROUNDS):
        with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
            device.agree("keeping", "marginals", "deltas")
            for seed in range(8):
                tell(device, 8 * number + seed)
            device.learn()
            learned.append(size(tmp_path))
            device._model_state.adopt(published(tiny_bundle, number), keep=0.5)
            before = device.student.weights
        adopted.append(size(tmp_path))
        with Device.open(tmp_path, KEY, tiny_bundle, SETTINGS) as device:
            assert device.model_version == f"round-{number}"
            for weights in (device.student.weights, device.student.teacher, device.student.start):
                assert weights is not None and all(np.array_equal(weights[name], before[name]) for name in before)
    spare = 300_000  # tables and their log
    assert max(adopted) <= 2 * model + spare, "the published model, and what steps on it start from"
    assert max(learned) <= 3.5 * model + spare, "and what was learned since, and what of it is proven"
    assert max(adopted[ROUNDS // 2 :]) <= max(adopted[1 : ROUNDS // 2]) + 20_000
    assert max(learned[ROUNDS // 2 :]) <= max(learned[1 : ROUNDS // 2]) + 20_000
