"""Settings within settings as one list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["flatten"]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``a.b`` -> value of nested mappings; what is None, off, is left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value
    return found
