"""How much memory the bodies of large requests may take together, who of those that send has which share of it, and its
way back to the system."""

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from server.problems import Refusal

SHARE = 4
"""One address may hold this part of the whole."""
AT_ONCE = 2
"""Bodies that one device may send at a time: one, and another try of it that its own side has not given up yet."""
RETRY_AFTER = 5
"""Seconds after which one who found no room may try again."""
WORTH = 32 * 1024 * 1024
"""Bytes that were held, after which what was freed is given back to the system."""


class BodyMemory:
    """Owns the count. It is used by the event loop's thread only, so it needs no lock."""

    def __init__(self, most: int) -> None:
        """most: bytes, of all bodies that are being read or worked on."""
        self.most = most
        self.held = 0
        self._peak = 0
        self._by: Counter[str] = Counter()
        self._bodies: Counter[str] = Counter()

    @contextmanager
    def room(self, size: int, *, device: str, address: str | None) -> Iterator[None]:
        """Room for a body of so many bytes, until the block ends. device: that has signed it. address: whom it is
        counted for, None for this machine's own programs. Raises Refusal: 503 ``no_room``; 429 ``too_many_requests``
        where the device sends others already."""
        if self._bodies[device] >= AT_ONCE:
            detail = f"this device sends {AT_ONCE} bodies already; send one after the other"
            raise Refusal(429, "too_many_requests", detail, retry_after=RETRY_AFTER)
        # Whoever is alone may send what is larger than a share.
        part = self.most / SHARE
        others = self._by[address] if address is not None else 0
        if self.held + size > self.most or (others and others + size > part):
            detail = "the server takes in other bodies now; send it again later"
            raise Refusal(503, "no_room", detail, retry_after=RETRY_AFTER)
        self._take(size, 1, device, address)
        try:
            yield
        finally:
            self._take(-size, -1, device, address)

    def to_give_back(self) -> bool:
        """Whether much was held, and nothing is any more. Asked once, it is so again only after that much more."""
        if self.held or self._peak < WORTH:
            return False
        self._peak = 0
        return True

    def _take(self, size: int, bodies: int, device: str, address: str | None) -> None:
        self.held += size
        self._peak = max(self._peak, self.held)
        for counter, name, change in ((self._by, address, size), (self._bodies, device, bodies)):
            if name is not None:
                counter[name] += change
                if not counter[name]:
                    del counter[name]


def give_back() -> None:
    """Hand freed memory back to the system, which glibc keeps for itself otherwise. Does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
