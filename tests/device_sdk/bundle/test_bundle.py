"""Bundles: what is read, and that everything damaged is refused by name."""

import gc
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from device_sdk.bundle import PRESETS, Architecture, Bundle
from device_sdk.bundle import bundle as bundle_module
from device_sdk.bundle import weights as weight_files
from device_sdk.bundle.manifest import is_inside
from device_sdk.bundle.quantized import COARSE_LEVELS, EMBEDDING_ZERO, LEVELS, layout, quantize
from device_sdk.bundle.second_moments import SECOND_MOMENTS_FILE, moments, read, serialize
from device_sdk.errors import BundleError
from export.bundles import rewrite

Damage = Callable[[Path], None]


def edit(change: Callable[[dict], None], manifest: str = "manifest.json") -> Damage:
    """Change the manifest."""

    def damage(folder: Path) -> None:
        described = json.loads((folder / manifest).read_text())
        change(described)
        (folder / manifest).write_text(json.dumps(described))

    return damage


def replace(name: str, content: bytes, manifest: str = "manifest.json") -> Damage:
    """Change a file and its manifest entry, so that only its content is wrong."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)
        entry = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        edit(lambda described: described["files"].update({name: entry}), manifest)(folder)

    return damage


def weights(change: Callable[[dict[str, np.ndarray]], None]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = dict(weight_files.read((folder / "weights.safetensors").read_bytes(), "test"))
        change(tensors)
        replace("weights.safetensors", weight_files.serialize(tensors))(folder)

    return damage


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change a file alone."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))  # type: ignore[return-value]


def tensor(name: str, value: np.ndarray) -> Damage:
    return weights(lambda tensors: tensors.update({name: value}))


def sizes(**changes: object) -> Damage:
    return edit(lambda manifest: manifest["architecture"].update(changes))


def background(value: np.ndarray, key: str = "unigram") -> Damage:
    return replace("background.safetensors", weight_files.serialize({key: value}))


NOTHING = {"sha256": "0" * 64, "size": 0}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "truncated file": (
        rewritten("weights.safetensors", lambda content: content[:-100]),
        r"weights\.safetensors: \d+ bytes with sha256 \w+, expected \d+",
    ),
    "flipped byte": (rewritten("encoder.onnx", flip), r"encoder\.onnx: \d+ bytes with sha256 \w+, expected \d+"),
    "missing file": (lambda folder: (folder / "joiner.onnx").unlink(), r"joiner\.onnx cannot be read"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), r"holds no manifest\.json"),
    "manifest is no JSON": (lambda folder: (folder / "manifest.json").write_text("{"), r"manifest\.json: field"),
    "unknown format": (edit(lambda m: m.update(format_version=99)), "format_version: found 99, expected 1"),
    "unknown field": (edit(lambda m: m.update(surprise=1)), "field surprise"),
    "missing field": (edit(lambda m: m.pop("version")), "field version"),
    "required file not listed": (edit(lambda m: m["files"].pop("training.onnx")), "'training.onnx' is missing"),
    "path leaves the folder": (edit(lambda m: m["files"].update({"../x": NOTHING})), "leaves the bundle"),
    "absolute path": (edit(lambda m: m["files"].update({"/x": NOTHING})), "leaves the bundle"),
    "bad hash": (edit(lambda m: m["files"]["LICENSE"].update(sha256="x")), r"field files\.LICENSE\.sha256"),
    "impossible size": (sizes(joiner_size=0), r"field architecture: architecture\.joiner_size: found 0"),
    "layers without end": (sizes(encoder_layers=1 << 31), r"encoder_layers: found 2147483648, expected a number in"),
    "endless window": (edit(lambda m: m["features"].update(window=1 << 40)), r"features\.window: found"),
    "unknown size": (sizes(colour=3), "field architecture"),
    "bins disagree": (sizes(mel_bins=80), r"features\.mel_bins: found 64"),
    "impossible features": (edit(lambda m: m["features"].update(shift=999)), r"features\.shift: found 999"),
    "unknown feature setting": (edit(lambda m: m["features"].update(colour=3)), "field features"),
    "architecture of another shape": (sizes(encoder_size=48), r"tensor 'encoder\.0\.W' has shape \[128, 192\]"),
    "wrong shape": (tensor("features.mean", np.zeros(7, np.float32)), r"'features\.mean' has shape \[7\], expected"),
    "NaN weight": (weights(lambda t: t["encoder.0.R"].put(99, np.nan)), r"'encoder\.0\.R' holds NaN"),
    "huge weight": (weights(lambda t: t["joiner.output.bias"].put(3, -3e38)), r"values from -3e\+38 .*at most 1e\+06"),
    "missing tensor": (weights(lambda t: t.__delitem__("features.mean")), "'features.mean' is missing"),
    "unknown tensor": (tensor("extra", np.zeros(1, np.float32)), "unknown tensor 'extra'"),
    "wrong type": (tensor("features.mean", np.zeros(64)), "is float64, expected float32"),
    "weights are no safetensors": (replace("weights.safetensors", b"hello there, this is text"), "safetensors"),
    "tokenizer is no model": (replace("tokenizer.model", b"\x00\x01"), r"tokenizer\.model: not a SentencePiece"),
    "word list without bucket": (replace("words.txt", b"a\nb\n"), r"words\.txt: .*expected '<unk>'"),
    "word list is no text": (replace("words.txt", b"<unk>\n\xff\xfe\n"), r"words\.txt"),
    "background too short": (background(np.ones(3) / 3), r"background\.safetensors: .*\[3\]"),
    "background with a zero": (background(np.eye(92)[0]), "no distribution"),
    "background without its tensor": (background(np.ones(92) / 92, "other"), "'unigram' is missing"),
    "combination out of range": (replace("rescoring.json", b'{"sigma": 0}'), r"rescoring\.json: combination\.sigma"),
    "combination is no object": (replace("rescoring.json", b"[]"), r"rescoring\.json"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused_by_name(name: str, tiny_bundle: Bundle, tmp_path: Path) -> None:
    damage, message = DAMAGES[name]
    folder = shutil.copytree(tiny_bundle.path, tmp_path / "copy")
    damage(folder)
    with pytest.raises(BundleError, match=message) as raised:
        Bundle.open(folder)
    assert "copy" in str(raised.value)


def zipped(bundle: Bundle, out: Path, change: Callable[[dict[str, bytes]], None] = lambda files: None) -> Path:
    files = {path.name: path.read_bytes() for path in sorted(bundle.path.iterdir())}
    change(files)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out


ZIP_DAMAGES: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "zip-slip": (lambda files: files.update({"../escaped.txt": b"x"}), r"entry '\.\./escaped\.txt' leaves"),
    "absolute entry": (lambda files: files.update({"/escaped.txt": b"x"}), "leaves the bundle"),
    "backslashes": (lambda files: files.update({"..\\escaped.txt": b"x"}), "leaves the bundle"),
    "no manifest": (lambda files: files.__delitem__("manifest.json"), r"manifest\.json is missing"),
    "huge manifest": (lambda files: files.update({"manifest.json": b" " * (2 << 20)}), "at most"),
    "missing file": (lambda files: files.__delitem__("joiner.onnx"), r"joiner\.onnx is missing"),
    "truncated file": (lambda files: files.update(LICENSE=b"x"), "LICENSE: size is 1 bytes"),
    "other content": (lambda files: files.update(LICENSE=files["LICENSE"][::-1]), r"LICENSE: \d+ bytes with sha256"),
}


@pytest.mark.parametrize("name", ZIP_DAMAGES)
def test_a_damaged_zip_is_refused_by_name(name: str, tiny_bundle: Bundle, tmp_path: Path) -> None:
    change, message = ZIP_DAMAGES[name]
    before, archive = set(tmp_path.rglob("*")), zipped(tiny_bundle, tmp_path / "copy.zip", change)
    with pytest.raises(BundleError, match=message):
        Bundle.open(archive)
    assert set(tmp_path.rglob("*")) - before == {archive}


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 and then nothing", None], ids=str)
def test_what_is_no_zip_is_refused(content: bytes | None, tiny_bundle: Bundle, tmp_path: Path) -> None:
    """None: the first half of a bundle's."""
    path = zipped(tiny_bundle, tmp_path / "bundle.zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(BundleError, match="not a readable zip"):
        Bundle.open(path)


def test_a_zip_opens_like_its_folder_and_cleans_up(tiny_bundle: Bundle, tmp_path: Path) -> None:
    opened = Bundle.open(zipped(tiny_bundle, tmp_path / "copy.zip"))
    folder = opened.file("encoder.onnx").parent
    assert opened.packed == tiny_bundle.packed
    other = opened.with_weights(opened.weights, "again")
    weighed = opened.with_combination(opened.combination)
    del opened
    gc.collect()
    assert other.file("encoder.onnx").exists()  # the copy still needs the unpacked files
    del other
    gc.collect()
    assert weighed.file("encoder.onnx").exists()
    del weighed
    gc.collect()
    assert not folder.exists()


def test_what_an_open_bundle_holds(tiny_bundle: Bundle) -> None:
    sizes = tiny_bundle.architecture
    assert tiny_bundle.weights.keys() == sizes.parameter_shapes().keys() | sizes.constant_shapes().keys()
    assert tiny_bundle.background.sum() == pytest.approx(1.0)
    assert len(tiny_bundle.words) == len(tiny_bundle.background)
    assert tiny_bundle.has("encoder.onnx") and not tiny_bundle.has("elsewhere.onnx") and "tiny-0" in repr(tiny_bundle)
    with pytest.raises(ValueError, match="read-only"):
        tiny_bundle.weights["features.mean"][0] = 1.0
    with pytest.raises(BundleError, match=r"holds no file 'elsewhere\.onnx'"):
        tiny_bundle.file("elsewhere.onnx")


def test_other_weights(tiny_bundle: Bundle) -> None:
    doubled = {name: tiny_bundle.weights[name] * 2 for name in tiny_bundle.architecture.parameter_shapes()}
    other = tiny_bundle.with_weights(doubled, "2")
    assert other.version == "2" and tiny_bundle.version == "tiny-0"
    np.testing.assert_array_equal(other.weights["encoder.0.W"], 2 * tiny_bundle.weights["encoder.0.W"])
    np.testing.assert_array_equal(other.weights["features.mean"], tiny_bundle.weights["features.mean"])
    doubled["encoder.0.W"][0, 0] = np.inf
    with pytest.raises(BundleError, match=r"weights '3': tensor 'encoder\.0\.W' holds NaN or infinity"):
        tiny_bundle.with_weights(doubled, "3")


def test_no_bundle_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BundleError, match="nothing: no such bundle"):
        Bundle.open(tmp_path / "nothing")
    monkeypatch.setattr(bundle_module, "DEFAULT_BUNDLE", tmp_path / "default")
    with pytest.raises(BundleError, match="no default bundle"):
        Bundle.open()


