"""Writing bundles: same input, same bytes; never half of one; cards; runs."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.bundle import PRESETS, Architecture, Bundle
from device_sdk.bundle import piece_ngram as piece_ngrams
from device_sdk.bundle import weights as weight_files
from device_sdk.errors import BundleError, ConfigurationError
from export.bundles import architecture_of, bundle_run, mean, refresh, render, rewrite, trained, write_bundle
from rescoring.combination import CombinationWeights
from rescoring.words import WordList
from server.lab.training.ngram import estimate, over_pieces
from tests.tiny import tiny_background, tiny_language_model, tiny_parts, tiny_tokenizer, tiny_weights, tiny_words


def arguments(**changes: Any) -> dict[str, Any]:
    return tiny_parts() | {"version": "1", "combination": CombinationWeights(marginal=0.25)} | changes


@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_the_same_input_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    created = "2026-01-01T00:00:00+00:00"
    paths = [write_bundle(tmp_path / f"{side}{suffix}", **arguments(created=created)) for side in "ab"]
    first, second = (
        {path.name: path.read_bytes() for path in place.iterdir()} if place.is_dir() else {"": place.read_bytes()}
        for place in paths
    )
    assert first == second and Bundle.open(paths[0]).combination.marginal == 0.25


@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_a_bundle_is_replaced_only_by_a_good_one(suffix: str, tmp_path: Path) -> None:
    out = write_bundle(tmp_path / f"bundle{suffix}", **arguments(version="1"))
    write_bundle(out, **arguments(version="2"))
    assert Bundle.open(out).version == "2"
    bad = tiny_weights(PRESETS["tiny"])
    bad["joiner.output.bias"][1] = np.nan
    with pytest.raises(BundleError, match=r"weights to export: tensor 'joiner\.output\.bias' holds NaN"):
        write_bundle(out, **arguments(version="3", weights=bad))
    with pytest.raises(BundleError, match="no distribution"):
        write_bundle(out, **arguments(version="3", background=np.zeros(len(tiny_words()))))
    assert Bundle.open(out).version == "2"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]  # no half-written bundle left behind


def test_weights_that_float16_holds_take_half_the_room(tiny_bundle: Bundle, tmp_path: Path) -> None:
    half = {name: np.float32(np.float16(value)) for name, value in tiny_bundle.weights.items()}
    found = Bundle.open(rewrite(tiny_bundle, tmp_path / "half", weights=half))
    assert all(np.array_equal(found.weights[name], value) for name, value in half.items())
    sizes = [bundle.file("weights.safetensors").stat().st_size for bundle in (found, tiny_bundle)]
    assert sizes[0] < 0.55 * sizes[1]


def test_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "important.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("notes", "file"):
        with pytest.raises(BundleError, match="exists and is no bundle"):
            write_bundle(tmp_path / name, **arguments())
    assert (tmp_path / "notes" / "important.txt").read_text() == "keep"
    (tmp_path / "empty").mkdir()
    assert Bundle.open(write_bundle(tmp_path / "empty", **arguments())).version == "1"


def tree(place: Path) -> dict[str, bytes]:
    """Contents by the names of the files below a place; a file's own under an empty name."""
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def as_zip(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder), "zip", folder))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"[Content_Types].xml": "<a/>"}, r"no manifest\.json, but '\[Content_Types\]\.xml'"),
        ({"manifest.json": '{"short_name": "app"}', "index.html": ""}, r"manifest\.json: field short_name"),
        ({"manifest.json": "{"}, r"manifest\.json: field \(whole file\): not JSON"),
    ],
)
def test_what_only_looks_like_a_bundle_is_never_replaced(
    files: dict[str, str], message: str, packed: bool, tmp_path: Path
) -> None:
    out = tmp_path / "other"
    out.mkdir()
    for name, content in files.items():
        (out / name).write_text(content)
    out = as_zip(out) if packed else out
    before = tree(out)
    with pytest.raises(BundleError, match=rf"{out.name}: exists and is no bundle \({message}.*; choose another path"):
        write_bundle(out, **arguments())
    assert tree(out) == before


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["notes.txt", "more/notes.txt"])
def test_a_bundle_with_files_of_others_is_never_replaced(
    name: str, packed: bool, tmp_path: Path, tiny_bundle: Bundle
) -> None:
    out = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("keep")
    out = as_zip(out) if packed else out
    before = tree(out)
    with pytest.raises(
        BundleError, match=rf"{out.name}: exists and is no bundle \(its manifest does not name '{name}'"
    ):
        write_bundle(out, **arguments())
    assert tree(out) == before


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_bundle_is_replaced(packed: bool, tmp_path: Path, tiny_bundle: Bundle) -> None:
    out = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    (out / "words.txt").unlink()
    (out / "card.json").write_text("altered")
    out = as_zip(out) if packed else out
    assert Bundle.open(write_bundle(out, **arguments(version="2"))).version == "2"


