"""The native kernels as an ARM processor runs them, emulated, beside what they give on this one."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle.quantized import layout, quantize
from device_sdk.runtimes import native_kernels
from device_sdk.runtimes.native_kernels import laid_out
from device_sdk.runtimes.onnxruntime import Precision
from tests.device_sdk.runtimes.test_native_kernels import SIZES, begun, native, shape, states
from tests.tiny import tiny_weights

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
HERE, SOURCES = Path(__file__).parent, Path(native_kernels.__file__).parent
__all__ = ["native"]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {COMPILER} with its libc6-dev-arm64-cross, and {EMULATOR} of qemu-user")
    program = tmp_path_factory.mktemp("arm") / "harness"
    command = [COMPILER, "-O3", "-static", "-Wall", "-Werror", f"-I{SOURCES}", HERE / "harness.c", "-o", program, "-lm"]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_arm_processor_gives_the_same(sizes: tuple[int, int, int], precision: Precision, harness: Path) -> None:
    architecture, rows, frames = shape(sizes), 6, 7
    weights, random = tiny_weights(architecture), np.random.default_rng(0)
    made = (layout(architecture), quantize(architecture, weights)) if precision == "int8" else None
    here, (h, c) = begun(architecture, weights, precision), states(architecture, rows)
    tokens = random.integers(0, sizes[2], rows)
    encoded = random.normal(size=(frames, sizes[1])).astype(np.float32)
    state, joint, pieces, of_bytes, table, *matrices = laid_out(architecture, weights, made)
    numbers = np.array([state, joint, pieces, of_bytes, rows, frames], np.int64)
    given = [numbers, table, *(part for matrix in matrices for part in matrix), tokens, h, c, encoded]
    run = subprocess.run(
        [EMULATOR, harness], input=b"".join(map(np.ndarray.tobytes, given)), capture_output=True, check=True
    )
    predicted, (h, c) = here.predict(tokens, (h, c))
    scores = here.join(encoded, predicted)
    expected = np.concatenate([array.ravel() for array in (predicted, h, c, scores, scores[:, :, 1:].max(axis=2))])
    found = np.frombuffer(run.stdout, np.float32)
    worst = float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))
    print(f"{precision} {sizes}: {worst:.2g} apart")
    assert found.shape == expected.shape and worst <= 1e-6
