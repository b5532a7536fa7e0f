import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from device_sdk.bundle import PRESETS, Bundle
from device_sdk.errors import BundleError, ConfigurationError, DataError
from device_sdk.features import FeatureSettings
from export.networks.rnnt import RNNT
from server.lab.commands.train import app
from server.lab.training import runs
from server.lab.training.rnnt.adaptation import Start, freeze, read_start
from server.lab.training.runs import language_voices
from tests.tiny import tiny_weights

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")

TINY = PRESETS["tiny"]
OF_PIECES = {"predictor.embedding", "joiner.output.weight", "joiner.output.bias"}

SUBJECTS = ("le petit chat", "ma sœur aînée", "la voisine", "notre équipe", "un élève", "le boulanger")
VERBS = ("ouvre", "préfère", "cherche", "apporte", "répète", "dessine")
OBJECTS = ("la fenêtre", "du café très noir", "une forêt", "l'été prochain", "le gâteau", "des clés")
FRENCH = [f"{subject} {verb} {thing}" for subject in SUBJECTS for verb in VERBS for thing in OBJECTS]


def test_fresh_pieces_leave_the_rest_and_blank_alone() -> None:
    given = tiny_weights(TINY, 1)
    found = Start(given, fresh_pieces=True).parameters_for(replace(TINY, pieces=90), seed=0)
    for name, shape in replace(TINY, pieces=90).parameter_shapes().items():
        assert found[name].shape == shape
        if name in OF_PIECES:
            np.testing.assert_array_equal(found[name][0], given[name][0])
            assert 0.5 < found[name][1:].std() / given[name][1:].std() < 2.0
        else:
            np.testing.assert_array_equal(found[name], given[name])
    assert Start(given).parameters_for(TINY, seed=0) is given
    del given["joiner.output.bias"]
    with pytest.raises(BundleError, match=r"joiner\.output\.bias is missing"):
        Start(given, fresh_pieces=True).parameters_for(TINY, seed=0)


@pytest.mark.parametrize(
    ("names", "beginnings"),
    [
        (["encoder.0"], ("encoder.0.",)),
        (["joiner.output.bias", "predictor.embedding"], ("joiner.output.bias", "predictor.embedding")),
        (["joiner"], ("joiner.",)),
        ([], ()),
    ],
)
def test_frozen_names(names: list[str], beginnings: tuple[str, ...]) -> None:
    network, frozen = RNNT(TINY), {name for name in TINY.parameter_shapes() if name.startswith(beginnings)}
    assert set(freeze(network, names)) == frozen
    for name in TINY.parameter_shapes():
        assert {value.requires_grad for value in network.parameters_of(name)} == {name not in frozen}
    with pytest.raises(ConfigurationError, match="freeze: found 'encode', expected"):
        freeze(network, ["encode"])


def test_a_start_is_a_bundle_or_a_run(tmp_path: Path, tiny_bundle: Bundle) -> None:
    parameters, pieces = read_start(tiny_bundle.path)
    assert pieces == tiny_bundle.file("tokenizer.model").read_bytes()
    save_file(dict(parameters), tmp_path / "weights.safetensors")
    with pytest.raises(BundleError, match=r"no tokenizer\.model"):
        read_start(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(pieces)
    again, _ = read_start(tmp_path)
    assert again.keys() == parameters.keys()


def test_another_language_has_its_own_voices_and_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voices = language_voices("fr", "base", 3, seed=1)
    assert {voice.accent for voice in voices} == {"fr"} and voices != language_voices("fr", "devices", 3, seed=1)
    with pytest.raises(DataError, match="language: found 'klingonish'"):
        language_voices("klingonish", "base", 1, seed=1)
    monkeypatch.setattr(runs, "_WATCHED_PER_SOURCE", 2)
    (tmp_path / "text.txt").write_text("\n".join(FRENCH), "utf-8")
    mixture, spoken, examples, _ = runs._foreign("fr", [tmp_path / "text.txt"], FeatureSettings())
    watched = sorted(set(FRENCH) - set(spoken), key=FRENCH.index)
    assert len(watched) == 2 and mixture.sentences == tuple(spoken)
    assert [(example.text, example.source) for example in examples] == [
        (text, source) for source in ("made.development", "made.heldout") for text in watched
    ]


def test_a_recognizer_goes_on_in_another_language(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """By French voices, with pieces of its own, while the first layer of the encoder stays as it was."""
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("\n".join(FRENCH), "utf-8")
    arguments = ["rnnt", "--out", str(out), "--preset", "tiny", "--steps", "6", "--shard", "10", "--threads", "1"]
    french = ["--language", "fr", "--text", str(text), "--pieces", "48"]
    begin = ["--begin", str(tiny_bundle.path), "--fresh-pieces", "--freeze", "encoder.0", "--freeze", "predictor.0.R"]
    more = ["--tensorboard", str(tmp_path / "events"), "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, [*arguments, *french, *begin, *more], catch_exceptions=False)
    assert set(json.loads(result.stdout)["wer"]) == {"made.development", "made.heldout"}
    weights, before = load_file(out / "weights.safetensors"), tiny_bundle.weights
    RNNT(replace(TINY, pieces=48)).from_parameters(weights)
    for name, value in weights.items():
        same = value.shape == before[name].shape and np.array_equal(value, before[name].astype(np.float16))
        assert same == (name.startswith(("encoder.0.", "features.")) or name == "predictor.0.R"), name
    described = json.loads((out / "training.json").read_text())
    assert (described["language"], described["fresh_pieces"]) == ("fr", True)
    assert "préfère" in (out / "words.txt").read_text("utf-8").split()
    assert list((tmp_path / "events").glob("events.out.tfevents.*"))
