from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from device_sdk.errors import ConfigurationError, DataError
from server.lab.commands.train import app

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")


def test_a_run_of_20_steps_on_made_and_real_speech(tmp_path: Path) -> None:
    recordings = tmp_path / "digits" / "recordings"
    recordings.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for digit in range(6):
        for speaker in ("jackson", "george", "lucas"):
            soundfile.write(recordings / f"{digit}_{speaker}_0.wav", noise.normal(0, 0.1, 2400), 8_000)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(["open the pod bay doors", "i am sorry dave", "sing me a song about daisies"] * 3))
    out = tmp_path / "run"
    arguments = ["rnnt", "--preset", "tiny", "--steps", "20", "--shard", "16", "--threads", "1", "--json"]
    inputs = ["--out", str(out), "--text", str(text), "--data", f"fsdd:{tmp_path / 'digits'}"]
    result = CliRunner().invoke(app, [*arguments, *inputs], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["steps"] == 20
    assert {"made.development", "made.devices", "fsdd.devices", "fsdd.heldout"} == set(record["wer"])
    described = json.loads((out / "training.json").read_text())
    assert described["voices"]["fsdd"] == {
        "base": ["jackson"], "development": [], "devices": ["george"], "heldout": ["lucas"]
    }  # fmt: skip
    words = (out / "words.txt").read_text().splitlines()
    assert words[0] == "<unk>"
    assert "latte" in words
    assert words[1:] == sorted(set(words[1:]))
    assert (out / "tokenizer.model").exists()
    assert (out / "weights.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--steps", "1", "--minutes", "1"], ConfigurationError, "exclude each other"),
        (["--steps", "1", "--data", "tapes:/nowhere"], DataError, "expected KIND:PATH"),
        (["--steps", "1", "--text", "/nowhere.txt"], DataError, "no such text file"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, arguments: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CliRunner().invoke(app, ["rnnt", "--out", str(tmp_path), *arguments], catch_exceptions=False)


def test_the_command_loads_without_torch() -> None:
    code = "import sys, server.lab.commands.train; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
