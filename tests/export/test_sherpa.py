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
from device_sdk.errors import BundleError
from device_sdk.features import FeatureSettings, logmel
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from export.benchmarks.decode import greedy_agreement, sherpa_recognizer, sherpa_tokens, shipped_speech
from export.sherpa import CHUNK_FRAMES, export_sherpa, offline_mapping
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


@pytest.fixture(scope="module")
def offline(tiny_bundle, folder):
    return offline_recognizer(folder, tiny_bundle)


def offline_recognizer(folder, bundle):
    import sherpa_onnx

    return sherpa_onnx.OfflineRecognizer.from_transducer(
        tokens=str(folder / "tokens.txt"),
        encoder=str(folder / "encoder-offline.onnx"),
        decoder=str(folder / "decoder.onnx"),
        joiner=str(folder / "joiner.onnx"),
        feature_dim=bundle.architecture.mel_bins,
        model_type="nemo_transducer",
    )


def offline_streams(recognizer, waveforms):
    streams = []
    for waveform in waveforms:
        streams.append(recognizer.create_stream())
        streams[-1].accept_waveform(16_000, waveform)
    recognizer.decode_streams(streams)
    return [stream.result for stream in streams]


def kaldi_features(waveform, window, top, bins=64):
    """Log-mel by the library that sherpa-onnx computes its own with."""
    kaldi = pytest.importorskip("kaldi_native_fbank")
    options = kaldi.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = False
    options.frame_opts.remove_dc_offset = False
    options.frame_opts.window_type = window
    options.mel_opts.num_bins = bins
    options.mel_opts.low_freq, options.mel_opts.high_freq = 0.0, top
    options.mel_opts.is_librosa = True
    bank = kaldi.OnlineFbank(options)
    bank.accept_waveform(16_000, waveform.tolist())
    bank.input_finished()
    return np.stack([bank.get_frame(frame) for frame in range(bank.num_frames_ready)])


@pytest.mark.parametrize("samples", [16_000, 16_160, 16_320, 40_123])
def test_the_offline_path_decodes_its_features_mapped_to_ours(tiny_bundle, offline, samples):
    waveform = noise(samples, samples)
    matrix, constant = offline_mapping(tiny_bundle.features)
    features = kaldi_features(waveform, "povey", -400.0) @ matrix + np.float32(constant)
    transducer = OnnxTransducer(tiny_bundle)
    encoded, _ = transducer.encode(features[: len(features) // 3 * 3])
    settings = DecodingSettings(beam=1, nbest=1, symbols_per_frame=10)
    (path,) = paths(greedy(start(transducer), encoded, transducer, settings))
    (found,) = offline_streams(offline, [waveform])
    assert [tiny_bundle.tokenizer.piece(token).replace("\u2581", " ") for token in path.tokens] == found.tokens
    np.testing.assert_allclose(np.array(path.frames) * 0.03, found.timestamps, atol=1e-3)


def test_an_offline_batch_is_its_parts(offline):
    waveforms = [noise(16_000, 1), noise(31_000, 2), noise(8_050, 3)]
    alone = [offline_streams(offline, [waveform])[0].tokens for waveform in waveforms]
    assert [result.tokens for result in offline_streams(offline, waveforms)] == alone


def test_mapped_features_are_nearer_to_the_bundles():
    settings = Bundle.open().features if DEFAULT_BUNDLE.is_dir() else FeatureSettings()
    matrix, constant = offline_mapping(settings)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-6)
    clip = shipped_speech()[0]
    ours, theirs = logmel(clip, settings), kaldi_features(clip, "povey", -400.0)
    before = np.abs(theirs - ours)[:, :60].mean()
    assert np.abs(theirs @ matrix + constant - ours)[:, :60].mean() < 0.5 * before


def test_the_readme_says_how_to_load_both(folder, tiny_bundle, tmp_path, monkeypatch):
    text = (folder / "README.md").read_text("utf-8")
    monkeypatch.chdir(folder)
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) == 2
    names = {"samples": noise(16_000)}
    for block in blocks:
        exec(block, names)
    assert "encoder-offline.onnx" in text


def test_other_features_are_refused(tiny_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_bundle, "features", FeatureSettings(low_frequency=50.0))
    with pytest.raises(BundleError, match=r"low_frequency=50.0.*sherpa-onnx computes"):
        export_sherpa(tiny_bundle, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_bundle_is_not_written_over(tiny_bundle):
    with pytest.raises(BundleError, match="this is a bundle"):
        export_sherpa(tiny_bundle, tiny_bundle.path)
    assert Bundle.open(tiny_bundle.path).packed == tiny_bundle.packed


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
