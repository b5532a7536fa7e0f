"""Every citation in comments, docstrings and pages resolves to a row of docs/papers.md."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.pages import text_of

SOURCES = "docs/papers.md"
_NAME = r"\b(?:van den |van |von |de )?[A-Z][a-z]+(?:[A-Z-][a-z]+)*"
_SEVERAL = rf"(?P<first>{_NAME})(?:,? et al\.,?|(?:, {_NAME})*,? (?:and|&) {_NAME},?) \(?(?P<year>(?:19|20)\d\d)\b"
_ALONE = rf"(?P<alone>{_NAME}) (?P<when>(?:19|20)\d\d)\b"
CITATION = re.compile(rf"{_SEVERAL}|{_ALONE}")
NAMED = rf"({_NAME})\s+et\s+al\."
NUMBERED = r"paper[ _-]?00[0-4]"
NO_NAMES = {"In", "Since", "Until", "January", "February", "March", "April", "May", "June", "July"}
NO_NAMES |= {"August", "September", "October", "November", "December"}
TRACKED = (ROOT / ".git").exists()


@pytest.mark.skipif(not TRACKED, reason="needs a checkout")
def test_every_citation_is_a_row_of_the_papers() -> None:
    known = set(sources(text_of(SOURCES)))
    cited = ((path, each) for path in tracked() for each in citations(prose(path)))
    unknown = [f"{path}: {name} {year}" for path, (name, year) in cited if (name, year) not in known]
    assert not unknown, "\n".join(unknown)


@pytest.mark.skipif(not TRACKED, reason="needs a checkout")
def test_whoever_is_named_without_a_year_has_a_row_too() -> None:
    known = {name for name, _ in sources(text_of(SOURCES))}
    unknown = [f"{path}: {name}" for path in tracked() for name in re.findall(NAMED, prose(path)) if name not in known]
    assert not unknown, "\n".join(unknown)


@pytest.mark.skipif(not TRACKED, reason="needs a checkout")
def test_no_paper_is_cited_by_a_number() -> None:
    found = subprocess.run(["git", "grep", "-InE", NUMBERED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and not found.stdout, found.stdout


def test_forms_of_citations_are_seen() -> None:
    text = """(Rao et al. 2023, eq. 1), Liu & Peng 2020, Canonne, Kamath and Steinke, 2020, van den Oord et al. (2018),
    Graves 2012; in May 2024, over 2000 rounds, at 1990 Hz, See Nobody et
    al. 1999."""
    found = [("Rao", "2023"), ("Liu", "2020"), ("Canonne", "2020"), ("van den Oord", "2018"), ("Graves", "2012")]
    assert list(citations(text)) == [*found, ("Nobody", "1999")]


def test_a_row_is_known_by_its_first_author_and_year() -> None:
    rows = "| Liu & Peng 2020 | a title of 1999 | where |\n| van den Oord et al. 2018 | b | c |\n| RFC 5869 | d | e |"
    assert list(sources(rows)) == [("Liu", "2020"), ("van den Oord", "2018")]


def tracked() -> list[str]:
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    left_out = {SOURCES, Path(__file__).relative_to(ROOT).as_posix()}
    return [p for p in found if p.endswith((".py", ".c", ".md")) and p not in left_out and (ROOT / p).is_file()]


def prose(path: str) -> str:
    """Comments and docstrings of a module; all of any other file."""
    text = text_of(path)
    return "\n\n".join(_said(text)) if path.endswith(".py") else text


def citations(text: str) -> Iterator[tuple[str, str]]:
    """(first author, year) of each, in their order; a citation may go over lines."""
    for found in CITATION.finditer(re.sub(r"\s*\n\s*", " ", text)):
        name, year = found["first"] or found["alone"], found["year"] or found["when"]
        if name not in NO_NAMES:
            yield name, year


def sources(text: str) -> Iterator[tuple[str, str]]:
    """(first author, year) of the first cell of each row."""
    for cell in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE):
        yield from citations(cell)


def _said(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and lines:
                yield "\n".join(lines)
                lines = []
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    yield "\n".join(lines)
