"""A bundle: one folder or zip that holds everything a recognizer needs, checked before anything is used."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import piece_ngram as piece_ngrams
from device_sdk.bundle import weights as weight_files
from device_sdk.bundle.architecture import Architecture, Subset, training_file
from device_sdk.bundle.manifest import AGAIN, MANIFEST, Manifest, is_inside, parse
from device_sdk.bundle.piece_ngram import PIECE_NGRAM_FILE, PieceNgram
from device_sdk.bundle.second_moments import SECOND_MOMENTS_FILE, SecondMoments
from device_sdk.bundle.second_moments import read as read_second_moments
from device_sdk.bundle.streaming import AnyArchitecture, subsets_of
from device_sdk.checks import check_type
from device_sdk.errors import BundleError, IdiolectError
from device_sdk.features.logmel import FeatureSettings

if TYPE_CHECKING:
    from rescoring.combination import CombinationWeights
    from rescoring.words import WordList
from collections.abc import Sequence

DEFAULT_BUNDLE = Path(__file__).parent / "default"
MANIFEST_LIMIT = 1 << 20

Float = NDArray[np.float32]


class Bundle:
    """A checked bundle. Open one with :meth:`open`; it is read-only and safe to share between threads. path: folder or
    zip it came from. version: of its weights. weights: name -> read-only float32 array. packed: the same weights as one
    buffer, which every graph of the bundle reads. tokenizer: subwords, 0 is blank."""

    def __init__(
        self, path: Path, folder: Path, manifest: Manifest, packed: bytes, tokenizer: Tokenizer, version: str
    ) -> None:
        self.path, self.manifest = path, manifest
        self.architecture: AnyArchitecture = manifest.read_architecture(str(path))
        self.features: FeatureSettings = manifest.read_features(str(path))
        self.packed = packed
        self.weights: Mapping[str, Float] = MappingProxyType(weight_files.unpack(self.architecture, packed))
        self.tokenizer, self.version, self._folder = tokenizer, version, folder
        self._owner: Bundle | None = None

    @classmethod
    def given(cls, bundle: Bundle | str | Path) -> Bundle:
        """A bundle as an app gives it, itself or its path. ConfigurationError: something else."""
        check_type("bundle", bundle, (Bundle, str, Path), "a Bundle, or its path")
        return bundle if isinstance(bundle, Bundle) else cls.open(bundle)

    @classmethod
    def open(cls, path: str | Path | None = None) -> Bundle:
        """Open and check a bundle. path: folder or zip; ``None`` is the bundle packaged with idiolect. A zip is
        unpacked into a temporary folder that goes away with the bundle. Checked: every file's size and sha256, the
        manifest's fields and versions, every weight's name, shape, type and finiteness, the tokenizer's, word list's
        and background's sizes. Raises :class:`BundleError` that names the file and the field."""
        place = DEFAULT_BUNDLE if path is None else Path(path)
        if not place.exists():
            hint = (
                "this install has no default bundle; pass a path" if path is None else "give a bundle's folder or zip"
            )
            raise BundleError(f"{place}: no such bundle; {hint}")
        if place.is_dir():
            return cls._open_folder(place, place)
        folder = Path(tempfile.mkdtemp(prefix="idiolect-bundle-"))
        try:
            _unpack(place, folder)
            bundle = cls._open_folder(place, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(bundle, shutil.rmtree, folder, ignore_errors=True)
        return bundle

    @classmethod
    def _open_folder(cls, path: Path, folder: Path) -> Bundle:
        if not (folder / MANIFEST).exists():
            raise BundleError(f"{path}: holds no {MANIFEST}, so it is no bundle; give a bundle's folder or zip")
        manifest = parse(_read_bytes(folder / MANIFEST, path), f"{path}/{MANIFEST}")
        kept: dict[str, bytes] = {}
        for name, entry in manifest.files.items():
            content = _read_bytes(folder / name, path)
            entry.check(content, f"{path}/{name}")
            if name in ("weights.safetensors", "tokenizer.model"):
                kept[name] = content
        architecture = manifest.read_architecture(str(path))
        source = f"{path}/weights.safetensors"
        weights = weight_files.read(kept["weights.safetensors"], source)
        weight_files.check(architecture, weights, source)
        tokenizer = Tokenizer(kept["tokenizer.model"], f"{path}/tokenizer.model")
        if tokenizer.size != architecture.pieces:
            found = f"{tokenizer.size} pieces, expected {architecture.pieces}"
            raise BundleError(f"{path}/tokenizer.model: holds {found}, as architecture.pieces says")
        bundle = cls(path, folder, manifest, weight_files.pack(architecture, weights), tokenizer, manifest.version)
        # Read now: a damaged one is refused here.
        _ = bundle.background, bundle.combination, bundle.second_moments, bundle.piece_ngram
        return bundle

    @cached_property
    def words(self) -> WordList:
        """The public word list; id = line number, 0 is the bucket of all other words."""
        from rescoring.words import WordList

        source = f"{self.path}/words.txt"
        try:
            return WordList.parse(self.file("words.txt").read_text(encoding="utf-8"))
        except (UnicodeDecodeError, ValueError, IdiolectError) as error:
            raise BundleError(f"{source}: {error}") from error

    @cached_property
    def piece_ngram(self) -> PieceNgram | None:
        """The n-gram over pieces that the first pass follows; None where the bundle holds none."""
        if not self.has(PIECE_NGRAM_FILE):
            return None
        source = f"{self.path}/{PIECE_NGRAM_FILE}"
        return piece_ngrams.read(self.file(PIECE_NGRAM_FILE).read_bytes(), self.tokenizer.size, source)

    @cached_property
    def background(self) -> NDArray[np.float64]:
        """The background unigram u over the word list: [n] float64, strictly positive, sums to 1, read-only."""
        source = f"{self.path}/background.safetensors"
        unigram = weight_files.read(self.file("background.safetensors").read_bytes(), source).get("unigram")
        if unigram is None:
            raise BundleError(f"{source}: tensor 'unigram' is missing, expected [{len(self.words)}] float64")
        if unigram.shape != (len(self.words),) or unigram.dtype != np.float64:
            raise BundleError(
                f"{source}: tensor 'unigram' is {unigram.dtype} {list(unigram.shape)}, "
                f"expected float64 [{len(self.words)}], one probability per word of words.txt"
            )
        value = np.asarray(unigram, np.float64)
        if not (np.isfinite(value).all() and (value > 0.0).all() and abs(float(value.sum()) - 1.0) < 1e-6):
            raise BundleError(f"{source}: tensor 'unigram' is no distribution, expected positive values that sum to 1")
        value.flags.writeable = False
        return value

    @cached_property
    def combination(self) -> CombinationWeights:
        """How the parts of a hypothesis' score are weighed, from ``rescoring.json``."""
        from rescoring.combination import CombinationWeights

        source = f"{self.path}/rescoring.json"
        try:
            return CombinationWeights.from_mapping(json.loads(self.file("rescoring.json").read_text(encoding="utf-8")))
        except (TypeError, ValueError, IdiolectError) as error:
            raise BundleError(f"{source}: {error}") from error

    @cached_property
    def second_moments(self) -> SecondMoments | None:
        """How large each parameter's gradient usually is; None where the bundle does not say."""
        if not self.has(SECOND_MOMENTS_FILE):
            return None
        return read_second_moments(
            self.file(SECOND_MOMENTS_FILE).read_bytes(), self.architecture, f"{self.path}/{SECOND_MOMENTS_FILE}"
        )

    @property
    def lstm(self) -> Architecture:
        """The sizes of an LSTM RNN-T. Raises :class:`BundleError` for a bundle with another encoder."""
        if not isinstance(self.architecture, Architecture):
            raise BundleError(f"{self.path}: brings an encoder of its own; this needs the LSTM networks of idiolect")
        return self.architecture

    @property
    def subset(self) -> Subset:
        """What local steps move unless an app chooses: the first that the bundle has gradients for."""
        known = subsets_of(self.architecture)
        return next((each for each in known if self.has(training_file(each))), known[0])

    @property
    def feature_mean(self) -> Float | None:
        """Mean of the log-mel frames that the networks learned from, [M]; None where the bundle does not say."""
        return self.weights.get("features.mean")

    def has(self, name: str) -> bool:
        """Whether the bundle holds this file (int8 graphs, the language model and the n-gram are optional)."""
        return name in self.manifest.files

    def file(self, name: str) -> Path:
        """Where a file of the bundle lies. Raises :class:`BundleError` where the bundle does not hold it."""
        if not self.has(name):
            raise BundleError(f"{self.path}: holds no file {name!r}; its manifest lists {sorted(self.manifest.files)}")
        return self._folder / name

    def with_weights(self, weights: Mapping[str, NDArray[np.generic]], version: str) -> Bundle:
        """The same bundle with other weights; constants that are left out are kept. Raises :class:`BundleError`."""
        constants = {name: self.weights[name] for name in self.architecture.constant_shapes()}
        merged: dict[str, NDArray[np.generic]] = {**constants, **weights}
        weight_files.check(self.architecture, merged, f"weights {version!r}")
        packed = weight_files.pack(self.architecture, merged)
        other = Bundle(self.path, self._folder, self.manifest, packed, self.tokenizer, version)
        other._owner = self._owner or self  # keeps an unpacked zip's folder alive
        return other

    def with_combination(self, combination: CombinationWeights) -> Bundle:
        """The same bundle whose scores are weighed otherwise."""
        other = copy(self)
        other.combination, other._owner = combination, self._owner or self
        return other

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, version={self.version!r})"


