"""Public speech corpora, read by lhotse, as corpora of this project.

Folders are as their publishers hand them out. A *part* is what the publisher calls it: ``train-clean-100`` of
LibriSpeech, ``small`` of Libri-Light, ``train`` of the others."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import soxr
from lhotse import CutSet, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.cut import MonoCut

from device_sdk.errors import DataError, IdiolectError
from server.lab.corpora.partitions import Item
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform, clean

Kind = Literal["librispeech", "librilight", "mls", "commonvoice"]


def manifest(kind: Kind, path: Path, part: str, language: str = "en") -> CutSet:
    """Cuts of one part, one utterance each, with speaker and (but for Libri-Light) text. Audio is not read. language:
    of Common Voice, as its folder is called (``fr``), and of MLS (``french``). Raises DataError for a kind, folder or
    part that is not there, and for a folder of another layout."""
    if kind not in get_args(Kind):
        raise DataError(f"corpus {kind!r} is unknown; expected one of {', '.join(get_args(Kind))}")
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; expected {kind} as its publishers hand it out")
    readers: Mapping[str, Callable[[], CutSet]] = {
        "librispeech": lambda: _librispeech(path, part),
        "librilight": lambda: _librilight(path, part),
        "mls": lambda: _mls(path, part, language),
        "commonvoice": lambda: _commonvoice(path, part, language),
    }
    try:
        logging.disable(logging.WARNING)  # recipes log every missing file
        cuts = readers[kind]()
    except IdiolectError:
        raise
    except Exception as error:  # recipes raise whatever a missing or odd file makes them raise
        raise DataError(f"{path}: cannot be read as {kind}, part {part!r} ({type(error).__name__}: {error})") from error
    finally:
        logging.disable(logging.NOTSET)
    if len(cuts) == 0:
        raise DataError(f"{path}: holds no utterance of {kind}, part {part!r}")
    return cuts


def _session_of(kind: str, cut: MonoCut) -> str:
    """What stands for time within a speaker: chapter (LibriSpeech), book and chapter (Libri-Light), book (MLS); empty
    where nothing does."""
    name = cut.supervisions[0].recording_id
    if kind == "librispeech":
        return str(name.split("-")[1])
    if kind == "librilight":
        return "/".join(name.split("/")[-2:])
    if kind == "mls":
        return str(name.split("_")[1])
    return ""


def items_of(kind: str, cuts: CutSet) -> list[Item]:
    """What partitioners need to know of each cut."""
    return [
        Item(str(cut.id), str(cut.supervisions[0].speaker), float(cut.duration), _session_of(kind, cut)) for cut in cuts
    ]


def as_corpus(name: str, cuts: CutSet) -> Corpus:
    """The same utterances as the rest of the server reads them."""
    return Corpus(name, tuple(map(_utterance, cuts)))


def _librispeech(path: Path, part: str) -> CutSet:
    from lhotse.recipes import prepare_librispeech

    _part(path / part)
    return _both(prepare_librispeech(path, dataset_parts=[part])[part])


def _librilight(path: Path, part: str) -> CutSet:
    from lhotse.recipes.librilight import _prepare_subset  # the public function wants all three parts on disk

    _part(path / part)
    return _cuts(*_prepare_subset(part, path))


def _mls(path: Path, part: str, language: str) -> CutSet:
    # lhotse's recipe wants all three parts of all languages on disk; the layout is read as it reads it.
    flac, opus = path / f"mls_{language}", path / f"mls_{language}_opus"
    chosen = flac if flac.is_dir() else opus
    _part(chosen / part)
    recordings = RecordingSet.from_dir(
        chosen / part, "*.flac" if chosen == flac else "*.opus", force_opus_sampling_rate=SAMPLE_RATE
    )
    known = set(recordings.ids)
    rows = [line.split("\t", 1) for line in (chosen / part / "transcripts.txt").read_text("utf-8").splitlines()]
    supervisions = [
        SupervisionSegment(
            name, name, 0.0, recordings.duration(name), text=text, speaker=name.split("_")[0], language=language
        )
        for name, text in rows
        if name in known
    ]
    return _cuts(recordings, SupervisionSet.from_segments(supervisions))


def _commonvoice(path: Path, part: str, language: str) -> CutSet:
    from lhotse.recipes import prepare_commonvoice

    if not (path / language / f"{part}.tsv").is_file():
        raise DataError(f"{path / language / part}.tsv: no such file; expected Common Voice's list of the part")
    with TemporaryDirectory() as written:
        return _both(prepare_commonvoice(path, written, [language], [part])[language][part])


def _part(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected a part of the corpus")


def _both(manifests: Mapping[str, Any]) -> CutSet:
    return _cuts(manifests["recordings"], manifests["supervisions"])


def _cuts(recordings: RecordingSet, supervisions: SupervisionSet) -> CutSet:
    """One cut an utterance, under the utterance's id, in the order of ids."""
    if len(recordings) == 0 or len(supervisions) == 0:
        return CutSet([])
    whole = CutSet.from_manifests(recordings, supervisions).trim_to_supervisions(keep_overlapping=False)
    return CutSet(sorted([cut.with_id(cut.supervisions[0].id) for cut in whole], key=lambda cut: str(cut.id)))


def _utterance(cut: MonoCut) -> Utterance:
    supervision = cut.supervisions[0]
    english = (supervision.language or "en").lower().split("-")[0] in ("en", "eng", "english")
    text = None if supervision.text is None else clean(supervision.text, english)
    return Utterance(str(cut.id), str(supervision.speaker), text, None, bool(text), partial(_load, cut))


def _load(cut: MonoCut) -> Waveform:
    try:
        samples = cut.load_audio()
    except Exception as error:
        raise DataError(f"{cut.id}: its audio cannot be read ({type(error).__name__}: {error})") from error
    waveform, rate = np.asarray(samples, np.float32).mean(0), int(cut.sampling_rate)
    return waveform if rate == SAMPLE_RATE else soxr.resample(waveform, rate, SAMPLE_RATE).astype(np.float32)
