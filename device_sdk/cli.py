"""`idiolect`: one program whose commands come from whatever wheels are installed, each imported only when called."""

import ast
import difflib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from device_sdk.errors import ConfigurationError, IdiolectError, MissingExtraError

COMMANDS = "idiolect.commands"
BENCHMARKS = "idiolect.benchmarks"

_OF_SERVER = "alembic export fastapi jiwer onnx prometheus_client securesystemslib server sqlalchemy tuf uvicorn"
EXTRAS = dict.fromkeys(_OF_SERVER.split(), "idiolect-server") | {
    "espeakng_loader": "idiolect-server[simulate]",
    "executorch": "idiolect[executorch]",
    "kaldi_native_fbank": "idiolect-server[bench]",
    "kenlm": "idiolect[ngram]",
    "pgserver": "idiolect-server[bench]",
    "sherpa_onnx": "idiolect-server[bench]",
    "sounddevice": "idiolect[mic]",
    "torch": "idiolect-server[train]",
}
"""Which install brings an optional module."""

SERVER_COMMANDS = {
    "backup", "corpora", "devices", "enrolment", "evaluate", "export", "import", "marginals", "models", "openapi",
    "operators", "privacy", "restore", "rounds", "serve", "simulate", "train", "tune", "updates",
}  # fmt: skip


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
    """Runs the program and returns its exit code; errors raised on purpose, and files that cannot be read or written,
    become one line on standard error. With IDIOLECT_DEBUG set, they keep their traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        return 130  # what shells report of a program that Ctrl-C ended
    except (IdiolectError, OSError) as error:  # OSError: a file that was named cannot be read or written
        if os.environ.get("IDIOLECT_DEBUG"):
            raise
        print(f"idiolect: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _dispatch(words: list[str]) -> int:
    completing = "_IDIOLECT_COMPLETE" in os.environ
    if words[:1] == ["help"] or not (words or completing):
        words = ["--help", *words[1:]]
    try:
        code = get_command(_program()).main(args=words, prog_name="idiolect")
    except SystemExit as end:
        code = end.code
    except ModuleNotFoundError as error:
        raise missing_extra(f"command {words[0]!r}", error) from error
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _program() -> typer.Typer:
    program = typer.Typer(
        cls=_Commands, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    program.callback()(_options)
    return program


class _Commands(TyperGroup):
    """Lists and completes commands by what is said of them, and loads the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(available(COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        point = available(COMMANDS).get(cmd_name)
        return None if point is None else TyperCommand(cmd_name, help=summary(point))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        try:
            return args[0], _loaded(args[0]), args[1:]
        except (IdiolectError, ModuleNotFoundError):
            if ctx.resilient_parsing:  # the shell completes: there is nothing to offer, and nowhere to say why
                return None, None, []
            raise


def _loaded(name: str) -> Any:
    """The command as typer runs it: of a typer application, or of a function with typer's annotations."""
    commands = available(COMMANDS)
    if name not in commands:
        if name in SERVER_COMMANDS:
            raise MissingExtraError(f"command {name!r} is the server's; install it with: pip install idiolect-server")
        close = difflib.get_close_matches(name, commands, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"command: found {name!r}, expected one of {', '.join(commands)}{hint}")
    command = load(commands[name])
    if isinstance(command, typer.Typer):
        return get_group(command)
    if not callable(command):
        raise ConfigurationError(f"command: found {type(command).__name__}, expected a function or a typer.Typer")
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    return get_command(alone)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"idiolect {version('idiolect')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Speech recognition that learns its user on the user's device."""


def summary(point: EntryPoint) -> str:
    """The first sentence that a command says of itself, in its function's docstring or its application's ``help``, or
    else that its module does, read without importing it."""
    path: list[str] | None = None
    for part in point.module.split("."):
        specification = PathFinder.find_spec(part, path)
        if specification is None:
            return ""
        path = list(specification.submodule_search_locations or [])
    try:
        tree = ast.parse(Path(str(specification and specification.origin)).read_text("utf-8"))
    except (OSError, SyntaxError):
        return ""
    said = (_help_of(node, point.attr) for node in tree.body)
    first = (next(filter(None, said), None) or ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    first = first.partition(". ")[0].removeprefix(f"``idiolect {point.name}``: ").replace("``", "").rstrip(".")
    return first[:1].upper() + first[1:]


def _help_of(node: ast.stmt, name: str) -> str | None:
    """What a statement says of the command of this name, where it defines it."""
    match node:
        case ast.FunctionDef(name=found) if found == name:
            return ast.get_docstring(node)
        case ast.Assign(targets=[ast.Name(id=found)], value=ast.Call(keywords=keywords)) if found == name:
            for keyword in keywords:
                if keyword.arg == "help":
                    parts = getattr(keyword.value, "values", [keyword.value])
                    return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
    return None


if __name__ == "__main__":
    sys.exit(main())
