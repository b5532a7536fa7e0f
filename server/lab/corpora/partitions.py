"""Who of a federation holds what: pure functions from utterances to clients (Ramesh et al. 2023; Gao et al. 2022).

A *partition* is client -> ids of utterances, clients in a fixed order. Everything random is a function of its seed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from device_sdk.errors import ConfigurationError

Partition = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Item:
    """An utterance as a partitioner sees it. seconds: its length. session: chapter, book or meeting, in whose order a
    speaker's utterances are in time; numbers in it count as numbers."""

    id: str
    speaker: str
    seconds: float
    session: str = ""


def speaker_silos(items: Iterable[Item]) -> Partition:
    """One client a speaker, utterances in the order of sessions and ids: of time (Ramesh et al. 2023, 3.1)."""
    return {
        speaker: tuple(item.id for item in sorted(own, key=lambda item: (_natural(item.session), _natural(item.id))))
        for speaker, own in _by_speaker(items).items()
    }


def cross_silo(items: Iterable[Item], clients: int = 10, seed: int = 0) -> Partition:
    """``clients`` random parts with whole speakers and about as much speech each (Gao et al. 2022, 5.2). Speakers go,
    longest first after a random order among equals of an octave, to the client with the least speech. Raises
    ConfigurationError where there are fewer speakers than clients."""
    speakers = _by_speaker(items)
    if not 1 <= clients <= len(speakers):
        raise ConfigurationError(f"clients: found {clients} for {len(speakers)} speakers, expected 1 to as many")
    shuffled = [list(speakers)[index] for index in np.random.default_rng(seed).permutation(len(speakers))]
    length = {speaker: sum(item.seconds for item in own) for speaker, own in speakers.items()}
    shuffled.sort(key=lambda speaker: -np.floor(np.log2(max(length[speaker], 1e-3))))
    held: list[list[Item]] = [[] for _ in range(clients)]
    totals = np.zeros(clients)
    for speaker in shuffled:
        least = int(totals.argmin())
        held[least] += speakers[speaker]
        totals[least] += length[speaker]
    return _named("silo", held)


def speakers_together(items: Iterable[Item], seed: int = 0) -> Partition:
    """Two random speakers a device, as in a home or a car (Gao et al. 2022, 5.2); the last may be alone."""
    speakers = _by_speaker(items)
    names = [list(speakers)[index] for index in np.random.default_rng(seed).permutation(len(speakers))]
    pairs = [names[start : start + 2] for start in range(0, len(names), 2)]
    return _named("device", [[item for speaker in pair for item in speakers[speaker]] for pair in pairs])


def warm_up_split(items: Iterable[Item]) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """(items to begin with centrally, items of the federation): the speakers with most utterances until they hold half
    of all utterances, and all others (Gao et al. 2022, 5.3)."""
    speakers = _by_speaker(items)
    wanted = sum(map(len, speakers.values())) / 2
    first: list[Item] = []
    rest: list[Item] = []
    for _, own in sorted(speakers.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        (first if len(first) < wanted else rest).extend(own)
    return tuple(first), tuple(rest)


def local_tests(partition: Mapping[str, Sequence[str]], least: int = 2, seed: int = 0) -> tuple[Partition, Partition]:
    """(what clients train on, what they are tested on): a random tenth of each client's utterances, ``least`` at the
    least, is kept for testing (Gao et al. 2022, 5.3). A client that would have nothing left to train on is not tested.
    """
    train: Partition = {}
    test: Partition = {}
    for number, (client, own) in enumerate(partition.items()):
        count = max(least, round(0.1 * len(own)))
        chosen = np.random.default_rng([seed, number]).permutation(len(own))[:count] if count < len(own) else ()
        kept = {own[index] for index in chosen}
        train[client] = tuple(name for name in own if name not in kept)
        if kept:
            test[client] = tuple(name for name in own if name in kept)
    return train, test


def _by_speaker(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Speakers sorted by name, each with its items in the order given."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.speaker, []).append(item)
    return {speaker: found[speaker] for speaker in sorted(found)}


def _named(stem: str, held: Sequence[Sequence[Item]]) -> Partition:
    return {f"{stem}-{number:05d}": tuple(item.id for item in own) for number, own in enumerate(held)}


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts chapter 9 before chapter 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
