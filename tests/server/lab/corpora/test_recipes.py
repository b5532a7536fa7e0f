"""Tiny corpora in the layout of each publisher, read by the real recipes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from device_sdk.errors import DataError
from server.lab.corpora import open_corpus
from server.lab.corpora.recipes import Kind, as_corpus, items_of, manifest
from server.lab.corpora.roles import ROLES

RATE = 16_000


def tone(path: Path, hertz: float, seconds: float = 0.5, rate: int = RATE, **how: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(round(seconds * rate)) / rate
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * hertz * time), rate, **how)


def librispeech(root: Path, part: str = "train-clean-100", first: int = 19) -> None:
    for speaker, chapter, hertz in ((first, "198", 200), (first, "1987", 300), (first + 7, "495", 400)):
        folder = root / part / str(speaker) / chapter
        tone(folder / f"{speaker}-{chapter}-0000.flac", hertz)
        (folder / f"{speaker}-{chapter}.trans.txt").write_text(f"{speaker}-{chapter}-0000 IT'S A TONE OF {hertz}\n")


def librilight(root: Path, part: str = "small") -> None:
    chapters = (("100", "sea_fairies_01", 200), ("100", "sea_fairies_02", 300), ("7", "emma_10", 400))
    for speaker, chapter, hertz in chapters:
        stem = root / part / speaker / "a_book_64kb_mp3" / chapter
        tone(stem.with_suffix(".flac"), hertz, 1.5)
        details = {"speaker": speaker, "voice_activity": [[0.1, 0.6], [0.7, 1.2]]}
        stem.with_suffix(".json").write_text(json.dumps(details))


def mls(root: Path, parts: tuple[str, ...] = ("train",), speakers: tuple[int, ...] = (10058,)) -> None:
    language = root / "mls_french"
    for part in ("train", "dev", "test"):
        (language / part / "audio").mkdir(parents=True)
        lines = []
        for speaker in speakers if part in parts else ():
            for book, number, hertz in (("9", 0, 200), ("9", 1, 300), ("10", 0, 400)):
                name = f"{speaker}_{book}_{number:06d}"
                tone(language / part / "audio" / str(speaker) / book / f"{name}.flac", hertz)
                lines.append(f"{name}\tune note, là: {hertz}\n")
        (language / part / "transcripts.txt").write_text("".join(lines))
    (language / "metainfo.txt").write_text("SPEAKER|GENDER|PARTITION|MINUTES|BOOK ID|TITLE|CHAPTER\n")


def commonvoice(root: Path) -> None:
    header = "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tvariant\tlocale\tsegment\n"
    rows = []
    for number, client in enumerate(("a1", "a1", "b2"), 1):
        name, hertz = f"common_voice_fr_{number}", 100 + 100 * number
        tone(root / "fr" / "clips" / f"{name}.mp3", hertz, rate=48_000, format="MP3")
        rows.append(f'{client}\t{name}.mp3\t"Une note, où\t2\t0\t\t\t\t\tfr\t\n')
    (root / "fr" / "train.tsv").write_text(header + "".join(rows))


Row = tuple[str, str, str | None, str]
"""Id, speaker, text and session of an utterance."""

CASES: list[tuple[Kind, Callable[[Path], None], str, str, list[Row]]] = [
    ("librispeech", librispeech, "train-clean-100", "en",
     [(f"{who}-{chapter}-0000", who, "it's a tone of", chapter)
      for who, chapter in (("19", "198"), ("19", "1987"), ("26", "495"))]),
    ("librilight", librilight, "small", "en",
     [(f"small/{who}/a_book_64kb_mp3/{chapter}_{piece}", who, None, f"a_book_64kb_mp3/{chapter}")
      for who, chapter in (("100", "sea_fairies_01"), ("100", "sea_fairies_02"), ("7", "emma_10"))
      for piece in (0, 1)]),
    ("mls", mls, "train", "french",
     [(f"10058_{book}", "10058", "une note là", book.split("_")[0]) for book in ("10_000000", "9_000000", "9_000001")]),
    ("commonvoice", commonvoice, "train", "fr",
     [(f"common_voice_fr_{n}", who, "une note où", "") for n, who in ((1, "a1"), (2, "a1"), (3, "b2"))]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "write", "part", "language", "expected"), CASES, ids=[c[0] for c in CASES])
def test_a_corpus_in_its_publisher_s_layout_is_read(kind, write, part: str, language: str, expected, tmp_path) -> None:
    write(tmp_path)
    cuts = manifest(kind, tmp_path, part, language)
    corpus, items = as_corpus(f"{kind}:{tmp_path}", cuts), items_of(kind, cuts)
    pairs = list(zip(corpus.utterances, items, strict=True))
    assert [(utterance.id, utterance.speaker, utterance.text, item.session) for utterance, item in pairs] == expected
    for utterance, item in pairs:
        waveform = utterance.load()
        assert waveform.dtype == np.float32 and waveform.ndim == 1
        assert waveform.size / RATE == pytest.approx(item.seconds, abs=0.05)
        assert utterance.speaker == item.speaker and utterance.score_words == bool(utterance.text)
        strongest = np.abs(np.fft.rfft(waveform)).argmax() * RATE / waveform.size
        assert min(abs(strongest - hertz) for hertz in (200, 300, 400)) < 5, "the utterance's own piece of audio"


@pytest.mark.parametrize(
    ("kind", "write", "part", "language", "message"),
    [
        ("librispeech", librispeech, "train-clean-360", "en", "train-clean-360"),
        ("librilight", librilight, "large", "en", "large"),
        ("mls", mls, "train", "german", "mls_german"),
        ("commonvoice", commonvoice, "train", "it", "train.tsv"),
        ("commonvoice", commonvoice, "dev", "fr", "dev.tsv"),
        ("timit", librispeech, "train", "en", "librispeech"),
        *((kind, lambda path: (path / "train").mkdir(), "train", "en", "") for kind, *_ in CASES),
    ],
)
def test_what_is_not_there_is_named(kind: Kind, write, part: str, language: str, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=message or str(tmp_path)):
        manifest(kind, tmp_path, part, language)


@pytest.mark.parametrize(
    ("path", "message"), [("/nowhere@dev-clean", "no such folder"), ("/nowhere", "PATH@PART"), ("@dev", "PATH@PART")]
)
def test_a_public_corpus_opens_like_any_other(tmp_path: Path, path: str, message: str) -> None:
    librispeech(tmp_path)
    corpus = open_corpus(f"librispeech:{tmp_path}@train-clean-100", ROLES)
    assert corpus.speakers == ("19", "26") and len(corpus) == 3
    with pytest.raises(DataError, match=message):
        open_corpus(f"librispeech:{path}", ROLES)