def test_paths_inside_a_bundle() -> None:
    assert all(map(is_inside, ["encoder.onnx", "models/a.onnx"]))
    outside = ["../a", "a/../../b", "/a", "a//b", "./a", "", ".", "C:\\a", "a\x00b"]
    assert not [name for name in outside if is_inside(name)]


def test_tokenizer(tiny_bundle: Bundle) -> None:
    tokenizer = tiny_bundle.tokenizer
    tokens = tokenizer.encode("turn on the light")
    assert tokenizer.size == tiny_bundle.architecture.pieces
    assert tokenizer.decode(tokens) == tokenizer.decode([0, *tokens, 0]) == "turn on the light"
    assert tokenizer.starts_word(tokens[0]) and tokenizer.piece(tokens[0]).startswith("\u2581")
    assert sum(tokenizer.starts_word(token) for token in tokens) == 4
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == "" and 0 not in tokenizer.encode("turn 漢 on")


def test_a_tokenizer_whose_unknown_piece_is_not_0_is_refused() -> None:
    import sentencepiece

    from device_sdk.bundle import Tokenizer
    from tests.tiny import SENTENCES

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=64, unk_id=1, bos_id=0, minloglevel=2
    )
    with pytest.raises(BundleError, match="unk_id is 1, expected 0"):
        Tokenizer(model.getvalue())


