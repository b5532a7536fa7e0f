"""How one server runs: where its state lies, who may speak to it, and the bounds on what it accepts."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from device_sdk.errors import ConfigurationError
from server.plans.round import RolloutSettings
from server.rate_limit import Rate

THIS_MACHINE = ("127.0.0.1", "::1")
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds, in bytes or seconds. delta_overhead: bytes a delta may have beyond its float32 values.
    head_seconds: how long the head of a request may take to arrive. body_seconds, body_rate: a body may be late by so
    many seconds, and has to come at so many bytes a second at least. answer_seconds: how long a client may take nothing
    of its answer. connections: open at a time, of one process (which may commonly have 1,024 files);
    connections_per_address: of one address, this machine's own and those of trusted proxies excepted, which are counted
    for whom their requests are from. A new one takes the place of one that is waited for
    (:mod:`server.web.connections`). held_bytes: of bodies that are larger than a message, held in memory at a time
    (:mod:`server.memory`). free_bytes: with less than that left on its disk the server says that it is not ready."""

    message_bytes: int = 64 * 1024
    report_bytes: int = 4 * 1024 * 1024
    delta_overhead: int = 64 * 1024
    model_bytes: int = 1 << 30
    head_seconds: float = 20.0
    body_seconds: float = 20.0
    body_rate: float = 16 * 1024
    answer_seconds: float = 60.0
    connections: int = 768
    connections_per_address: int = 192
    held_bytes: int = 128 * 1024 * 1024
    free_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rates:
    """How often an address, and a device, may ask, and how often an address may enrol devices. Many devices may share
    an address, behind a carrier's gateway.

    remembered: addresses, and devices, whose requests are counted; beyond that, those that asked longest ago are
    forgotten. Programs on the server's own machine are not counted. Each of several processes counts for itself."""

    address: Rate = field(default_factory=lambda: Rate(per_second=50.0, burst=3000.0))
    device: Rate = field(default_factory=lambda: Rate(per_second=2.0, burst=120.0))
    enrolment: Rate = field(default_factory=lambda: Rate(per_second=1.0, burst=100.0))
    remembered: int = 1 << 16

    def __post_init__(self) -> None:
        for name in ("address", "device", "enrolment"):
            rate = getattr(self, name)
            if not (rate.per_second > 0 and rate.burst >= 1):
                raise ConfigurationError(f"rates.{name}: found {rate}, expected more than 0 a second, a burst from 1")
        if self.remembered < 1:
            raise ConfigurationError(f"rates.remembered: found {self.remembered}, expected 1 or more")


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """folder: ``keys`` with the online keys and ``roots`` with every signed root, as ``idiolect updates init`` makes
    them. passphrase: of keys that are encrypted. timestamp, snapshot, targets: lifetime of a signature in seconds; each
    is made anew when half of it is over, so a server may be down for that long before devices refuse its updates."""

    folder: Path
    passphrase: str | None = field(default=None, repr=False)
    timestamp: float = DAY
    snapshot: float = 7 * DAY
    targets: float = 30 * DAY

    def __post_init__(self) -> None:
        for name in ("timestamp", "snapshot", "targets"):
            value = getattr(self, name)
            if not value >= 2:
                raise ConfigurationError(f"updates.{name}: found {value!r}, expected at least 2 seconds")


