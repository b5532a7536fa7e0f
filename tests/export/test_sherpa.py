import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings
from device_sdk.decoding.beam import greedy, paths, start
from device_sdk.errors import BundleError
from device_sdk.features import FeatureSettings, logmel
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from export.benchmarks.decode import greedy_agreement, shipped_speech
from export.benchmarks.features import kaldi
from export.benchmarks.sherpa import sherpa_recognizer, sherpa_tokens
from export.sherpa import CHUNK_FRAMES, export_sherpa, offline_mapping
from tests.signals import noise
from tests.speech import SPEECH, packaged

OFFLINE = FeatureSettings(window_type="povey", high_frequency=7_600.0)  # of sherpa-onnx's offline recognizer
pytest.importorskip("sherpa_onnx")


@pytest.fixture(scope="module")
def folder(tiny_bundle, tmp_path_factory):
    return export_sherpa(tiny_bundle, tmp_path_factory.mktemp("sherpa") / "new")


def greedily(bundle, features):
    """(pieces as sherpa-onnx writes them, seconds) of our own greedy search."""
    transducer = OnnxTransducer(bundle)
    encoded, _ = transducer.encode(features)
    settings = DecodingSettings(beam=1, nbest=1, symbols_per_frame=10)
    (path,) = paths(greedy(start(transducer), encoded, transducer, settings))
    tokens = [bundle.tokenizer.piece(token).replace("\u2581", " ") for token in path.tokens]
    return tokens, pytest.approx(0.03 * np.array(path.frames), abs=1e-3)


@pytest.mark.parametrize("waveform", [noise(48_000, 1), noise(30_000, 2)], ids=["long", "short"])
def test_unmodified_sherpa_decodes_token_for_token(tiny_bundle, folder, waveform):
    tokens, times = sherpa_tokens(sherpa_recognizer(folder, tiny_bundle, "greedy_search"), waveform)
    features = logmel(waveform)
    assert tokens
    assert (tokens, times) == greedily(tiny_bundle, features[: (len(features) - 1) // CHUNK_FRAMES * CHUNK_FRAMES])


@pytest.fixture(scope="module")
def offline(tiny_bundle, folder):
    import sherpa_onnx

    return sherpa_onnx.OfflineRecognizer.from_transducer(
        tokens=str(folder / "tokens.txt"),
        encoder=str(folder / "encoder-offline.onnx"),
        **{name: str(folder / f"{name}.onnx") for name in ("decoder", "joiner")},
        feature_dim=tiny_bundle.architecture.mel_bins,
        model_type="nemo_transducer",
    )


def offline_streams(recognizer, waveforms):
    streams = [recognizer.create_stream() for _ in waveforms]
    for stream, waveform in zip(streams, waveforms, strict=True):
        stream.accept_waveform(16_000, waveform)
    recognizer.decode_streams(streams)
    return [stream.result for stream in streams]


@pytest.mark.parametrize("samples", [16_000, 16_160, 16_320, 40_123])
def test_the_offline_path_decodes_its_features_mapped_to_ours(tiny_bundle, offline, samples):
    waveform = noise(samples, samples)
    matrix, constant = offline_mapping(tiny_bundle.features)
    features = kaldi([waveform.tolist()], OFFLINE) @ matrix + np.float32(constant)
    (found,) = offline_streams(offline, [waveform])
    assert (found.tokens, found.timestamps) == greedily(tiny_bundle, features[: len(features) // 3 * 3])


def test_an_offline_batch_is_its_parts(offline):
    waveforms = [noise(16_000, 1), noise(31_000, 2), noise(8_050, 3)]
    alone = [offline_streams(offline, [waveform])[0].tokens for waveform in waveforms]
    assert [result.tokens for result in offline_streams(offline, waveforms)] == alone


def test_mapped_features_are_nearer_to_the_bundles():
    settings = packaged().features
    matrix, constant = offline_mapping(settings)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-6)
    clip = shipped_speech()[0]
    ours, theirs = logmel(clip, settings), kaldi([clip.tolist()], OFFLINE)
    assert np.abs(theirs @ matrix + constant - ours)[:, :60].mean() < 0.5 * np.abs(theirs - ours)[:, :60].mean()


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


@pytest.mark.parametrize("speech", SPEECH)
def test_the_packaged_weights_are_decoded_alike(tmp_path, speech):
    bundle = packaged()
    peer = sherpa_recognizer(export_sherpa(bundle, tmp_path), bundle, "greedy_search")
    assert greedy_agreement(bundle, peer, speech()) == 1.0
