"""The cache of n-best lists on disk and how it is made; which meetings are for what, and who speaks."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import DataError
from device_sdk.features.logmel import logmel
from device_sdk.runtimes.ctc import CtcHead
from device_sdk.runtimes.protocol import encode_whole
from examples.liu_2020 import meetings as ami
from examples.liu_2020.lists import Client, Hearing, NBest, listeners, open_cache, read_clients, write_client
from examples.liu_2020.making import BaseSettings, Scale, base_sentences, make_lists
from examples.liu_2020.meetings import (
    SETTINGS,
    Meeting,
    Turn,
    cast,
    choose_meetings,
    clients_of,
    read_meetings,
    series_of,
    stages_of,
    utterances,
)
from examples.liu_2020.passes import FirstPass, recognize
from rescoring.words import WordList
from server.lab.corpora.text import MEETINGS
from server.lab.corpora.voices import VARIANTS
from tests.tiny import with_ctc_head

WORDS = WordList(("<unk>", *(a + b + c for a in "bdgk" for b in "aeiou" for c in "lmnr")))


def background() -> NDArray[np.float64]:
    """A background that falls with the word's number."""
    weights = 1 / np.arange(1, len(WORDS) + 1)
    return np.asarray(weights / weights.sum())


def client(name: str, seed: int, utterances: int = 24, entries: int = 5) -> Client:
    """A client whose lists hold what was said and entries with one word replaced."""
    generator = np.random.default_rng(seed)
    topic = [str(word) for word in generator.choice(WORDS.words[1:], 6, replace=False)]
    found = []
    for number in range(utterances):
        said = [str(word) for word in generator.choice([*topic, "unheardof"], 4)]
        texts = [" ".join(said)]
        while len(texts) < entries:
            other = list(said)
            other[generator.integers(4)] = str(generator.choice(WORDS.words[1:]))
            if " ".join(other) not in texts:
                texts.append(" ".join(other))
        order = generator.permutation(entries)
        acoustic = np.sort(generator.normal(-5.0, 1.5, entries))[::-1]
        neural, ngram = generator.normal(-12.0, 1.0, (2, entries))
        found.append(
            NBest(
                speaker=f"speaker {number % 2}",
                texts=tuple(texts[place] for place in order),
                acoustic=tuple(acoustic.round(3).tolist()),
                errors=tuple(int(place != 0) for place in order),
                words=4,
                neural=tuple(neural.round(3).tolist()),
                ngram=tuple(ngram.round(3).tolist()),
            )
        )
    return Client(name, tuple(found))


def write_cache(folder: Path) -> Path:
    for stage, names in (("development", ("A1a", "A1b")), ("test", ("B1a", "C1a", "C1b"))):
        for number, name in enumerate(names):
            write_client(folder / stage, client(name, number + len(stage)))
    (folder / "words.txt").write_text(WORDS.text())
    save_file({"unigram": background()}, folder / "background.safetensors")
    (folder / "about.json").write_text('{"perplexity": {"neural": {"test.txt": 80.0}}}')
    return folder


