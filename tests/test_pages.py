"""Links and paths of the README and of every page lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.pages import PAGES, text_of

LINKING = (*PAGES, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "server/deployment/README.md")
NAMING = tuple(page for page in LINKING if page != "CHANGELOG.md")  # which also names what was there once
LONGEST_README = 150


def test_the_readme_is_a_page() -> None:
    assert len(text_of("README.md").splitlines()) < LONGEST_README


@pytest.mark.parametrize("page", LINKING)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in links(text_of(page)):
        place, _, heading = target.partition("#")
        path = (ROOT / page).parent / place if place else ROOT / page
        assert path.exists(), f"{page}: {target} does not exist"
        assert not heading or heading in headings(path.read_text("utf-8")), f"{page}: {target}: no such heading"


@pytest.mark.parametrize("page", NAMING)
def test_every_path_in_code_exists(page: str) -> None:
    for path in paths(text_of(page)):
        assert (ROOT / path).exists(), f"{page}: {path} does not exist"


def test_every_page_is_linked_from_readme_and_index() -> None:
    for page in PAGES[1:]:
        name = Path(page).name
        assert name == "index.md" or page in links(text_of("README.md")), f"README.md: no link to {page}"
        assert name == "index.md" or name in links(text_of("docs/index.md")), f"docs/index.md: no link to {page}"


def test_what_leads_nowhere_is_seen() -> None:
    text = "## A [b](c.md) heading, and `code`\n[one](docs/none.md#x) ![two](a.png) `server/none.py` `runs/demo`"
    assert list(links(text)) == ["c.md", "docs/none.md#x", "a.png"]
    assert list(paths(text)) == ["server/none.py"]
    assert headings(text) == {"a-b-heading-and-code"}


def links(text: str) -> Iterator[str]:
    """Relative targets, in their order."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            yield target


def paths(text: str) -> Iterator[str]:
    """What stands as code and begins with a folder of the repository."""
    for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", text):
        if "/" in path and (ROOT / path.partition("/")[0]).is_dir():
            yield path


def headings(text: str) -> set[str]:
    """The anchors that headings get."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
