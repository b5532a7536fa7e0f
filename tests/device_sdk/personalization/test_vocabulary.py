"""A user's vocabulary: what corrections bring into it and take back, contacts, bounds, and its place on the disk."""

import json
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import Bundle, Corrected, Device, DeviceSettings, Hotword, VocabularyEntry
from device_sdk.errors import ConfigurationError, SessionError, StateError
from device_sdk.feedback import Accepted
from device_sdk.personalization import vocabulary
from device_sdk.personalization.expected import NAMED_AFTER, expecting
from device_sdk.personalization.vocabulary import (
    Phrases,
    corrected,
    from_bytes,
    read_contacts,
    to_bytes,
    undone,
    with_entries,
    without,
)
from rescoring.words import WordList
from tests.device_sdk.devices import KEY
from tests.signals import noise

WORDS = WordList(("<unk>", "call", "me", "please", "sean", "on", "i", "don't", "play", "eerie"))
BACKGROUND = np.array([0.1, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.0498, 0.05, 0.0002])
"""Of listed words only "eerie" is as rare as any."""


def correct(known: Phrases, served: str, text: str, literal: str | None = None, utterance: str = "") -> Phrases:
    """Of an utterance of its own, unless it is named."""
    name = utterance or f"{served} {text} {len(known.entries)}"
    return corrected(known, name, served, literal or served, text, WORDS, BACKGROUND, 7.0)


@pytest.mark.parametrize(
    ("served", "text", "found"),
    [
        ("call neve", "call niamh", {"niamh": ("neve",)}),
        ("call sean", "call siobhan", {"siobhan": ()}),  # what others say stands for itself
        ("call eerie", "call eire", {"eire": ("eerie",)}),  # unless nobody says it
        ("call lay na please", "call leyna please", {"leyna": ("lay na",)}),
        ("call i don't play", "call ayden", {"ayden": ()}),
        ("call a b c d", "call abcd", {"abcd": ()}),  # four words are no spelling of one
        ("neve call zeb", "niamh call seb", {"niamh": ("neve",), "seb": ("zeb",)}),
        ("call me", "call me niamh", {"niamh": ()}),
        ("call me", "play on", {}),  # all of it listed: counts of what was confirmed are enough
        ("call me", "call me", {}),
    ],
)
def test_a_correction_brings_the_words_that_no_list_has(served: str, text: str, found: dict[str, tuple[str]]) -> None:
    known = correct(Phrases(), served, text)
    assert {phrase: each.spellings for phrase, each in known.entries.items()} == found
    assert all((each.source, each.added) == ("correction", 7.0) for each in known.entries.values())
    assert undone(known) == Phrases() and known.last is not None and known.last.before == dict.fromkeys(found)


def test_a_correction_that_contradicts_an_earlier_one_wins_and_stays_visible() -> None:
    known = correct(Phrases(), "call neve", "call niamh")
    known = correct(known, "call niamh", "call sean", literal="call neve")
    assert (known.entries["niamh"].spellings, known.entries["niamh"].refused) == ((), ("neve",))
    assert undone(known).entries["niamh"].spellings == ("neve",)
    again = correct(known, "call neve", "call niamh")
    assert again.entries["niamh"].spellings == (), "what was refused does not come back by itself"
    by_hand = with_entries(again, [VocabularyEntry("niamh", ("neve",))])
    assert (by_hand.entries["niamh"].spellings, by_hand.entries["niamh"].refused) == (("neve",), ())


def test_a_phrase_is_no_spelling_of_another() -> None:
    known = correct(with_entries(Phrases(), [VocabularyEntry("neve")]), "call neve", "call niamh")
    assert known.entries["niamh"].spellings == ()


def test_who_is_there_already_keeps_time_and_kind_and_takes_on_spellings() -> None:
    known = with_entries(Phrases(), [VocabularyEntry("Niamh", ("nieve",), "contact", "contacts", 3.0)])
    known = correct(known, "call neve", "call niamh")
    assert known.entries == {"niamh": VocabularyEntry("niamh", ("nieve", "neve"), "contact", "contacts", 3.0)}
    again = correct(known, "call me niamh", "call niamh")
    assert undone(again).entries == again.entries == known.entries, "nothing is new"


