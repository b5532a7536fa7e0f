"""From transcripts to scored n-best lists, as small as it can be: every part is the real one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
pytest.importorskip("kenlm", reason="kenlm is not installed (idiolect[ngram])")

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings
from examples.liu_2020.lists import open_cache
from examples.liu_2020.making import BaseSettings, FirstPass, Scale, base_sentences, make_lists
from examples.liu_2020.meetings import read_meetings, stages_of

THINGS = ("remote", "button", "battery", "screen", "colour", "shape", "price", "market")
TINY = Scale(
    base=BaseSettings(
        recognizer_steps=1, language_model_steps=2, shard=6, watched=1, size=16, feed_forward=32, blocks=1, heads=2
    ),
    first=FirstPass(most=2, decoding=DecodingSettings(beam=4, nbest=4)),
    development=1,
    test=2,
)


def write_data(folder: Path) -> Path:
    """Five series of two meetings, whose turns name their series, and a few requests."""
    (folder / "ami").mkdir(parents=True)
    (folder / "slurp").mkdir()
    rows = [
        {
            "meeting": f"{series}{letter}",
            "turns": [
                {"speaker": who, "text": f"so {series[:2]} {name} is fine {letter}"} for name in THINGS for who in "AB"
            ],
        }
        for series in ("AA1", "BB1", "CC1", "DD1", "EE1")
        for letter in "ab"
    ]
    (folder / "ami" / "meetings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "slurp" / "lm.txt").write_text("".join(f"please turn the {name} on\n" for name in THINGS))
    return folder


def test_lists_are_made_once_and_no_test_meeting_is_learned_from(tmp_path: Path, tiny_bundle: Bundle) -> None:
    data, work = write_data(tmp_path / "data"), tmp_path / "work"
    meetings = read_meetings(data / "ami" / "meetings.jsonl")
    unheard = {series.name[:2].lower() for stage in ("development", "test") for series in stages_of(meetings)[stage]}
    text = base_sentences(data, meetings)
    assert text and not any(word in unheard for sentence in text for word in sentence.split())

    told: set[str] = set()
    folder = make_lists(data, work, TINY, lambda what, *_: told.add(what), tiny_bundle)
    held = open_cache(folder)
    assert len(held.development) == 1 and len(held.test) == 2
    assert {len(client) for client in held.test} == {2}
    assert (work / "language_models" / "text.txt").read_text().splitlines() == text
    assert set(held.about["perplexity"]["neural"]) == {"development.txt", "test.txt"}
    assert "first pass, test" in told and "second pass, development" in told

    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.gz")}
    make_lists(data, work, replace(TINY, test=2), lambda *_: None, tiny_bundle)
    assert before == {path: path.stat().st_mtime_ns for path in work.rglob("*.gz")}, "what is there is not made again"
