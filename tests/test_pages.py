"""Links, paths, commands and options in the README and in every page exist."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from device_sdk.cli import COMMANDS, _loaded, available
from tests.architecture.sources import ROOT
from tests.pages import PAGES, text_of

LINKING = (*PAGES, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "server/deployment/README.md")
NAMING = tuple(page for page in LINKING if page != "CHANGELOG.md")  # which also names what was there once
LONGEST_README = 150
OF_OTHERS = {"--help", "--full", "--install-completion"}
"""Options that every command, every example or the program itself has."""
Known = dict[tuple[str, ...], set[str]]


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
    results = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/results/")}
    pages = {page for page in PAGES[1:] if page.removeprefix("docs/") not in results | {"index.md"}}
    assert {page for page in pages if page.count("/") == 1} <= set(links(text_of("README.md")))
    assert {page.removeprefix("docs/") for page in pages} <= set(links(text_of("docs/index.md")))
    assert results <= set(links(text_of("docs/experiments.md")))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_exists(page: str, known: Known) -> None:
    for line in commands(text_of(page)):
        for path in called(line, known):
            assert path in known, f"{page}: {line}: no command {' '.join(path)!r}"
    every = set().union(*known.values()) | OF_OTHERS
    for line in (*commands(text_of(page)), *re.findall(r"`(--[^`]+)`", text_of(page))):
        for option in re.findall(r"--[a-z][a-z-]+", line):
            assert option in every, f"{page}: {line}: no command has {option}"


def test_a_command_that_is_not_there_is_seen(known: Known) -> None:
    lines = (
        "`idiolect rounds open --epsilon 1`, `idiolect models none \\| list`\n    idiolect nothing\n`idiolect bench X`"
    )
    found = [path for line in commands(lines) for path in called(line, known)]
    assert found == [("rounds", "open"), ("models", "none"), ("models", "list"), ("bench",), ("nothing",)]
    assert [path in known for path in found] == [True, False, True, True, False]


def test_what_leads_nowhere_is_seen() -> None:
    text = "## A [b](c.md) heading, and `code`\n[one](docs/none.md#x) ![two](a.png) `server/none.py` `runs/demo`"
    assert list(links(text)) == ["c.md", "docs/none.md#x", "a.png"]
    assert list(paths(text)) == ["server/none.py"] and headings(text) == {"a-b-heading-and-code"}


@pytest.fixture(scope="module")
def known() -> Known:
    """Commands by path -> their options."""
    found: Known = {}

    def add(command: Any, path: tuple[str, ...]) -> None:
        found[path] = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        context = command.make_context("idiolect", [], resilient_parsing=True)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                add(command.get_command(context, name), (*path, name))

    for name in available(COMMANDS):
        add(_loaded(name), (name,))
    return found


def commands(text: str) -> list[str]:
    """What is written of the program after its name, in spans and in blocks."""
    return [*re.findall(r"`idiolect ([^`]+)`", text), *re.findall(r"^(?:\$ |    )?idiolect (.*)$", text, re.MULTILINE)]


def called(line: str, known: Known) -> Iterator[tuple[str, ...]]:
    """The commands of a line, of which ``a b | c`` is two; what is in capitals stands for something else."""
    words = line.replace("\\", "").split()
    if not words or words[0].startswith("-"):
        return
    if not any(len(path) == 2 and path[0] == words[0] for path in known):
        yield (words[0],)
        return
    ways = [way.split() for way in " ".join(words[1:]).split(" --")[0].split(" | ")]
    yield from ((words[0], way[0]) for way in ways if way and way[0].islower())


def links(text: str) -> Iterator[str]:
    """Relative targets, in their order."""
    yield from (target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target)


def paths(text: str) -> Iterator[str]:
    """What stands as code and begins with a folder of the repository, but for those that commands write."""
    for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", text):
        top = path.partition("/")[0]
        if "/" in path and top not in ("runs", "build", "dist") and (ROOT / top).is_dir():
            yield path


def headings(text: str) -> set[str]:
    """The anchors that headings get."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
