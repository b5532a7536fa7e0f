"""What an install compiled of a cohort's inner loops: an LSTM's cells, and clients' gradients with their norms.

Where it compiled nothing, or not for this processor, torch's operations give the same, but for rounding and the time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from device_sdk.runtimes.native_kernels import native_module

__all__ = ["native"]


def native(*values: Tensor) -> Any:
    """The native module where it can read these values, else None: contiguous float32 in the processor's memory."""
    fits = all(v.dtype == torch.float32 and v.device.type == "cpu" and v.is_contiguous() for v in values)
    return _module() if fits else None


@cache
def _module() -> Any:
    found = native_module()
    return None if found is None or found.LEVEL < 1 else found
