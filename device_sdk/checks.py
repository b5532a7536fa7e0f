"""Arguments of another type than is expected, named at the door."""

from __future__ import annotations

from numbers import Integral, Real
from types import NoneType

from device_sdk.errors import ConfigurationError

__all__ = ["NUMBER", "WHOLE", "NoneType", "check_type"]

NUMBER, WHOLE = Real, Integral
"""What counts as a number, and as a whole one: numpy's too."""


def check_type(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """ConfigurationError: ``value``, which messages call ``name``, is of none of these types."""
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{name}: found {type(value).__name__}, expected {expected}")
