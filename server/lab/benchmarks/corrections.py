"""Whether the same mistake comes twice: users say their own things, correct what is heard wrongly, and go on.

Made people with names and habits of their own and, where ``IDIOLECT_DATA`` names a folder with ``barista``, real ones.
*Recurrence*: of the words that were wrong and corrected, the share that is wrong again the next time they are said by
that user. *Harm*: word errors on everything else, against a device that changes nothing. Peers in the same run: text
replacement, and the n-best search with the same names as hotwords for every utterance, as sherpa-onnx has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jiwer
import numpy as np

from device_sdk import Bundle, Corrected, Device, DeviceSettings
from device_sdk.benchmarks import Figure
from device_sdk.personalization.vocabulary import differences
from server.lab.corpora import SAMPLE_RATE, Waveform, open_corpus
from server.lab.corpora.grammar import sample
from server.lab.corpora.made import Person, draw_people, say
from server.lab.corpora.names import draw_names, neighbours
from server.lab.corpora.roles import UNHEARD, card_voices, scoring

PEOPLE, NAMES, EACH, REAL = 10, 4, 36, 18
CARRIERS = (
    *("call {}", "can you call {} please", "text {}", "please phone {}", "call {} on speaker", "call {} back"),
    *("send a message to {}", "i want to talk to {}", "make a video call to {}", "did {} call me today"),
    *("read the last message from {}", "let me speak to {}"),
)
CONTACTS, PAIRS, PLAIN = 1_000, 40, 20
FAMILIAR = ("anna", "david", "grace hill", "laura", "maria", "mark", "may", "peter king", "susan", "will")
"""Contacts whose names language models know, some of them words as well."""
WAYS = ("frozen", "vocabulary", "learning", "both", "text replacement", "hotwords")
_SAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Said:
    """One utterance of a user. name: the contact in it, if any."""

    text: str
    load: Callable[[], Waveform]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class User:
    """What one person says, in order, and whom it may name."""

    said: tuple[Said, ...]
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """Of one user under one way. again, corrected: words that were wrong again the next time, of those corrected.
    wrong, words: of everything else. cures: how many corrections a word took. first, after: name -> right or not, the
    first time that it was said, and the first time after a correction of it."""

    again: int = 0
    corrected: int = 0
    wrong: int = 0
    words: int = 0
    cures: list[int] = field(default_factory=list)
    first: dict[str, bool] = field(default_factory=dict)
    after: dict[str, bool] = field(default_factory=dict)


def users(bundle: Bundle, seed: int = 1) -> Iterator[User]:
    """Made people with four contacts each outside the bundle's word list."""
    generator = np.random.default_rng([seed, 25])
    names = draw_names(bundle.words, PEOPLE * NAMES, generator)
    for number, person in enumerate(draw_people("devices", PEOPLE, seed=seed)):
        own = tuple(names[number * NAMES : (number + 1) * NAMES])
        yield User(tuple(_says(person, own, generator, place) for place in range(EACH)), own)


def real_users(bundle: Bundle) -> Iterator[User]:
    """People who order coffee, whom no model was trained on, where ``IDIOLECT_DATA`` has them."""
    if (folder := os.environ.get("IDIOLECT_DATA")) and (Path(folder) / "barista").is_dir():
        corpus = open_corpus(f"barista:{folder}/barista", UNHEARD, role=scoring(card_voices(bundle)))
        for speaker in corpus.speakers[:REAL]:
            said = [one for one in corpus.of_speakers(speaker).utterances if one.sure_text]
            yield User(tuple(Said(one.sure_text or "", one.load) for one in said))


def _says(person: Person, names: Sequence[str], generator: np.random.Generator, place: int) -> Said:
    """A command, two in five of them with one of the person's own names."""
    name = str(generator.choice(names)) if generator.random() < 0.4 else None
    text = sample(generator, "heldout", person.profile).text
    if name is not None:
        text = CARRIERS[generator.integers(len(CARRIERS))].format(name)
    return Said(text, lambda: say(text, person, [place, 25]), name)


