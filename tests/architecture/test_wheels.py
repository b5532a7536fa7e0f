"""Both wheels, built from a copy of the sources and used from another folder."""

import os
import socket
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from device_sdk.compilation import SWITCH
from tests.architecture.sources import ROOT, copy_checkout
from tests.pages import block, blocks

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")
LARGEST = 16 * 1024 * 1024


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    own = {**os.environ, **environment}
    result = subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> wheel, and "sdist" -> the server's source archive."""
    copy, out = copy_checkout(tmp_path_factory.mktemp("sources")), tmp_path_factory.mktemp("wheels")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out)
    run(*pip, ".", cwd=copy, **{SWITCH: "0"})
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, "server", cwd=copy)
    return {
        "idiolect": next(out.glob("idiolect-*.whl")),
        "idiolect-server": next(out.glob("idiolect_server-*.whl")),
        "sdist": next(out.glob("idiolect_server-*.tar.gz")),
    }


@pytest.mark.parametrize(
    ("name", "packages"),
    [("idiolect", {"device_sdk", "idiolect.py", "rescoring"}), ("idiolect-server", {"export", "server"})],
)
def test_a_wheel_holds_its_packages_and_nothing_else(wheels: dict[str, Path], name: str, packages: set[str]) -> None:
    assert wheels[name].stat().st_size <= LARGEST and wheels[name].name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheels[name]) as archive:
        files = archive.namelist()
    tops = {file.partition("/")[0] for file in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages
    assert all(f"{package}/py.typed" in files for package in packages - {"idiolect.py"})
    held = {file for file in files if file.endswith(".py")}
    tree = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in ([ROOT / package] if package.endswith(".py") else (ROOT / package).rglob("*.py"))
        if "_build" not in path.parts
    }
    assert held == tree


def test_the_default_bundle_and_a_clip_to_try_are_in_the_device_wheel(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["idiolect"]) as archive:
        assert 1_000 < archive.getinfo("device_sdk/audio/sample.ogg").file_size < 40_000
        held = {Path(file).name for file in archive.namelist() if file.startswith("device_sdk/bundle/default/")}
    assert held == {path.name for path in (ROOT / "device_sdk" / "bundle" / "default").glob("*") if path.is_file()}


def test_the_servers_source_archive_is_whole(wheels: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(wheels["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", ".", ".", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as again, zipfile.ZipFile(wheels["idiolect-server"]) as first:
        assert sorted(again.namelist()) == sorted(first.namelist())


USE = """
import sys
import device_sdk
from pathlib import Path
assert Path(device_sdk.__file__).is_relative_to(sys.argv[1]), device_sdk.__file__
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "fastapi", "server"}, loaded
import server
print(server.OWNER)"""


def test_an_app_with_its_own_server_module_keeps_it(wheels: dict[str, Path], tmp_path: Path) -> None:
    target, app = tmp_path / "site", tmp_path / "app"
    app.mkdir()
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheels["idiolect"], cwd=tmp_path)
    (app / "server.py").write_text('OWNER = "the app"\n', "utf-8")
    (app / "use.py").write_text(USE, "utf-8")
    assert run(sys.executable, "use.py", target, cwd=app, PYTHONPATH=str(target)).strip() == "the app"
    listed = run(sys.executable, "-m", "device_sdk.cli", "--help", cwd=tmp_path, PYTHONPATH=str(target))
    assert "bench" in listed and "transcribe" in listed


@pytest.mark.slow
def test_wheels_run_in_an_empty_environment(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment, app = tmp_path / "environment", tmp_path / "app"
    app.mkdir()
    venv.create(environment, with_pip=True)
    python, program = environment / "bin" / "python", environment / "bin" / "idiolect"
    pip = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
    run(*pip, wheels["idiolect"], cwd=app)
    code = "import device_sdk, importlib.util as u, sys; assert not u.find_spec('server') and not u.find_spec('torch')"
    run(python, "-c", code, cwd=app)
    assert "transcribe" in run(program, "--help", cwd=app)
    missing = subprocess.run([program, "serve"], cwd=app, capture_output=True, text=True, timeout=60, check=False)
    assert missing.returncode == 1 and "pip install idiolect-server" in missing.stderr
    if (ROOT / "device_sdk" / "bundle" / "default").is_dir():
        assert "usage" in run(python, ROOT / "examples" / "assistant.py", "--help", cwd=app)
        assert run(program, "bundle", "verify", cwd=app)
        assert "large mocha" in run(program, "transcribe", "--sample", cwd=app, COLUMNS="120")
        (lines,) = blocks("python", "README.md")
        assert "LearningReport" in run(python, "-c", lines, cwd=app)
    (app / "server.py").write_text("raise RuntimeError('the app has its own')\n", "utf-8")
    run(python, "-c", "import device_sdk", cwd=app)
    run(*pip, wheels["idiolect-server"], cwd=app)
    code = "import sys; sys.path.pop(0); import server.app; assert not {'torch', 'server.lab'} & sys.modules.keys()"
    run(python, "-c", code, cwd=app)
    assert "simulate" in run(program, "--help", cwd=app) and "epsilon of a user" in _served(environment, tmp_path)
    assert "encoder.onnx" in run(program, "export", "sherpa", "default", "sherpa", cwd=app)


def _served(environment: Path, folder: Path) -> str:
    """What the ten lines about a server print, which runs at a port of its own."""
    lines = block("sh", "idiolect serve --ready-file")
    assert lines.count("\n") == 10
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = "set -e; trap 'kill %1' EXIT\n" + lines.replace("8470", port).replace("serve ", f"serve --port {port} ", 1)
    home, place = folder / "home", folder / "server"
    place.mkdir()
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    server = f"http://127.0.0.1:{port}"
    return run("bash", "-c", script, cwd=place, HOME=str(home), XDG_CONFIG_HOME="", PATH=path, IDIOLECT_SERVER=server)
