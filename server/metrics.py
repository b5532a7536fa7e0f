"""Prometheus metrics of one server. Labels are bounded and hold nothing about a device."""

import os
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from server.ticks import LOOP, Seen


class Metrics:
    """Owns a registry of its own, so two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "idiolect_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram("idiolect_request_seconds", "Time to answer.", ("route",), registry=self.registry)
        self.reports = Counter("idiolect_reports", "Reports received.", ("stream", "outcome"), registry=self.registry)
        self.received = Counter("idiolect_report_bytes", "Bytes of reports.", ("stream",), registry=self.registry)
        self.limited = Counter(
            "idiolect_limited", "Requests refused for coming too often.", ("by",), registry=self.registry
        )
        # Of several processes, the one that was asked last knows best.
        newest: Any = {"registry": self.registry, "multiprocess_mode": "mostrecent"}
        self.devices = Gauge("idiolect_devices", "Devices enrolled.", **newest)
        self.rounds = Gauge("idiolect_rounds", "Rounds by state.", ("state",), **newest)
        self.ticks = _TickAges()

    def text(self) -> bytes:
        """In Prometheus' text format; of all processes of the server, where it has several."""
        ticks = CollectorRegistry()
        ticks.register(self.ticks)
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry) + generate_latest(ticks)
        everything = CollectorRegistry()
        MultiProcessCollector(everything)  # type: ignore[no-untyped-call]
        return generate_latest(everything) + generate_latest(ticks)


class _TickAges(Collector):
    """Owns no more than what is asked for next: a round that has ended is gone from it, as it would not be from a
    gauge. Any process tells the same."""

    def __init__(self) -> None:
        self.seen = Seen({})

    def collect(self) -> Iterable[Metric]:
        ages = dict(self.seen.ages)
        loop = ages.pop(LOOP, 0.0)
        yield GaugeMetricFamily("idiolect_tick_age_seconds", "Since all rounds were last looked at.", value=loop)
        rounds = GaugeMetricFamily(
            "idiolect_round_tick_age_seconds", "Since an unfinished round's last good tick.", labels=("round",)
        )
        for name, age in ages.items():
            rounds.add_metric((name,), age)
        yield rounds
