from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from device_sdk.audio import list_audio, read_audio
from device_sdk.bundle import Bundle
from device_sdk.bundle.bundle import DEFAULT_BUNDLE
from device_sdk.decoding import DecodingSettings
from device_sdk.decoding.beam import greedy, paths, start
from device_sdk.features import logmel
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from export.benchmarks.decode import greedy_agreement, sherpa_recognizer, sherpa_tokens, shipped_speech
from export.sherpa import CHUNK_FRAMES, export_sherpa
from tests.signals import noise

pytest.importorskip("sherpa_onnx")


@pytest.fixture(scope="module")
def folder(tiny_bundle, tmp_path_factory):
    return export_sherpa(tiny_bundle, tmp_path_factory.mktemp("sherpa") / "new")


@pytest.mark.parametrize("waveform", [noise(48_000, 1), noise(30_000, 2)], ids=["long", "short"])
def test_unmodified_sherpa_decodes_token_for_token(tiny_bundle, folder, waveform):
    tokens, times = sherpa_tokens(sherpa_recognizer(folder, tiny_bundle, "greedy_search"), waveform)
    assert tokens
    features = logmel(waveform)
    whole = (len(features) - 1) // CHUNK_FRAMES * CHUNK_FRAMES
    transducer = OnnxTransducer(tiny_bundle)
    encoded, _ = transducer.encode(features[:whole])
    settings = DecodingSettings(beam=1, nbest=1, symbols_per_frame=10)
    (path,) = paths(greedy(start(transducer), encoded, transducer, settings))
    assert [tiny_bundle.tokenizer.piece(token).replace("\u2581", " ") for token in path.tokens] == tokens
    np.testing.assert_allclose(np.array(path.frames) * 0.03, times, atol=1e-3)


def test_its_beam_search_runs(tiny_bundle, folder):
    recognizer = sherpa_recognizer(folder, tiny_bundle, "modified_beam_search")
    assert isinstance(sherpa_tokens(recognizer, noise(16_000))[0], list)


def test_what_sherpa_must_know_is_in_the_encoder(tiny_bundle, folder):
    found = {entry.key: entry.value for entry in onnx.load(str(folder / "encoder.onnx")).metadata_props}
    sizes = tiny_bundle.architecture
    assert found["vocab_size"] == str(sizes.pieces - 1)
    assert found["subsampling_factor"] == "3"
    assert found["normalize_type"] == "NA"
    assert found["cache_last_time_dim3"] == str(sizes.encoder_size)


def test_blank_is_the_last_token(tiny_bundle, folder):
    lines = (folder / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == tiny_bundle.architecture.pieces
    assert [line.rsplit(" ", 1)[1] for line in lines] == [str(number) for number in range(len(lines))]
    assert lines[0] == f"{tiny_bundle.tokenizer.piece(1)} 0"
    assert lines[-1].startswith("<blk> ")


def test_the_packaged_weights_on_the_shipped_speech(tmp_path):
    if not DEFAULT_BUNDLE.is_dir():
        pytest.skip("this checkout has no default bundle")
    bundle = Bundle.open()
    peer = sherpa_recognizer(export_sherpa(bundle, tmp_path), bundle, "greedy_search")
    assert greedy_agreement(bundle, peer, shipped_speech()) == 1.0


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
def test_the_packaged_weights_on_real_speech(tmp_path):
    if not DEFAULT_BUNDLE.is_dir():
        pytest.skip("this checkout has no default bundle")
    bundle = Bundle.open()
    peer = sherpa_recognizer(export_sherpa(bundle, tmp_path), bundle, "greedy_search")
    clips = [read_audio(path) for path in list_audio([Path(os.environ["IDIOLECT_DATA"]) / "barista" / "audio"])[:100]]
    assert greedy_agreement(bundle, peer, clips) == 1.0
