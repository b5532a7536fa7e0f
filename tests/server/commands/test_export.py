"""`idiolect export bundle`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import ConfigurationError
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from server.commands.export import app
from tests.architecture.sources import ROOT

RUN = CliRunner()
NEEDED = ("weights.safetensors", "tokenizer.model", "words.txt")


@pytest.fixture
def run(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    """A training run's folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in NEEDED:
        (folder / name).write_bytes(tiny_bundle.file(name).read_bytes())
    return folder


def test_a_run_becomes_a_bundle(run: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    out, report = tmp_path / "out.zip", tmp_path / "report.json"
    card, licence = tmp_path / "card.json", tmp_path / "LICENCE.txt"
    card.write_text('{"description": "from a test"}')
    licence.write_text("my terms")
    given = ["--version", "4", "--card", str(card), "--licence", str(licence), "--json", "--output", str(report)]
    done = RUN.invoke(app, ["bundle", str(run), str(out), *given, "--add", str(tiny_bundle.path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(report.read_text())
    bundle = Bundle.open(out)
    assert bundle.version == "4" and bundle.packed == tiny_bundle.packed
    assert bundle.file("LICENSE").read_text() == "my terms"
    assert "from a test" in bundle.file("MODEL_CARD.md").read_text()
    assert bundle.has("language_model.onnx")  # found in the added folder


def test_one_line_for_people(run: Path, tmp_path: Path) -> None:
    done = RUN.invoke(app, ["bundle", str(run), str(tmp_path / "out")])
    assert done.exit_code == 0 and "43,360 parameters" in done.stdout
    assert "Apache-2.0" in Bundle.open(tmp_path / "out").file("LICENSE").read_text()


def test_a_mean_of_two(run: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    given = ["mean", str(tiny_bundle.path), str(tmp_path / "out"), "--version", "2", "--add"]
    done = RUN.invoke(app, [*given, f"{run}:0.5", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["version"] == "2"
    for name, value in Bundle.open(tmp_path / "out").weights.items():  # of twice the same, in half precision
        np.testing.assert_allclose(value, tiny_bundle.weights[name], rtol=1e-3, atol=1e-6)
    wrong = RUN.invoke(app, [*given, str(run)])
    assert isinstance(wrong.exception, ConfigurationError) and "expected PATH:SHARE" in str(wrong.exception)


@pytest.mark.parametrize("again", ["{run}", "{run}/../run"])
def test_a_part_given_twice_is_refused(again: str, run: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    given = ["mean", str(tiny_bundle.path), str(tmp_path / "out"), "--version", "2"]
    named = again.format(run=run)
    done = RUN.invoke(app, [*given, "--add", f"{run}:0.25", "--add", f"{named}:0.5"])
    assert isinstance(done.exception, ConfigurationError)
    assert f"--add: found {named!r} twice, expected it once" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_the_default_bundle_as_a_part(tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = tmp_path / "default"
    shutil.copytree(tiny_bundle.path, packaged)
    monkeypatch.setattr("device_sdk.bundle.bundle.DEFAULT_BUNDLE", packaged)
    given = ["mean", "default", str(tmp_path / "out"), "--version", "2", "--add", "default:0.25"]
    done = RUN.invoke(app, given)
    assert done.exit_code == 0, done.exception
    parts = Bundle.open(tmp_path / "out").manifest.training["mean"]
    assert parts == {f"tiny {tiny_bundle.version}": 0.75, "default": 0.25}
    twice = RUN.invoke(app, [*given, "--add", "default:0.5"])
    assert isinstance(twice.exception, ConfigurationError) and "'default' twice" in str(twice.exception)


def test_a_wider_bundle_hears_as_before(tmp_path: Path, tiny_bundle: Bundle) -> None:
    given = ["wider", str(tiny_bundle.path), str(tmp_path / "out"), "--version", "2", "--cells"]
    done = RUN.invoke(app, [*given, "40", "--json"])
    assert done.exit_code == 0, done.exception
    wide = Bundle.open(tmp_path / "out")
    assert isinstance(wide.architecture, Architecture) and wide.architecture.encoder_size == 40
    assert wide.manifest.files["weights.safetensors"].size < 3 * wide.architecture.parameter_count()
    assert wide.second_moments is None and wide.manifest.training["widened"] == f"tiny {tiny_bundle.version}"
    features = np.random.default_rng(0).normal(-8, 3, (60, 64)).astype(np.float32)
    (before, _), (after, _) = (OnnxTransducer(bundle).encode(features) for bundle in (tiny_bundle, wide))
    np.testing.assert_allclose(after, before, atol=2e-3)  # half precision
    narrower = RUN.invoke(app, [*given, "32"])
    assert isinstance(narrower.exception, ConfigurationError) and "more than the 32 of" in str(narrower.exception)


@pytest.mark.parametrize("version", [None, "5"])
def test_an_older_bundle_gets_the_graphs_of_now(version: str | None, tiny_bundle: Bundle, tmp_path: Path) -> None:
    older = shutil.copytree(tiny_bundle.path, tmp_path / "older")
    manifest = json.loads((older / "manifest.json").read_text())
    for name in [name for name in manifest["files"] if "int8" in name]:
        (older / name).unlink()
        del manifest["files"][name]
    (older / "manifest.json").write_text(json.dumps(manifest))
    assert not Bundle.open(older).has("encoder.int8.onnx")
    given = ["--version", version] if version else []
    done = RUN.invoke(app, ["refresh", str(older), str(older), *given, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["version"] == (version or tiny_bundle.version)
    refreshed = Bundle.open(older)
    changed = {name for name, entry in refreshed.manifest.files.items() if tiny_bundle.manifest.files[name] != entry}
    assert changed == ({"MODEL_CARD.md"} if version else set())
    assert refreshed.manifest.files.keys() == tiny_bundle.manifest.files.keys()
    assert (refreshed.manifest.created == tiny_bundle.manifest.created) is (version is None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--add", "nowhere"], "nowhere: no such folder"),
        (["--card", "nowhere.json"], "nowhere.json: not a readable JSON card"),
        (["--licence", "nowhere.txt"], "nowhere.txt: cannot be read"),
    ],
)
def test_wrong_arguments_are_refused_by_name(run: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = RUN.invoke(app, ["bundle", str(run), str(tmp_path / "out"), *arguments])
    assert done.exit_code == 1 and message in str(done.exception) and not (tmp_path / "out").exists()


PLAIN = r"""
import re, sys, tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))["project"]
names = lambda wanted: {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in wanted}
absent = names(sum(project["optional-dependencies"].values(), [])) - names(project["dependencies"])
assert "torch" in absent

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from device_sdk.cli import main
sys.exit(main(sys.argv[2:]))"""
"""Runs a command as a plain install of the server would, without the modules of its extras."""


@pytest.mark.parametrize("command", ["bundle", "refresh", "sherpa"])
def test_the_plain_install_exports(command: str, run: Path, tiny_bundle: Bundle, tmp_path: Path) -> None:
    source = run if command == "bundle" else tiny_bundle.path
    words = [ROOT / "server" / "pyproject.toml", "export", command, source, tmp_path / "out"]
    done = subprocess.run([sys.executable, "-c", PLAIN, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_bundle_for_sherpa(tiny_bundle: Bundle, tmp_path: Path) -> None:
    given = ["sherpa", str(tiny_bundle.path), str(tmp_path / "out")]
    done = RUN.invoke(app, [*given, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {"encoder.onnx", "encoder-offline.onnx", "tokens.txt", "README.md"} <= set(found["files"])
    assert found["version"] == tiny_bundle.version
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    done = RUN.invoke(app, given)
    assert done.exit_code == 0 and "tokens.txt" in done.stdout and "MB, version" in done.stdout


@pytest.mark.parametrize("command", ["sherpa", "executorch"])
def test_what_is_no_bundle_is_refused_by_name(command: str, tmp_path: Path) -> None:
    done = RUN.invoke(app, [command, str(tmp_path / "none"), str(tmp_path / "out")])
    assert done.exit_code == 1 and "none: no such bundle" in str(done.exception) and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_bundle_for_executorch(tiny_bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    program = Path(sys.executable).parent / "idiolect"
    command = [program, "export", "executorch", tiny_bundle.path, tmp_path / "out", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["files"]) == {"encoder.pte", "predictor.pte", "joiner.pte", "executorch.json"}
    assert "Warning" not in done.stderr and "Failed" not in done.stderr
