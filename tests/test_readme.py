"""The README's own code, run as it stands there, on a made command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from tests.architecture.sources import ROOT


def _packaged() -> bool:
    try:
        Bundle.open()
    except BundleError:
        return False
    return True


@pytest.mark.skipif(not _packaged(), reason="no default bundle in this tree")
@pytest.mark.parametrize(
    ("example", "printed"), [(0, ("set", "LearningReport")), (1, ("0.0 s: set",)), (2, ()), (3, (".",))]
)
def test_the_lines_that_embed_the_sdk(tmp_path: Path, example: int, printed: tuple[str, ...]) -> None:
    import soundfile

    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(code) == 4
    spoken, rate = soundfile.read(ROOT / "export/benchmarks/speech/set-the-volume-up.ogg", dtype="float32")
    soundfile.write(tmp_path / "order.flac", spoken, rate)
    done = subprocess.run(
        [sys.executable, "-c", code[example]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in printed), done.stdout


def test_every_link_leads_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8")):
            assert (ROOT / target).exists(), f"{page}: {target} does not exist"
