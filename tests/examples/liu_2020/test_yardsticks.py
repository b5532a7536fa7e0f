"""Bounds of what marginals could give: lists made by hand, and real orders of coffee."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import DataError
from device_sdk.feedback import SlotLexicon
from device_sdk.hypothesis import Hypothesis, Scores
from examples.liu_2020.yardsticks import BEST_ENTRY, FROZEN, ROWS, Said, yardsticks
from rescoring.words import WordList
from server.lab.corpora import Utterance
from tests.examples.scripts import run_script

WORDS = WordList(("<unk>", "latte", "mocha", "tea", "a"))
BACKGROUND = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
LEXICON = SlotLexicon({"drink": ("latte", "mocha", "tea")})


def said(voice: str, number: int, truth: str, *heard: tuple[str, float]) -> Said:
    recording = Utterance(
        f"{voice}-{number}", voice, f"a {truth}", {"drink": truth}, True, lambda: np.zeros(1, np.float32)
    )
    found = [Hypothesis((), text, (), Scores(score), score) for text, score in heard]
    return Said(1, voice, number, recording, tuple(sorted(found, key=lambda each: -each.score)))


def rates(utterances: list[Said]) -> dict[str, float]:
    document = yardsticks(utterances, WORDS, BACKGROUND, LEXICON)
    assert [row["name"] for row in document["rows"]] == [FROZEN, *ROWS, BEST_ENTRY]
    assert document["utterances"] == len(utterances)
    return {row["name"]: row["slot_error"] for row in document["rows"]}


CLOSE = (("a latte", -1.0), ("a mocha", -1.05))


def test_habits_help_from_the_second_time_on() -> None:
    """Nothing tells the first mocha of somebody whom nobody is like; the future does."""
    found = rates([said("x", n, "mocha", *CLOSE) for n in range(4)] + [said("y", 0, "tea", ("a tea", -1.0))])
    assert found[FROZEN] == 0.8 and found["words the user said before"] == 0.2
    assert found["words the user says, later ones too"] == found[BEST_ENTRY] == 0.0
    assert found["words of everybody else"] == 0.8


def test_what_everybody_says_helps_the_first_time_too() -> None:
    found = rates([said(voice, 0, "mocha", *CLOSE) for voice in "xyz"])
    assert found[FROZEN] == 1.0 and found["words the user said before"] == 1.0
    assert found["words of everybody else"] == found["both"] == 0.0


def test_no_frequency_mends_a_list_without_the_words() -> None:
    found = rates([said("x", n, "mocha", ("a latte", -1.0)) for n in range(3)] + [said("y", 0, "tea")])
    assert set(found.values()) == {1.0}


@pytest.mark.parametrize("lexicon", [None, LEXICON])
def test_what_has_no_labels_is_refused(lexicon: SlotLexicon | None) -> None:
    one = said("x", 0, "tea", ("a tea", -1.0))
    bare = Said(1, "x", 0, Utterance("x", "x", "a tea", None, True, one.recording.audio), one.hypotheses)
    with pytest.raises(DataError, match="expected recordings that have both"):
        yardsticks([bare if lexicon else one], WORDS, BACKGROUND, lexicon)


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
def test_on_real_orders(tmp_path: Path) -> None:
    """Frozen as `idiolect simulate` has it; the best entries are far ahead, and nothing beats them."""
    words = "--data", f"barista:{Path(os.environ['IDIOLECT_DATA']) / 'barista'}", "--seeds", 1
    result = run_script("liu_2020.yardsticks", *words, "--output", tmp_path / "x.json")
    assert result.exit_code == 0, result.exception
    assert "words of everybody else" in result.stdout
    rows = {row["name"]: row for row in json.loads((tmp_path / "x.json").read_text())["rows"]}
    errors = [row["slot_error"] for row in rows.values()]
    assert rows[BEST_ENTRY]["slot_error"] == min(errors) < 0.7 * rows[FROZEN]["slot_error"]
    assert rows[FROZEN]["difference"]["mean"] == 0.0 and rows[BEST_ENTRY]["difference"]["excludes_zero"]
