"""`idiolect evaluate` on a tiny bundle and a folder of recordings."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from device_sdk.bundle import Bundle
from device_sdk.cli import main


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for speaker in ("ann", "bob"):
        (tmp_path / speaker).mkdir()
        for number in range(2):
            samples = generator.standard_normal(12_000).astype(np.float32) * 0.1
            soundfile.write(tmp_path / speaker / f"{number}.flac", samples, 16_000)
            (tmp_path / speaker / f"{number}.txt").write_text("make me a mocha")
    return tmp_path


@pytest.fixture
def evaluate(tiny_bundle: Bundle, recordings: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``idiolect evaluate`` on the recordings, with options: what it prints, or its error."""

    def run(*options: str, expected: int = 0) -> str:
        assert main(["evaluate", str(tiny_bundle.path), "--data", f"folder:{recordings}", *options]) == expected
        said = capsys.readouterr()
        return said.err if expected else said.out

    return run


def test_json_has_the_promised_keys(evaluate: Callable[..., str], tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    figures = json.loads(evaluate("--json", "--output", str(output)))
    assert list(figures) == [
        *("wer", "slot_error", "oracle_wer", "real_time_factor", "utterances", "confidence", "roles")
    ]
    assert set(figures["oracle_wer"]) == {"1", "4", "8"} and set(figures["confidence"]) == {"words", "texts"}
    assert figures["utterances"] == 4 and figures["slot_error"] is None
    assert figures["wer"] >= figures["oracle_wer"]["4"] >= figures["oracle_wer"]["8"] >= 0
    assert json.loads(output.read_text()) == figures


def test_table_speakers_limits_and_several_sources(evaluate: Callable[..., str], recordings: Path) -> None:
    table = evaluate("--speakers", "--no-rescore", "--beam", "2", "--precision", "int8")
    assert "ann" in table and "bob" in table and "WER" in table
    ann = f"folder:{recordings / 'ann'}"
    both = json.loads(evaluate("--data", ann, "--limit", "1", "--speakers", "--json"))
    assert set(both["data"]) == {f"folder:{recordings}", ann}
    one = json.loads(evaluate("--only", "bob", "--limit", "1", "--speakers", "--json"))
    assert one["utterances"] == 1 and list(one["speakers"]) == ["bob"]


def test_greedy_wide_and_compared(evaluate: Callable[..., str], tmp_path: Path) -> None:
    plot = tmp_path / "reliability.svg"
    wide = json.loads(evaluate("--limit", "2", "--beam", "12", "--nbest", "12", "--json", "--plot", str(plot)))
    assert list(wide["oracle_wer"]) == ["1", "4", "8", "12"]
    words = wide["confidence"]["words"]
    assert 0 <= words["ece"] <= 1 and sum(part["count"] for part in words["bins"]) == words["count"]
    assert plot.read_text().startswith("<svg")
    greedy = json.loads(evaluate("--limit", "2", "--greedy", "--json"))
    assert greedy["oracle_wer"]["8"] == greedy["wer"]
    systems = json.loads(evaluate("--limit", "2", "--compare", "--json"))["systems"]
    assert list(systems) == ["greedy", "beam 8", "beam 8 rescored", "beam 20 rescored"]
    assert systems["greedy"]["wer"] == greedy["wer"]
    assert list(systems["beam 20 rescored"]["oracle_wer"]) == ["1", "4", "8", "20"]
    change = systems["beam 8"]["against_greedy"]["wer"]
    assert change["absolute"]["mean"] == pytest.approx(systems["beam 8"]["wer"] - greedy["wer"])
    assert "against greedy" in evaluate("--limit", "2", "--compare")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "reliability.png"], ".svg"),
        (["--plot", "no/such/folder/reliability.svg"], "make it first"),
        (["--output", "no/such/folder/figures.json"], "make it first"),
        (["--compare", "--greedy"], "--compare"),
        (["--voices", "mine"], "--voices"),
        (["--beam", "2", "--nbest", "4"], "decoding.nbest"),
        (["--precision", "int4"], "--precision: found 'int4', expected one of 'float32', 'int8', 'auto'"),
        (["--data", "mp3:x"], "expected one of"),
        (["--data", "folder:/nowhere/at/all"], "no such folder"),
        (["--data", "made:base"], "no utterance by voices for devices, heldout"),
        (["--only", "eve"], "see --voices, --only"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(evaluate: Callable[..., str], options: list[str], message: str) -> None:
    error = evaluate(*options, expected=1)
    assert message in error and "Error" in error and "Traceback" not in error