def test_a_link_beside_a_bundles_files_is_not_its_own(tmp_path: Path, tiny_bundle: Bundle) -> None:
    out = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    (out / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(BundleError, match="does not name 'elsewhere'"):
        write_bundle(out, **arguments())
    assert (out / "elsewhere").is_symlink()


def test_a_zip_that_cannot_be_read_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "locked.zip"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("manifest.json", "{}")
    content = bytearray(out.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # encrypted, says the directory
    content[6] |= 1
    out.write_bytes(content)
    with pytest.raises(BundleError, match=r"locked\.zip: exists and is no bundle \(.*encrypted"):
        write_bundle(out, **arguments())
    assert out.read_bytes() == content


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError("no room")])
def test_stopped_between_the_renames_the_old_bundle_stays(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rename = write_bundle(tmp_path / "bundle", **arguments()), Path.rename

    def interrupted(path: Path, to: Path) -> Path:
        if path.name == "new":
            raise stop
        return rename(path, to)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(type(stop)):
            write_bundle(out, **arguments(version="2"))
    assert Bundle.open(out).version == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_an_old_bundle_that_cannot_be_put_back_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, rename = write_bundle(tmp_path / "bundle", **arguments()), Path.rename

    def broken(path: Path, to: Path) -> Path:
        if path.name in ("new", "old"):
            raise OSError(f"{path.name} cannot be moved")
        return rename(path, to)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", broken)
        with pytest.raises(OSError, match="old cannot be moved"):
            write_bundle(out, **arguments(version="2"))
    (workshop,) = tmp_path.iterdir()
    assert Bundle.open(workshop / "old").version == "1"


def test_a_zip_has_the_mode_of_other_files(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        out = write_bundle(tmp_path / "bundle.zip", **arguments())
    finally:
        os.umask(umask)
    assert out.stat().st_mode & 0o777 == 0o640
    out.chmod(0o604)
    assert write_bundle(out, **arguments(version="2")).stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("filled", [False, True])
def test_a_folder_is_not_replaced_by_a_zip(filled: bool, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    out.mkdir()
    if filled:
        write_bundle(tmp_path / "first", **arguments()).rename(out)
    before = tree(out)
    with pytest.raises(BundleError, match=r"out\.zip: is a folder, expected a file for a zip; choose another path"):
        write_bundle(out, **arguments(version="2"))
    assert tree(out) == before


@pytest.mark.parametrize("out", [".", "..", "{}"])
def test_the_folder_one_stands_in_is_not_replaced(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stood = tmp_path / "above" / "here"
    stood.mkdir(parents=True)
    monkeypatch.chdir(stood)
    with pytest.raises(BundleError, match="the folder that this process stands in, or above it; name another folder"):
        write_bundle(out.format(stood), **arguments())
    assert stood.samefile(".") and not tree(tmp_path)


def test_a_refreshed_bundle_is_the_same_to_the_byte(tmp_path: Path) -> None:
    card = {"figures": {"b": 1.5, "a": {"d": 2, "c": None}}, "description": "fields in no order"}
    first = Bundle.open(write_bundle(tmp_path / "first", **arguments(card=card, training={"z": 1, "a": [2.5]})))
    again = Bundle.open(refresh(first, tmp_path / "again"))
    assert again.manifest == first.manifest  # of every file, the hash
    assert refresh(again, tmp_path / "again", version="2") and Bundle.open(tmp_path / "again").version == "2"


def test_rewrite_changes_what_is_asked_and_nothing_else(tiny_bundle: Bundle, tmp_path: Path) -> None:
    out = rewrite(tiny_bundle, tmp_path / "out", combination=CombinationWeights(marginal=0.75), created="2026")
    other = Bundle.open(out)
    assert other.combination.marginal == 0.75
    before, after = tiny_bundle.manifest.files, other.manifest.files
    assert {name for name in after if after[name] != before[name]} == {"rescoring.json"}
    assert before.keys() == after.keys() and other.version == tiny_bundle.version


SHAPES = [*PRESETS.values(), Architecture(3, 8, 2, 6, 5, 7, 11, mel_bins=5, subsampling_factor=2)]


@pytest.mark.parametrize("architecture", SHAPES)
def test_architecture_from_shapes(architecture: Architecture) -> None:
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    weights = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    assert architecture_of(weights, "test") == architecture


def test_shapes_of_no_architecture_are_refused() -> None:
    weights = tiny_weights(PRESETS["tiny"])
    with pytest.raises(BundleError, match=r"w: tensor 'features\.mean' is missing"):
        architecture_of({name: value for name, value in weights.items() if name != "features.mean"}, "w")
    with pytest.raises(BundleError, match="w: shapes fit no architecture"):
        architecture_of(weights | {"predictor.embedding": np.zeros(3, np.float32)}, "w")


def write_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(weight_files.serialize(tiny_weights(PRESETS["tiny"])))
    (folder / "tokenizer.model").write_bytes(tiny_tokenizer(PRESETS["tiny"].pieces))
    (folder / "words.txt").write_text(tiny_words().text())
    training = {"command": "idiolect train rnnt --text /home/me/a.txt", "data": ["fsdd:/data/of/me/x"]}
    (folder / "training.json").write_text(json.dumps(training | {"recipe": {"seed": 5}}))
    return folder


def test_a_run_becomes_a_bundle(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    bundle = Bundle.open(bundle_run([run], tmp_path / "out", name="n", version="7", licence="L"))
    assert bundle.architecture == PRESETS["tiny"] and bundle.version == "7"
    np.testing.assert_allclose(bundle.background, 1 / len(bundle.words))
    card = bundle.file("MODEL_CARD.md").read_text()
    assert "idiolect train rnnt --text a.txt" in card and "fsdd:x" in card
    assert "/home" not in card and "/data" not in bundle.manifest.to_bytes().decode()  # folders do not travel
    assert bundle.manifest.training["recipe"]["seed"] == 5
    extra = tmp_path / "extra"
    extra.mkdir()
    words = tiny_words()
    (extra / "background.safetensors").write_bytes(weight_files.serialize({"unigram": tiny_background(words)}))
    (extra / "rescoring.json").write_text('{"marginal": 0.125}')
    (extra / "card.json").write_text('{"description": "mine"}')
    for name in ("language_model.onnx", "ngram.arpa.gz"):
        (extra / name).write_bytes(b"model")
    bundle = Bundle.open(bundle_run([run, extra], tmp_path / "out", name="n", version="8", licence="L"))
    assert bundle.combination.marginal == 0.125
    np.testing.assert_allclose(bundle.background, tiny_background(words))
    assert "mine" in bundle.file("MODEL_CARD.md").read_text()
    assert bundle.has("language_model.onnx") and bundle.has("ngram.arpa.gz") and not bundle.has("ngram.arpa")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("weights.safetensors", None, r"weights\.safetensors: found in none of .*run; train it first"),
        ("tokenizer.model", None, r"tokenizer\.model: found in none"),
        ("training.json", b"{", r"training\.json: not JSON"),
        ("card.json", b"[]", r"card\.json: found list, expected a JSON object"),
        ("background.safetensors", b"x", r"background\.safetensors: not a readable safetensors"),
    ],
)
def test_a_run_with_a_bad_file_is_refused(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    with pytest.raises(BundleError, match=message):
        bundle_run([run], tmp_path / "out", name="n", version="1", licence="L")
    assert not (tmp_path / "out").exists()


def test_what_was_trained_is_a_bundle_or_a_run(tmp_path: Path, tiny_bundle: Bundle) -> None:
    weights, pieces = trained(tiny_bundle.path)
    run = write_run(tmp_path / "run")
    again, same = trained(run)
    assert again.keys() == weights.keys() and same == pieces == tiny_bundle.file("tokenizer.model").read_bytes()
    (run / "tokenizer.model").unlink()
    with pytest.raises(BundleError, match=r"no tokenizer\.model"):
        trained(run)


def test_a_mean_of_weights_and_all_else_of_the_first(tmp_path: Path, tiny_bundle: Bundle) -> None:
    more, most = (
        rewrite(
            tiny_bundle,
            tmp_path / name,
            weights={each: value + np.float32(step) for each, value in tiny_bundle.weights.items()},
        )
        for name, step in (("more", 1.0), ("most", 3.0))
    )
    made = Bundle.open(mean(tiny_bundle, {more: 0.25, most: 0.5}, tmp_path / "mean", version="8"))
    for name, value in tiny_bundle.weights.items():
        np.testing.assert_allclose(made.weights[name], value + 1.75, atol=2e-3)  # half precision
    assert made.version == "8" and made.words.text() == tiny_bundle.words.text()
    assert made.manifest.training["mean"] == {f"tiny {tiny_bundle.version}": 0.25, "more": 0.25, "most": 0.5}
    assert "figures" not in json.loads(made.file("card.json").read_bytes())
    assert made.manifest.files["weights.safetensors"].size < 3 * tiny_bundle.architecture.parameter_count()


def test_parts_of_a_mean_that_share_a_name_all_stay(tmp_path: Path, tiny_bundle: Bundle) -> None:
    own = f"tiny {tiny_bundle.version}"
    runs = [write_run(tmp_path / name) for name in ("a/final", "b/final", "c/final 2", f"d/{own}")]
    made = Bundle.open(mean(tiny_bundle, dict.fromkeys(runs, 0.125), tmp_path / "mean", version="8"))
    named = {own: 0.5} | dict.fromkeys(("final", "final 2", "final 2 2", f"{own} 2"), 0.125)
    assert made.manifest.training["mean"] == named
    assert str(tmp_path) not in made.manifest.to_bytes().decode()  # folders do not travel


def test_a_mean_beyond_half_precision_stays_in_single(tmp_path: Path, tiny_bundle: Bundle) -> None:
    large = dict(tiny_bundle.weights) | {"joiner.output.bias": tiny_bundle.weights["joiner.output.bias"].copy()}
    large["joiner.output.bias"][1] = 200_001.0
    other = rewrite(tiny_bundle, tmp_path / "large", weights=large)
    made = Bundle.open(mean(tiny_bundle, {other: 0.5}, tmp_path / "mean", version="8")).weights
    expected = 0.5 * (tiny_bundle.weights["joiner.output.bias"].astype(np.float64) + large["joiner.output.bias"])
    np.testing.assert_array_equal(made["joiner.output.bias"], expected.astype(np.float32))
    for name in tiny_bundle.weights.keys() - {"joiner.output.bias"}:
        np.testing.assert_array_equal(made[name], tiny_bundle.weights[name].astype(np.float16).astype(np.float32))


def test_a_mean_may_bring_language_models(tmp_path: Path, tiny_bundle: Bundle) -> None:
    run, symbols = write_run(tmp_path / "run"), WordList(("<unk>", *map(str, range(1, tiny_bundle.tokenizer.size))))
    pieces = piece_ngrams.serialize(over_pieces(estimate([[1, 2, 3], [1, 3]], symbols, 3)))
    neural = tiny_language_model(tiny_bundle.words, seed=9)
    given = {"pieces.ngram.safetensors": pieces, "language_model.onnx": neural}
    for name, content in given.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in given]
    made = Bundle.open(mean(tiny_bundle, {run: 0.5}, tmp_path / "out", version="2", models=paths))
    assert {name: made.file(name).read_bytes() for name in given} == given
    assert neural != tiny_bundle.file("language_model.onnx").read_bytes() and made.piece_ngram is not None


@pytest.mark.parametrize("shares", [(), (0.0,), (-0.5,), (0.6, 0.6), (0.5, float("nan"))])
def test_shares_of_a_mean_that_are_none(shares: tuple[float, ...], tmp_path: Path, tiny_bundle: Bundle) -> None:
    with pytest.raises(ConfigurationError, match="expected each above 0, at most 1 together"):
        mean(tiny_bundle, {tmp_path / str(n): share for n, share in enumerate(shares)}, tmp_path / "out", version="2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.model", b"other", "other pieces"),
        ("weights.safetensors", weight_files.serialize({"x": np.zeros(2, np.float32)}), "unknown tensor 'x'"),
        ("weights.safetensors", b"none", "not a readable safetensors"),
        ("pieces.ngram.safetensors", b"none", "pieces.ngram.safetensors: not a readable safetensors"),
        ("language_model.onnx", b"none", "language_model.onnx"),
        ("language_model.onnx", tiny_language_model(WordList(("<unk>", "other"))), "words_digest"),
        ("other.onnx", b"", "other.onnx: expected a file named"),
    ],
)
def test_a_mean_of_what_does_not_fit_is_refused(
    name: str, content: bytes, message: str, tmp_path: Path, tiny_bundle: Bundle
) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content)
    models = [] if name in ("tokenizer.model", "weights.safetensors") else [run / name]
    with pytest.raises(BundleError, match=message):
        mean(tiny_bundle, {run: 0.5}, tmp_path / "out", version="2", models=models)
    assert not (tmp_path / "out").exists()


def test_the_card_as_prose() -> None:
    card = {"zeta": "last", "figures": {"word error": 0.123456, "slot error": None}, "description": "What it is."}
    card |= {"voices": {"base": ["a", "b"], "devices": []}, "data": ["made speech", {"corpus": "x", "licence": "CC0"}]}
    text = render("small", "1.0", card)
    assert text.startswith("# small 1.0\n\n## Description\n\nWhat it is.\n\n## Data\n\n- made speech\n")
    assert "| Word error | 0.1235 |" in text and "| Slot error | not measured |" in text
    assert "- Base:\n  - a, b" in text and "- Devices:\n  - none" in text
    assert "  - Corpus: x\n  - Licence: CC0" in text
    assert text.endswith("## Zeta\n\nlast\n")
