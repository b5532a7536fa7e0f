"""A bundle's networks as ExecuTorch programs, behind the same protocols as onnxruntime.

A folder that ``idiolect export executorch`` wrote holds three programs that recognize, one for each training bucket
where it was asked to, and ``executorch.json``. Programs are per architecture: weights stand in them at known places,
and a device puts its own there when it loads one, but for those of an encoder that was imported.

:mod:`device_sdk.runtimes.executorch.bindings` is the one module of the device that imports torch, which ExecuTorch's
Python bindings need, and only when a program is loaded."""

from device_sdk.runtimes.executorch.manifest import MANIFEST, PROGRAMS, Bucket, ExecutorchManifest
from device_sdk.runtimes.executorch.training import ExecutorchTrainingSession
from device_sdk.runtimes.executorch.transducer import ExecutorchTransducer, open_programs

__all__ = [
    "MANIFEST",
    "PROGRAMS",
    "Bucket",
    "ExecutorchManifest",
    "ExecutorchTrainingSession",
    "ExecutorchTransducer",
    "open_programs",
]
