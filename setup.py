"""Compiles the loops of the beam search with mypyc, and the kernels of small networks; all else is in pyproject.toml.

What cannot be compiled fails, and says why. With ``IDIOLECT_COMPILED=0`` nothing is, and the wheel is for any platform:
the same modules run as the Python they are, the kernels as graphs.
"""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

compilation = runpy.run_path(str(Path("device_sdk") / "compilation.py"))
FOLDER, STAMP, SWITCH = (compilation[name] for name in ("FOLDER", "STAMP", "SWITCH"))
SEARCH, KERNELS = compilation["SEARCH"], compilation["KERNELS"]

FAILED = f"""{{error}}
idiolect's native modules are not compiled, for the reason above. They need a C compiler, the headers of this Python,
mypy and numpy. Install what is missing; or do without them, more slowly: set the environment variable {SWITCH}=0"""

TYPES = """[mypy]
follow_imports = skip
ignore_missing_imports = True
[mypy-device_sdk.*,rescoring.*,numpy.*]
follow_imports = silent
"""


def folder(package: str) -> Path:
    return Path(*package.split("."))


class Compile(build_ext):
    """Puts native modules, and the digest of what they were made of, into a folder beside their sources."""

    def run(self) -> None:
        if not self.distribution.ext_modules:
            return
        try:
            # Late, because reading metadata makes a command of this class, too, and type checking takes a while.
            self.distribution.ext_modules = [*self.search(), self.kernels()]
            self.swig_opts = None  # as before the options were finalized the first time
            self.finalize_options()
            super().run()
        except (Exception, SystemExit) as error:  # mypy exits
            for what in (SEARCH, KERNELS):
                for each in (self.built(what), folder(what.package) / FOLDER):
                    shutil.rmtree(each, ignore_errors=True)
            raise SystemExit(FAILED.format(error=f"{type(error).__name__}: {error}")) from error

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler[0] if self.compiler.compiler_type == "unix" else None
        if compiler is not None and shutil.which(compiler) is None:
            raise FileNotFoundError(f"no C compiler: {compiler} is not on the PATH")
        # Optional on Windows, so what an earlier build left here would pass for this one's where these do not compile.
        shutil.rmtree(self.built(KERNELS), ignore_errors=True)
        super().build_extensions()
        for what in (SEARCH, KERNELS):
            if self.built(what).is_dir():
                digest = compilation["digest"](folder(what.package), what)
                (self.built(what) / STAMP).write_text(digest, "ascii")

    def copy_extensions_to_source(self) -> None:
        for what in (SEARCH, KERNELS):
            target = folder(what.package) / FOLDER
            shutil.rmtree(target, ignore_errors=True)
            if self.built(what).is_dir():
                shutil.copytree(self.built(what), target)

    def search(self) -> list[Extension]:
        """C of every module, and of what they share."""
        from mypyc.build import mypycify

        # No package's types but numpy's are read, so that what else is installed makes no difference.
        types = Path(self.build_temp) / "types.ini"
        types.parent.mkdir(parents=True, exist_ok=True)
        types.write_text(TYPES, "ascii")
        paths = [str(folder(SEARCH.package) / name) for name in SEARCH.sources]
        extensions: list[Extension] = mypycify(
            [f"--config-file={types}", *paths],
            group_name=f"{SEARCH.package}.search",
            target_dir=self.build_temp,
            debug_level="0",
        )
        if self.compiler is None or "msvc" not in str(self.compiler):
            for extension in extensions:  # sums must not depend on who compiled them
                extension.extra_compile_args.append("-ffp-contract=off")
        return extensions

    def kernels(self) -> Extension:
        """Kernels of small networks, see device_sdk/runtimes/native_kernels/__init__.py."""
        source, *others = (str(folder(KERNELS.package) / name) for name in KERNELS.sources)
        return Extension(
            f"{KERNELS.package}.native",
            [source],
            depends=others,
            extra_compile_args=["-O3", "-Wno-psabi"] if os.name == "posix" else [],
            optional=os.name != "posix",
        )

    def built(self, what: tuple[str, tuple[str, ...]]) -> Path:
        package, _ = what
        return Path(self.build_lib) / folder(package) / FOLDER

    def get_ext_filename(self, fullname: str) -> str:
        path = Path(super().get_ext_filename(fullname))
        return str(path.parent / FOLDER / path.name)


setup(
    cmdclass={"build_ext": Compile},
    # Without sources: setuptools builds extensions only where it is told of one.
    ext_modules=[] if os.environ.get(SWITCH) == "0" else [Extension(f"{SEARCH.package}.search", sources=[])],
)
