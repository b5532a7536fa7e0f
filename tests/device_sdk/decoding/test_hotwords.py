"""Hotwords: the automaton beside a plain scan of texts, the boost as a part of scores, and a word that it mends."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.audio import read_audio
from device_sdk.bundle import Bundle
from device_sdk.bundle.bundle import WORD_START
from device_sdk.decoding import DecodingSettings, Hotword, Hotwords, Recognizer
from device_sdk.decoding.beam import Path, paths
from device_sdk.decoding.hotwords import settled, write_phrases, write_words
from device_sdk.decoding.nbest import distinct
from device_sdk.device import Device
from device_sdk.errors import ConfigurationError
from device_sdk.formatting import written_form
from device_sdk.hypothesis import Partial, Result, Word
from device_sdk.personalization.rescorer import Rescorer
from tests.architecture.sources import ROOT
from tests.device_sdk.decoding.lattices import RandomLattice, exhaustive, search
from tests.speech import packaged

LETTERS = "abc"


class Pieces:
    """A tokenizer of few pieces: every string of up to two letters, with and without a word start, and the bare one."""

    def __init__(self, letters: str = LETTERS, longest: int = 2) -> None:
        bodies = ["".join(body) for n in range(1, longest + 1) for body in itertools.product(letters, repeat=n)]
        self.pieces = ["<blank>", WORD_START, *bodies, *(WORD_START + body for body in bodies)]

    @property
    def size(self) -> int:
        return len(self.pieces)

    @property
    def letters(self) -> frozenset[str]:
        return frozenset("".join(self.pieces[1:])) - {WORD_START}

    def piece(self, token: int) -> str:
        return self.pieces[token]

    def starts_word(self, token: int) -> bool:
        return self.pieces[token].startswith(WORD_START)

    def decode(self, tokens) -> str:
        return " ".join("".join(self.pieces[token] for token in tokens).replace(WORD_START, " ").split())


PIECES = Pieces()


phrase = st.lists(st.text(LETTERS, min_size=1, max_size=3), min_size=1, max_size=3).map(" ".join)
hotword = st.builds(Hotword, phrase, st.sampled_from([0.5, 1.0, 2.5]), st.lists(phrase, max_size=2).map(tuple))
tokens = st.lists(st.integers(1, PIECES.size - 1), max_size=12)


def scanned(hotwords, text: str) -> float:
    """Every phrase once at every place where it ends, in any spelling, whole words only."""
    spoken, total = text.split(), 0.0
    phrases = {" ".join(each.phrase.split()) for each in hotwords}
    for end, phrase in itertools.product(range(1, len(spoken) + 1), phrases):
        alike = [each for each in hotwords if each.phrase.split() == phrase.split()]
        written = [(each.boost, spelling.split()) for each in alike for spelling in (each.phrase, *each.spellings)]
        total += max((boost for boost, said in written if spoken[max(0, end - len(said)) : end] == said), default=0.0)
    return total


def followed(guide, found):
    guided = guide.start()
    for token in found:
        guided = guide.step(guided, token)
    return guided


@settings(max_examples=300, deadline=None)
@given(hotwords=st.lists(hotword, min_size=1, max_size=6), found=tokens)
def test_the_boost_of_a_text_is_that_of_its_complete_phrases(hotwords, found):
    guide = Hotwords.build(hotwords).guide(PIECES)
    assert guide.whole(followed(guide, found)) == pytest.approx(scanned(hotwords, PIECES.decode(found)))


@settings(max_examples=200, deadline=None)
@given(hotwords=st.lists(hotword, min_size=1, max_size=6), found=tokens)
def test_what_is_on_account_is_bounded_and_returned(hotwords, found):
    guide = Hotwords.build(hotwords).guide(PIECES)
    guided = guide.start()
    for token in found:
        (ahead,) = guide.ahead(guided, [token])
        after = guide.step(guided, token)
        assert after.bonus - guided.bonus == pytest.approx(ahead) and ahead <= guide.gain(guided) + 1e-9
        assert after.bonus >= after.hotword
        guided = after
    # A word of no phrase: all that was on account is gone, and what was complete stays.
    ended = guide.step(guide.step(guided, PIECES.pieces.index(WORD_START)), 2)
    stray = followed(guide, [*found, *[PIECES.pieces.index(WORD_START), *([2] * 20)]])
    assert stray.bonus == pytest.approx(scanned(hotwords, PIECES.decode(found)))
    assert ended.hotword == pytest.approx(stray.hotword)


def test_hotwords_travel_between_processes():
    built = Hotwords.build(["ab", Hotword("b a", 3.0, ("ba",))])
    assert built.in_pieces(PIECES) is built.in_pieces(PIECES)  # made once, for all sessions
    again = pickle.loads(pickle.dumps(built))
    assert again == built and (again.automaton[0] == built.automaton[0]).all()


def test_partial_phrases_count_by_their_letters():
    guide = Hotwords.build([Hotword("abab", 2.0)]).guide(PIECES)
    at = {text: PIECES.pieces.index(text) for text in ("▁a", "b", "a", "ab", "▁")}
    bonuses = [followed(guide, pieces).bonus for pieces in ([at["▁a"]], [at["▁a"], at["b"]])]
    np.testing.assert_allclose(bonuses, [0.5, 1.0])
    complete = followed(guide, [at["▁a"], at["b"], at["ab"]])
    assert (complete.bonus, complete.hotword) == (2.0, 0.0) and guide.whole(complete) == 2.0
    assert guide.step(complete, at["a"]).bonus == 0.0  # inside a longer word it is no phrase
    assert guide.step(complete, at["▁"]) == guide.step(complete, at["▁"])._replace(bonus=2.0, hotword=2.0)


@pytest.mark.parametrize("make", [dict, tuple, lambda phrases: (each for each in phrases)])
def test_any_collection_of_phrases_will_do(make):
    phrases = make({"Abba": 1, "b  c": 2})
    built = Hotwords.build(phrases, boost=1.5)
    assert built == Hotwords.build([Hotword("Abba", 1.5), Hotword("b  c", 1.5)])
    guide = built.guide(PIECES)
    found = [PIECES.pieces.index(piece) for piece in ("▁ab", "ba", "▁b", "▁c")]
    assert guide.whole(followed(guide, found)) == 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hotwords.build("abc"), "expected a list"),
        (lambda: Hotwords.build([""]), "one or more words"),
        (lambda: Hotwords.build(["a", "  "]), "one or more words"),
        (lambda: Hotwords.build([3]), "one or more words"),
        (lambda: Hotword("a", spellings=("b", "")), "one or more words"),
        (lambda: Hotword("a", -1.0), r"boost: found -1.0, expected a number in \[0, inf\)"),
        (lambda: Hotword("a", after=("call", "")), r"one or more words"),
        (lambda: Hotword("a", "much"), "boost: found str, expected a number of nats"),
        (lambda: Hotword("a" * 201), r"\.phrase: found 201 letters, expected at most 200; shorten it"),
        (
            lambda: Hotword("a", spellings=("b", "a" * 201)),
            r"\.spellings\[1\]: found 201 letters, expected at most 200",
        ),
        (lambda: Hotword("a", after=("a" * 201,)), r"\.after\[0\]: found 201 letters, expected at most 200"),
        (lambda: Hotwords.build(["ab", "a " * 101]), r"s\[1\]: found 201 letters, expected at most 200"),
        (lambda: Hotwords.build(["ab", "ca va?"]).guide(PIECES), r"\[1\]: found 'v', expected the letters abc"),
        (lambda: Hotwords.build([Hotword("ab", spellings=("ä",))]).guide(PIECES), r"\[0\]: found 'ä', expected the"),
    ],
)
def test_what_is_no_phrase_is_named(make, message):
    with pytest.raises(ConfigurationError, match=f"hotword.*{message}"):
        make()


def test_a_hotword_mends_a_misheard_word(tmp_path):
    default_bundle, clip = Bundle.open(), read_audio(CLIP)

    def recognized(hotwords, of=Recognizer(default_bundle)):
        session = of.session(16_000, hotwords=hotwords)
        for at in range(0, len(clip), 1_000):
            session.feed(clip[at : at + 1_000])
        return session.finish()

    plain = recognized(None)
    said = next(word for each in plain.nbest for word in each.text.split() if word not in plain.text.split())
    contacts = Hotwords.build([said.upper(), "Svetlana", Hotword("Doctor Snowden", spellings=("doc snowden",))], 8.0)
    mended = recognized(contacts)
    assert {each.scores.hotword for each in plain.nbest} == {0.0} and said in mended.text.split()
    for each in mended.nbest:
        assert each.scores.hotword == 8.0 * each.text.split().count(said)
        parts = each.scores.acoustic + each.scores.hotword + each.scores.pieces
        assert each.score == pytest.approx(parts)
    again = recognized(Hotwords.build([said, "svetlana", "doctor snowden"], 8.0))
    assert [each.text for each in again.nbest] == [each.text for each in mended.nbest]
    with Device.open(tmp_path / "state", bytes(32), default_bundle) as device:
        assert {each.scores.hotword for each in recognized(contacts, device).nbest} >= {8.0}
        with pytest.raises(ConfigurationError, match=r"hotwords\[0\]: found '2', expected letters"):
            device.session(16_000, hotwords=["R2"])
    with pytest.raises(ConfigurationError, match=r"hotwords\[0\]: found 'ë', expected the letters"):
        recognized(["Zoë"])
    assert recognized([]).nbest == plain.nbest


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    hotwords=st.lists(hotword, min_size=1, max_size=3),
    symbols=st.integers(1, 2),
    cut=st.integers(0, 3),
)
def test_a_wide_beam_with_hotwords_is_the_exhaustive_search(seed, hotwords, symbols, cut):
    pieces = Pieces("ab", 1)
    hotwords = [each for each in hotwords if "c" not in each.phrase + "".join(each.spellings)] or [Hotword("ab")]
    lattice = RandomLattice(seed, pieces.size, 2.0)
    expected = exhaustive(lattice, 2, symbols)
    decoding = DecodingSettings(beam=100_000, symbols_per_frame=symbols, threshold=np.inf)
    found = paths(search(lattice, 2, decoding, [cut], Hotwords.build(hotwords).guide(pieces)))
    assert {path.tokens for path in found} == set(expected)
    assert all(better.rank >= worse.rank for better, worse in itertools.pairwise(found))
    for path in found:
        boost = scanned(hotwords, pieces.decode(path.tokens))
        assert path.score == pytest.approx(expected[path.tokens][0], abs=1e-9)
        assert path.hotword == pytest.approx(boost) and path.rank == pytest.approx(path.score + boost)


CLIP = ROOT / "export" / "benchmarks" / "speech" / "has-sven-called-yet.ogg"
CONTACTS = [Hotword("niamh", spellings=("neve", "nieve")), Hotword("saoirse", spellings=("seersha", "sir sha")), "sir"]
NAMES = [Hotword("van der berg", spellings=("fun burg",)), Hotword("dock", spellings=("doctor",)), "doctor snowden"]


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
    assert write_phrases(heard, Hotwords.build(hotwords).spellings) == expected


@pytest.mark.parametrize("hotwords", [[], ["niamh"], [Hotword("niamh", spellings=("Niamh",))]])
def test_phrases_without_another_spelling_change_nothing(hotwords) -> None:
    assert Hotwords.build(hotwords).spellings is None


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ("call 0.0 0.2 neve 0.4 0.7", "call 0.0 0.2 niamh 0.4 0.7"),
        ("sir 0.1 0.2 sha 0.4 0.5", "saoirse 0.1 0.5"),
        ("fun 1.0 1.2 burg 1.4 2.0", "van 1.0 1.3 der 1.3 1.6 berg 1.6 2.0"),
    ],
)
def test_words_of_a_phrase_share_the_time_of_what_was_heard(heard: str, expected: str) -> None:
    parts = heard.split()
    words = tuple(Word(text, float(a), float(b)) for text, a, b in zip(*[iter(parts)] * 3, strict=True))
    found = write_words(words, Hotwords.build([*CONTACTS, *NAMES]).spellings)
    assert " ".join(f"{word.text} {word.start:.1f} {word.end:.1f}" for word in found) == expected


spelled = st.lists(hotword, min_size=1, max_size=4).map(lambda each: Hotwords.build(each).spellings).filter(bool)


@given(spelled, st.text("abc ", max_size=24))
def test_text_and_words_say_the_same(spellings, heard: str) -> None:
    words = tuple(Word(word, float(at), at + 0.5) for at, word in enumerate(heard.split()))
    found = write_words(words, spellings)
    assert " ".join(word.text for word in found) == write_phrases(" ".join(heard.split()), spellings)
    assert all(word.start < word.end for word in found)
    assert all(one.end <= other.start for one, other in itertools.pairwise(found))


@given(spelled, st.text("abc ", max_size=24))
def test_what_is_settled_stays_whatever_follows(spellings, heard: str) -> None:
    before = ""
    for end in range(len(heard) + 1):
        now = settled(" ".join(heard[:end].split()), spellings)
        assert now.startswith(before)
        for later in range(end, len(heard) + 1):
            assert write_phrases(" ".join(heard[:later].split()), spellings).startswith(now)
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
    assert [each.text for each in found] == ["a c", "a ab"] and found[0].tokens == (at["▁a"], at["▁b"])
    assert [(word.text, word.start) for word in found[0].words] == [("a", 0.0), ("c", pytest.approx(0.4))]
    assert found[0].scores.acoustic == pytest.approx(np.logaddexp(-1.0, -2.0))
    assert found[0].score == pytest.approx(found[0].scores.acoustic + 2.0)


@pytest.fixture(scope="module")
def misheard() -> tuple[Bundle, np.ndarray, str]:
    """The packaged model, a clip, and a word that all hypotheses have: no other one wins for having it not."""
    bundle, clip = packaged(), read_audio(CLIP)
    found = Recognizer(bundle, rescore=Rescorer(bundle).rescore).recognize(clip, 16_000)
    everywhere = set.intersection(*(set(each.text.split()) for each in found.nbest))
    return bundle, clip, next(word for word in found.text.split() if word in everywhere)


@pytest.mark.parametrize("phrase", ["saoirse", "van der berg"])
def test_the_result_holds_the_phrase(misheard, phrase: str) -> None:
    bundle, clip, heard = misheard
    recognizer = Recognizer(bundle, rescore=Rescorer(bundle).rescore)
    plain = recognizer.recognize(clip, 16_000)
    result = recognizer.recognize(clip, 16_000, hotwords=[Hotword(phrase, spellings=(heard,))])
    assert heard in plain.text.split() and heard not in result.text.split()
    assert phrase in result.text and phrase in written_form(f"so {result.text}")  # a first word is written large
    texts = [each.text for each in result.nbest]
    assert len(set(texts)) == len(texts) == DecodingSettings().nbest and heard not in " ".join(texts).split()
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
