"""Scripts of the experiments, run as from a command line, in this process."""

from importlib import import_module

import typer
from click.testing import Result
from typer.testing import CliRunner

__all__ = ["run_script"]


def run_script(name: str, *arguments: object) -> Result:
    """``python -m examples.NAME ARGUMENTS``; what it wrote, its exit code and what it raised."""
    module = import_module(f"examples.{name}" if "." in name else f"examples.{name}.__main__")
    app = typer.Typer()
    app.command()(module.main)
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "220"})
