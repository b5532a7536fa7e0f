"""What a process loads before its first partial: recognition starts without what it does not need yet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle

NOT_YET = {"asyncio", "httpx", "kenlm", "pydantic", "rich", "sounddevice", "soundfile", "soxr", "torch", "typer"}

WAYS = {
    "recognizer": "Recognizer(bundle).session(16_000)",
    "int8": "Recognizer(bundle, precision='int8').session(16_000)",
    "device": "Device.open(sys.argv[2], key=bytes(32), bundle=bundle).session(16_000)",
}
CODE = """
import sys
import numpy
from device_sdk import Bundle, Device, Recognizer
bundle = Bundle.open(sys.argv[1])
session = {way}
session.feed(numpy.full(16_000, 0.01, numpy.float32))
import json
print(json.dumps(sorted(name for name in sys.modules if "." not in name or name == "device_sdk.checkin")))"""


@pytest.mark.parametrize("way", WAYS)
def test_a_first_partial_loads_little(way: str, tiny_bundle: Bundle, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE.format(way=WAYS[way]), str(tiny_bundle.path), str(tmp_path / "state")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "onnxruntime" in loaded and not loaded & {*NOT_YET, "device_sdk.checkin"}
