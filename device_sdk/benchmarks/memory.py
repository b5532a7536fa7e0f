"""Memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_megabytes() -> float:
    """The most resident memory that this process has had, in MB. Linux's own figure: what ``getrusage`` gives there
    starts from the parent's memory at the moment of the fork."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
