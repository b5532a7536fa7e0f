"""Imported bundles beside the program that their folders are for, and what of them is refused."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from device_sdk.bundle import Bundle
from device_sdk.bundle.bundle import Tokenizer
from device_sdk.commands.bundle import try_out
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.decoding.beam import paths
from device_sdk.decoding.forward import log_likelihoods
from device_sdk.decoding.model import Model
from device_sdk.decoding.stream import begin, end, push
from device_sdk.errors import BundleError, ConfigurationError, DataError
from device_sdk.features import logmel
from device_sdk.runtimes import streaming
from device_sdk.runtimes.engine import Engine
from device_sdk.runtimes.protocol import Windows, encode_whole
from device_sdk.runtimes.streaming import TAIL, open_transducer
from export.bundles import refresh
from export.imports.back import write_sherpa
from export.imports.importer import import_sherpa
from export.imports.pieces import piece_model
from export.sherpa import export_sherpa
from server.lab import imports
from server.lab.imports import Import, import_bundle
from tests.architecture.sources import ROOT
from tests.export.imports.damage import WAYS, damaged
from tests.speech import clips, needs_data, recordings

FAMILIES = ("zipformer2", "nemo")
Float = NDArray[np.float32]


@cache
def peer_of(folder: Path, family: str, mel_bins: int, method: str):
    """Unmodified sherpa-onnx over a folder."""
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    return sherpa_onnx.OnlineRecognizer.from_transducer(
        tokens=str(folder / "tokens.txt"),
        **{part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")},
        num_threads=1,
        feature_dim=mel_bins,
        decoding_method=method,
        model_type="nemo_transducer" if family == "nemo" else "",
    )


def theirs(folder: Path, family: str, clip: Float, bundle: Bundle, method: str) -> tuple[list[str], list[float]]:
    """Its pieces and times (s); it is given as much silence at the end as ours hears."""
    sizes = bundle.architecture
    peer = peer_of(folder, family, sizes.mel_bins, method)
    stream = peer.create_stream()
    silence = Windows(sizes.window, sizes.shift, TAIL).silence((len(clip) + 80) // 160) + 1
    stream.accept_waveform(16_000, np.pad(clip, (0, 160 * silence)))
    stream.input_finished()
    while peer.is_ready(stream):
        peer.decode_stream(stream)
    return list(peer.tokens(stream)), list(peer.timestamps(stream))


def ours(model: Model, clip: Float, chunk: int = 4_800) -> tuple[list[str], list[float]]:
    stream = begin(model.transducer, model.features)
    for at in range(0, len(clip), chunk):
        stream = push(stream, clip[at : at + chunk], model.transducer, model.features, model.settings)
    stream = end(stream, clip[:0], model.transducer, model.features, model.settings)
    path = paths(stream.beam)[0]
    pieces = [model.tokenizer.piece(token).replace("\u2581", " ") for token in path.tokens]
    return pieces, [frame * model.frame_seconds for frame in path.frames]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_times_are_sherpas(
    family: str, folders: dict[str, Path], imported: dict[str, Bundle]
) -> None:
    settings = DecodingSettings(beam=1, nbest=1, pause_seconds=float("inf"))
    model, spoken = Model(imported[family], settings), 0
    for clip in clips():
        clip = np.pad(clip, (0, 8_000))
        tokens, times = ours(model, clip)
        expected, seconds = theirs(folders[family], family, clip, imported[family], "greedy_search")
        assert tokens == expected
        np.testing.assert_allclose(times, seconds, atol=1e-3)
        spoken += len(tokens)
    assert spoken > 20


@pytest.mark.slow
@pytest.mark.data
@needs_data
@pytest.mark.parametrize("family", FAMILIES)
def test_a_hundred_recordings_are_heard_as_sherpa_hears_them(
    family: str, folders: dict[str, Path], imported: dict[str, Bundle]
) -> None:
    """Greedy: the same tokens and times. Modified beam search of width 4: its texts. The search that adds up all ways
    to a text, as wide as devices search: where weights are trained, nearly all of its texts are the same or likelier,
    and what they gain is many times what the others lose."""
    bundle, settings = imported[family], DecodingSettings(beam=1, nbest=1, pause_seconds=float("inf"))
    greedy, recorded = Model(bundle, settings), [np.pad(clip, (0, 12_800)) for clip in recordings()]
    beam = Model(bundle, replace(settings, beam=8, threshold=float("inf")), transducer=greedy.transducer)
    modified = Model(bundle, replace(beam.settings, beam=4, search="modified"), transducer=greedy.transducer)
    ids = {bundle.tokenizer.piece(token).replace("\u2581", " "): token for token in range(bundle.tokenizer.size)}
    same, gains = 0, list[float]()
    for clip in recorded:
        tokens, times = ours(greedy, clip)
        expected, seconds = theirs(folders[family], family, clip, bundle, "greedy_search")
        assert tokens == expected and times == pytest.approx(seconds, abs=1e-3)
        pieces, _ = theirs(folders[family], family, clip, bundle, "modified_beam_search")
        same += ours(modified, clip)[0] == pieces
        if family == "nemo":
            encoded = encode_whole(greedy.transducer, logmel(clip, bundle.features))
            found, other = (tuple(ids[piece] for piece in each) for each in (ours(beam, clip)[0], pieces))
            mine, peer = log_likelihoods(greedy.transducer, encoded, [found, other])
            gains += [mine - peer] if found != other else []
    assert len(recorded) == 100 and same >= 98, same
    lost = [gain for gain in gains if gain <= 0]
    assert len(lost) <= 4 and (sum(gains) > -4 * sum(lost) or not gains), sorted(gains)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beam", [1, 8])
def test_chunks_of_any_size_give_the_same(family: str, beam: int, imported: dict[str, Bundle]) -> None:
    recognizer = Recognizer(imported[family], DecodingSettings(beam=beam, nbest=1))
    clip, results = clips()[0], []
    for size in (len(clip), 160, 7_777):
        session = recognizer.session(16_000)
        for at in range(0, len(clip), size):
            session.feed(clip[at : at + size])
        results.append(session.finish())
    assert results[0].nbest[0].tokens and len({result.nbest[0].tokens for result in results}) == 1
    assert len({result.nbest[0].scores.acoustic for result in results}) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_graph_runs_and_int8_is_near(family: str, imported: dict[str, Bundle]) -> None:
    bundle = imported[family]
    done = try_out(bundle)
    assert sum("training graph, output" in line for line in done) == 1
    sizes = bundle.architecture
    frames = sizes.window + 9 * sizes.shift
    features = np.random.default_rng(0).normal(-8.0, 2.0, (frames, sizes.mel_bins)).astype(np.float32)
    exact, near = (
        open_transducer(bundle, precision=precision).encode(features)[0] for precision in ("float32", "int8")
    )
    assert exact.shape == (10 * sizes.shift // sizes.subsampling_factor, sizes.joiner_size)
    assert np.linalg.norm(near - exact) < 0.05 * np.linalg.norm(exact)


def test_a_thread_that_begins_the_cache_anew_harms_no_other(imported: dict[str, Bundle], monkeypatch) -> None:
    ours, alone = open_transducer(imported["zipformer2"]), open_transducer(imported["zipformer2"])
    monkeypatch.setattr(streaming, "_CACHED", 2)
    whole = ours._predictor.run

    def late(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        ours._predictor.run = whole
        for token in (5, 6):  # what another thread's utterance asks for meanwhile
            ours.predict(np.array([token]))
        return whole(feeds)

    ours.predict(np.array([1]))
    monkeypatch.setattr(ours, "_predictor", SimpleNamespace(run=late))
    np.testing.assert_array_equal(ours.predict(np.array([1, 2]))[0], alone.predict(np.array([1, 2]))[0])


def test_the_nemo_bundle_hears_what_the_packaged_one_does(imported: dict[str, Bundle]) -> None:
    settings = DecodingSettings(beam=1, nbest=1)
    for clip in clips():
        expected = Recognizer(Bundle.open(), settings).recognize(clip, 16_000).text
        assert Recognizer(imported["nemo"], settings).recognize(clip, 16_000).text == expected


def test_a_bundle_of_text_of_its_own(imported: dict[str, Bundle]) -> None:
    bundle = imported["zipformer2"]
    assert {"<unk>", "light", "timer"} <= set(bundle.words.words)
    assert bundle.combination.ngram_share == 1.0 and bundle.has("ngram.arpa.gz")
    assert not bundle.has("language_model.onnx")
    card = json.loads(bundle.file("card.json").read_text())
    assert card["origin"] == "zipformer2" and card["parameters"] == bundle.architecture.parameter_count()


def test_it_can_be_written_again(imported: dict[str, Bundle], tmp_path: Path) -> None:
    bundle = imported["zipformer2"]
    again = Bundle.open(refresh(bundle, tmp_path / "again", version="2"))
    assert again.version == "2" and again.manifest.files.keys() == bundle.manifest.files.keys()
    assert again.architecture == bundle.architecture and try_out(again)


def test_the_command(folders: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "device_sdk.cli", "import", "sherpa", str(folders["zipformer2"])]
    command += ["--text", str(folders["zipformer2"] / "text.txt"), "-o", str(tmp_path / "made.zip"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["family"] == "zipformer2" and made["shift_ms"] == 320
    assert Bundle.open(made["bundle"]).architecture.pieces == made["pieces"]
    command[command.index("--text") + 1] = str(tmp_path / "none.txt")
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 1 and "none.txt: no such text file" in refused.stderr


def test_a_graph_that_brings_its_process_down_is_refused(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_import", crash)
    with pytest.raises(BundleError, match=f"the process that tried them ended with -{int(signal.SIGKILL)}"):
        import_bundle(Import(folders["nemo"], tmp_path / "out", (folders["nemo"] / "text.txt",)))
    assert not list(tmp_path.iterdir())


def crash(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def edited(source: Path, folder: Path, part: str, change) -> Path:
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    model = onnx.load(folder / f"{part}.onnx")
    change(model)
    (folder / f"{part}.onnx").write_bytes(model.SerializeToString())
    return folder


def metadata(**values: str):
    def change(model: onnx.ModelProto) -> None:
        known = {each.key: each.value for each in model.metadata_props}
        del model.metadata_props[:]
        helper.set_model_props(model, known | values)

    return change


def operator(**values: str):
    def change(model: onnx.ModelProto) -> None:
        for name, value in values.items():
            setattr(model.graph.node[3], name, value)

    return change


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")


@pytest.mark.parametrize(
    ("part", "change", "match"),
    [
        ("encoder", metadata(model_type="zipformer"), r"encoder.onnx: is of model type 'zipformer'; expected"),
        ("encoder", metadata(model_type="conformer"), "is of model type 'conformer'"),
        ("encoder", metadata(feature="whisper"), "hears features of Whisper"),
        ("encoder", metadata(T="44"), "takes 45 frames, metadata 'T' says 44"),
        ("encoder", metadata(decode_chunk_len="many"), "metadata 'decode_chunk_len' is 'many'; expected whole numbers"),
        ("encoder", metadata(num_encoder_layers="3,3"), "takes 14 states; expected six of each of 6 layers"),
        ("decoder", metadata(context_size="3"), "expected one of 64 channels over the last 3 tokens"),
        ("encoder", operator(op_type="Loop"), r"\(Loop\) cannot be imported; expected a graph without loops"),
        ("encoder", operator(domain="my.ops"), "is of domain 'my.ops'"),
        ("joiner", operator(op_type="Sigmoid"), None),
        ("joiner", external, "lies in another file; expected a graph that holds its own weights"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_named(part, change, match, folders: dict[str, Path], tmp_path: Path) -> None:
    if match is None:  # the joiner's third node is its activation

        def change(model: onnx.ModelProto) -> None:
            next(node for node in model.graph.node if node.op_type == "Tanh").op_type = "Sigmoid"

        match = r"joiner.onnx: the joiner has activations \[\]"
    with pytest.raises(BundleError, match=match):
        import_sherpa(edited(folders["zipformer2"], tmp_path, part, change))


def test_without_text_nothing_is_written(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="text: found none"):
        import_bundle(Import(folders["zipformer2"], tmp_path / "out", ()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("pieces", "text", "tokens", "decoded"),
    [
        (("<blk>", "\u2581the", "\u2581", "the", "t", "h", "e"), "the the", ["\u2581the", "\u2581the"], "the the"),
        (("<blk>", "<unk>", "\u2581A", "BA", "B", "A", "\u2581"), "aba", ["\u2581a", "ba"], "aba"),
        (("<blk>", "<sos/eos>", "你", "好"), "你好", ["你", "好"], "你好"),
        (("<blk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581a"), "a é", None, "a é"),
    ],
    ids=["words", "capitals", "characters", "bytes"],
)
def test_pieces_without_a_sentencepiece_model(pieces, text, tokens, decoded) -> None:
    tokenizer = Tokenizer(piece_model(pieces, "tokens.txt"))
    found = tokenizer.encode(text)
    assert tokens is None or [tokenizer.piece(token) for token in found] == tokens
    assert tokenizer.decode(found) == decoded


@pytest.mark.parametrize("number", range(3 * len(WAYS)))
def test_damage_is_named_or_harmless(number: int, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = damaged(folders[FAMILIES[number % 2]], number, tmp_path / "damaged")
    try:
        import_sherpa(folder)
    except BundleError as error:
        assert str(folder) in str(error)


@pytest.mark.slow
def test_a_thousand_damaged_folders(folders: dict[str, Path]) -> None:
    """In a process that is watched: what brings it down has to be caught by an import's own process."""
    number, outcomes, fell = 0, 0, []
    sources = [str(folders[family]) for family in FAMILIES]
    while number < 1_000:
        command = [sys.executable, "-m", "tests.export.imports.damage", str(number), "1000", *sources]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_200)
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        outcomes += sum("outcome" in line for line in lines)
        number = max(line.get("begun", line.get("number")) for line in lines) + 1
        if run.returncode:
            assert run.returncode < 0, run.stderr[-2_000:]
            fell.append(number - 1)
    assert outcomes + len(fell) == 1_000
    for number in fell:
        with pytest.raises(BundleError, match="the process that tried them ended with"):
            source = folders[FAMILIES[number // len(WAYS) % 2]]
            folder = damaged(source, number, source.parent / f"fell-{number}")
            import_bundle(Import(folder, folder / "out", (folder / "text.txt",)))


def test_a_bundle_goes_back_with_the_weights_that_it_has(imported: dict[str, Bundle], tmp_path: Path) -> None:
    bundle = imported["zipformer2"]
    moved = bundle.with_weights({name: 1.01 * array for name, array in bundle.weights.items()}, "moved")
    again = import_sherpa(write_sherpa(moved, tmp_path / "back"))
    assert {name for name in again.weights if not name.startswith("encoder.")} <= moved.weights.keys()
    for name in ("predictor.embedding", "joiner.output.weight", "joiner.output.bias", "predictor.convolution"):
        np.testing.assert_allclose(again.weights[name], moved.weights[name], rtol=1e-6)
    settings, clip = DecodingSettings(beam=1, nbest=1, pause_seconds=float("inf")), np.pad(clips()[0], (0, 8_000))
    expected, _ = theirs(tmp_path / "back", "zipformer2", clip, moved, "greedy_search")
    assert ours(Model(moved, settings), clip)[0] == expected and expected
    with pytest.raises(BundleError, match="was not imported from a zipformer2"):
        write_sherpa(imported["nemo"], tmp_path / "other")


def test_what_needs_networks_of_our_own_says_so(imported: dict[str, Bundle], tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    from export.executorch import TRAINING_BUCKETS, export_executorch

    lstms = "brings an encoder of its own; this needs the LSTM networks of idiolect"
    with pytest.raises(BundleError, match=lstms):
        export_sherpa(imported["zipformer2"], tmp_path / "out")
    with pytest.raises(BundleError, match=lstms):
        export_executorch(imported["zipformer2"], tmp_path / "out", TRAINING_BUCKETS)
    with pytest.raises(BundleError, match="its prediction network is an LSTM; of what was imported"):
        export_executorch(imported["nemo"], tmp_path / "out")
    assert not (tmp_path / "out" / "executorch.json").exists()
    with pytest.raises(ConfigurationError, match=r"learning\.subset: found 'top', expected whole or output"):
        Engine().training(imported["zipformer2"], "top")
