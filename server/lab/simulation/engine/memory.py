"""What the allocator does with the memory that a round has freed."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2_000_000_000


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed for the next round: giving it back to the system and fetching it again takes up to
    a third of a round of small networks. Holds for the whole process, whose memory then stays at its peak.

    Returns False, and changes nothing, where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER) and mallopt(_MMAP_THRESHOLD, _NEVER))
