import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, cli
from device_sdk.bundle.piece_ngram import PIECE_NGRAM_FILE, serialize
from device_sdk.decoding import Recognizer
from export.bundles import rewrite
from rescoring.combination import CombinationWeights
from rescoring.words import WordList
from server.lab.commands import tune
from server.lab.corpora.roles import role_of
from server.lab.training.ngram import estimate, over_pieces
from server.lab.tuning.search import FIRST_PASSES

pytest.importorskip("espeakng_loader")


@pytest.fixture
def bundle(tiny_bundle: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle.path, tmp_path / "bundle"))


def test_weights_are_written_into_the_bundle(bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    words = ["tune", "rescoring", str(bundle), "--limit", "1", "--speeds", "0.9,1,1.1", "--json"]
    assert cli.main([*words, "--output", str(report_file)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(report_file.read_text()) and report["utterances"] == 3
    assert set(report["wer"]) == {"first_pass", "rescored", "marginals", "oracle", "previous"}
    assert Bundle.open(bundle).combination.to_mapping() == report["weights"]


def test_the_first_pass_is_tuned_with_the_second(tiny_bundle: Bundle, tmp_path: Path) -> None:
    tokenizer = tiny_bundle.tokenizer
    words = WordList(("<unk>", *map(str, range(1, tokenizer.size))))
    ngram = over_pieces(estimate([tokenizer.encode("stop the music"), tokenizer.encode("set a timer")], words, 3))
    models = {PIECE_NGRAM_FILE: serialize(ngram)}
    bundle = rewrite(tiny_bundle, tmp_path / "bundle", models=models)
    assert cli.main(["tune", "rescoring", str(bundle), "--limit", "1", "--speeds", "1"]) == 0
    tuned = Bundle.open(bundle)
    assert (tuned.combination.search_ngram, tuned.combination.search_bonus) in FIRST_PASSES
    assert tuned.piece_ngram is not None
    following = Recognizer(tuned.with_combination(replace(tuned.combination, search_ngram=0.3, search_bonus=0.8)))
    clip = np.random.default_rng(0).normal(0, 0.05, 16_000).astype(np.float32)
    best = following.recognize(clip, 16_000).nbest[0]
    assert best.tokens and best.score == pytest.approx(best.scores.acoustic + best.scores.pieces)
    assert best.scores.pieces != 0.0


def test_an_ngram_without_a_share_is_asked_where_it_may_win_one(tiny_bundle: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    without = Bundle.open(rewrite(tiny_bundle, tmp_path / "without", combination=CombinationWeights(ngram_share=0.0)))
    assert (
        tune._lists(without, [tune._played("made:development", "development", role_of, [1.0], 0, 1)], 4).ngram
        is not None
    )


def test_out_leaves_the_bundle_alone(bundle: Path, tmp_path: Path) -> None:
    before, out = (bundle / "manifest.json").read_bytes(), tmp_path / "tuned.zip"
    assert cli.main(["tune", "rescoring", str(bundle), "--limit", "1", "--speeds", "1", "--out", str(out)]) == 0
    assert (bundle / "manifest.json").read_bytes() == before
    assert Bundle.open(out).weights.keys() == Bundle.open(bundle).weights.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rescoring", "--data", "made:heldout"], "has no development voice"),
        (["confidence", "--data", "made:devices"], "has no development voice"),
        (["second-moments", "--data", "made:development"], "has no base voice"),
        (["rescoring", "--data", "nothing"], "expected one of"),
        (["rescoring", "--speeds", "fast"], "--speeds"),
    ],
)
def test_bad_requests_are_refused(bundle: Path, capsys, words: list[str], message: str) -> None:
    assert cli.main(["tune", words[0], str(bundle), "--dry-run", *words[1:]]) == 1
    assert message in capsys.readouterr().err


def test_confidences_are_fitted_and_written(bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    words = ["tune", "confidence", str(bundle), "--limit", "4", "--speeds", "0.9,1.1"]
    assert cli.main([*words, "--json", "--output", str(report_file)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(report_file.read_text())
    assert set(report["after"]) == {"words", "texts", "greedy words", "greedy texts"}
    assert report["after"]["texts"]["count"] == 8
    written = Bundle.open(bundle)
    assert written.combination.confidence.to_mapping() == report["confidence"]
    before = (bundle / "manifest.json").read_bytes()
    assert cli.main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "dry run" in shown and "other voices  words" in shown and (bundle / "manifest.json").read_bytes() == before
    assert cli.main(["tune", "rescoring", *words[2:3], "--limit", "1", "--speeds", "1"]) == 0
    assert "language_model" in capsys.readouterr().out  # other weights, the same calibration
    assert Bundle.open(bundle).combination.confidence == written.combination.confidence


def test_second_moments_are_measured_and_written(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "second-moments", str(bundle), "--limit", "2", "--speeds", "1"]
    assert Bundle.open(bundle).second_moments is None and cli.main([*words, "--dry-run"]) == 0
    assert "dry run" in capsys.readouterr().out and Bundle.open(bundle).second_moments is None
    assert cli.main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["utterances"] == 2
    assert sum(report["share_of_squared_gradient"].values()) == pytest.approx(1.0, rel=1e-4)
    assert Bundle.open(bundle).second_moments is not None
    assert cli.main(["tune", "rescoring", str(bundle), "--limit", "1", "--speeds", "1"]) == 0
    assert Bundle.open(bundle).second_moments is not None  # kept with other weights