def replay(user: User, bundle: Bundle, way: str) -> list[str]:
    """What a device hears of a user who corrects all that is wrong; texts, in order."""
    uses, learns = way in ("vocabulary", "both"), way in ("learning", "both")
    settings = DeviceSettings(learn=learns, use_marginals=uses)
    with TemporaryDirectory() as folder, Device.open(folder, bytes(32), bundle, settings) as device:
        if uses:
            device.vocabulary.add_all(user.names, "contact")
        else:
            device.withdraw("counting")
        hotwords = user.names if way == "hotwords" and user.names else None
        replacement: dict[str, str] = {}
        heard: list[str] = []
        for said in user.said:
            result = device.recognize(said.load(), SAMPLE_RATE, hotwords=hotwords)
            heard.append(_replaced(result.text, replacement))
            if heard[-1] == said.text:
                continue
            if way == "text replacement":
                for wrong, right in differences(heard[-1].split(), said.text.split()):
                    if wrong and right:
                        replacement[" ".join(wrong)] = " ".join(right)
            if uses or learns:
                device.feedback(result, Corrected(said.text))
            if learns:
                device.learn()
    return heard


def _replaced(text: str, replacement: Mapping[str, str]) -> str:
    """A text with what was corrected once put right wherever it comes again, the longest first."""
    padded = f" {text} "
    for wrong in sorted(replacement, key=len, reverse=True):
        padded = padded.replace(f" {wrong} ", f" {replacement[wrong]} ")
    return padded.strip()


def tally(user: User, heard: Sequence[str], frozen: Sequence[str]) -> Tally:
    """What is counted of a user. frozen: what a device that changes nothing hears, which says what everything else
    is."""
    found, waiting, spared = Tally(), dict[str, int](), set[str]()
    for said, text, plain in zip(user.said, heard, frozen, strict=True):
        words, wrong, inserted = _wrong(said.text, text)
        for word in dict.fromkeys(words):
            missed = any(each == word and bad for each, bad in zip(words, wrong, strict=True))
            if word in waiting:
                found.corrected += 1
                found.again += missed
            if said.name == word:
                if word in waiting and waiting[word] == 1:
                    found.after.setdefault(word, not missed)
                found.first.setdefault(word, not missed)
            if missed:
                waiting[word] = waiting.get(word, 0) + 1
            elif word in waiting:
                found.cures.append(waiting.pop(word))
        others = [bad for word, bad in zip(words, wrong, strict=True) if word not in spared]
        found.wrong, found.words = found.wrong + sum(others) + inserted, found.words + len(others)
        spared.update(word for word, bad in zip(*_wrong(said.text, plain)[:2], strict=True) if bad)
    return found


def _wrong(truth: str, heard: str) -> tuple[list[str], list[bool], int]:
    """The true words, which of them are not heard, and how many others are."""
    aligned = jiwer.process_words(truth, heard or " ")
    words, wrong = truth.split(), [False] * len(truth.split())
    for chunk in aligned.alignments[0]:
        if chunk.type in ("substitute", "delete"):
            wrong[chunk.ref_start_idx : chunk.ref_end_idx] = [True] * (chunk.ref_end_idx - chunk.ref_start_idx)
    return words, wrong, aligned.insertions


def benchmark(bundle: Path | None = None, seed: int = 1) -> list[Figure]:
    """Recurrence, harm and names by vocabulary, by learning, by both, and by what others do; what a thousand contacts
    and names that are near cost. seed: another draws other names and made voices."""
    opened = Bundle.open(bundle)
    people, tallies = [*users(opened, seed), *real_users(opened)], dict[str, list[Tally]]()
    frozen = [replay(user, opened, "frozen") for user in people]
    for way in WAYS:
        heard = frozen if way == "frozen" else [replay(user, opened, way) for user in people]
        tallies[way] = [tally(*each) for each in zip(people, heard, frozen, strict=True)]
    return [*figures(tallies), *crowd(opened, seed)]


def crowd(bundle: Bundle, seed: int) -> Iterator[Figure]:
    """Of commands without a name what a vocabulary of ``CONTACTS`` costs, and one of ``FAMILIAR`` names; of names that
    people have all the time what near ones in the vocabulary cost."""
    generator = np.random.default_rng([seed, 26])
    people, pairs = draw_people("devices", PEOPLE, seed=seed), neighbours(bundle.words, PAIRS, generator)
    plain = [_command(person, generator, place) for place in range(PLAIN) for person in people]
    near = [_named(people[place % PEOPLE], known, generator, place) for place, (known, _) in enumerate(pairs)]
    contacts = [*draw_names(bundle.words, CONTACTS - PAIRS, generator), *(other for _, other in pairs)]
    devices = _with_contacts(bundle, ((), contacts, FAMILIAR))
    asked = (plain, near), (plain, near), (plain,)
    heard = [[_errors(said, device) for said in own] for own, device in zip(asked, devices, strict=True)]
    rates = [100 * sum(wrong for wrong, _, _ in side[0]) / sum(words for _, words, _ in side[0]) for side in heard]
    kinds = f"{CONTACTS} contacts", f"{len(FAMILIAR)} contacts with familiar names"
    for kind, rate in zip(kinds, rates[1:], strict=True):
        title = f"commands without a name, {kind}"
        yield Figure(title, "points", rate - rates[0], target=0.3, lower_is_better=True)
    right = [100 * float(np.mean([found for *_, found in side[1]])) for side in heard[:2]]
    title = f"names with a near one among the contacts ({right[0]:.0f} % right without)"
    yield Figure(title, "points", right[1] - right[0], target=-5.0)


