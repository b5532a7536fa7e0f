"""What long work has finished, a file each: written whole as soon as it is done, read as it was by a second call."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from device_sdk.commands.output import write_file
from device_sdk.errors import DataError

Row = TypeVar("Row")


def write_row(path: Path, row: Any) -> None:
    """row: a dataclass. Folders are made."""
    write_file(path, json.dumps(asdict(row)), folders=True)


def read_row(path: Path, kind: type[Row]) -> Row:
    """kind: the row's dataclass. Raises DataError naming a damaged file."""
    try:
        return TypeAdapter(kind).validate_python(json.loads(path.read_text("utf-8")))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a finished row ({error}); delete it to have it run again") from error
