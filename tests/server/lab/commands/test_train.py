import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file
from typer.testing import CliRunner

from device_sdk import Bundle, cli
from device_sdk.bundle.piece_ngram import PIECE_NGRAM_FILE, read
from device_sdk.runtimes.ctc import CtcHead
from server.lab.commands.train import app
from server.lab.corpora.roles import role_of

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
    machine = tmp_path / "machine"
    machine.mkdir()
    people = [name for name in map("nobody-{}".format, range(9)) if role_of("folder", name) == "base"]
    soundfile.write(machine / "daisies.wav", noise.normal(0, 0.1, 24_000), 16_000)
    line = {"id": "1", "speaker": people[0], "text": "sing me a song about daisies", "audio": "daisies.wav"}
    (machine / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    out = tmp_path / "run"
    arguments = ["rnnt", "--preset", "tiny", "--steps", "20", "--shard", "16", "--threads", "1", "--json"]
    inputs = ["--out", str(out), "--text", str(text), "--data", f"fsdd:{tmp_path / 'digits'}", "--made", str(machine)]
    part = CliRunner().invoke(app, [*arguments[:-1], *inputs, "--call-minutes", "0"], catch_exceptions=False)
    assert part.exit_code == 0 and "5 % of the budget; the same command goes on" in part.output
    record = json.loads(CliRunner().invoke(app, [*arguments, *inputs], catch_exceptions=False).stdout)
    assert record["steps"] == 20
    assert {"made.development", "made.devices", "fsdd.devices", "fsdd.heldout"} == set(record["wer"])
    described = json.loads((out / "training.json").read_text())
    assert (described["made"], described["recordings"]) == ([str(machine)], 7)
    voices = described["voices"]["fsdd"]
    assert voices == {"base": ["jackson"], "development": [], "devices": ["george"], "heldout": ["lucas"]}
    words = (out / "words.txt").read_text().splitlines()
    assert words[0] == "<unk>" and "latte" in words and words[1:] == sorted(set(words[1:]))
    assert (out / "tokenizer.model").exists() and (out / "weights.safetensors").exists()


def test_the_command_loads_without_torch() -> None:
    code = "import sys, server.lab.commands.train; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def text(tmp_path: Path) -> dict[str, Path]:
    lines = {
        "words": "<unk>\nplay\nsome\njazz\nthe\nturn\non\nlight\na\nplease\n",
        "mine": "play some jazz\nplay the jazz please\nturn on the light\n",
        "held": "play the light\n",
    }
    for name, said in lines.items():
        (tmp_path / f"{name}.txt").write_text(said)
    return {name: tmp_path / f"{name}.txt" for name in lines}


def given(text: dict[str, Path], out: Path) -> list[str]:
    return [
        *("--words", str(text["words"]), "--text", str(text["mine"]), "--held-out", str(text["held"])),
        *("--sentences", "40", "--out", str(out), "--json"),
    ]


def test_lm_writes_a_graph_with_its_figures(text: dict[str, Path], tmp_path: Path, capsys) -> None:
    import onnxruntime

    out = tmp_path / "out"
    sizes = ["--steps", "4", "--size", "8", "--blocks", "1", "--heads", "2"]
    assert cli.main(["train", "lm", *given(text, out), *sizes]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "language_model.json").read_text())
    assert (report["texts"], report["shape"]["size"]) == (["mine.txt"], 8)
    assert set(report["perplexity"]) == {"grammar", "held.txt"}
    session = onnxruntime.InferenceSession(out / "language_model.onnx")
    assert session.get_modelmeta().custom_metadata_map["words_digest"] == report["words_digest"]
    assert cli.main(["train", "lm", *given(text, out), *sizes, "--frequent", "3"]) == 0
    smaller = json.loads(capsys.readouterr().out)
    assert smaller["parameters"] < report["parameters"] and smaller["perplexity"]["grammar"] > 1


