"""One form of words for transcripts, corrections, lexicons, slots and hotwords, and one error for what has none."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import Alternate, Bundle, Corrected, Device, Hotword, Hotwords, Semantics, SlotLexicon, Transcribed
from device_sdk.decoding import Recognizer
from device_sdk.errors import ConfigurationError, FeedbackError, IdiolectError, LearningError
from device_sdk.feedback.signals import parts
from device_sdk.feedback.slots import read_slots
from device_sdk.learning.rehearsal import lesson
from device_sdk.transcripts import check_letters, in_letters, spelled, transcript, transcripts
from tests.signals import noise

LETTERS = "abcdefghijklmnopqrstuvwxyzàâçéèêëïôùûüäöåñø"
MARKS = " '’\N{NO-BREAK SPACE}.,;:!?…-–—\"“”„«»()[]¡¿\t\n"
texts = st.text(LETTERS + MARKS, max_size=30).map("a{}".format)
forms = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])


def words(text: str) -> str:
    return transcript(text, "text", FeedbackError)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("call mum", "call mum"),
        ("  Call\tMum \n", "call mum"),
        ("Milk!", "milk"),
        ("“Oat milk”, please…", "oat milk please"),
        ("twenty-five", "twenty five"),
        ("at ten p.m.", "at ten p m"),
        ("don’t", "don't"),
        ("Bob’s, the dogs' and 'n'", "bob's the dogs' and n"),
        ("it's ' fine", "it's fine"),
        ("'Milk'", "milk"),
        ("CAFE\N{COMBINING ACUTE ACCENT}", "café"),
        ("ﬁlm ＡＢＣ", "film abc"),
        ("soft\N{SOFT HYPHEN}ware\N{ZERO WIDTH SPACE}", "software"),
        ("\N{BYTE ORDER MARK}hello", "hello"),
        ("STRAẞE", "straße"),
        ("नमस्ते", "नमस्ते"),
    ],
)
def test_what_is_said_has_one_form(said: str, expected: str) -> None:
    assert words(said) == expected


@given(texts)
def test_the_form_of_a_form_is_itself(text: str) -> None:
    assert words(words(text)) == words(text)


@given(texts, st.lists(st.booleans(), min_size=31, max_size=31), forms)
def test_capitals_and_normal_forms_make_no_difference(text: str, capitals: list[bool], form: str) -> None:
    mixed = "".join(each.upper() if capital else each for each, capital in zip(text, capitals, strict=False))
    assert words(unicodedata.normalize(form, mixed)) == words(text)


@given(texts)
def test_a_form_is_of_letters_and_single_spaces(text: str) -> None:
    found = words(text)
    assert found == " ".join(found.split()) and unicodedata.is_normalized("NFC", found)
    assert set(found) <= set(LETTERS + "' ") and all(word.strip("'") for word in found.split())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (3, "field: found int, expected one or more words"),
        (None, "field: found NoneType, expected one or more words"),
        (b"milk", "field: found bytes, expected one or more words"),
        ("", "field: found no words, expected one or more words"),
        (" ?! ' ", "field: found no words, expected one or more words"),
        ("set 2 alarms", "field: found '2', expected letters; .* as they are said"),
        ("₂ % of £10 & more", "field: found '%', '&', '0', '1', '2', '£', expected letters"),
        ("me@home", "field: found '@', expected letters"),
        ("\N{COMBINING ACUTE ACCENT} a", "expected letters"),
        ("🙂", "expected letters"),
    ],
)
def test_what_has_no_one_reading_is_refused_by_name(said: object, message: str) -> None:
    with pytest.raises(FeedbackError, match=message):
        transcript(said, "field", FeedbackError)
    with pytest.raises(ConfigurationError, match=message):
        transcript(said, "field", ConfigurationError)


def test_an_error_quotes_no_word() -> None:
    with pytest.raises(FeedbackError) as caught:
        words("the zanzibar account 7")
    assert "zanzibar" not in str(caught.value) and "account" not in str(caught.value)


@pytest.mark.parametrize("values", ["mocha", b"mocha", 3, None, Hotword("mocha")])
def test_a_list_is_no_text(values: object) -> None:
    with pytest.raises(FeedbackError, match=f"field: found {type(values).__name__}, expected a list of texts"):
        transcripts(values, "field", FeedbackError)


def test_a_list_names_its_entries() -> None:
    assert transcripts((each for each in ["Mocha", "Latte!"]), "field", FeedbackError) == ("mocha", "latte")
    with pytest.raises(FeedbackError, match=r"field\[1\]: found no words"):
        transcripts(["mocha", " "], "field", FeedbackError)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Corrected("3 milks"), FeedbackError, r"corrected\.text: found '3'"),
        (lambda: Alternate("+"), FeedbackError, r"alternate\.text: found '\+'"),
        (lambda: Transcribed(np.zeros(9), "3"), ConfigurationError, r"transcribed\.text: found '3'"),
        (lambda: Transcribed(np.zeros(9), 3), ConfigurationError, r"transcribed\.text: found int"),  # type: ignore[arg-type]
        (lambda: SlotLexicon({"drink": "mocha"}), FeedbackError, r"lexicon\['drink'\]: found str, expected a list"),
        (lambda: SlotLexicon({"drink": ["a", "4"]}), FeedbackError, r"lexicon\['drink'\]\[1\]: found '4'"),
        (lambda: SlotLexicon(["mocha"]), FeedbackError, r"lexicon: found list, expected slot types"),  # type: ignore[arg-type]
        (lambda: Hotword("4"), ConfigurationError, r"hotword\.phrase: found '4'"),
        (lambda: Hotword("niamh", spellings="neve"), ConfigurationError, r"hotword\.spellings: found str, expected a"),  # type: ignore[arg-type]
        (lambda: Hotword("niamh", spellings=["7"]), ConfigurationError, r"hotword\.spellings\[0\]: found '7'"),  # type: ignore[arg-type]
        (lambda: Hotwords.build("niamh"), ConfigurationError, "hotwords: found str, expected a list"),
        (lambda: Hotwords.build(Hotword("niamh")), ConfigurationError, "hotwords: found Hotword, expected a list"),  # type: ignore[arg-type]
        (lambda: Hotwords.build(["a", "7"]), ConfigurationError, r"hotwords\[1\]: found '7'"),
    ],
)
def test_every_door_has_the_same_guard(make: Callable[[], object], error: type[IdiolectError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_capitals_and_punctuation_match() -> None:
    lexicon = SlotLexicon({"drink": ["Mocha", "mocha", "Café Crème"], "size": ["LARGE"]})
    assert lexicon.values == {"drink": ("mocha", "café crème"), "size": ("large",)}
    assert read_slots("a large mocha", lexicon) == (("size", "large"), ("drink", "mocha"))
    said = Semantics({"drink": "Cafe\N{COMBINING ACUTE ACCENT} crème!", "size": "Large"}, lexicon)
    assert said == Semantics({"drink": "café crème", "size": "large"}, lexicon)
    assert said.slots == {"drink": "café crème", "size": "large"} and Corrected("Milk!") == Corrected("milk")
    assert Hotword("Niamh", spellings=["Neve"]) == Hotword("niamh", spellings=("neve",))  # type: ignore[arg-type]
    assert Transcribed(np.zeros(9), "Turn ON.").text == "turn on"


LEXICON = SlotLexicon({"drink": ["mocha"], "size": ["large"]})


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"drnk": "mocha"}, r"semantics\.slots: found 'drnk', expected slots of the lexicon: 'drink', 'size'"),
        ({"drink": "mocha", "cup": "red"}, r"semantics\.slots: found 'cup', expected"),
        ({"drink": "large"}, r"semantics\.slots\['drink'\]: found a value that the lexicon does not hold"),
        ({"drink": ["mocha"]}, r"semantics\.slots\['drink'\]: found list, expected one or more words"),
        ([("drink", "mocha")], r"semantics\.slots: found list, expected slot types"),
    ],
)
def test_slots_that_the_lexicon_does_not_know_are_refused(slots, message: str) -> None:
    with pytest.raises(FeedbackError, match=message):
        Semantics(slots, LEXICON)


def test_letters_that_the_pieces_cannot_spell_are_named() -> None:
    check_letters("cab", frozenset("abc"), "field", FeedbackError)
    with pytest.raises(FeedbackError, match="field: found 'é', expected the letters abcf, which are all that this mod"):
        check_letters("café", frozenset("fabc"), "field", FeedbackError)


@pytest.mark.parametrize(
    ("text", "letters", "expected"),
    [
        ("josé at the café", LETTERS[:26], "jose at the cafe"),
        ("josé at the café", LETTERS, "josé at the café"),
        ("ça là", "abcdefghijklà", "ca là"),
        ("ǖ q̈", LETTERS[:26], "u q"),
        ("møller", LETTERS[:26], None),
        ("नमस्ते", "नमसत", None),
    ],
    ids=["no accents", "all of them", "some", "two, and one that no letter has", "a letter of its own", "a vowel"],
)
def test_accents_that_a_model_lacks_are_left_out(text: str, letters: str, expected: str | None) -> None:
    assert spelled([text], frozenset(letters)) == ([] if expected is None else [expected])
    if expected is None:
        with pytest.raises(FeedbackError, match="expected the letters"):
            in_letters(text, frozenset(letters), "field", FeedbackError)
    else:
        assert in_letters(text, frozenset(letters), "field", FeedbackError) == expected


def test_what_users_write_with_accents_is_learned_without(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, bytes(32), tiny_bundle) as device:
        added = device.vocabulary.add("Zoë", spellings=["Chloë"])
        assert (added.phrase, added.spellings) == ("zoe", ("chloe",))
        assert [each.phrase for each in device.vocabulary.list()] == ["zoe"]
        heard = device.recognize(noise(9600, 1), 16_000)
        device.feedback(heard, Alternate("appelle José"))
        device.feedback(heard, Corrected("call José"))
        example = device._recent.get(heard.utterance_id)
        assert example is not None and parts(example.signal) == (Corrected("call jose"), Alternate("appelle jose"))
        assert device.vocabulary.remove("ZOË") and not device.vocabulary.remove("zoë")


@pytest.mark.parametrize(
    ("signal", "field"),
    [
        (Corrected("a smørrebrød"), "corrected.text"),
        (Alternate("a smørrebrød"), "alternate.text"),
        (Semantics({"what": "smørrebrød"}, SlotLexicon({"what": ["smørrebrød"]})), r"semantics\.slots\['what'\]"),
        (Semantics({"where": "café"}, SlotLexicon({"where": ["café"]})), r"semantics\.slots\['where'\]"),
    ],
)
def test_feedback_that_cannot_be_spelled_leaves_no_trace(tmp_path, tiny_bundle: Bundle, signal, field: str) -> None:
    with Device.open(tmp_path, bytes(32), tiny_bundle) as device:
        heard = device.recognize(noise(9600, 1), 16_000)
        with pytest.raises(FeedbackError, match=f"{field}: found '[éø]', expected the letters"):
            device.feedback(heard, signal)
        assert [each.feedback for each in device.remembered()] == [False]


def test_hotwords_and_rehearsed_words_that_the_model_cannot_spell_are_refused(tiny_bundle: Bundle) -> None:
    with pytest.raises(ConfigurationError, match=r"hotwords\[1\]: found 'é', expected the letters"):
        Recognizer(tiny_bundle).session(16_000, hotwords=["light", "café"])
    with pytest.raises(LearningError, match=r"transcribed\.text: found 'ø', expected the letters"):
        lesson(Transcribed(noise(9600, 1), "møller"), tiny_bundle)
