"""How often somebody may ask: token buckets, one for each address and each device that was seen lately."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

NETWORK = 64
"""Bits of an IPv6 address that count: whoever has one address has the rest of its network too."""


@dataclass(frozen=True, slots=True)
class Rate:
    """burst: requests at once, after a rest; per_second: how many come back."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """left: requests that are left. at: when that was so, in seconds."""

    left: float
    at: float


def take(bucket: Bucket | None, rate: Rate, now: float) -> tuple[Bucket, float]:
    """The bucket after one more request, None for one that was full, and how many seconds too early the request came;
    0 where it may be answered. A request that may not takes nothing. A clock that steps back refills nothing."""
    left = rate.burst
    if bucket is not None:
        left = min(rate.burst, bucket.left + max(0.0, now - bucket.at) * rate.per_second)
        now = max(now, bucket.at)
    if left < 1.0:
        return Bucket(left, now), (1.0 - left) / rate.per_second
    return Bucket(left - 1.0, now), 0.0


class Buckets:
    """Owns a bounded number of buckets: the one that was not asked for longest, and so is fullest, goes first."""

    def __init__(self, rate: Rate, most: int, clock: Callable[[], float]) -> None:
        self.rate, self.most = rate, most
        self._clock = clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._turn = threading.Lock()

    def wait(self, key: str) -> float:
        """Take one request from the key's bucket. Seconds until one may be answered; 0: this one may."""
        with self._turn:
            bucket, seconds = take(self._buckets.pop(key, None), self.rate, self._clock())
            self._buckets[key] = bucket
            if len(self._buckets) > self.most:
                self._buckets.popitem(last=False)
        return seconds

    def __len__(self) -> int:
        return len(self._buckets)


def key_of(host: str | None) -> str | None:
    """Whom requests from a host are counted for; None for this machine's own programs, which are not counted."""
    try:
        address = ip_address((host or "").partition("%")[0])
    except ValueError:
        return (host or "")[:64]
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return None
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> NETWORK << NETWORK)}/{NETWORK}"
    return str(address)
