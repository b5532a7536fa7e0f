"""Prometheus metrics of one server. Labels are bounded and hold nothing about a device."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
        self.devices = Gauge("idiolect_devices", "Devices enrolled.", registry=self.registry)
        self.rounds = Gauge("idiolect_rounds", "Rounds by state.", ("state",), registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)