TINY = PRESETS["tiny"]


def squares() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.exponential(1e-6, shape) for name, shape in TINY.parameter_shapes().items()}


def test_moments_by_hand() -> None:
    found = moments({"w": np.array([[1.0, 2.0], [3.0, 6.0]]), "b": np.array([4.0, 5.0])})
    assert [vector.tolist() for vector in found["w"]] == [[1.5, 4.5], [2.0, 4.0]]
    assert [vector.tolist() for vector in found["b"]] == [[4.0, 5.0]]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda found: found.pop("joiner.output.bias"), r"joiner\.output\.bias/0"),
        (lambda found: found.update(other=found["joiner.output.bias"]), "other/0"),
        (lambda found: found.update({"joiner.output.bias": (np.ones(3, np.float32),)}), r"\[3\], expected float32"),
        (lambda found: found["joiner.output.bias"][0].__setitem__(0, -1.0), "holds -1"),
        (lambda found: found["joiner.output.bias"][0].__setitem__(0, np.nan), "holds nan"),
        (lambda found: found["joiner.output.bias"][0].__setitem__(slice(None), 0.0), "not all 0"),
    ],
)
def test_what_does_not_fit_is_refused(damage, words: str) -> None:
    found = moments(squares())
    damage(found)
    with pytest.raises(BundleError, match=words):
        read(serialize(found), TINY, "second moments of a test")


