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

compilation = runpy.run_path(str(Path("device_sdk") / "compilation.py"))
FOLDER, STAMP, SWITCH = (compilation[name] for name in ("FOLDER", "STAMP", "SWITCH"))
SEARCH, STEPS = compilation["SEARCH"], compilation["STEPS"]


def folder(package: str) -> Path:
    return Path(*package.split("."))


class Compile(build_ext):
    """Puts native modules, and the digest of what they were made of, into a folder beside their sources."""

    def run(self) -> None:
        try:
            # Late, because reading metadata makes a command of this class, too, and type checking takes a while.
            self.distribution.ext_modules = [*self.search(), self.steps()]
            self.swig_opts = None  # as before the options were finalised the first time
            self.finalize_options()
            super().run()
        except (Exception, SystemExit) as error:  # mypy exits
            print(f"the search is not compiled, and runs as Python: {type(error).__name__}: {error}")
            for what in (SEARCH, STEPS):
                for each in (self.built(what), folder(what.package) / FOLDER):
                    shutil.rmtree(each, ignore_errors=True)
            self.extensions = []

    def build_extensions(self) -> None:
        # Optional, so what an earlier build left here would pass for this one's where these do not compile.
        shutil.rmtree(self.built(STEPS), ignore_errors=True)
        super().build_extensions()
        for what in (SEARCH, STEPS):
            if self.built(what).is_dir():
                digest = compilation["digest"](folder(what.package), what)
                (self.built(what) / STAMP).write_text(digest, "ascii")

    def copy_extensions_to_source(self) -> None:
        for what in (SEARCH, STEPS):
            target = folder(what.package) / FOLDER
            shutil.rmtree(target, ignore_errors=True)
            if self.built(what).is_dir():
                shutil.copytree(self.built(what), target)

    def search(self) -> list[Extension]:
        """C of every module, and of what they share."""
        from mypyc.build import mypycify

        paths = [str(folder(SEARCH.package) / name) for name in SEARCH.sources]
        options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
        group = f"{SEARCH.package}.search"
        extensions: list[Extension] = mypycify(
            [*options, *paths], group_name=group, target_dir=self.build_temp, debug_level="0"
        )
        if self.compiler is None or "msvc" not in str(self.compiler):
            for extension in extensions:  # sums must not depend on who compiled them
                extension.extra_compile_args.append("-ffp-contract=off")
        return extensions

    def steps(self) -> Extension:
        """Steps of small networks, see device_sdk/runtimes/steps/__init__.py."""
        source, *others = (str(folder(STEPS.package) / name) for name in STEPS.sources)
        return Extension(
            f"{STEPS.package}.native",
            [source],
            depends=others,
            extra_compile_args=["-O3", "-Wno-psabi"] if os.name == "posix" else [],
            optional=True,
        )

    def built(self, what: tuple[str, tuple[str, ...]]) -> Path:
        package, _ = what
        return Path(self.build_lib) / folder(package) / FOLDER

    def get_ext_filename(self, fullname: str) -> str:
        path = Path(super().get_ext_filename(fullname))
        return str(path.parent / FOLDER / path.name)


def compiles() -> bool:
    """Whether it is worth trying."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cl"
    wanted = os.environ.get(SWITCH, "1") != "0"
    return wanted and find_spec("mypyc") is not None and shutil.which(compiler.split()[0]) is not None


setup(
    cmdclass={"build_ext": Compile},
    # Without sources: setuptools builds extensions only where it is told of one.
    ext_modules=[Extension(f"{SEARCH.package}.search", sources=[])] if compiles() else [],
)
