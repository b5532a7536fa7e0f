"""Fills the page of every option from the commands themselves."""

from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from device_sdk.cli import COMMANDS, _loaded, available

PAGE = "reference/options.md"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri != PAGE:
        return markdown
    return "\n\n".join([markdown, *(line for name in available(COMMANDS) for line in described(_loaded(name), name))])


def described(command: Any, *path: str) -> Iterator[str]:
    """A heading, what is said of it, a table of what it takes, then those below it."""
    context = command.make_context("idiolect", [], resilient_parsing=True)
    yield f"{'#' * (1 + len(path))} idiolect {' '.join(path)}"
    yield _text(command.help)
    rows = [
        _row(each, context) for each in command.params if not getattr(each, "hidden", False) and each.name != "help"
    ]
    if rows:
        yield "\n".join(["| takes | | default |", "|---|---|---|", *rows])
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from described(command.get_command(context, name), *path, name)


def _row(parameter: Any, context: Any) -> str:
    name, said = parameter.get_help_record(context) or (parameter.human_readable_name, getattr(parameter, "help", ""))
    default = parameter.get_default(context)
    shown = "" if default is None or callable(default) or default in ((), [], False) else f"`{default}`"
    about = _text(getattr(parameter, "help", None) or said).replace("<", "&lt;")
    return f"| `{_cell(name)}` | {_cell(about)} | {shown} |"


def _text(said: str | None) -> str:
    return " ".join((said or "").replace("``", "`").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
