"""Memory of this process."""

import sys
from pathlib import Path


def peak_megabytes() -> float:
    """This process' most resident memory, MB. On Linux ``getrusage`` would start from the parent's, at the fork."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