@given(st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.booleans()), max_size=30))
def test_undoing_takes_back_just_the_last_correction(said: list[tuple[str, bool]]) -> None:
    known, before = Phrases(), Phrases()
    for number, (word, right) in enumerate(said):
        text = f"call {word if right else word + ' please'}"
        before, known = known, correct(known, "call me", text, utterance=str(number))
    assert undone(known).entries == before.entries and undone(undone(known)) == undone(known)


def test_a_second_correction_of_an_utterance_takes_the_place_of_the_first() -> None:
    """A slip is no phrase; what other corrections brought stays."""
    known = correct(Phrases(), "call neve", "call niamh", utterance="one")
    known = correct(known, "call me", "call zugzwagn", utterance="two")
    known = correct(known, "call me", "call zugzwang", utterance="two")
    assert [*known.entries] == ["niamh", "zugzwang"] and [*undone(known).entries] == ["niamh"]
    assert [*correct(known, "call me", "call me", utterance="two").entries] == ["niamh"]


def test_what_was_added_or_removed_since_is_not_undone() -> None:
    known = correct(Phrases(), "call neve", "call niamh")
    added = with_entries(known, [VocabularyEntry("niamh", ("nieve",), "contact")])
    assert undone(added).entries == added.entries
    assert undone(without(known, "niamh")).entries == {}


def test_a_word_too_long_to_listen_for_is_no_phrase_and_no_spelling() -> None:
    """Of a correction, which stands all the same."""
    known = correct(Phrases(), "call neve", f"call {'a' * 201}")
    assert known.entries == {}
    known = correct(known, f"call {'a' * 201}", f"call {'b' * 200}")
    assert known.entries["b" * 200].spellings == ()


def test_the_oldest_words_of_corrections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LIMIT", 3)
    known = with_entries(Phrases(), [VocabularyEntry("a"), VocabularyEntry("b")])
    for word in ("c", "d"):
        known = correct(known, "call me", f"call {word}")
    assert [*known.entries] == ["a", "b", "d"]
    with pytest.raises(ConfigurationError, match="4 phrases, expected at most 3; remove some"):
        with_entries(known, [VocabularyEntry("e"), VocabularyEntry("f")])


CARDS = """BEGIN:VCARD
VERSION:3.0
N:O'Brien;Niamh;;;
FN:Niamh O'Br
 ien
END:VCARD
BEGIN:VCARD
VERSION:2.1
N;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:M=C3=BCller;Zo=C3=AB;;;
FN;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:Zo=C3=AB M=C3=BCl=
ler
TEL:123
END:VCARD
BEGIN:VCARD
item1.FN:\u0414\u043c\u0438\u0442\u0440\u0438\u0439
END:VCARD
"""


def test_contacts_are_known_whole_and_by_their_given_names(tmp_path: Path, tiny_bundle: Bundle) -> None:
    path = tmp_path / "contacts.vcf"
    path.write_text(CARDS.replace("\n", "\r\n"), "utf-8")
    with Device.open(tmp_path / "state", KEY, tiny_bundle) as device:
        names = {each.phrase for each in device.vocabulary.add_contacts(path)}
        assert names == {"niamh", "niamh o'brien", "zoe", "zoe muller"}
        assert {(each.kind, each.source) for each in device.vocabulary.list("contact")} == {("contact", "contacts")}
        with pytest.raises(ConfigurationError, match="no vCard with a name"):
            device.vocabulary.add_contacts("Niamh, Zo\u00eb")


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["PHOTO;ENCODING=b;TYPE=JPEG:AAA", " BBB=", "FN:Zora"], ["Zora"]),
        (["NOTE:1+1=", "FN:Zora"], ["Zora"]),
        (["item1.FN;X-V=1.0:Zora", "N;X-V=1.0:Neale;Nora;;;"], ["Zora", "Nora"]),
        (["FN;ENCODING=QUOTED-PRINTABLE:Zo=C3=AB=", " M=C3=BCl=", "ler"], ["Zo\u00eb M\u00fcller"]),
        (["FN;CHARSET=UTF-8;ENCODING=", " quoted-printable:Zo=", "ra"], ["Zora"]),
    ],
)
def test_a_card_is_read_line_by_line_as_it_was_before_it_was_folded(lines: list[str], names: list[str]) -> None:
    card = "\r\n".join(["BEGIN:VCARD", *lines, "END:VCARD", ""])
    assert read_contacts(card) == read_contacts("\ufeff" + card) == names
    assert read_contacts("\ufeffBEGIN:VCARD\nFN:Zora\nEND:VCARD") == ["Zora"], "a byte order mark is no text"


