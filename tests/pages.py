"""The README and the pages under docs/, and the blocks of code in them."""

import re
from pathlib import Path

from tests.architecture.sources import ROOT

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
"""Paths below the repository."""


def text_of(page: str | Path) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(language: str, *pages: str) -> list[str]:
    """The blocks of code in a language, of these pages or of all."""
    found = [
        re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE) for page in pages or PAGES
    ]
    return [each for of_page in found for each in of_page]


def block(language: str, holds: str) -> str:
    """The only block in a language that holds a text."""
    (found,) = [each for each in blocks(language) if holds in each]
    return found
