"""Readers, on small folders written here in the real layout, and on the real data where there is some."""

import json
import os
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from device_sdk.errors import DataError
from server.lab.corpora import SAMPLE_RATE, open_corpus
from server.lab.corpora.readers import DIGITS, load_audio, read_jsonl
from server.lab.corpora.roles import ROLES, role_of
from server.lab.corpora.text import read_text


def write(path: Path, seconds: float = 0.5, rate: int = 16_000, channels: int = 1, value: float = 0.25) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.full((int(seconds * rate), channels), value, np.float32)
    soundfile.write(path, samples, rate, subtype="FLOAT" if path.suffix == ".wav" else None)
    return path


SLOTS = {"size": "small", "coffeeDrink": "mocha"}
ROW: dict[str, Any] = {"id": "a1", "text": "can i get a small mocha", "slots": SLOTS, "voice_group": "v02"}


def barista_folder(root: Path, *rows: dict[str, Any]) -> Path:
    (root / "audio").mkdir(parents=True)
    for row in rows:
        write(root / "audio" / f"{row['id']}.flac")
    (root / "barista.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return root


def test_barista(tmp_path: Path) -> None:
    other = ROW | {"id": "a2", "slots": {"coffeeDrink": "latte"}, "suspicious": "give me?", "voice_group": "v01"}
    corpus = open_corpus(f"barista:{barista_folder(tmp_path / 'barista', ROW, other)}", ROLES)
    first, second = corpus.utterances
    assert (first.id, first.speaker, first.text) == ("a1", "v02", "can i get a small mocha")
    assert first.slots == SLOTS and first.score_words and not second.score_words and corpus.lexicon is not None
    assert corpus.lexicon.values == {"coffeeDrink": ("latte", "mocha"), "size": ("small",)}
    assert first.load().shape == (8_000,)
    assert [utterance.id for utterance in corpus.of_speakers("v01").utterances] == ["a2"]
    assert corpus.of_speakers("v01").lexicon == corpus.lexicon and corpus.summary()["speakers"] == ["v01", "v02"]


@pytest.mark.parametrize(("field", "value"), [("id", 7), ("text", None), ("slots", "latte"), ("voice_group", None)])
def test_barista_names_the_broken_field(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(DataError, match="no rows"):
        open_corpus(f"barista:{barista_folder(tmp_path / 'empty')}", ROLES)
    with pytest.raises(DataError, match=f"row 1, field '{field}'"):
        open_corpus(f"barista:{barista_folder(tmp_path, ROW | {field: value})}", ROLES)


@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        ("barista", "", "no such folder"),
        ("barista", "audio", r"barista\.jsonl: cannot be read"),
        ("fsdd", "", "no such folder"),
        ("fsdd", "recordings", "7_george_3"),
        ("folder", "", "no audio file"),
        ("common_voice", "", r"manifest\.jsonl: no such file"),
    ],
)
def test_a_folder_of_another_kind_is_named(tmp_path: Path, kind: str, made: str, message: str) -> None:
    (tmp_path / made).mkdir(exist_ok=True)
    with pytest.raises(DataError, match=message):
        open_corpus(f"{kind}:{tmp_path}", ROLES)


def test_fsdd_joins_strings_of_one_speaker(tmp_path: Path) -> None:
    for digit, (number, speaker), index in product(range(10), enumerate(("ann", "bob")), range(2)):
        value = 0.01 * (digit + 1) + 0.2 * number
        write(tmp_path / "recordings" / f"{digit}_{speaker}_{index}.flac", 0.3, rate=8_000, value=value)
    (tmp_path / "recordings" / "notes.txt").write_text("not a recording")
    corpus = open_corpus(f"fsdd:{tmp_path}", ROLES, seed=3)
    assert corpus.speakers == ("ann", "bob") and corpus.lexicon is None
    for utterance in corpus.utterances:
        assert utterance.text is not None and utterance.slots is None
        words = utterance.text.split()
        assert 4 <= len(words) <= 7 and set(words) <= set(DIGITS)
        waveform, speech = utterance.load(), len(words) * 0.3 + 0.6
        assert speech + (len(words) - 1) * 0.049 <= waveform.size / SAMPLE_RATE <= speech + (len(words) - 1) * 0.251
        assert np.array_equal(waveform, utterance.load())
        assert 0 < np.abs(waveform[: int(0.29 * SAMPLE_RATE)]).max() < 0.01
        middle = float(np.median(waveform[int(0.35 * SAMPLE_RATE) : int(0.55 * SAMPLE_RATE)]))
        expected = 0.01 * (DIGITS.index(words[0]) + 1) + (0.2 if utterance.speaker == "bob" else 0.0)
        assert middle == pytest.approx(expected, abs=0.003)
    assert sum(len((utterance.text or "").split()) for utterance in corpus.utterances) >= 2 * 17
    strings = [open_corpus(f"fsdd:{tmp_path}", ROLES, seed=seed) for seed in (1, 1, 2)]
    ids = [[utterance.id for utterance in each.utterances] for each in strings]
    assert ids[0] == ids[1] != ids[2]
    single = open_corpus(f"fsdd:{tmp_path}", ROLES, seed=None)
    assert len(single) == 40 and {utterance.text for utterance in single.utterances} == set(DIGITS)


