"""Compiles the loops of the beam search with mypyc, and the steps of small networks; all else is in pyproject.toml.

Without a C compiler or mypy, or with ``IDIOLECT_COMPILED=0``, the same modules run as the Python they are, the steps as
graphs.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = "device_sdk.decoding"
SOURCES = Path(*PACKAGE.split("."))
compilation = runpy.run_path(str(SOURCES / "compilation.py"))
FOLDER, GROUP, MODULES, STAMP, SWITCH = (
    compilation[name] for name in ("FOLDER", "GROUP", "MODULES", "STAMP", "SWITCH")
)
STEPS = "device_sdk.runtimes.steps"
STEPS_SOURCES = Path(*STEPS.split("."))
steps = runpy.run_path(str(STEPS_SOURCES / "sources.py"))


class CompileSearch(build_ext):
    """Puts native modules, and the digest of what they were made of, into a folder beside their sources."""

    def run(self) -> None:
        try:
            # Late, because reading metadata makes a command of this class, too, and type checking takes a while.
            self.distribution.ext_modules = self.generated()
            self.swig_opts = None  # as before the options were finalised the first time
            self.finalize_options()
            super().run()
        except (Exception, SystemExit) as error:  # mypy exits
            print(f"the search is not compiled, and runs as Python: {type(error).__name__}: {error}")
            for sources in (SOURCES, STEPS_SOURCES):
                for folder in (self.built(sources), sources / FOLDER):
                    shutil.rmtree(folder, ignore_errors=True)
            self.extensions = []

    def build_extensions(self) -> None:
        super().build_extensions()
        (self.built(SOURCES) / STAMP).write_text(compilation["digest"](SOURCES), "ascii")

    def copy_extensions_to_source(self) -> None:
        for sources in (SOURCES, STEPS_SOURCES):
            shutil.rmtree(sources / FOLDER, ignore_errors=True)
            if self.built(sources).is_dir():  # the steps are optional
                shutil.copytree(self.built(sources), sources / FOLDER)

    def generated(self) -> list[Extension]:
        """C of every module, and of what they share."""
        from mypyc.build import mypycify

        paths = [str(SOURCES / f"{name}.py") for name in MODULES]
        options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
        extensions = mypycify(
            [*options, *paths], group_name=f"{PACKAGE}.{GROUP}", target_dir=self.build_temp, debug_level="0"
        )
        if self.compiler is None or "msvc" not in str(self.compiler):
            for extension in extensions:  # sums must not depend on who compiled them
                extension.extra_compile_args.append("-ffp-contract=off")
        return [*extensions, self.steps()]

    def steps(self) -> Extension:
        """Steps of small networks, see device_sdk/runtimes/steps/__init__.py."""
        return Extension(
            f"{STEPS}.native",
            [str(STEPS_SOURCES / "native.c")],
            depends=[str(STEPS_SOURCES / name) for name in steps["SOURCES"]],
            define_macros=[("SOURCES", f'"{steps["digest"](STEPS_SOURCES)}"')],
            extra_compile_args=["-O3", "-Wno-psabi"] if os.name == "posix" else [],
            optional=True,
        )

    def built(self, sources: Path) -> Path:
        return Path(self.build_lib) / sources / FOLDER

    def get_ext_filename(self, fullname: str) -> str:
        path = Path(super().get_ext_filename(fullname))
        return str(path.parent / FOLDER / path.name)


def compiles() -> bool:
    """Whether it is worth trying."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cl"
    wanted = os.environ.get(SWITCH, "1") != "0"
    return wanted and find_spec("mypyc") is not None and shutil.which(compiler.split()[0]) is not None


setup(
    cmdclass={"build_ext": CompileSearch},
    # Without sources: setuptools builds extensions only where it is told of one.
    ext_modules=[Extension(f"{PACKAGE}.{GROUP}", sources=[])] if compiles() else [],
)
