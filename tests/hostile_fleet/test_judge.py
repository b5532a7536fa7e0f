"""The judge of a run finds what it is there to find."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from device_sdk.wire.messages import FIXED_POINT
from tests.hostile_fleet.honest import WEIGHT
from tests.hostile_fleet.judge import Books, counted_once, unreleased, wrong_seconds

WORDS = ("<unk>", "lamp", "door")
ONE = WEIGHT * FIXED_POINT
NAMES = {word: f"device of {word}" for word in WORDS}


def books(spoiled: frozenset[tuple[str, str]] = frozenset(), **released: list[int]) -> Books:
    counts = {name: np.array(values, np.int64) for name, values in released.items()}
    return Books(dict.fromkeys(counts, "published"), counts, counts, spoiled)


def member(word: str, *counted: str, unsure: str = "") -> Any:
    return SimpleNamespace(word=word, counted=list(counted), unsure=list(unsure))


@pytest.mark.parametrize(
    ("members", "released", "expected"),
    [
        ([member("lamp", "a")], {"a": [0, ONE, 0]}, {"once": 1}),
        ([member("lamp", "a")], {"a": [0, ONE + 400, 0]}, {"once": 1}),
        ([member("lamp", "a")], {"a": [0, 0, 0]}, {"lost": 1}),
        ([member("lamp", "a")], {"a": [0, 2 * ONE, 0]}, {"once": 1, "twice": 1}),
        ([member("lamp", "a", "b")], {"a": [0, ONE, 0]}, {"once": 1, "unpublished": 1}),
        ([member("door")], {"a": [0, 0, ONE]}, {"unsaid": 1}),
        ([member("lamp", "b", unsure="ac")], {"a": [0, ONE, 0], "b": [0, ONE, 0], "c": [0, 0, 0]}, {"once": 1}),
        ([member("lamp", unsure="a")], {"a": [0, 2 * ONE, 0]}, {"twice": 1}),
        ([member("lamp", "a"), member("door", "b")], {"a": [0, ONE, 0], "b": [0, 0, ONE]}, {"once": 2}),
    ],
)
def test_reports_are_compared_with_releases(members: Any, released: Any, expected: dict[str, int]) -> None:
    found = counted_once(members, NAMES, WORDS, [books(**released)])
    assert {name: times for name, times in found.items() if times} == expected


def test_what_a_group_without_a_sum_was_told_is_expected_nowhere() -> None:
    released = books(frozenset({("a", NAMES["lamp"])}), a=[0, 0, 0], b=[0, ONE, 0])
    found = counted_once([member("lamp", "a", "b"), member("door", "a")], NAMES, WORDS, [released])
    assert {name: times for name, times in found.items() if times} == {"once": 1, "spoiled": 1, "lost": 1}


def test_a_round_that_the_lost_server_published_counts_though_the_restored_one_gave_it_up() -> None:
    restored = Books({"a": "abandoned"}, {}, {}, frozenset({("a", NAMES["lamp"])}))
    found = counted_once([member("lamp", "a")], NAMES, WORDS, [books(a=[0, ONE, 0]), restored])
    assert {name: times for name, times in found.items() if times} == {"once": 1}


@pytest.mark.parametrize(
    ("told", "spoiled", "of_the_lost_server", "expected"),
    [
        ("a", "", {}, 0),
        ("b", "", {}, 1),
        ("ab", "b", {}, 0),
        ("bc", "b", {}, 1),
        ("b", "", {"b": "open"}, 0),
        ("b", "", {"b": "published"}, 1),
    ],
    ids=["released", "in a round without", "in a group without a sum", "one more", "lost", "lost when published"],
)
def test_reports_in_no_release_need_a_reason(told: str, spoiled: str, of_the_lost_server: Any, expected: int) -> None:
    found = books(frozenset((name, NAMES["lamp"]) for name in spoiled), a=[0, ONE, 0])
    lost = Books(of_the_lost_server, {}, {})
    assert unreleased([member("lamp", *told), member("door")], NAMES, found, lost) == expected


@pytest.mark.parametrize(
    ("told", "running", "still", "successes", "expected"),
    [
        ("ready", True, False, range(100), (0, 0)),
        ("ready", True, False, range(20), (69, 0)),
        ("ready", True, True, range(100), (99, 0)),
        ("unready", True, False, range(100), (0, 99)),
        (None, True, False, range(100), (0, 99)),
        (None, False, False, [], (0, 0)),
        ("unready", True, True, range(100), (0, 0)),
    ],
    ids=["right", "nobody gets in", "a round stands still", "a false alarm", "silence", "killed", "a true alarm"],
)
def test_readiness_is_compared_with_what_honest_devices_saw(told, running, still, successes: Any, expected) -> None:
    samples = [(float(at), told, running, still) for at in range(100)]
    assert wrong_seconds(samples, [float(at) for at in successes]) == expected