def test_a_contact_of_too_many_letters_is_passed_over(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        device.vocabulary.add_contacts(f"BEGIN:VCARD\nFN:{'a' * 201}\nFN:Zora\nEND:VCARD\n")
        assert [each.phrase for each in device.vocabulary.list()] == ["zora"]


def test_the_vocabulary_is_expected_in_every_utterance(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """By itself, more so where it was confirmed, and after the app's phrases for the utterance."""
    listed = next(word for word in tiny_bundle.words.words if word.isalpha())
    entries = [VocabularyEntry(each) for each in ("jazzy", "\u0434\u0430", listed)]
    entries = [VocabularyEntry("zugzwang", ("sugar",)), *entries, VocabularyEntry("fizz", ("kiss",))]
    entries.append(VocabularyEntry(" ".join([listed, listed]), kind="contact"))
    found = expecting(None, entries, {"zugzwang": 1.0}, {}, {}, tiny_bundle)
    assert found is not None
    assert found.phrases == (
        Hotword("zugzwang", 10.0, ("sugar",), NAMED_AFTER),
        Hotword("jazzy", 0.0, (), NAMED_AFTER),
        Hotword(listed, 2.0, known=True),  # a room, perhaps: nobody calls it
        Hotword("fizz", 2.0, ("kiss",), NAMED_AFTER),
        Hotword(f"{listed} {listed}", 2.0, (), NAMED_AFTER, known=True),
    )
    own = expecting(found, [VocabularyEntry("sugar"), *entries], {}, {"jazzy": 9.0}, {}, tiny_bundle)
    assert own is found, "all of it is expected already"
    heard = noise(9_600, 3)
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        first = device.recognize(heard, 16_000).text.split()[0]
        device.vocabulary.add("zugzwang", spellings=[first])
        assert "zugzwang" in device.recognize(heard, 16_000).text.split()
        assert "zugzwang" in device.session(16_000)._expected.spellings.phrases
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        assert "zugzwang" in device.recognize(heard, 16_000).text.split(), "kept from run to run"
        assert device.vocabulary.remove("ZugZwang") and not device.vocabulary.remove("zugzwang")
        assert device.recognize(heard, 16_000).text.split()[0] == first


def test_a_corrected_word_is_the_users_until_it_is_undone(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        assert device.vocabulary.undo() == ()
        before = device._model_state.cache
        result = device.recognize(noise(9_600, 3), 16_000)
        counted = device._model_state.cache
        device.feedback(result, Corrected("call zugzwang"))
        (entry,) = device.vocabulary.list()
        assert (entry.phrase, entry.source, entry.count) == ("zugzwang", "correction", 1)
        assert json.loads(device.vocabulary.export())[0]["phrase"] == "zugzwang"
    with Device.open(tmp_path, KEY, tiny_bundle) as device:  # memory is gone, the correction's words are not
        assert device.vocabulary.undo() == ("zugzwang",) and device.vocabulary.list() == ()
        assert "zugzwang" not in device._model_state.cache.confirmed
        result = device.recognize(noise(9_600, 3), 16_000)
        state = device._model_state.cache
        device.feedback(result, Corrected("call zugzwang"))
        assert device.vocabulary.undo() == ("zugzwang",)
        assert device._model_state.cache == replace(state, counts=device._model_state.cache.counts,
                                                    pending=device._model_state.cache.pending)  # fmt: skip
        np.testing.assert_allclose(device._model_state.cache.counts, state.counts, atol=1e-12)
        (remembered,) = device.remembered()
        assert not remembered.feedback, "the correction itself is taken back"
        device.feedback(result, Accepted())
    assert before.utterances == 0 and counted.utterances == 1


def test_feedback_that_cannot_be_written_is_not_half_applied(
    tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        result = device.recognize(noise(9_600, 3), 16_000)
        before, example = device._model_state.cache, device._recent.get(result.utterance_id)

        def full(*_: object) -> None:
            raise StateError("disk full")

        monkeypatch.setattr(device._model_state, "keep_cache", full)
        with pytest.raises(StateError, match="disk full"):
            device.feedback(result, Corrected("call zugzwang"))
        assert device.vocabulary.list() == () and device._model_state.cache is before
        assert device._recent.get(result.utterance_id) is example
        monkeypatch.undo()
        device.feedback(result, Corrected("call zugzwang"))
        assert [each.count for each in device.vocabulary.list()] == [1]


def names(count: int) -> list[str]:
    """So many different ones of five letters."""
    return ["".join(letters) for letters in islice(product("abcdefghij", repeat=5), count)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda v: v.add("7up"), "found '7'"),
        (lambda v: v.add("\u0434\u0430"), r"vocabulary\[0\]: found .*, expected the letters"),
        (lambda v: v.add("niamh", spellings="neve"), r"vocabulary\.spellings: found str, expected a list"),
        (lambda v: v.add_all("niamh"), "vocabulary: found str, expected a list"),
        (lambda v: v.add_all(["good", 7]), r"vocabulary\.phrase: found int"),
        (lambda v: v.add_all(names(10_001)), "10001 phrases, expected at most 10000"),
        (lambda v: v.add_all(["good"], source="me"), "found 'me', expected one of app, contacts, correction"),
        (lambda v: v.add("good", kind="\ud800"), r"vocabulary\.kind: found '\\ud800', expected text without control"),
        (lambda v: v.add_all(["good"], "a\n\x1b"), r"vocabulary\.kind: found '\\n', '\\x1b', expected text without"),
        (
            lambda v: v.add("good", kind="k" * 61),
            r"vocabulary\.kind: found 61 characters, expected at most 60; shorten",
        ),
        (lambda v: v.add("good", kind=7), r"vocabulary\.kind: found int, expected a text"),
        (lambda v: v.add_all(["good"], source="\ud800"), r"found '\\ud800', expected one of app, contacts, correction"),
        (lambda v: v.add("\ud800"), r"vocabulary\.phrase: found '\\ud800', expected letters"),
        (lambda v: v.add("good", ["\ud800"]), r"vocabulary\.spellings\[0\]: found '\\ud800', expected letters"),
        (lambda v: v.add("a" * 201), r"vocabulary\.phrase: found 201 letters, expected at most 200; shorten it"),
        (
            lambda v: v.add("good", ["ok", "a" * 201]),
            r"vocabulary\.spellings\[1\]: found 201 letters, expected at most",
        ),
    ],
)
def test_what_is_no_phrase_is_refused_and_changes_nothing(tmp_path, tiny_bundle, call, says) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device, pytest.raises(ConfigurationError, match=says):
        call(device.vocabulary)
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        assert device.vocabulary.list() == ()
    with pytest.raises(SessionError, match="closed"):
        device.vocabulary.list()


def test_forgetting_erases_it_to_the_byte(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        device.vocabulary.add_all(["niamh", "saoirse"])
        device.feedback(device.recognize(noise(9_600, 3), 16_000), Corrected("call zugzwang"))
        (sealed,), *_ = device._store._rows("SELECT value FROM counts WHERE name = 'vocabulary'")
        device.forget()
        assert device.vocabulary.list() == () and device.vocabulary.undo() == ()
        assert not any(sealed[:24] in path.read_bytes() for path in tmp_path.iterdir())
    with Device.open(tmp_path, KEY, tiny_bundle) as device:
        assert device.vocabulary.list() == ()


def test_no_consent_to_counting_no_words_of_corrections(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with Device.open(tmp_path, KEY, tiny_bundle, DeviceSettings()) as device:
        device.withdraw("counting")
        device.feedback(device.recognize(noise(9_600, 3), 16_000), Corrected("call zugzwang"))
        assert device.vocabulary.list() == ()
        assert device.vocabulary.add("niamh").phrase == "niamh", "what the app adds needs none"


def test_it_is_stored_as_it_is_and_damage_is_named() -> None:
    known = correct(
        with_entries(Phrases(), [VocabularyEntry("van der berg", ("fun burg",), "contact")]), "a neve", "niamh"
    )
    assert from_bytes(to_bytes(known)) == known and from_bytes(None) == Phrases()
    for damaged in (b"{}", b"[", b'{"entries": [{"phrase": "7"}], "last": null}', to_bytes(known)[:-9]):
        with pytest.raises(StateError, match="counts/vocabulary"):
            from_bytes(damaged)
