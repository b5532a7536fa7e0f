"""ExecuTorch's Python bindings, loaded when the first program is."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import BundleError, MissingExtraError
from device_sdk.runtimes.executorch.manifest import REMEDY, ROWS, Edges

METHOD = "forward"

_pool = Lock()  # ExecuTorch's thread pool belongs to the process


class Method:
    """A loaded program's method. Owns the bytes, which ExecuTorch reads for as long as it runs."""

    def __init__(self, program: bytes, method: Any, from_numpy: Any) -> None:
        self._program, self._method, self._from_numpy = program, method, from_numpy

    def tensor(self, array: NDArray[np.generic]) -> Any:
        """A tensor with a copy of the values, which may be read-only or a view."""
        return self._from_numpy(np.array(array, order="C"))

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return self._method(inputs)


class Runtime:
    """ExecuTorch's bindings. ``executorch.runtime`` is a thin layer over them whose import costs more than torch's."""

    def __init__(self, threads: int) -> None:
        """threads: of ExecuTorch's pool, which the whole process shares. Raises :class:`MissingExtraError`."""
        try:
            import torch  # the bindings need its libraries loaded first
            from executorch.extension.pybindings import _portable_lib as bindings
        except ImportError as error:
            raise MissingExtraError(
                f"runtime 'executorch' cannot be loaded ({error}); install it with: pip install 'idiolect[executorch]'"
            ) from error
        self._bindings = bindings
        self._from_numpy = torch.from_numpy
        with _pool:
            if bindings._threadpool_get_thread_count() != threads:
                bindings._unsafe_reset_threadpool(threads)

    def load(self, program: bytes, source: str, expected: Edges, batch: int = 1) -> Method:
        """Raises :class:`BundleError` for what is no program, or one of other shapes."""
        check = self._bindings.Verification.InternalConsistency
        try:
            loaded = self._bindings._load_program_from_buffer(program, program_verification=check)
            found = loaded.method_meta(METHOD)
            inputs = [list(found.input_tensor_meta(index).sizes()) for index in range(found.num_inputs())]
            outputs = [list(found.output_tensor_meta(index).sizes()) for index in range(found.num_outputs())]
            method = loaded.load_method(METHOD)
        except Exception as error:  # the bindings document no type
            raise BundleError(f"{source}: ExecuTorch cannot load this program ({error}); {REMEDY}") from error
        for kind, shapes, wanted in (("inputs", inputs, expected.inputs), ("outputs", outputs, expected.outputs)):
            largest = [[batch if size == ROWS else size for size in shape] for shape in wanted.values()]
            if shapes != largest:
                raise BundleError(f"{source}: {kind} have shapes {shapes}, expected {largest}; {REMEDY}")
        return Method(program, method, self._from_numpy)
