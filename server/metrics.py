"""Prometheus metrics of one server. Labels are bounded and hold nothing about a device."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["Metrics"]


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

    def text(self) -> bytes:
        """In Prometheus' text format; of all processes of the server, where it has several."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        everything = CollectorRegistry()
        MultiProcessCollector(everything)  # type: ignore[no-untyped-call]
        return generate_latest(everything)