_POSITIVE = (
    *("window_seconds", "retry_after_seconds", "check_ins_per_second", "tick_seconds", "standing_seconds"),
    *("step_seconds", "marginals_cap", "deltas_cap", "words_cap"),
)
_LEAST = {"keep_models": 2, "keep_rounds": 1, "enrolment_uses": 1, "workers": 1, "processes": 1}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server process.

    database: an SQLAlchemy URL, or the path of an SQLite file. blobs: folder of weights and raw deltas, or the URL of
    an object store (``s3://bucket/prefix``). enrolment_token, operator_token: secrets that devices and operators show.
    enrolment_uses: how many devices the former lets in, None for any number. window_seconds: how far a signed request's
    time may lie from the server's clock. retry_after_seconds: the usual interval of a device's check-ins.
    check_ins_per_second: how many the server stands; a fleet that would come more often is told to come less often
    (:mod:`server.rounds.pacing`). marginals_cap, deltas_cap, words_cap: the largest epsilon a device may spend in a
    stream over all rounds; a report that would pass it is refused. math.inf lets a stream run without a bound, and the
    ledger says so. delta_probability: the delta at which Gaussian epsilons are stated. tick_seconds: how often
    deadlines are looked at. clock: seconds since the epoch. standing_seconds: how long the loop that moves rounds, or
    one of them, may be without a good tick before the server says that it is not ready; step_seconds: how long one step
    of a round, such as adding up its reports, may take all the same. keep_models: how many of the newest models keep
    their weights (:mod:`server.registry.retention`); None keeps all. keep_rounds: how many of the newest rounds keep
    their reports, lines of the ledger and the like (:mod:`server.rounds.retention`); None keeps all. updates: keys that
    sign what devices may install; None publishes without signed metadata. rates: how often one may ask.
    trusted_proxies: addresses and networks (CIDR) of proxies that are believed when they say, by X-Forwarded-For and
    X-Forwarded-Proto, whom a request is from. rollout: how a round's model is tried on some of the devices first; None
    publishes it to all of them at once. workers: processes that add up a round's deltas; None: this one, or as many as
    ``ray`` has processors. ray: address of a Ray cluster that does it instead (:mod:`server.aggregation.ray_cluster`).
    What they make is the same. processes: how many serve one address, for a database that several may write to. member:
    whether this is one of them, and another process has claimed and tidied the state (:mod:`server.processes`)."""

    database: str = field(repr=False)
    blobs: Path | str
    enrolment_token: str = field(repr=False)
    operator_token: str = field(repr=False)
    enrolment_uses: int | None = 10_000
    window_seconds: float = 300.0
    retry_after_seconds: float = 60.0
    check_ins_per_second: float = 100.0
    marginals_cap: float = 100.0
    deltas_cap: float = math.inf
    words_cap: float = 100.0
    delta_probability: float = 1e-6
    tick_seconds: float = 0.5
    standing_seconds: float = 45.0
    step_seconds: float = 1800.0
    keep_models: int | None = None
    keep_rounds: int | None = None
    limits: Limits = Limits()
    rates: Rates = field(default_factory=Rates)
    trusted_proxies: tuple[str, ...] = THIS_MACHINE
    updates: UpdateSettings | None = None
    rollout: RolloutSettings | None = None
    workers: int | None = None
    ray: str | None = None
    processes: int = 1
    member: bool = False
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        for name in ("enrolment_token", "operator_token"):
            if len(getattr(self, name)) < 8:
                raise ConfigurationError(f"{name}: too short; expected at least 8 characters")
        for name in _POSITIVE:
            value = getattr(self, name)
            if not value > 0:
                raise ConfigurationError(f"{name}: found {value!r}, expected a positive number")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"{name}: found {value}, expected {least} or more")
        if self.processes > 1 and self.database_url.startswith("sqlite"):
            raise ConfigurationError(
                f"processes: found {self.processes} with an SQLite database, expected 1: its file has one writer; for "
                "more processes give a postgresql:// database"
            )
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy)
            except ValueError as error:
                found = f"trusted_proxies: found {proxy!r} ({error})"
                raise ConfigurationError(f"{found}, expected an address or a network such as 10.0.0.0/8") from error
        if not 0 < self.delta_probability < 1:
            raise ConfigurationError(f"delta_probability: found {self.delta_probability!r}, expected inside (0, 1)")

    @property
    def database_url(self) -> str:
        return database_url(self.database)

    @property
    def connections(self) -> int:
        """To the database, of one process: together they stay below the hundred that PostgreSQL grants by default."""
        return min(48, max(4, 88 // self.processes))

    @property
    def lock_folder(self) -> Path:
        """Held by one process at a time: the blobs' folder; beside an object store, one next to the SQLite file, or in
        the working folder (PostgreSQL has a lock of its own)."""
        if "://" not in str(self.blobs):
            return Path(self.blobs)
        return default_blobs(self.database).with_suffix(".lock")

    def cap(self, stream: str) -> float:
        return float(getattr(self, f"{stream}_cap"))


def database_url(place: str) -> str:
    """An SQLAlchemy URL of a database given by one, or by the path of an SQLite file."""
    return place if "://" in place else f"sqlite:///{Path(place).absolute()}"


def default_blobs(place: str) -> Path:
    """Where the blobs of a database lie if nobody said where: beside an SQLite file, else in the working folder."""
    return (Path(place) if "://" not in place else Path("idiolect-server")).with_suffix(".blobs")