def _read_bytes(file: Path, bundle: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BundleError(f"{bundle}: {file.name} cannot be read ({error.strerror}); {AGAIN}") from error


def _unpack(archive: Path, folder: Path) -> None:
    """Write the zip's manifest and the files it lists, and nothing else, into ``folder``."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as opened:
            entries = {entry.filename: entry for entry in opened.infolist() if not entry.is_dir()}
            for name in entries:
                if not is_inside(name):
                    raise BundleError(f"{archive}: entry {name!r} leaves the bundle's folder; do not use this archive")
            if MANIFEST not in entries:
                raise BundleError(f"{archive}: {MANIFEST} is missing; this zip is no bundle")
            if entries[MANIFEST].file_size > MANIFEST_LIMIT:
                raise BundleError(f"{archive}/{MANIFEST}: {entries[MANIFEST].file_size} bytes, expected at most 1 MiB")
            content = opened.read(MANIFEST)
            manifest = parse(content, f"{archive}/{MANIFEST}")
            (folder / MANIFEST).write_bytes(content)
            for name, expected in manifest.files.items():
                if name not in entries:
                    raise BundleError(f"{archive}: {name} is missing; {AGAIN}")
                size = entries[name].file_size
                if size != expected.size:
                    raise BundleError(f"{archive}/{name}: size is {size} bytes, expected {expected.size}; {AGAIN}")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(opened.read(name))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BundleError(f"{archive}: not a readable zip ({error}); {AGAIN}") from error


WORD_START = "\u2581"


class Tokenizer:
    """Text to pieces and back. Text is lower-case words; piece 0 (unknown) is blank, without text as control pieces.
    letters: every character that the pieces can spell, but for the boundary of words; pieces of capitals alone become
    small letters."""

    def __init__(self, model: bytes, source: str = "tokenizer.model") -> None:
        """model: bytes of a SentencePiece model. Raises :class:`BundleError` where it is damaged."""
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise BundleError(f"{source}: not a SentencePiece model ({error})") from error
        if processor.unk_id() != 0:
            raise BundleError(f"{source}: unk_id is {processor.unk_id()}, expected 0 (the blank)")
        self._processor = processor
        try:
            self._pieces: tuple[str, ...] = tuple(processor.id_to_piece(piece) for piece in range(len(processor)))
        except UnicodeDecodeError as error:
            raise BundleError(f"{source}: a piece is no text ({error}); take the bundle again") from error
        kinds = range(1, len(processor))
        self._bytes = {piece: int(self._pieces[piece][3:5], 16) for piece in kinds if processor.is_byte(piece)}
        self._mute = frozenset(piece for piece in kinds if processor.is_control(piece)) | {0}
        silent = self._mute | self._bytes.keys()
        spelling = "".join(text for piece, text in enumerate(self._pieces) if piece not in silent)
        self._capitals = spelling.isupper()
        if self._capitals:
            self._pieces = tuple(text.lower() for text in self._pieces)
        self.letters = frozenset(spelling.lower() if self._capitals else spelling) - {WORD_START}
        self._texts = tuple("" if piece in self._mute else text for piece, text in enumerate(self._pieces))
        self._starts = tuple(piece.startswith(WORD_START) for piece in self._pieces)

    @property
    def size(self) -> int:
        """Pieces, with blank."""
        return len(self._pieces)

    def piece(self, token: int) -> str:
        return self._pieces[token]

    def encode(self, text: str) -> list[int]:
        """Pieces of ``text``; characters that the model never saw are left out (0 is blank, never a label)."""
        written = text.upper() if self._capitals else text
        return [token for token in self._processor.encode(written) if token != 0]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of pieces; what has none is ignored, as are bytes that spell no character."""
        joined = "".join(map(self._texts.__getitem__, tokens))
        if self._bytes and not self._bytes.keys().isdisjoint(tokens):
            parts = (
                bytes([self._bytes[token]]) if token in self._bytes else self._texts[token].encode() for token in tokens
            )
            joined = b"".join(parts).decode("utf-8", errors="ignore")
            joined = joined.lower() if self._capitals else joined
        return " ".join(joined.replace(WORD_START, " ").split())

    def starts_word(self, token: int) -> bool:
        return self._starts[token]