def test_folder_of_audio_and_text(tmp_path: Path) -> None:
    write(tmp_path / "ann" / "deep" / "b.flac")
    write(tmp_path / "ann" / "a.wav", rate=44_100, channels=2)
    write(tmp_path / "loose.flac")
    (tmp_path / "ann" / "a.txt").write_text("Hello, World! It's fine\n")
    corpus = open_corpus(f"folder:{tmp_path}", ROLES)
    assert [utterance.id for utterance in corpus.utterances] == ["ann/a", "ann/deep/b", "loose"]
    first, second, third = corpus.utterances
    assert first.text == "hello world it's fine" and first.score_words
    assert second.text is None and not second.score_words
    assert (first.speaker, second.speaker, third.speaker) == ("ann", "ann", tmp_path.name)
    assert first.load().shape == (8_000,) and corpus.lexicon is None


def test_folder_with_a_manifest(tmp_path: Path) -> None:
    write(tmp_path / "x.flac")
    rows = [{"audio": "x.flac", "text": "Play Jazz", "speaker": "eve", "slots": {"genre": "Jazz"}}, {"audio": "x.flac"}]
    (tmp_path / "manifest.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    corpus = open_corpus(f"folder:{tmp_path}", ROLES)
    first, second = corpus.utterances
    assert (first.speaker, first.text, first.slots) == ("eve", "play jazz", {"genre": "jazz"})
    assert (second.speaker, second.text, second.slots) == (tmp_path.name, None, None)
    assert corpus.lexicon is not None and corpus.lexicon.values == {"genre": ("jazz",)}


def test_a_manifest_may_hold_several_kinds(tmp_path: Path) -> None:
    """Each is read by its name; what Common Voice calls a speaker is a part of its sentences."""
    write(tmp_path / "x.flac")
    rows = [{"audio": "x.flac", "text": text, "speaker": "19"} for text in ("go left", "go right", "go left")]
    rows = [row | {"corpus": kind} for kind in ("common_voice", "librispeech") for row in rows]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (left, right, again), read = (
        [utterance.speaker for utterance in open_corpus(f"{kind}:{tmp_path}", ROLES).utterances]
        for kind in ("common_voice", "librispeech")
    )
    assert left == again != right and re.fullmatch(r"part-\d\d", left) and read == ["19"] * 3
    folder = Path(shutil.copytree(tmp_path, tmp_path / "common_voice"))
    text = [*read_text(folder / f"manifest.jsonl@{role_of('common_voice', left)}")]
    assert text.count("go left") == 4  # the same words have the same role, also as text
    with pytest.raises(DataError, match="no rows of speech_commands"):
        open_corpus(f"speech_commands:{tmp_path}", ROLES)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"audio": "gone.flac"}', "row 1, field 'audio'"),
        ('{"audio": "x.flac", "text": 3}', "row 1, field 'text': found int, expected one or more words"),
        ('{"audio": "x.flac", "text": "at 5 pm"}', "row 1, field 'text': found '5', expected letters"),
        ('{"audio": "x.flac", "slots": {"hour": "5"}}', "row 1, field 'slots', 'hour': found '5', expected letters"),
        ('{"audio": "x.flac", "slots": []}', "field 'slots'"),
        ("[1]", "line 1: found a list"),
        ("{", "line 1: not JSON"),
    ],
)
def test_folder_names_what_is_wrong_in_a_manifest(tmp_path: Path, row: str, message: str) -> None:
    write(tmp_path / "x.flac")
    (tmp_path / "manifest.jsonl").write_text(row)
    with pytest.raises(DataError, match=message):
        open_corpus(f"folder:{tmp_path}", ROLES)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"caf\xe9", "cannot be read"), (b"at 5 pm", "found '5', expected letters"), (b" \n", "found no words")],
)
def test_words_that_are_no_text_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "x.flac")
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"x\.txt: {message}"):
        open_corpus(f"folder:{tmp_path}", ROLES)


@pytest.mark.parametrize("source", ["", "barista", "barista:", "mp3:here", "made:test", "/some/path"])
def test_unknown_sources_say_what_is_known(source: str) -> None:
    with pytest.raises(DataError, match="expected one of"):
        open_corpus(source, ROLES)


def test_broken_audio_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("this is not audio")
    write(tmp_path / "empty.wav", 0.0)
    write(tmp_path / "nan.wav", value=float("nan"))
    broken = {"text": "not a readable", "gone": "not a readable", "empty": "no samples", "nan": "samples .*NaN"}
    for name, message in broken.items():
        with pytest.raises(DataError, match=rf"{name}\.wav: .*{message}"):
            load_audio(tmp_path / f"{name}.wav")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_jsonl(tmp_path / "binary.jsonl")
    (tmp_path / "odd.jsonl").write_bytes('{"text": "a\x85b\u2028c"}\r\n\n{"text": "d"}\n'.encode())
    assert read_jsonl(tmp_path / "odd.jsonl") == [{"text": "a\x85b\u2028c"}, {"text": "d"}]


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
@pytest.mark.parametrize(("kind", "speakers"), [("barista", 6), ("fsdd", 2)])
def test_real_recordings(kind: str, speakers: int) -> None:
    corpus = open_corpus(f"{kind}:{os.environ['IDIOLECT_DATA']}/{kind}", ROLES)
    assert len(corpus) > 100 and len(corpus.speakers) >= speakers
    unsure = sum(not utterance.score_words for utterance in corpus.utterances)
    assert (unsure > 0) == (kind == "barista") and unsure < 0.3 * len(corpus)
    assert kind == "fsdd" or (corpus.lexicon is not None and "soy milk" in corpus.lexicon.values["milkAmount"])
    waveform = corpus.utterances[0].load()
    assert waveform.dtype == np.float32 and np.isfinite(waveform).all() and 0.5 < waveform.size / SAMPLE_RATE < 20
