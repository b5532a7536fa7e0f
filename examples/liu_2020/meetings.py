"""What was said at meetings, cut to utterances, which meetings are for what, whose they are, and the same aloud.

Meetings of one series (``ES2002a`` to ``ES2002d``) have the same people and the same project, so a series belongs to
one stage as a whole: nothing that a test meeting says or is about was heard in training or chose a setting. Its people
have each a voice, a room and a microphone of their own, of variants that no other stage hears (:data:`MEETINGS`)."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from device_sdk.errors import DataError
from examples.rao_2023.domains import QUIET, Domain, Stage, people
from server.lab.corpora.made import Person, say
from server.lab.corpora.readers import read_jsonl
from server.lab.corpora.text import written_out
from server.lab.corpora.utterance import Waveform

LONGEST = 12
"""Words of an utterance: longer turns are cut."""
_SERIES_OF_27: Mapping[Stage, int] = {"test": 16, "development": 3}  # of the rest is learned


@dataclass(frozen=True, slots=True)
class Scenario:
    """Whose talk is recognized, by models that have heard what. corpus: folder of the data. inside: whether recognizer,
    language models and u learn of other meetings of the corpus, and not of general text alone. shortest: words of an
    utterance; shorter ones are left out. most: utterances of a client at one meeting, from its beginning."""

    corpus: str
    file: str = "meetings.jsonl"
    inside: bool = False
    shortest: int = 1
    most: int = 200


SETTINGS: Mapping[str, Scenario] = {
    "ami-inside": Scenario("ami", inside=True, shortest=3),
    "ami": Scenario("ami"),
    "icsi": Scenario("icsi"),
    "crd3": Scenario("crd3", "episodes.jsonl", most=30),
}
"""The paper's own is ``ami``. At ICSI's meetings a client is a series, in CRD3's evenings a speaker."""


@dataclass(frozen=True, slots=True)
class Turn:
    """speaker: a role, one person within a series. text: lower-case words."""

    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Meeting:
    """name: its series and a letter. turns: in the order of time."""

    name: str
    turns: tuple[Turn, ...]


def read_meetings(path: Path) -> list[Meeting]:
    """The meetings of a file, one a line. Raises DataError naming file and line."""
    found = []
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            turns = tuple(Turn(str(turn["speaker"]), written_out(turn["text"])) for turn in row["turns"])
            found.append(Meeting(str(row["meeting"]), turns))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, line {number}: {error!r}; expected an object with meeting and turns of speaker and text"
            ) from error
    return found


def series_of(meeting: str) -> str:
    """The name without the day: ``ES2002`` of ``ES2002b``, ``Bmr`` of ``Bmr012``."""
    return meeting.rstrip("0123456789" if meeting[-1].isdigit() else "abcdefghijklmnopqrstuvwxyz")


