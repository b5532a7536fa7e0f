"""Hotwords heard by another spelling: the result holds the phrase, in text, words, lists and partials."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.audio import read_audio
from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Hotword, Hotwords, Recognizer
from device_sdk.decoding.beam import Path
from device_sdk.decoding.nbest import distinct
from device_sdk.decoding.spellings import settled, written, written_words
from device_sdk.formatting import formatted
from device_sdk.hypothesis import Partial, Result, Word
from device_sdk.personalization.rescorer import Rescorer
from tests.architecture.sources import ROOT
from tests.device_sdk.decoding.test_hotwords import PIECES, hotword
from tests.speech import packaged

CLIP = ROOT / "export" / "benchmarks" / "speech" / "has-sven-called-yet.ogg"
CONTACTS = [Hotword("niamh", spellings=("neve", "nieve")), Hotword("saoirse", spellings=("seersha", "sir sha")), "sir"]
NAMES = [Hotword("van der berg", spellings=("fun burg",)), Hotword("dock", spellings=("doctor",)), "doctor snowden"]


def text_of(hotwords, text: str) -> str:
    spellings = Hotwords.build(hotwords).spellings
    assert spellings is not None
    return written(text, spellings)


@pytest.mark.parametrize(
    ("hotwords", "heard", "expected"),
    [
        (CONTACTS, "", ""),
        (CONTACTS, "call neve", "call niamh"),
        (CONTACTS, "call niamh", "call niamh"),
        (CONTACTS, "neve neve never", "niamh niamh never"),
        (CONTACTS, "yes sir sha is here sir", "yes saoirse is here sir"),
        (CONTACTS, "sir shawn", "sir shawn"),
        (NAMES, "call fun burg now", "call van der berg now"),
        (NAMES, "the doctor", "the dock"),
        (NAMES, "doctor snowden doctor", "doctor snowden dock"),
        (["neve", *CONTACTS], "neve nieve", "neve niamh"),
        ([Hotword("a", spellings=("b",)), Hotword("c", spellings=("b",))], "b", "a"),
        ([Hotword("a", spellings=("b",)), Hotword("b", spellings=("c",))], "c b a", "b b a"),
    ],
)
def test_a_phrase_is_written_for_its_spellings(hotwords, heard: str, expected: str) -> None:
    assert text_of(hotwords, heard) == expected


@pytest.mark.parametrize("hotwords", [[], ["niamh"], [Hotword("niamh", spellings=("Niamh",))]])
def test_phrases_without_another_spelling_change_nothing(hotwords) -> None:
    assert Hotwords.build(hotwords).spellings is None


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ((Word("call", 0.0, 0.2), Word("neve", 0.4, 0.7)), (Word("call", 0.0, 0.2), Word("niamh", 0.4, 0.7))),
        ((Word("sir", 0.1, 0.2), Word("sha", 0.4, 0.5)), (Word("saoirse", 0.1, 0.5),)),
        (
            (Word("fun", 1.0, 1.2), Word("burg", 1.4, 2.0)),
            (Word("van", 1.0, 1.3), Word("der", 1.3, 1.6), Word("berg", 1.6, 2.0)),
        ),
    ],
)
def test_words_of_a_phrase_share_the_time_of_what_was_heard(heard, expected) -> None:
    spellings = Hotwords.build([*CONTACTS, *NAMES]).spellings
    found = written_words(heard, spellings)
    assert [word.text for word in found] == [word.text for word in expected]
    np.testing.assert_allclose([(w.start, w.end) for w in found], [(w.start, w.end) for w in expected])


lists = st.lists(hotword, min_size=1, max_size=4)


@given(lists, st.text("abc ", max_size=24))
def test_text_and_words_say_the_same(hotwords, heard: str) -> None:
    spellings = Hotwords.build(hotwords).spellings
    if spellings is None:
        return
    words = tuple(Word(word, float(at), at + 0.5) for at, word in enumerate(heard.split()))
    found = written_words(words, spellings)
    assert " ".join(word.text for word in found) == written(" ".join(heard.split()), spellings)
    assert all(word.start < word.end for word in found)
    assert all(one.end <= other.start for one, other in itertools.pairwise(found))


@given(lists, st.text("abc ", max_size=24))
def test_what_is_settled_stays_whatever_follows(hotwords, heard: str) -> None:
    spellings = Hotwords.build(hotwords).spellings
    if spellings is None:
        return
    before = ""
    for end in range(len(heard) + 1):
        now = settled(" ".join(heard[:end].split()), spellings)
        assert now.startswith(before)
        for later in range(end, len(heard) + 1):
            assert written(" ".join(heard[:later].split()), spellings).startswith(now)
        before = now


def test_lists_are_distinct_again_and_probabilities_add_up() -> None:
    at = {text: PIECES.pieces.index(text) for text in ("▁a", "▁b", "▁c", "▁ab")}
    listed = [
        Path((at["▁a"], at["▁b"]), -1.0, (0, 4), hotword=2.0),
        Path((at["▁a"], at["▁c"]), -2.0, (0, 5), hotword=2.0),
        Path((at["▁a"], at["▁ab"]), -2.5, (0, 5)),
    ]
    spellings = Hotwords.build([Hotword("c", spellings=("b",))]).spellings
    found = distinct(listed, PIECES, 0.1, 1.0, spellings=spellings)
    assert [each.text for each in found] == ["a c", "a ab"]
    assert found[0].tokens == (at["▁a"], at["▁b"])
    assert [(word.text, word.start) for word in found[0].words] == [("a", 0.0), ("c", pytest.approx(0.4))]
    assert found[0].scores.acoustic == pytest.approx(np.logaddexp(-1.0, -2.0))
    assert found[0].score == pytest.approx(found[0].scores.acoustic + 2.0)


@pytest.fixture(scope="module")
def misheard() -> tuple[Bundle, np.ndarray, str]:
    """The packaged model, a clip, and a word of what it hears there."""
    bundle, clip = packaged(), read_audio(CLIP)
    return bundle, clip, Recognizer(bundle).recognize(clip, 16_000).text.split()[1]


@pytest.mark.parametrize("phrase", ["saoirse", "van der berg"])
def test_the_result_holds_the_phrase(misheard, phrase: str) -> None:
    bundle, clip, heard = misheard
    recognizer = Recognizer(bundle, rescore=Rescorer(bundle).rescore)
    plain = recognizer.recognize(clip, 16_000)
    result = recognizer.recognize(clip, 16_000, hotwords=[Hotword(phrase, spellings=(heard,))])
    assert heard in plain.text.split() and heard not in result.text.split()
    assert phrase in result.text and phrase in formatted(result.text)
    texts = [each.text for each in result.nbest]
    assert len(set(texts)) == len(texts) == DecodingSettings().nbest
    assert not any(heard in text.split() for text in texts)
    for each in result.nbest:
        assert " ".join(word.text for word in each.words) == each.text
        assert each.scores.hotword == 2.0 * each.text.count(phrase)
        assert all(0.0 < word.confidence <= 1.0 for word in each.words)
    said = next(word for word in plain.nbest[0].words if word.text == heard)
    written = [word for word in result.nbest[0].words if word.text in phrase.split()]
    assert (written[0].start, written[-1].end) == pytest.approx((said.start, said.end), abs=0.1)


def test_partials_hold_the_phrase_and_take_nothing_stable_back(misheard) -> None:
    bundle, clip, heard = misheard
    session = Recognizer(bundle).session(16_000, hotwords=[Hotword("saoirse", spellings=(heard,))])
    chunks = [*np.array_split(clip, 40), np.zeros(16_000, np.float32)]
    events = list(session.segments(chunks))
    partials = [event for event in events if isinstance(event, Partial)]
    assert any("saoirse" in partial.text for partial in partials)
    assert not any(heard in partial.stable.split() for partial in partials)
    assert all(later.text.startswith(earlier.stable) for earlier, later in itertools.combinations(partials, 2))
    assert [event.text.count("saoirse") for event in events if isinstance(event, Result)] == [1]