def test_lists_come_back_as_they_were_written(tmp_path: Path) -> None:
    clients = [client("A1a", 1), client("B1a", 2)]
    for each in clients:
        write_client(tmp_path, each)
    assert read_clients(tmp_path) == clients and read_clients(tmp_path, ["B1a"]) == clients[1:]
    before = (tmp_path / "A1a.jsonl.gz").read_bytes()
    write_client(tmp_path, clients[0])
    assert (tmp_path / "A1a.jsonl.gz").read_bytes() == before
    names = {"speaker", "words", "texts", "errors", "acoustic", "neural", "ngram"}
    assert json.loads(gzip.decompress(before).splitlines()[0]).keys() == names, "what is not known is not there"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no gzip", "no readable n-best lists"),
        (gzip.compress(b"{}\n", mtime=0), r"line 1: (?s:.)*Field required"),
        (gzip.compress(b'{"speaker":"a","words":1,"texts":["x"],"errors":[0,1],"acoustic":[0]}', mtime=0), "lengths"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "A1a.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_clients(tmp_path)


def test_an_empty_folder_and_lists_without_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run the first pass"):
        read_clients(tmp_path)
    bare = client("A1a", 1)
    bare = replace(bare, utterances=tuple(replace(nbest, neural=None) for nbest in bare.utterances))
    with pytest.raises(DataError, match="run the second pass"):
        listeners([bare], WORDS)


def test_a_cache_is_opened_and_its_faults_are_named(tmp_path: Path) -> None:
    held = open_cache(write_cache(tmp_path))
    assert [each.name for each in held.test] == ["B1a", "C1a", "C1b"]
    assert held.about["perplexity"]["neural"]["test.txt"] == 80.0
    write_client(tmp_path / "test", client("A1a", 1))
    with pytest.raises(DataError, match=r"\['A1a'\] in development and test"):
        open_cache(tmp_path)
    save_file({"unigram": np.full(3, 1 / 3)}, tmp_path / "background.safetensors")
    with pytest.raises(DataError, match="3 probabilities for 81 words"):
        open_cache(tmp_path)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(DataError, match=r"words\.txt: no such file"):
        open_cache(tmp_path)


def test_how_a_recognizer_hears_is_counted_as_a_device_counts() -> None:
    """Of two entries the second counts exp(-1/2): what was said is in it alone."""
    nbest = NBest("a", ("bal bel", "bal bil"), (-1.0, -2.0), (1, 0), 2, said="bal bil")
    hearing = Hearing.of([Client("General00", (nbest, replace(nbest, said=None)))], WORDS)
    second = np.exp(-0.5)
    at = [WORDS.id(word) for word in ("bal", "bel", "bil")]
    assert hearing.heard[at] == pytest.approx([1 + second, 1.0, second]) and hearing.heard.sum() == 2 + 2 * second
    assert hearing.said[at].tolist() == [1.0, 0.0, 1.0] and hearing.said.sum() == 2.0
    worth = hearing.reliability(0.1)
    assert worth[at[1]] < 0.2 and worth[at[0]] == pytest.approx(1.0) and worth[at[2]] > 2.0
    assert worth[WORDS.id("bol")] == 1.0, "neither said nor heard"


NAMES = [f"ES20{number:02d}{letter}" for number in range(27) for letter in "abcd"]


def of_names(names: list[str]) -> list[Meeting]:
    return [Meeting(name, (Turn("Marketing", "one two three"),)) for name in names]


def test_every_meeting_has_one_stage_and_a_series_is_never_divided() -> None:
    stages, backwards = stages_of(of_names(NAMES)), stages_of(of_names(NAMES[::-1]))
    assert stages == {stage: held[::-1] for stage, held in backwards.items()}
    names = {stage: [meeting.name for meeting in held] for stage, held in stages.items()}
    assert sorted(name for held in names.values() for name in held) == sorted(NAMES)
    assert [series_of(name) for name in ("ES2002a", "TS3012d", "Bmr012")] == ["ES2002", "TS3012", "Bmr"]
    series = {stage: {series_of(name) for name in held} for stage, held in names.items()}
    assert {stage: len(held) for stage, held in series.items()} == {"learn": 8, "development": 3, "test": 16}
    assert not series["learn"] & series["test"] and not series["development"] & (series["learn"] | series["test"])


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of meetings")
def test_base_models_learn_of_no_meeting_that_the_experiment_tests_on() -> None:
    stages = stages_of(read_meetings(Path(os.environ["IDIOLECT_DATA"]) / "ami" / "meetings.jsonl"))
    for stage, role in (("learn", "base"), ("development", "development")):
        assert {series_of(meeting.name) for meeting in stages[stage]} == set(MEETINGS["ami"][role])


def test_meetings_are_chosen_from_all_series_before_a_second_of_any() -> None:
    held = of_names(["B1a", "B1b", "A1c", "A1a", "C1d"])
    assert [meeting.name for meeting in choose_meetings(held, 4)] == ["A1a", "B1a", "C1d", "A1c"]
    assert len(choose_meetings(held, None)) == 5


@given(st.lists(st.text("ab", min_size=1), max_size=60), st.integers(1, 20))
def test_cutting_loses_no_word_and_makes_even_parts(words: list[str], longest: int) -> None:
    parts = ami.cut(words, longest)
    assert [word for part in parts for word in part] == words
    sizes = [len(part) for part in parts]
    assert not sizes or (max(sizes) <= longest and max(sizes) - min(sizes) <= 1 and min(sizes) > 0)
    assert len(parts) == -(-len(words) // longest)


def test_utterances_keep_their_order_and_speaker() -> None:
    meeting = Meeting("X1a", (Turn("A", "one two three four five six"), Turn("B", "hm"), Turn("B", "seven eight")))
    expected = [("A", "one two three"), ("A", "four five six"), ("B", "seven eight")]
    assert utterances(meeting, 2, 3) == [Turn(*each) for each in expected]


def test_a_file_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "meetings.jsonl"
    with pytest.raises(DataError, match="cannot be read"):
        read_meetings(path)
    row = {"meeting": "X1a", "turns": [{"speaker": "A", "text": "Okay, right!"}]}
    path.write_text(json.dumps(row) + "\n")
    assert read_meetings(path) == [Meeting("X1a", (Turn("A", "okay right"),))]
    path.write_text(json.dumps(row) + '\n{"meeting": "X1b"}\n')
    with pytest.raises(DataError, match="line 2: KeyError"):
        read_meetings(path)


TURNS = tuple(Turn(speaker, "good morning") for speaker in ("Marketing", "Project Manager", "User Interface"))


def test_of_icsi_a_client_is_a_series_and_of_crd3_a_speaker_each_of_several_meetings() -> None:
    names = [f"Bmr{number:03d}" for number in range(7)] + ["Bdb001"]
    series = clients_of(SETTINGS["icsi"], of_names(names))
    assert {name: [meeting.name for meeting in talk] for name, talk in series.items()} == {"Bmr": names[:7]}
    turns = (
        Turn("MATT", "hello"),
        Turn("SAM", "my lord"),
        Turn("MATT", "roll"),
        Turn("MATT+SAM", "ha"),
        Turn("ALL", "ho"),
    )
    evenings = [Meeting(f"C1E{number:03d}", turns if number else (*turns, Turn("KIT", "hi"))) for number in range(6)]
    speakers = clients_of(SETTINGS["crd3"], evenings)
    assert set(speakers) == {"Matt", "Sam"}, "whoever came once is no client"
    assert [turn.text for turn in speakers["Matt"][3].turns] == ["hello", "roll"]
    assert cast(speakers["Matt"], "test")["MATT"].voice != cast(speakers["Sam"], "test")["SAM"].voice


def test_people_of_a_series_sound_the_same_at_all_its_meetings_and_were_not_heard_in_training() -> None:
    first, second, other = (cast((Meeting(name, TURNS),), "test") for name in ("ES2002a", "ES2002b", "ES2003a"))
    assert first == second and first != other and len({person.voice.variant for person in first.values()}) == 3
    assert {person.voice.variant for person in first.values()} <= set(ami.MEETINGS.variants["test"])
    every = [variant for held in ami.MEETINGS.variants.values() for variant in held]
    assert len(every) == len(set(every)) and set(ami.MEETINGS.variants["learn"]) <= set(VARIANTS["base"])


def test_an_utterance_sounds_the_same_each_time() -> None:
    pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
    meeting = Meeting("ES2002a", TURNS)
    once, again, later = (ami.waveform(meeting, number, TURNS[0], cast((meeting,), "test")) for number in (0, 0, 1))
    assert (once == again).all() and once.size > 8000
    assert once.shape != later.shape or (once != later).any(), "noise differs from one utterance to the next"


def test_meetings_that_were_finished_are_not_heard_again(tmp_path: Path, tiny_bundle: Bundle) -> None:
    """A run that was stopped goes on: its parts become the client's lists, in the order of the meetings."""
    talk = (Meeting("ES2002a", TURNS), Meeting("ES2002b", TURNS))
    heard = [client(f"{place:04d}", place) for place in range(2)]
    for part in heard:
        write_client(tmp_path / "parts" / "ES2002", part)
    told: list[tuple[int, int]] = []
    given = (tiny_bundle.path, tmp_path, SETTINGS["ami"], FirstPass(most=1), lambda *done: told.append(done))
    recognize({"ES2002": talk}, "test", *given)
    (found,) = read_clients(tmp_path)
    assert found == Client("ES2002", (*heard[0].utterances, *heard[1].utterances))
    assert told[-1] == (2, 2) and not (tmp_path / "parts").exists()
    recognize({"ES2002": talk}, "test", *given)
    assert read_clients(tmp_path) == [found]


def test_lists_are_in_the_order_of_transducer_and_ctc_head_together(tmp_path: Path, tiny_bundle: Bundle) -> None:
    pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
    setting, first = SETTINGS["ami"], FirstPass(most=2, decoding=DecodingSettings(beam=8, nbest=8))
    talk, found = (Meeting("ES2002a", TURNS),), {}
    for weight in (0.0, 0.5):
        (folder := tmp_path / str(weight)).mkdir()
        bundle = with_ctc_head(tiny_bundle, folder, weight).path
        recognize({"ES2002": talk}, "test", bundle, folder, setting, first, lambda *_: None, scored=False)
        (found[weight],) = read_clients(folder)
    reordered = 0
    for number, (plain, both) in enumerate(zip(found[0.0].utterances, found[0.5].utterances, strict=True)):
        samples = ami.waveform(talk[0], number, TURNS[number], cast(talk, "test"))
        head, recognizer = CtcHead(Bundle.open(bundle)), Recognizer(bundle)
        scores = head.scores(head(encode_whole(recognizer.transducer, logmel(samples))), plain.texts)
        expected = dict(zip(plain.texts, np.add(plain.acoustic, 0.5 * scores), strict=True))
        assert dict(zip(both.texts, both.acoustic, strict=True)) == pytest.approx(expected, abs=2e-3)
        assert list(both.acoustic) == sorted(both.acoustic, reverse=True)
        reordered += both.texts != plain.texts
    assert reordered


THINGS = ("remote", "button", "battery", "screen", "colour", "shape", "price", "market")
TINY = Scale(
    base=BaseSettings(1, 2, shard=6, watched=1, size=16, feed_forward=32, blocks=1, heads=2),
    first=FirstPass(most=2, decoding=DecodingSettings(beam=4, nbest=4)),
    development=1,
    test=2,
    general=3,
)


def write_data(folder: Path) -> Path:
    """Five series of two meetings, whose turns name their series, and a few requests."""
    (folder / "ami").mkdir(parents=True)
    for corpus in ("slurp", "librispeech", "common_voice"):
        (folder / corpus).mkdir()
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
    for corpus in ("librispeech", "common_voice"):
        read = [{"id": f"{name}-{number}", "text": f"a {name} was sold"} for name in THINGS for number in range(40)]
        read = [row | {"speaker": "1737"} for row in read] if corpus == "librispeech" else read
        (folder / corpus / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in read))
    return folder


@pytest.mark.parametrize("name", ["ami-inside", "ami"])
def test_lists_are_made_once_and_no_test_meeting_is_learned_from(
    tmp_path: Path, tiny_bundle: Bundle, name: str
) -> None:
    """As small as it can be: every part is the real one."""
    pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
    pytest.importorskip("kenlm", reason="kenlm is not installed (idiolect[ngram])")
    data, work, setting = write_data(tmp_path / "data"), tmp_path / "work", SETTINGS[name]
    meetings = read_meetings(data / "ami" / "meetings.jsonl")
    unheard = {
        meeting.name[:2].lower()
        for stage, held in stages_of(meetings).items()
        if stage != "learn" or not setting.inside
        for meeting in held
    }
    text = base_sentences(data, meetings, setting)
    assert text and not any(word in unheard for sentence in text for word in sentence.split())

    told: set[str] = set()
    start = with_ctc_head(tiny_bundle, tmp_path)
    held = open_cache(make_lists(data, work, setting, TINY, lambda what, *_: told.add(what), start))
    assert len(held.development) == 1 and len(held.test) == 2 and {len(client) for client in held.test} == {2}
    models = work / ("ami-inside" if setting.inside else "general")
    assert (models / "language_models" / "text.txt").read_text().splitlines() == text
    shipped = Bundle.open(models / "bundle")
    assert shipped.file("ctc.onnx").read_bytes() == start.file("ctc.onnx").read_bytes()
    assert shipped.combination.ctc == start.combination.ctc > 0
    assert set(held.about["perplexity"]["neural"]) == {"ami-development.txt", "ami-test.txt"}
    assert {"both passes, test", "both passes, development", "first pass, general speech"} <= told
    assert all(words is not None for client in held.test for words in client.heard.said)
    (general,) = read_clients(work / name / "lists" / "general")
    assert len(general.utterances) == 3 and {nbest.said for nbest in general.utterances} <= set(text)
    assert held.hearing is not None and held.hearing.said.sum() == sum(nbest.words for nbest in general.utterances)

    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.gz")}
    make_lists(data, work, setting, replace(TINY, test=2), lambda *_: None, start)
    assert before == {path: path.stat().st_mtime_ns for path in work.rglob("*.gz")}, "what is there is not made again"
