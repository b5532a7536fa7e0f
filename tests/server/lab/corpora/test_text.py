"""Text in the one form of speech."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import DataError
from server.lab.corpora.text import cardinal, ordinal, read_text, written_out


@pytest.mark.parametrize(
    ("raw", "spoken"),
    [
        ("I 've seen sixty - seven {disfmarker} I mean , no .", "i've seen sixty seven i mean no"),
        ("MISTER QUILTER'S MANNER", "mister quilter's manner"),
        ("(laughs) 'Hello' <noise> she said; 'cause dogs' rock 'n' roll", "hello she said 'cause dogs' rock n roll"),
        ("At 7:00pm, 7:05 or 19:30", "at seven pm seven oh five or nineteen thirty"),
        ("$25 or $1, 3.5% & 10°", "twenty five dollars or one dollar three point five percent and ten degrees"),
        ("the 5th, 12th, 20th, 31st", "the fifth twelfth twentieth thirty first"),
        ("1,250,013 [pause] 2005", "one million two hundred fifty thousand thirteen two thousand five"),
        ("1995, 1905, 1900", "nineteen ninety five nineteen oh five nineteen hundred"),
        ("agent 007 rolls a d20 + 5", "agent zero zero seven rolls a d twenty plus five"),
        ("1234567890123", "one two three four five six seven eight nine zero one two three"),
        ("café naïve", "cafe naive"),
        ("{pause}", ""),
    ],
)  # fmt: skip
def test_text_is_written_as_it_is_said(raw: str, spoken: str) -> None:
    assert written_out(raw) == spoken == written_out(spoken)


@given(st.integers(0, 10**12 - 1))
def test_numbers_are_said_as_they_are_read(number: int) -> None:
    """Words back to the number, by multiplying and adding."""
    values = {cardinal(each): each for each in [*range(20), *range(20, 100, 10)]}
    total, part = 0, 0
    for word in cardinal(number).split():
        power = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9}.get(word)
        if power == 100:
            part *= 100
        elif power:
            total, part = total + part * power, 0
        else:
            part += values[word]
    assert total + part == number
    assert ordinal(number).split()[:-1] == cardinal(number).split()[:-1] and ordinal(number)[-2:] in (
        "st",
        "nd",
        "rd",
        "th",
    )


def test_sources_are_lines_manifests_and_meetings_of_one_role(tmp_path: Path) -> None:
    folder = tmp_path / "icsi"
    folder.mkdir()
    rows = [
        {"meeting": name, "turns": [{"text": f"{name} one. Two?"}, {"text": "three"}]} for name in ("Bmr001", "Bmr026")
    ]
    (folder / "meetings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [*read_text(folder / "meetings.jsonl@development")] == ["Bmr026 one.", "Two?", "three"]
    assert [*read_text(folder / "meetings.jsonl@base")] == ["Bmr001 one.", "Two?", "three"]
    assert len([*read_text(folder / "meetings.jsonl")]) == 6
    texts = [f"text {number}" for number in range(200)]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps({"id": text, "text": text}) + "\n" for text in texts))
    roles = ("base", "development", "devices", "heldout")
    parts = [[*read_text(tmp_path / f"manifest.jsonl@{role}")] for role in roles]
    assert sorted(text for part in parts for text in part) == sorted(texts) and len(parts[0]) > 40
    (tmp_path / "lines.txt").write_text("One. Two.\nthree\n")
    assert [*read_text(tmp_path / "lines.txt")] == ["One. Two.", "three"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.txt", "no such text file"),
        ("lines.txt@base", "a plain file has no roles"),
        ("rows.jsonl@nobody", "found role 'nobody'"),
        ("rows.jsonl", "row 2: expected text, sentence, or turns"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "lines.txt").write_text("one\n")
    (tmp_path / "rows.jsonl").write_text('{"sentence": "one"}\n{"turns": [{"speaker": "a"}]}\n')
    with pytest.raises(DataError, match=message):
        list(read_text(tmp_path / source))
