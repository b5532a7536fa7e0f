"""The log of a run, one JSON line a record."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["append_log"]


def append_log(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.strftime("%H:%M:%S"), **record}) + "\n")
