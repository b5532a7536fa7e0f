"""`idiolect bundle verify | show`."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_sdk import Bundle, BundleError
from device_sdk.commands.bundle import app, try_out
from device_sdk.runtimes.onnxruntime import OnnxTransducer

RUN = CliRunner()


def test_verify_says_what_was_checked(tiny_bundle: Bundle, tmp_path: Path) -> None:
    done = RUN.invoke(app, ["verify", str(tiny_bundle.path)])
    assert done.exit_code == 0 and "fit for use" in done.stdout
    for subset, count in {"whole": 12, "acoustic": 5, "top": 12, "joint": 5, "adapters": 14}.items():
        assert f"training graph, {subset}: {count} gradients, finite" in done.stdout
    out = tmp_path / "report.json"
    done = RUN.invoke(app, ["verify", str(tiny_bundle.path), "--json", "--output", str(out)])
    report = json.loads(done.stdout)
    assert report == json.loads(out.read_text())
    assert report["ok"] and report["version"] == tiny_bundle.version and report["error"] is None


def test_verify_of_a_damaged_bundle(tiny_bundle: Bundle, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bundle.path, tmp_path / "copy")
    (folder / "words.txt").write_text("<unk>\n")
    done = RUN.invoke(app, ["verify", str(folder), "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 1 and not report["ok"] and "words.txt: 6 bytes" in report["error"]
    done = RUN.invoke(app, ["verify", str(folder)])
    assert done.exit_code == 1 and isinstance(done.exception, BundleError)


def test_show(tiny_bundle: Bundle) -> None:
    done = RUN.invoke(app, ["show", str(tiny_bundle.path)])
    assert done.exit_code == 0
    assert "tiny-0" in done.stdout and "43,360" in done.stdout and "random weights for tests" in done.stdout
    report = json.loads(RUN.invoke(app, ["show", str(tiny_bundle.path), "--json"]).stdout)
    assert report["parameters"] == tiny_bundle.architecture.parameter_count()
    assert report["words"] == len(tiny_bundle.words) and report["files"]["words.txt"] > 0


def test_graphs_that_give_nonsense_are_found(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    join = OnnxTransducer.join
    monkeypatch.setattr(OnnxTransducer, "join", lambda *given: join(*given) + 1.0)
    with pytest.raises(BundleError, match=r"the joiner gives probabilities that do not sum to 1"):
        try_out(tiny_bundle)
