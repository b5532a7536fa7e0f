"""Commands as pages show them, and whether the programs that they call take them."""

import re
import shlex
import tomllib
from collections.abc import Iterator

import typer

from device_sdk.cli import _loaded
from device_sdk.errors import IdiolectError
from tests.architecture.sources import ROOT

KEYWORDS = {"do", "done", "until", "while"}
OTHERS = {"[", "base64", "export", "head", "sleep"}
"""What else pages may call."""
_PROJECTS = {"idiolect": "pyproject.toml", "idiolect-server": "server/pyproject.toml"}
_UsageError = typer.BadParameter.__base__ or Exception


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a script, those in ``$(...)`` too, without variables that are set before it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("();<>|&"):
                if found:
                    yield found
                found = []
            elif found or not (word in KEYWORDS or re.match(r"^\w+=", word)):
                found.append(word)


def misuse(words: list[str]) -> str | None:
    """What is wrong with a command; None where its program takes it."""
    match words:
        case ["idiolect", *given]:
            return _refused(given)
        case ["pip", "install", *requirements]:
            return next(filter(None, map(_not_installed, requirements)), None)
        case ["make", *targets]:
            known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
            return next((f"make: no target {each}" for each in targets if each not in known), None)
        case ["python", "-m", module, *_]:
            found = any((ROOT / f"{module.replace('.', '/')}{end}").is_file() for end in (".py", "/__main__.py"))
            return None if found else f"python: no module {module}"
    return None if words[0] in OTHERS else f"{words[0]}: a program that is not known here"


def _refused(words: list[str]) -> str | None:
    """By the program's own parser: a command, an option, an argument or a value that it does not have."""
    name, *rest = words
    try:
        command = _loaded(name)
        context = command.make_context(name, [], resilient_parsing=True)
        while hasattr(command, "list_commands"):
            name, *rest = rest
            command = command.get_command(context, name)
            if command is None:
                return f"no command {name}"
            context = command.make_context(name, [], resilient_parsing=True)
        context.resilient_parsing = False  # which lets everything pass
        given, left, _ = command.make_parser(context).parse_args(list(rest))
        for each in command.params:
            found = given.get(each.name)
            if each.required and found is None and not each.envvar:
                return f"{name}: {each.name} is missing"
            if isinstance(found, str) and "Path" not in str(each.type_descriptor.annotation):  # files may be any
                each.process_value(context, found)
    except (IdiolectError, _UsageError, ValueError) as error:
        return f"{name}: {error or getattr(error, 'message', '')}"
    return f"{name}: {left} is too much" if left else None


def _not_installed(requirement: str) -> str | None:
    name, _, extras = requirement.rstrip("]").partition("[")
    if name not in _PROJECTS:
        pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
        return None if name in pinned else f"pip: {name} is not among the constraints"
    project = tomllib.loads((ROOT / _PROJECTS[name]).read_text("utf-8"))["project"]
    missing = set(filter(None, extras.split(","))) - project["optional-dependencies"].keys()
    return f"pip: {name} has no extra {', '.join(sorted(missing))}" if missing else None