def test_ctc_writes_a_head_that_a_bundle_takes(
    text: dict[str, Path], tiny_bundle: Bundle, tmp_path: Path, capsys
) -> None:
    out, made = tmp_path / "out", tmp_path / "made"
    arguments = ["--bundle", str(tiny_bundle.path), "--out", str(out), "--text", str(text["mine"]), "--shard", "12"]
    assert cli.main(["train", "ctc", *arguments, "--steps", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "ctc.json").read_text())
    assert (report["encoder"], report["result"]["steps"]) == ("tiny tiny-0", 3) and report["result"]["ctc"] > 0
    given = [str(tiny_bundle.path), str(made), "--version", "2", "--model", str(out / "ctc.onnx")]
    assert cli.main(["export", "mean", *given]) == 0
    bundle = Bundle.open(made)
    for name, value in tiny_bundle.weights.items():
        np.testing.assert_array_equal(bundle.weights[name], value.astype(np.float16))
    head = CtcHead(bundle)
    assert head(np.zeros((5, bundle.lstm.joiner_size), np.float32)).shape == (5, 1 + len(head.pronunciation.symbols))
    assert head.pronunciation.encode("light") == head.pronunciation.encode("lite") != []


def test_ngram_writes_an_arpa_file_and_the_background(
    text: dict[str, Path], tiny_bundle: Bundle, tmp_path: Path, capsys
) -> None:
    out, tokenizer = tmp_path / "out", str(tiny_bundle.file("tokenizer.model"))
    more = ["--order", "3", "--cutoffs", "1,1,2", "--tokenizer", tokenizer]
    assert cli.main(["train", "ngram", *given(text, out), *more]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["order"], report["cutoffs"], len(report["ngrams"])) == (3, [1, 1, 2], 3)
    unigram = load_file(out / "background.safetensors")["unigram"]
    assert unigram.dtype == np.float64 and unigram.sum() == pytest.approx(1.0)
    assert (out / "ngram.arpa.gz").stat().st_size == report["bytes"]
    assert read((out / PIECE_NGRAM_FILE).read_bytes(), tiny_bundle.tokenizer.size, "here").nats.size > 100
    assert cli.main(["train", "ngram", *given(text, out)[:-1], "--output", str(tmp_path / "r.json")]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["order"] == 5


def test_words_writes_a_list_with_its_coverage(text: dict[str, Path], tmp_path: Path, capsys) -> None:
    pytest.importorskip("wordfreq")
    out = tmp_path / "list.txt"
    given = ("--text", str(text["mine"]), "--held-out", str(text["held"]), "--sentences", "40", "--size", "3000")
    assert cli.main(["train", "words", *given, "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "list.json").read_text()) and len(out.read_text().splitlines()) == 3_000
    assert set(report["coverage"]) == {"grammar", "held.txt"}
    assert cli.main(["train", "words", *given, "--out", str(out)]) == 0 and "coverage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rnnt --steps 1 --minutes 1", "exclude each other"),
        ("rnnt --steps 1 --data tapes:/nowhere", "expected one of"),
        ("rnnt --steps 1 --data made:base", "expected recordings"),
        ("rnnt --steps 1 --text /nowhere.txt", "no such text file"),
        ("rnnt --peak 0", "peak: found 0.0"),
        ("ngram --words words.txt --cutoffs one", "--cutoffs"),
        ("ngram --words words.txt --tokenizer none.model", "none.model: no such tokenizer"),
        ("ngram --words words.txt --sentences 5 --order 3 --text absent.txt", "absent.txt"),
        ("lm --words words.txt --steps 1 --minutes 1", "exclude each other"),
    ],
)
def test_bad_requests_are_refused(tmp_path: Path, monkeypatch, capsys, words: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("<unk>\nplay\n")
    assert cli.main(["train", *words.split(), "--out", "out"]) == 1
    assert message in capsys.readouterr().err.replace("\n", " ")
