"""Secrets that were given as options, taken out of the command line: every user of a machine may list its processes."""

import os
import re
import sys
from collections.abc import Mapping, Sequence

_PASSWORD = re.compile(r"://[^@]*:[^@]+@|[?&][a-z]*password=", re.IGNORECASE)


def holds_password(database: str) -> bool:
    """Whether a database's URL brings a password along."""
    return _PASSWORD.search(database) is not None


def keep_from_process_list(secrets: Mapping[str, tuple[str, str | None]]) -> None:
    """Start this program anew, as the same process, with these options in its environment instead of its command line;
    its own children then inherit neither. Does nothing where none was given as an option. secrets: option ->
    (environment variable that the option is read from too, value; None where there is none)."""
    kept = without(sys.orig_argv[1:], {option: value for option, (_, value) in secrets.items() if value})
    if kept == sys.orig_argv[1:] or sys.platform == "win32":  # there a program cannot be replaced
        return
    environment = dict(os.environ) | {variable: value for variable, value in secrets.values() if value}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *kept], environment)


def without(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """A command line without these options, as ``--option value`` or ``--option=value``."""
    kept: list[str] = []
    for word in words:
        option, joined, value = word.partition("=")
        if joined and values.get(option) == value:
            continue
        if kept and values.get(kept[-1]) == word:
            kept.pop()
            continue
        kept.append(word)
    return kept
