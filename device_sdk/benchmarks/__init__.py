"""Figures that others can read: what every benchmark returns."""

from device_sdk.benchmarks.figures import Figure, alternate, as_json

__all__ = ["Figure", "alternate", "as_json"]
