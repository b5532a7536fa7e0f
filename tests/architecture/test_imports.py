"""What importing each part loads, seen from a fresh process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, source_files

HEAVY = {"torch", "fastapi", "sqlalchemy", "onnx", "uvicorn", "alembic", "espeakng_loader", "export", "server"}

CASES = [
    ("rescoring", HEAVY | {"onnxruntime", "device_sdk", "pydantic", "httpx", "soundfile"}),
    ("device_sdk", HEAVY | {"tuf", "securesystemslib"}),
    ("device_sdk.wire.messages", HEAVY | {"numpy", "onnxruntime", "httpx", "cryptography", "soundfile"}),
    ("device_sdk.cli", HEAVY | {"onnxruntime", "numpy", "httpx"}),
    ("server.app", {"torch", "onnx", "onnxruntime", "espeakng_loader", "sherpa_onnx", "export", "server.lab"}),
    ("server.commands.serve", {"torch", "onnxruntime", "server.lab"}),
    ("server.lab.simulation", {"torch", "onnx", "fastapi"}),
    ("server.lab.commands.simulate", {"torch", "onnx", "fastapi"}),
    ("server.lab.corpora", {"torch", "onnx", "fastapi"}),
    ("examples.liu_2020.tables", {"torch", "onnx", "onnxruntime", "fastapi", "espeakng_loader"}),
]


@pytest.mark.parametrize(("module", "never"), CASES)
def test_an_import_loads_only_what_it_needs(module: str, never: set[str]) -> None:
    loaded = set(json.loads(_python(f"import json, sys; import {module}; print(json.dumps(sorted(sys.modules)))")))
    assert not loaded & never


REFUSE = """
import importlib, sys
refused, names = {refused!r}, {names!r}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in refused:
            raise ModuleNotFoundError('refused ' + name, name=name)
sys.meta_path.insert(0, Refuse())
print(len([importlib.import_module(name) for name in names]))"""


def test_every_module_of_the_device_imports_without_the_server_side() -> None:
    paths = (path.relative_to(ROOT).with_suffix("") for path in source_files("rescoring", "device_sdk"))
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    refused = HEAVY | {"executorch", "kenlm", "sounddevice", "tuf"}
    assert int(_python(REFUSE.format(refused=refused, names=names))) == len(names)


def _python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=Path(ROOT), check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
