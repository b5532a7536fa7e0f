"""Pages link to code, folders and pages outside of docs/ by relative paths, as they stand in the repository. The site
holds each of them, under ``repository/``: code with numbered lines, folders as lists, anything else as it is. So every
link works in both places, and one that leads nowhere fails the build. Navigation may name pages by a pattern."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES, PLACE = "docs", "repository"
NOTES = re.compile(r"^(```\w+) .*$", re.MULTILINE)
"""What a fence says to the tests after its language."""
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
CODE = {".c": "c", ".h": "c", ".html": "html", ".js": "js", ".py": "python", ".toml": "toml", ".css": "css"}
HEADER = "---\ntitle: {title}\nsearch: {{exclude: true}}\nhide: [navigation, toc]\n---\n\n# `{title}`\n\n"


def on_config(config: MkDocsConfig) -> None:
    """``results/*.md`` in the navigation stands for all such pages, by name."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages outside of docs/ are linked, and what these link to in turn."""
    waiting = [f"{PAGES}/{file.src_uri}" for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        for path in linked(waiting.pop()):
            if path in known or path.startswith(f"{PAGES}/"):
                continue
            known.add(path)
            files.append(_file(path, config))
            if path.endswith(".md"):
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's links, as they lead within the site."""
    here, where = page.file.src_uri, repository_path(page.file.src_uri)
    if here.startswith(PLACE) and (ROOT / where).parent.is_dir() and where.endswith("/index.md"):
        return markdown + "\n".join(_listed(ROOT / where.removesuffix("index.md"), here, files))
    if not (where.endswith(".md") and (ROOT / where).is_file()):
        return markdown  # code

    def within(link: re.Match[str]) -> str:
        target = uri(resolved(where, link["target"]))
        return relpath(target, str(PurePosixPath(here).parent)) + (link["anchor"] or "")

    return LINK.sub(within, NOTES.sub(r"\1", markdown))


def linked(path: str) -> Iterator[str]:
    """Paths below the repository that a page there links to."""
    yield from (resolved(path, link["target"]) for link in LINK.finditer((ROOT / path).read_text("utf-8")))


def resolved(path: str, target: str) -> str:
    """The path that a link of the page at ``path`` names, both below the repository."""
    found = normpath(PurePosixPath(path).parent / target)
    readme = f"{found}/README.md"
    return readme if (ROOT / readme).is_file() else found


def uri(path: str) -> str:
    """Where the site has a path of the repository."""
    if path.startswith(f"{PAGES}/"):
        return path.removeprefix(f"{PAGES}/")
    if (ROOT / path).is_dir():
        return f"{PLACE}/{path}/index.md"
    return f"{PLACE}/{path}{'.md' if _shown(path) else ''}"


def repository_path(source: str) -> str:
    """The path in the repository that a page of the site is of."""
    inside = source.removeprefix(f"{PLACE}/")
    return inside if inside != source else f"{PAGES}/{source}"


def _shown(path: str) -> bool:
    return PurePosixPath(path).suffix in ("", *CODE) or path.endswith(".service")


def _file(path: str, config: MkDocsConfig) -> File:
    full = ROOT / path
    if full.is_dir():
        return File.generated(config, uri(path), content=HEADER.format(title=f"{path}/"))
    if not full.is_file():
        raise PluginError(f"{path}: does not exist, and a page links to it")
    if not _shown(path):
        return File.generated(config, uri(path), abs_src_path=str(full))
    language = CODE.get(full.suffix, "text")
    text = f'{"`" * 8}{language} linenums="1"\n{full.read_text("utf-8").rstrip()}\n{"`" * 8}\n'
    return File.generated(config, uri(path), content=HEADER.format(title=path) + text)


def _listed(folder: Path, here: str, files: Files) -> Iterator[str]:
    """A line a module: its name, with a link where the site has it, and the first sentence of its docstring."""
    yield "| file | holds |\n|---|---|"
    for path in sorted(folder.iterdir()):
        of = path / "__init__.py" if path.is_dir() else path
        if of.suffix == ".py" and of.is_file():
            said = (ast.get_docstring(ast.parse(of.read_text("utf-8"))) or "").partition("\n\n")[0].replace("\n", " ")
            first = re.split(r"(?<=[.;:])\s", said, maxsplit=1)[0].rstrip(";:").replace("|", "\\|")
            name, target = f"`{path.name}{'/' if path.is_dir() else ''}`", uri(path.relative_to(ROOT).as_posix())
            known = files.get_file_from_path(target) is not None
            yield f"| {f'[{name}]({relpath(target, str(PurePosixPath(here).parent))})' if known else name} | {first} |"


def _expanded(entry: object, docs: Path) -> object:
    match entry:
        case list():
            patterns = [isinstance(each, str) and "*" in each for each in entry]
            every = [
                sorted(path.relative_to(docs).as_posix() for path in docs.glob(each)) if pattern else [each]
                for each, pattern in zip(entry, patterns, strict=True)
            ]
            return [_expanded(each, docs) for found in every for each in found]
        case dict():
            return {title: _expanded(each, docs) for title, each in entry.items()}
    return entry
