"""Build backend of the `idiolect-server` wheel, whose packages `export` and `server` live next to this folder's parent.

An sdist cannot reach above its own root, and a wheel built in place leaves a stale `build/` behind. So both are built
by setuptools from a staged copy, in which the packages stand beside `pyproject.toml`; an unpacked sdist is such a copy
already and needs only setuptools. An editable install points at the real folders."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta

__all__ = ["build_editable", "build_sdist", "build_wheel"]

PACKAGES = ("export", "server")
# What differs between the working tree and the staged copy.
REPLACEMENTS = (
    ('where = [".."]', 'where = ["."]'),
    ('package-dir = { "" = ".." }\n', ""),
    ('build-backend = "backend"\nbackend-path = ["_build"]\n', 'build-backend = "setuptools.build_meta"\n'),
)


@contextmanager
def stage_copy() -> Iterator[None]:
    """Runs its body inside a temporary copy of the project in the layout of an sdist."""
    project = Path.cwd()
    repository = project.parent
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "_build", "build", "dist")
    with tempfile.TemporaryDirectory(prefix="idiolect-server-") as name:
        stage = Path(name)
        for package in PACKAGES:
            shutil.copytree(repository / package, stage / package, ignore=left_out)
        (stage / "server" / "pyproject.toml").unlink()
        shutil.copy2(repository / "LICENSE", stage / "LICENSE")
        settings = (project / "pyproject.toml").read_text("utf-8")
        for old, new in REPLACEMENTS:
            if old not in settings:
                raise RuntimeError(f"server/pyproject.toml: expected to find {old!r}; change REPLACEMENTS along with it")
            settings = settings.replace(old, new)
        (stage / "pyproject.toml").write_text(settings, "utf-8")
        os.chdir(stage)
        try:
            yield
        finally:
            os.chdir(project)


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    target = str(Path(wheel_directory).resolve())
    with stage_copy():
        return build_meta.build_wheel(target, config_settings)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    target = str(Path(sdist_directory).resolve())
    with stage_copy():
        return build_meta.build_sdist(target, config_settings)


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
