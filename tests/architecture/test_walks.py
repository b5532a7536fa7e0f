"""docs/architecture.md walks through the code file by file; the same walks, run, pass those files and no others."""

import json
import os
import re
import subprocess
import sys

import pytest

from device_sdk.compilation import SWITCH
from tests.architecture.sources import ROOT

MOST = 28
HEADINGS = {
    "audio": "### From a chunk of audio to the n-best list",
    "report": "### From a report to the server's books",
    "release": "### From a round's end to published weights",
}
STEP = re.compile(r"^\d+\. \[`([^`]+)`\]", re.MULTILINE)


@pytest.fixture(scope="module")
def walks() -> dict[str, tuple[list[str], list[list[str]]]]:
    """Name -> (files passed, calls back). As plain Python, since a trace does not see into compiled modules."""
    command = [sys.executable, "-m", "tests.architecture.walks"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, SWITCH: "0"}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", HEADINGS)
def test_a_walk_is_what_the_page_says(name: str, walks: dict[str, tuple[list[str], list[list[str]]]]) -> None:
    files, back = walks[name]
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition(HEADINGS[name])[2].partition("\n#")[0]
    told = STEP.findall(section)
    assert len(told) == len(set(told))
    assert sorted(told) == sorted(files), {"not told": set(files) - set(told), "not passed": set(told) - set(files)}
    assert len(files) <= MOST, f"{len(files)} files"
    assert not back, "a file calls back into its caller's"
