from pathlib import Path

import pytest
from safetensors.numpy import save_file

from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from server.lab.training.start import read_start


def test_a_start_is_a_bundle_or_a_run(tmp_path: Path, tiny_bundle: Bundle) -> None:
    parameters, pieces = read_start(tiny_bundle.path)
    assert pieces == tiny_bundle.file("tokenizer.model").read_bytes()
    save_file(dict(parameters), tmp_path / "weights.safetensors")
    with pytest.raises(BundleError, match=r"no tokenizer\.model"):
        read_start(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(pieces)
    again, _ = read_start(tmp_path)
    assert again.keys() == parameters.keys()
