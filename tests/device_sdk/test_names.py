"""What an app's developer types first is there, or says what to type instead."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import device_sdk
from device_sdk import SAMPLE_AUDIO, SlotLexicon, read_audio, read_slots
from tests.architecture.sources import ROOT


def test_the_module_knows_its_version() -> None:
    assert device_sdk.__version__ == version("idiolect") and "__version__" in dir(device_sdk)


def test_importing_the_package_by_its_name_says_what_to_import(tmp_path: Path) -> None:
    command, environment = [sys.executable, "-c", "import idiolect"], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ImportError: the package idiolect is imported as device_sdk: from device_sdk import Device" in done.stderr


def test_audio_and_slots_are_read_from_the_top() -> None:
    assert read_audio(SAMPLE_AUDIO).dtype == np.float32
    assert read_slots("a small mocha", SlotLexicon({"drink": ("mocha",)})) == (("drink", "mocha"),)
    assert {"read_audio", "read_slots"} <= set(device_sdk.__all__)