def test_a_bundle_keeps_it_with_other_weights_and_when_rewritten(tiny_bundle: Bundle, tmp_path: Path) -> None:
    assert tiny_bundle.second_moments is None
    second_moments = moments(squares())
    bundle = Bundle.open(rewrite(tiny_bundle, tmp_path / "other", second_moments=second_moments))
    again = Bundle.open(rewrite(bundle, tmp_path / "again")).with_weights(bundle.weights, "other")
    for found in (bundle.second_moments, again.second_moments):
        assert found is not None and found.keys() == second_moments.keys()
        for name, vectors in second_moments.items():
            for one, other in zip(vectors, found[name], strict=True):
                np.testing.assert_array_equal(one, other)
    assert bundle.has(SECOND_MOMENTS_FILE)


def test_the_packaged_bundle_knows_its_own() -> None:
    for vectors in Bundle.open().second_moments.values():  # every axis' mean is the tensor's
        means = [float(vector.mean(dtype=np.float64)) for vector in vectors]
        np.testing.assert_allclose(means, means[0], rtol=1e-4)


SMALLEST = Architecture(1, 1, 1, 1, 1, 1, 2, mel_bins=1, subsampling_factor=1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-(2.0**-120), 2.0**-120, width=32)


def dequantized(architecture: Architecture, content: bytes, name: str) -> np.ndarray:
    """A parameter in its own layout, from its integers and scales."""
    slot = layout(architecture)[name]
    scale = np.frombuffer(content, np.float32, slot.scales, slot.scale).astype(np.float64)
    embedding = slot.scales == 1
    values = np.frombuffer(content, np.uint8 if embedding else np.int8, prod(slot.shape), slot.values)
    steps = values.reshape(slot.shape).astype(np.float64)
    return (steps - EMBEDDING_ZERO) * scale if embedding else (steps * scale).T


@pytest.mark.parametrize("architecture", [SMALLEST, PRESETS["tiny"], PRESETS["small"]])
def test_slots_cover_the_buffer_without_overlap(architecture: Architecture) -> None:
    slots = layout(architecture)
    scales = [(slot.scale, slot.scale + 4 * slot.scales) for slot in slots.values()]
    spans = sorted([*scales, *((slot.values, slot.values + prod(slot.shape)) for slot in slots.values())])
    assert spans[0][0] == 0 and all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(slot.scale % 4 == 0 for slot in slots.values())
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert len(quantize(architecture, weights)) == spans[-1][1]
    assert slots.keys() == {name for name, shape in architecture.parameter_shapes().items() if len(shape) == 2}


@pytest.mark.parametrize("levels", [LEVELS, COARSE_LEVELS])
@given(data=st.data())
def test_every_value_is_within_half_a_step_of_its_channel(levels: int, data: st.DataObject) -> None:
    sizes = Architecture(1, 2, 1, 2, 3, 2, 4, mel_bins=3, subsampling_factor=1)
    shapes = sizes.parameter_shapes()
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in ("encoder.0.W", "predictor.embedding"):
        weights[name] = data.draw(arrays(np.float32, shapes[name], elements=FLOATS))
        found = dequantized(sizes, quantize(sizes, weights, levels), name)
        peak = np.abs(weights[name].astype(np.float64)).max(axis=None if name == "predictor.embedding" else 1)
        smallest = levels * np.finfo(np.float32).tiny  # channels that never reach it are taken for zero
        bound = np.where(peak <= 1.001 * smallest, smallest, 0.5001 * peak / levels)
        assert (np.abs(found - weights[name]) <= (bound if bound.ndim == 0 else bound[:, None])).all()
