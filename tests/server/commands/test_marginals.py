"""``idiolect marginals``: what is pulled, changed, pushed and compared."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import CheckInError, DataError
from server.commands import marginals
from server.commands.marginals import moved
from tests.server.conftest import Run
from tests.server.parties import initial


def pull(run: Run, folder: Path, **changes: Any) -> Path:
    """The background as it is pulled, with changes."""
    file = folder / "pulled.json"
    run(marginals.app, "pull", str(file), "0")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


@pytest.fixture
def lifted(run: Run, tmp_path: Path) -> tuple[int, np.ndarray[Any, Any]]:
    """A version with word 3 five times as likely as the background has it, pushed and current."""
    probabilities = initial().background.copy()
    probabilities[3] *= 5
    probabilities /= probabilities.sum()
    file = pull(run, tmp_path, probabilities=probabilities.tolist())
    return json.loads(run(marginals.app, "push", str(file), "--note", "lifted", "--json"))["version"], probabilities


def test_what_is_pulled_is_pushed_bit_for_bit(run: Run, lifted, tmp_path: Path) -> None:
    version, probabilities = lifted
    file = tmp_path / "current.json"
    assert f"marginals {version}: {len(probabilities)} words" in run(marginals.app, "pull", str(file))
    content = json.loads(file.read_text())
    assert content["probabilities"] == probabilities.tolist()
    assert (content["version"], content["note"]) == (version, "lifted (pushed by bootstrap)")
    assert content["words"] == list(initial().words)
    again = json.loads(run(marginals.app, "push", str(file), "--json"))["version"]
    same = {"changed": 0, "divergence": 0.0, "up": [], "down": []}
    assert json.loads(run(marginals.app, "diff", str(version), str(again), "--json")) == same | {
        "before": version, "after": again,
    }  # fmt: skip


def test_what_moved(run: Run, lifted: tuple[int, np.ndarray[Any, Any]]) -> None:
    version, probabilities = lifted
    background = initial().background
    found = json.loads(run(marginals.app, "diff", "0", str(version), "--top", "4", "--json"))
    assert found["changed"] == len(background)
    (up,), down = found["up"], found["down"]
    assert (up["word_id"], up["word"], up["after"]) == (3, initial().words[3], probabilities[3])
    assert up["log_ratio"] == pytest.approx(math.log(probabilities[3] / background[3])) and len(down) == 4
    assert found["divergence"] == pytest.approx(float(probabilities @ np.log(probabilities / background)))
    assert initial().words[3] in run(marginals.app, "diff", str(version), "0", "--top", "1").split("Down")[1]


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=1, max_size=20), st.integers(1, 30))
def test_both_directions_are_one_another_reversed(pairs: list[tuple[float, float]], top: int) -> None:
    names = {word: f"w{word}" for word in range(len(pairs))}
    forward = moved(names, dict(enumerate(pairs)), top)
    backward = moved(names, {word: (after, before) for word, (before, after) in enumerate(pairs)}, top)
    assert forward["changed"] == backward["changed"] and len(forward["up"]) <= top
    ups, downs = ([entry["log_ratio"] for entry in each] for each in (forward["up"], backward["down"]))
    assert ups == pytest.approx([-ratio for ratio in downs]) and ups == sorted(ups, reverse=True)
    assert all(ratio > 0 for ratio in ups)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "idiolect marginals, version 9"}, "format"),
        ({"words_digest": "0" * 64}, "words_digest"),
        ({"probabilities": None}, "probabilities"),
        ({"probabilities": [0.5, -0.5]}, "probabilities"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(run: Run, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = pull(run, tmp_path, **change)
    with pytest.raises(DataError, match=message):
        run(marginals.app, "push", str(file))


def test_too_few_words_and_no_such_version(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CheckInError, match="expected 40"):
        run(marginals.app, "push", str(pull(run, tmp_path, probabilities=[1.0])))
    with pytest.raises(CheckInError, match="not in the registry"):
        run(marginals.app, "diff", "0", "7")
    with pytest.raises(DataError, match="cannot be written"):
        run(marginals.app, "pull", str(tmp_path / "no" / "folder.json"))
