"""The rows of tables 2 and 3 of Ramesh et al. 2023, a file each: how the encoder is made, and the word errors it had
there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from device_sdk.errors import ConfigurationError

__all__ = ["Row", "read_row", "read_rows"]

Table = Literal["2", "3"]
Way = Literal["none", "central", "federated"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    way: how the encoder was pre-trained; cohort: clients of a round; whole: on all silos or a part of them.
    continued: whether pre-training goes on in French before teaching (table 3). published: the paper's word errors by
    test set, percent; none for a row of one's own.
    """

    table: Table
    name: str
    way: Way
    cohort: int = 0
    whole: bool = True
    continued: bool = False
    published: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for found, known in ((self.table, Table), (self.way, Way)):
            if found not in get_args(known):
                raise ConfigurationError(f"row {self.name!r}: found {found!r}, expected one of {get_args(known)}")
        if (self.way == "federated") != (self.cohort > 0):
            raise ConfigurationError(
                f"row {self.name!r}: found cohort {self.cohort} with way {self.way!r}; only a federation has a cohort"
            )


def read_row(path: Path) -> Row:
    """A row from its TOML file. Raises ConfigurationError naming the file."""
    try:
        return Row(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, ConfigurationError) as error:
        raise ConfigurationError(f"{path}: not a row of this experiment ({error})") from error


def read_rows() -> dict[str, tuple[Row, ...]]:
    """The paper's rows by table, in its order."""
    found: dict[str, list[Row]] = {"2": [], "3": []}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        row = read_row(path)
        found[row.table].append(row)
    return {table: tuple(rows) for table, rows in found.items()}
