"""Two domains: what a base model was trained for, and the new use that devices bring (Rao et al. 2023, sections 1 and
3).

*General*: sentences of meetings and of assistants, by base voices in quiet places. *Requests*: labelled assistant
sentences, by the voices of devices over a narrow band. A sentence belongs to one stage only, by a hash of its text;
voices are disjoint too, so a test hears neither words in their order nor people that any stage has learned from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from device_sdk.errors import DataError
from server.lab.corpora.acoustics import GENTLE, Ranges, draw_scene
from server.lab.corpora.grammar import assign
from server.lab.corpora.made import Person
from server.lab.corpora.readers import read_jsonl
from server.lab.corpora.utterance import clean
from server.lab.corpora.voices import Voice
from server.lab.training.pieces import read_sentences

Ngram = tuple[str, ...]

Stage = Literal["learn", "development", "test"]
"""What a sentence or a voice is for: learned from; to choose settings by; for the figures alone."""

_SHARES: Mapping[Stage, float] = {"learn": 0.75, "development": 0.07, "test": 0.18}

_GENERAL_VARIANTS = ("f1", "f2", "f4", "m1", "m2", "m4", "m6", "m7", "Alex", "adam", "david", "edward", "paul", "steph")
# Of the variants that base training never heard, those that a base model makes out: below a fifth of the words wrong
# on general development sentences. The others are robots and caricatures that no adaptation is about.
_REQUESTS_VARIANTS = ("Andrea", "Nguyen", "ed", "grandpa", "m3", "pablo")
_DEVELOPMENT_VARIANTS = ("Storm", "robert")
_TEST_VARIANTS = ("Annie", "Mike", "belinda", "f5", "linda", "m5", "mike2", "pedro")

QUIET = replace(
    GENTLE, reverb=0.0, snr_db=(25.0, 45.0), eq_db=1.0, tilt_db=0.5, band=0.0, hum=0.0, edges_seconds=(0.1, 0.3)
)
"""A headset in a quiet place."""

NARROW = replace(QUIET, band=1.0, low_hz=(300.0, 400.0), high_hz=(2400.0, 2800.0))
"""The same through a line that lets less pass than most telephones."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """text: lower-case words. slots: slot -> value; a type that a sentence names twice is numbered from 2."""

    text: str
    slots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Domain:
    """Who says what where. sentences, variants (espeak's speakers): of each stage. scenes: rooms and microphones."""

    name: str
    sentences: Mapping[Stage, tuple[Sentence, ...]]
    variants: Mapping[Stage, tuple[str, ...]]
    scenes: Ranges = QUIET


def stage_of(text: str) -> Stage:
    """The only stage that may use a sentence: a hash of its text, the same on every machine."""
    return assign(text, _SHARES, b"idiolect stage")


def general(data: Path, longest: int, turns: int, least: int = 3) -> Domain:
    """The first ``turns`` distinct turns of meetings (``ami``) and the assistant sentences of ``slurp/lm.txt``, of 3 to
    ``longest`` words, each of which is said ``least`` times, but for those that are requests. Raises DataError where a
    file is missing."""
    known = {sentence.text for sentence in read_requests(data)}

    def kept(lines: Iterable[str]) -> list[str]:
        return [text for text in dict.fromkeys(lines) if 3 <= len(text.split()) <= longest and text not in known]

    meetings = read_jsonl(data / "ami" / "meetings.jsonl")
    said = kept(clean(turn["text"]) for meeting in meetings for turn in meeting["turns"])[:turns]
    texts = list(dict.fromkeys([*said, *kept(read_sentences(data / "slurp" / "lm.txt"))]))
    return _domain("general", map(Sentence, texts), texts, least, _GENERAL_VARIANTS, QUIET)


def requests(data: Path, longest: int, before: Domain) -> Domain:
    """Labelled requests (``slurp/devel.jsonl``) of 2 to ``longest`` words, by other voices, over a narrow band. Their
    words are those that the sentences of ``before`` say three times: names of people and of places that occur once are
    no matter of learning."""
    found = [sentence for sentence in read_requests(data) if 2 <= len(sentence.text.split()) <= longest]
    texts = [sentence.text for sentence in before.sentences["learn"]]
    return _domain("requests", found, texts, 3, _REQUESTS_VARIANTS, NARROW)


def _domain(
    name: str, found: Iterable[Sentence], texts: Iterable[str], least: int, learn: tuple[str, ...], scenes: Ranges
) -> Domain:
    """Of the sentences whose words ``texts`` say so often in the stage that learns. learn: its variants."""
    counts = Counter(word for text in texts if stage_of(text) == "learn" for word in text.split())
    words = {word for word, count in counts.items() if count >= least}
    known = [sentence for sentence in found if words.issuperset(sentence.text.split())]
    sentences = {stage: tuple(each for each in known if stage_of(each.text) == stage) for stage in _SHARES}
    variants: dict[Stage, tuple[str, ...]]
    variants = {"learn": learn, "development": _DEVELOPMENT_VARIANTS, "test": _TEST_VARIANTS}
    return Domain(name, sentences, variants, scenes)


def read_requests(data: Path) -> list[Sentence]:
    """The distinct sentences of SLURP (``slurp/devel.jsonl``) with the values of their entities. Raises DataError
    naming file and line."""
    path = data / "slurp" / "devel.jsonl"
    found: dict[str, Sentence] = {}
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            words = [token["surface"] for token in row["tokens"]]
            slots: dict[str, str] = {}
            for entity in row["entities"]:
                value = clean(" ".join(words[place] for place in entity["span"]))
                kind, count = entity["type"], 2
                while kind in slots:
                    kind, count = f"{entity['type']} {count}", count + 1
                if value:
                    slots[kind] = value
            text = clean(row["sentence"])
        except (KeyError, IndexError, TypeError) as error:
            raise DataError(f"{path}, line {number}: {error!r}; expected SLURP's sentence, tokens, entities") from error
        if text and not any(letter.isdigit() for letter in row["sentence"]):
            found.setdefault(text, Sentence(text, slots))
    return list(found.values())


def people(domain: Domain, stage: Stage, count: int, generator: np.random.Generator) -> tuple[Person, ...]:
    """``count`` people of a stage, each with one voice and one scene for life; variants are dealt round."""
    variants = domain.variants[stage]
    dealt = [variants[i] for _ in range(-(-count // len(variants))) for i in generator.permutation(len(variants))]
    found = []
    for number, variant in enumerate(dealt[:count]):
        pitch, rate, spread = (int(generator.integers(*span)) for span in ((40, 60), (140, 175), (40, 60)))
        tract = float(np.round(generator.uniform(0.97, 1.04), 3))
        voice = Voice("en-us", variant, pitch=pitch, rate=rate, pitch_range=spread, tract=tract)
        found.append(Person(f"{domain.name}-{stage}-{number:04d}", voice, draw_scene(generator, domain.scenes), None))
    return tuple(found)


def newly_frequent(before: Iterable[str], now: Iterable[str], factor: float = 5.0, least: int = 3) -> frozenset[Ngram]:
    """n-grams of one to three words that are at least ``factor`` times as frequent now as before (Rao et al. 2023's
    *Delta* test sets, section 3).

    Frequency is the share among n-grams of the same length; what was never said before counts as said half a time.
    least: times that an n-gram must have been said now, below which its frequency means little."""
    old, new = (Counter(ngram for text in texts for ngram in _ngrams(text)) for texts in (before, now))
    all_old, all_new = (Counter(len(ngram) for ngram in counts.elements()) for counts in (old, new))

    shares = {ngram: max(old[ngram], 0.5) / max(1, all_old[len(ngram)]) for ngram in new}
    grown = (ngram for ngram, said in new.items() if said / all_new[len(ngram)] >= factor * shares[ngram])
    return frozenset(ngram for ngram in grown if new[ngram] >= least)


def says_any(text: str, ngrams: frozenset[Ngram]) -> bool:
    """Whether a text holds one of the n-grams."""
    return not ngrams.isdisjoint(_ngrams(text))


def _ngrams(text: str) -> list[Ngram]:
    words = text.split()
    return [tuple(words[start:end]) for end in range(len(words) + 1) for start in range(max(0, end - 3), end)]
