"""How much memory this process took."""

import sys
from pathlib import Path


def peak_bytes() -> int:
    """This process' most resident memory so far; 0 where the system does not tell. On Linux ``getrusage`` would start
    from the parent's, at the fork."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
