import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from device_sdk.bundle import PRESETS, Bundle
from device_sdk.errors import BundleError
from export.networks.rnnt import RNNT
from server.lab.commands.train import app
from server.lab.training.rnnt.adaptation import Start, read_start
from tests.tiny import tiny_weights

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")

TINY = PRESETS["tiny"]
OF_PIECES = {"predictor.embedding", "joiner.output.weight", "joiner.output.bias"}


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


def test_a_start_is_a_bundle_or_a_run(tmp_path: Path, tiny_bundle: Bundle) -> None:
    parameters, pieces = read_start(tiny_bundle.path)
    assert pieces == tiny_bundle.file("tokenizer.model").read_bytes()
    save_file(dict(parameters), tmp_path / "weights.safetensors")
    with pytest.raises(BundleError, match=r"no tokenizer\.model"):
        read_start(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(pieces)
    again, _ = read_start(tmp_path)
    assert again.keys() == parameters.keys()


def test_a_recognizer_goes_on_with_pieces_of_its_own(tmp_path: Path, tiny_bundle: Bundle) -> None:
    out = tmp_path / "run"
    arguments = ["rnnt", "--out", str(out), "--preset", "tiny", "--steps", "6", "--shard", "10", "--threads", "1"]
    begin = ["--pieces", "48", "--begin", str(tiny_bundle.path), "--fresh-pieces", "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, [*arguments, *begin], catch_exceptions=False)
    assert set(json.loads(result.stdout)["wer"]) == {"made.development", "made.devices"}
    RNNT(replace(TINY, pieces=48)).from_parameters(load_file(out / "weights.safetensors"))
    assert json.loads((out / "training.json").read_text())["fresh_pieces"] is True
