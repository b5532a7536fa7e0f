"""What a user gets: a wheel built from a clean checkout by tools of its own, and used in an empty environment."""

import os
import shutil
import subprocess
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_sdk.compilation import FOLDER, KERNELS, SEARCH, STAMP, SWITCH
from tests.architecture.sources import ROOT, copy_checkout
from tests.pages import WITH_A_SERVER, blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
ALONE = [lines for lines in blocks("python") if WITH_A_SERVER not in lines]
"""The lines of a client are tried where its server runs."""
OURS = (SWITCH, "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Place:
    """An environment of its own, and a folder outside of the checkout to work in."""

    environment: Path
    app: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def run(self, *command: str | Path) -> str:
        """What a command prints; the tests' own environment is not seen."""
        path = f"{self.environment / 'bin'}:{os.environ['PATH']}"
        outside = {name: value for name, value in os.environ.items() if name not in OURS}
        own = outside | {"PATH": path, "HOME": str(self.app), "XDG_CONFIG_HOME": ""}
        done = subprocess.run(command, cwd=self.app, env=own, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    (folder / "app").mkdir()
    venv.create(folder / "environment", with_pip=True)
    return Place(folder / "environment", folder / "app")


@pytest.fixture(scope="module")
def wheel(checkout: Path, place: Place) -> Path:
    """The device's wheel, made from the source archive of the checkout."""
    place.run(place.python, "-m", "pip", "install", "-q", "build")
    place.run(place.python, "-m", "build", "--outdir", place.app / "dist", checkout)
    return next((place.app / "dist").glob("idiolect-*.whl"))


def test_a_wheel_from_a_clean_checkout_holds_the_compiled_modules(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for what in (SEARCH, KERNELS):
        folder = f"{what.package.replace('.', '/')}/{FOLDER}"
        assert f"{folder}/{STAMP}" in held
        modules = {name.removeprefix(f"{folder}/").partition(".")[0] for name in held if name.startswith(folder)}
        assert modules >= {Path(source).stem for source in what.sources if not source.endswith(".h")}
    assert not wheel.name.endswith("-none-any.whl")


LOADS = f"""
from importlib import import_module
from pathlib import Path
from device_sdk.runtimes import native_kernels
assert native_kernels.native_module() is not None
for name in {SEARCH.sources!r}:
    module = import_module("{SEARCH.package}." + name.removesuffix(".py"))
    assert not module.__file__.endswith(".py"), module.__file__
    print(module.__file__)"""


@pytest.fixture(scope="module")
def installed(wheel: Path, place: Place) -> Place:
    place.run(place.python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
    return place


def test_they_load_where_the_wheel_is_installed(installed: Place) -> None:
    files = installed.run(installed.python, "-c", LOADS).splitlines()
    assert len(files) == len(SEARCH.sources)
    assert all(Path(file).is_relative_to(installed.environment) for file in files)


@pytest.mark.parametrize("lines", ALONE)
def test_the_pages_lines_of_python_run_there(installed: Place, lines: str) -> None:
    installed.run(installed.python, "-c", lines)