def stages_of(meetings: Iterable[Meeting]) -> dict[Stage, tuple[Meeting, ...]]:
    """The meetings of each stage, whole series of them, in their order. Series are ranked by a hash of their names: of
    every 27, 16 are for the test, 3 for development, 8 are learned."""
    held = list(meetings)
    ranked = sorted({series_of(meeting.name) for meeting in held}, key=_position)
    test, development = (-(-len(ranked) * _SERIES_OF_27[stage] // 27) for stage in ("test", "development"))
    stages: dict[str, Stage] = {
        series: "test" if rank < test else "development" if rank < test + development else "learn"
        for rank, series in enumerate(ranked)
    }
    every: tuple[Stage, ...] = ("learn", "development", "test")
    return {stage: tuple(m for m in held if stages[series_of(m.name)] == stage) for stage in every}


Talk = tuple[Meeting, ...]
"""What a client of the server says: its meetings, in the order of time."""


def clients_of(setting: Scenario, meetings: Sequence[Meeting], count: int | None = None) -> dict[str, Talk]:
    """What every client says, by name; ``count`` clients at most. Of AMI a client is a meeting, those of one series
    apart, as in Liu & Peng 2020; of ICSI a series of several meetings; of CRD3 a speaker of several evenings. Who
    speaks together is none."""
    found: dict[str, list[Meeting]] = {}
    if setting.corpus == "ami":
        found = {meeting.name: [meeting] for meeting in choose_meetings(meetings, count)}
    elif setting.corpus == "icsi":
        for meeting in meetings:
            found.setdefault(series_of(meeting.name), []).append(meeting)
    else:
        for meeting in meetings:
            alone = (turn.speaker for turn in meeting.turns if turn.speaker.isalpha() and turn.speaker != "ALL")
            for speaker in dict.fromkeys(alone):
                turns = tuple(turn for turn in meeting.turns if turn.speaker == speaker)
                found.setdefault(speaker.title(), []).append(Meeting(meeting.name, turns))
    several = [name for name, talk in found.items() if len(talk) > (0 if setting.corpus == "ami" else 5)]
    return {name: tuple(found[name]) for name in several[:count]}


def choose_meetings(meetings: Sequence[Meeting], count: int | None) -> list[Meeting]:
    """``count`` meetings, one of every series before a second one of any; None for all. In the order of choice."""
    places: dict[str, int] = {}
    ranked = []
    for meeting in sorted(meetings, key=lambda meeting: meeting.name):
        series = series_of(meeting.name)
        places[series] = places.get(series, 0) + 1
        ranked.append((places[series], series, meeting))
    return [meeting for _, _, meeting in sorted(ranked, key=lambda entry: entry[:2])][:count]


def utterances(meeting: Meeting, shortest: int, longest: int = LONGEST) -> list[Turn]:
    """The meeting's turns cut to utterances (:func:`cut`), in the order of time; those below ``shortest`` words are
    left out."""
    return [
        Turn(turn.speaker, " ".join(part))
        for turn in meeting.turns
        for part in cut(turn.text.split(), longest)
        if len(part) >= shortest
    ]


def cut(words: Sequence[str], longest: int) -> list[Sequence[str]]:
    """The words in as few parts of at most ``longest`` as there can be, of nearly the same length."""
    count = -(-len(words) // longest)
    bounds = [round(number * len(words) / count) for number in range(count + 1)] if count else []
    return [words[start:end] for start, end in pairwise(bounds)]


def _position(series: str) -> bytes:
    return hashlib.blake2b(series.encode(), digest_size=8, person=b"idiolect meeting").digest()


MEETINGS = Domain(
    name="meetings",
    sentences={"learn": (), "development": (), "test": ()},
    variants={
        "learn": (
            *("f1", "f2", "f4", "m1", "m2", "m4", "m6", "m7", "Alex", "adam", "david", "edward", "paul", "steph"),
            *("Alicia", "Andy", "Hugo", "Michael", "Reed", "caleb", "max", "steph2"),
        ),
        "development": ("Andrea", "Nguyen", "ed", "grandpa", "m3", "pablo"),
        "test": ("Annie", "Mike", "belinda", "f5", "linda", "m5", "mike2", "pedro"),
    },
    scenes=replace(QUIET, snr_db=(20.0, 40.0)),
)
"""Whose voices, in which rooms."""


def cast(talk: Talk, stage: Stage) -> dict[str, Person]:
    """speaker -> who that is: the same for all meetings of a series."""
    series = series_of(talk[0].name)
    speakers = sorted({turn.speaker for meeting in talk for turn in meeting.turns})
    generator = np.random.default_rng([*f"{series}{speakers[0] if len(speakers) == 1 else ''}".encode()])
    roles = dict(zip(speakers, people(MEETINGS, stage, len(speakers), generator), strict=True))
    return {speaker: replace(person, name=f"{series} {speaker}") for speaker, person in roles.items()}


def waveform(meeting: Meeting, number: int, turn: Turn, persons: dict[str, Person]) -> Waveform:
    """Utterance ``number`` of a meeting as its speaker's microphone hears it, float32 [S] at 16 kHz."""
    return say(turn.text, persons[turn.speaker], [number, *meeting.name.encode()])
