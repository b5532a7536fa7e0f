"""The README and the pages under docs/, and the blocks of code in them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.sources import ROOT

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
"""Paths below the repository."""
WITH_A_SERVER = "127.0.0.1:8765"
"""What a block of Python holds that is run beside its server, in :mod:`tests.device_sdk.listen.test_clients`."""
FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the line of its fence, its language, and what the fence says to the tests after it, as in
    ``sh unrun="why"``."""

    page: str
    line: int
    language: str
    notes: Mapping[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


def text_of(page: str | Path) -> str:
    return (ROOT / page).read_text("utf-8")


def fenced(text: str, page: str) -> Iterator[Block]:
    """All blocks of a page, in order. ValueError: one is not closed, or its fence says what is no ``name="..."``."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if (fence := FENCE.match(line)) is None:
            continue
        language, _, said = fence["info"].partition(" ")
        try:
            notes = dict(each.split("=", 1) for each in shlex.split(said))
        except ValueError as error:
            raise ValueError(f'{page}:{number}: found {said!r}, expected name="..." after the language') from error
        held: list[str] = []
        for _, inner in lines:
            if inner == fence["ticks"]:
                break
            held.append(f"{inner}\n")
        else:
            raise ValueError(f"{page}:{number}: the block is not closed")
        yield Block(page, number, language, notes, "".join(held))


def every_block(*pages: str) -> list[Block]:
    """Of these pages, or of all."""
    return [each for page in pages or PAGES for each in fenced(text_of(page), page)]


def blocks(language: str, *pages: str) -> list[str]:
    """The blocks of code in a language, of these pages or of all."""
    return [each.text for each in every_block(*pages) if each.language == language]


def block(language: str, holds: str) -> str:
    """The only block in a language that holds a text."""
    (found,) = [each for each in blocks(language) if holds in each]
    return found