def _with_contacts(bundle: Bundle, ways: Iterable[Sequence[str]]) -> Iterator[Device]:
    """Devices that know these contacts, one after the other; none learns."""
    settings = DeviceSettings(learn=False, use_marginals=True)
    for known in ways:
        with TemporaryDirectory() as folder, Device.open(folder, bytes(32), bundle, settings) as device:
            device.withdraw("counting")
            device.vocabulary.add_all(known, "contact")
            yield device


def _errors(said: Sequence[Said], device: Device) -> list[tuple[int, int, bool]]:
    """(wrong words, words, whether the name was heard) of each."""
    found = []
    for one in said:
        words, wrong, inserted = _wrong(one.text, device.recognize(one.load(), SAMPLE_RATE).text)
        missed = any(bad and word == one.name for word, bad in zip(words, wrong, strict=True))
        found.append((sum(wrong) + inserted, len(words), not missed))
    return found


def _command(person: Person, generator: np.random.Generator, place: int) -> Said:
    text = sample(generator, "heldout", person.profile).text
    return Said(text, lambda: say(text, person, [place, 26]))


def _named(person: Person, name: str, generator: np.random.Generator, place: int) -> Said:
    text = CARRIERS[generator.integers(len(CARRIERS))].format(name)
    return Said(text, lambda: say(text, person, [place, 27]), name)


def figures(tallies: Mapping[str, Sequence[Tally]]) -> Iterator[Figure]:
    """Every way beside the frozen device; the targets are those of both together, and of names."""
    before = tallies["frozen"]
    for way, own in tallies.items():
        chief = way == "both"
        recurrence, again = _ratio(own, "again", "corrected"), _ratio(before, "again", "corrected")
        target = 0.5 if chief else None
        yield Figure(f"recurrence, {way}", "%", recurrence, "frozen", again, target, lower_is_better=True)
        if way != "frozen":
            high = 100 * _high(before, own, "again", "corrected")
            target = 0.0 if chief else None
            yield Figure(
                f"the same, upper end of the difference, {way}", "points", high, target=target, lower_is_better=True
            )
            harm = _ratio(own, "wrong", "words") - _ratio(before, "wrong", "words")
            target = 0.3 if chief else None
            yield Figure(f"harm to everything else, {way}", "points", harm, target=target, lower_is_better=True)
        cures = [count for each in own for count in each.cures]
        if cures:
            yield Figure(f"corrections to cure, {way}", "corrections", float(np.mean(cures)), lower_is_better=True)
        for what, least in (("first", 60.0), ("after", 85.0)):
            names = [right for each in own for right in getattr(each, what).values()]
            if names:
                title = "names right the first time" if what == "first" else "names right after one correction"
                wanted = chief or (what == "first" and way == "vocabulary")
                yield Figure(f"{title}, {way}", "%", 100 * float(np.mean(names)), target=least if wanted else None)


def _ratio(tallies: Sequence[Tally], part: str, whole: str) -> float:
    """In percent."""
    return 100 * sum(getattr(each, part) for each in tallies) / max(1, sum(getattr(each, whole) for each in tallies))


def _high(first: Sequence[Tally], second: Sequence[Tally], part: str, whole: str) -> float:
    """Upper end of the 95 % interval of the difference of two ratios; users are resampled."""

    def values(tallies: Sequence[Tally]) -> Any:
        return np.array([[getattr(each, part), getattr(each, whole)] for each in tallies], float)

    drawn = np.random.default_rng(0).integers(len(first), size=(_SAMPLES, len(first)))
    rates = []
    for tallies in (first, second):
        sums = values(tallies)[drawn].sum(1)
        rates.append(sums[:, 0] / np.maximum(sums[:, 1], 1))
    return float(np.quantile(rates[1] - rates[0], 0.975))
