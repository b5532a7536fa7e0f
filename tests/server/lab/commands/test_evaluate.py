"""`idiolect evaluate` on a tiny bundle and a folder of recordings."""

from __future__ import annotations

import json
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


def test_json_has_the_promised_keys(
    tiny_bundle: Bundle, recordings: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "figures.json"
    arguments = [str(tiny_bundle.path), "--data", f"folder:{recordings}", "--json", "--output", str(output)]
    assert main(["evaluate", *arguments]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == ["wer", "slot_error", "oracle_wer", "real_time_factor", "utterances", "confidence"]
    assert set(figures["oracle_wer"]) == {"1", "4", "8"} and set(figures["confidence"]) == {"words", "texts"}
    assert figures["utterances"] == 4 and figures["slot_error"] is None
    assert figures["wer"] >= figures["oracle_wer"]["4"] >= figures["oracle_wer"]["8"] >= 0
    assert json.loads(output.read_text()) == figures


def test_an_output_that_cannot_be_written_is_said_before_the_work(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["nowhere", "--data", f"folder:{recordings}", "--output", str(recordings / "no" / "such" / "file.json")]
    assert main(["evaluate", *arguments]) == 1
    assert "make it first" in capsys.readouterr().err
    assert main(["evaluate", *arguments[:3], "--precision", "int4"]) == 1
    assert "--precision: found 'int4', expected one of 'float32', 'int8', 'auto'" in capsys.readouterr().err


def test_table_speakers_limits_and_several_sources(
    tiny_bundle: Bundle, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--data", f"folder:{recordings}"]
    bundle = str(tiny_bundle.path)
    assert main(["evaluate", bundle, *source, "--speakers", "--no-rescore", "--beam", "2", "--precision", "int8"]) == 0
    table = capsys.readouterr().out
    assert "ann" in table and "bob" in table and "WER" in table
    options = ["--only", "bob", "--limit", "1", "--speakers", "--json"]
    assert main(["evaluate", bundle, *source, "--data", f"folder:{recordings / 'ann'}", *options[2:]]) == 0
    both = json.loads(capsys.readouterr().out)
    assert set(both["data"]) == {f"folder:{recordings}", f"folder:{recordings / 'ann'}"}
    assert main(["evaluate", bundle, *source, *options]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["utterances"] == 1 and list(one["speakers"]) == ["bob"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--data", "mp3:x"], "expected one of"), (["--data", "folder:/nowhere/at/all"], "no such folder")],
)
def test_bad_data_is_one_clear_line(
    tiny_bundle: Bundle, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(tiny_bundle.path), *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error and "DataError" in error and "Traceback" not in error


def test_greedy_wide_and_compared(
    tiny_bundle: Bundle, recordings: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start = ["evaluate", str(tiny_bundle.path), "--data", f"folder:{recordings}", "--limit", "2"]
    plot = tmp_path / "reliability.svg"
    assert main([*start, "--beam", "12", "--nbest", "12", "--json", "--plot", str(plot)]) == 0
    wide = json.loads(capsys.readouterr().out)
    assert list(wide["oracle_wer"]) == ["1", "4", "8", "12"]
    words = wide["confidence"]["words"]
    assert 0 <= words["ece"] <= 1 and sum(part["count"] for part in words["bins"]) == words["count"]
    assert plot.read_text().startswith("<svg")
    assert main([*start, "--greedy", "--json"]) == 0
    greedy = json.loads(capsys.readouterr().out)
    assert greedy["oracle_wer"]["8"] == greedy["wer"]
    assert main([*start, "--compare", "--json"]) == 0
    systems = json.loads(capsys.readouterr().out)["systems"]
    assert list(systems) == ["greedy", "beam 8", "beam 8 rescored", "beam 20 rescored"]
    assert systems["greedy"]["wer"] == greedy["wer"]
    assert list(systems["beam 20 rescored"]["oracle_wer"]) == ["1", "4", "8", "20"]
    change = systems["beam 8"]["against_greedy"]["wer"]
    assert change["absolute"]["mean"] == pytest.approx(systems["beam 8"]["wer"] - greedy["wer"])
    assert main([*start, "--compare"]) == 0
    assert "against greedy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "reliability.png"], ".svg"),
        (["--plot", "no/such/folder/reliability.svg"], "make it first"),
        (["--compare", "--greedy"], "--compare"),
        (["--voices", "mine"], "--voices"),
        (["--beam", "2", "--nbest", "4"], "decoding.nbest"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tiny_bundle: Bundle, recordings: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(tiny_bundle.path), "--data", f"folder:{recordings}", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_voices_of_one_part_of_the_split(
    tiny_bundle: Bundle, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from server.lab.corpora.roles import role_of

    start = ["evaluate", str(tiny_bundle.path), "--data", f"folder:{recordings}", "--json", "--speakers"]
    role = role_of("folder", "ann")
    assert main([*start, "--voices", role]) == 0
    expected = [name for name in ("ann", "bob") if role_of("folder", name) == role]
    assert list(json.loads(capsys.readouterr().out)["speakers"]) == expected
    assert main(["evaluate", str(tiny_bundle.path), "--data", "made:base", "--voices", "base"]) == 1
    assert "leave --voices out" in capsys.readouterr().err
