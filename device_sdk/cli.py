"""`idiolect`: one program whose commands come from whatever wheels are installed, each imported only when called."""

from __future__ import annotations

import ast
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from device_sdk.errors import ConfigurationError, IdiolectError, MissingExtraError

__all__ = ["BENCHMARKS", "COMMANDS", "available", "load", "main"]

COMMANDS = "idiolect.commands"
BENCHMARKS = "idiolect.benchmarks"

EXTRAS = {
    "alembic": "idiolect-server",
    "espeakng_loader": "idiolect-server[simulate]",
    "executorch": "idiolect[executorch]",
    "export": "idiolect-server",
    "fastapi": "idiolect-server",
    "jiwer": "idiolect-server",
    "kaldi_native_fbank": "idiolect-server[bench]",
    "kenlm": "idiolect[ngram]",
    "onnx": "idiolect-server[train]",
    "opendp": "idiolect-server",
    "prometheus_client": "idiolect-server",
    "securesystemslib": "idiolect-server",
    "server": "idiolect-server",
    "sherpa_onnx": "idiolect-server[bench]",
    "sounddevice": "idiolect[mic]",
    "sqlalchemy": "idiolect-server",
    "torch": "idiolect-server[train]",
    "tuf": "idiolect-server",
    "uvicorn": "idiolect-server",
}
"""Which install brings an optional module."""

SERVER_COMMANDS = (
    "evaluate",
    "export",
    "marginals",
    "models",
    "privacy",
    "rounds",
    "serve",
    "simulate",
    "train",
    "tune",
    "updates",
)


def available(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name; the first one found wins, as on the import path."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        found.setdefault(point.name, point)
    return found


def load(point: EntryPoint) -> Any:
    """Imports what an entry point names. Raises MissingExtraError when an optional module is not installed."""
    try:
        return point.load()
    except ModuleNotFoundError as error:
        raise missing_extra(f"{point.group.removeprefix('idiolect.')[:-1]} {point.name!r}", error) from error


def missing_extra(what: str, error: ModuleNotFoundError) -> IdiolectError | ModuleNotFoundError:
    """The error that names the extra, or the original one when the module belongs to none."""
    module = error.name or ""
    if module not in EXTRAS:
        return error
    return MissingExtraError(f"{what} needs the module {module!r}; install it with: pip install '{EXTRAS[module]}'")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code; errors raised on purpose, and files that cannot be read or
    written, become one line on standard error.

    With IDIOLECT_DEBUG set, they keep their traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except (IdiolectError, OSError) as error:  # OSError: a file that was named cannot be read or written
        if os.environ.get("IDIOLECT_DEBUG"):
            raise
        name = type(error).__name__
        print(f"idiolect: {name}: {error}", file=sys.stderr)
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in {"--help", "-h", "help"}:
        _print_help()
        return 0
    if words[0] == "--version":
        print(f"idiolect {_installed_version('idiolect')}")
        return 0
    name, commands = words[0], available(COMMANDS)
    if name not in commands:
        if name in SERVER_COMMANDS:
            raise MissingExtraError(
                f"command {name!r} belongs to the server; install it with: pip install idiolect-server"
            )
        close = difflib.get_close_matches(name, commands, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"command: found {name!r}, expected one of {', '.join(commands)}{hint}")
    command = load(commands[name])
    try:
        return _invoke(name, command, words[1:])
    except ModuleNotFoundError as error:
        raise missing_extra(f"command {name!r}", error) from error


def _invoke(name: str, command: Any, words: list[str]) -> int:
    """Runs a typer application, or a function with typer's annotations, and gives its exit code."""
    import typer
    from typer.main import get_command

    if isinstance(command, typer.Typer):
        application = command
    else:
        application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        application.command()(_as_function(command))
    try:
        code = get_command(application).main(args=words, prog_name=f"idiolect {name}")
    except SystemExit as end:
        code = end.code
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _as_function(command: Any) -> Callable[..., Any]:
    if not callable(command):
        raise ConfigurationError(f"command: found {type(command).__name__}, expected a function or a typer.Typer")
    return command


def _print_help() -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        "[bold]idiolect[/]: speech recognition that learns its user on the user's device\n\n"
        "Usage: idiolect COMMAND [ARGUMENTS]...   (idiolect COMMAND --help says more)\n"
    )
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, point in available(COMMANDS).items():
        table.add_row(f"[cyan]{name}[/]", _summary(point))
    console.print(table)


def _summary(point: EntryPoint) -> str:
    """The first line of the docstring of the module that holds a command, read without importing it."""
    path: list[str] | None = None
    for part in point.module.split("."):
        specification = PathFinder.find_spec(part, path)
        if specification is None:
            return ""
        path = list(specification.submodule_search_locations or [])
    try:
        tree = ast.parse(Path(str(specification.origin)).read_text("utf-8")) if specification else None
    except (OSError, SyntaxError):
        return ""
    docstring = ast.get_docstring(tree) if tree else None
    first = docstring.partition("\n\n")[0].replace("\n", " ") if docstring else ""
    first = first.partition(". ")[0].removeprefix(f"``idiolect {point.name}``: ").rstrip(".")
    return first[:1].upper() + first[1:]


def _installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
