import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import DataError
from examples.rao_2023.domains import general, newly_frequent, people, read_requests, requests, says_any, stage_of
from server.lab.corpora.voices import VARIANTS
from tests.examples.rao_2023.conftest import request

STAGES = ("learn", "development", "test")


def test_no_sentence_and_no_voice_is_in_two_stages(data: Path) -> None:
    old = general(data, 9, 100)
    new = requests(data, 9, old)
    said = [{s.text for s in domain.sentences[stage]} for domain in (old, new) for stage in STAGES]
    assert all(said) and all(not one & other for one, other in combinations(said, 2))
    assert all(old.variants[stage] == new.variants[stage] for stage in STAGES[1:])
    voices = [set(old.variants["learn"]), *(set(new.variants[stage]) for stage in STAGES)]
    assert all(not one & other for one, other in combinations(voices, 2))
    base = set(VARIANTS["base"])
    assert voices[0] <= base and not base & set().union(*voices[1:]), "the packaged model has heard the first alone"
    assert old.scenes != new.scenes


def test_stages_have_their_shares_of_the_sentences() -> None:
    stages = [stage_of(f"sentence number {number}") for number in range(3000)]
    assert stages == [stage_of(f"sentence number {number}") for number in range(3000)]
    for stage, share in (("learn", 0.75), ("development", 0.07), ("test", 0.18)):
        assert stages.count(stage) / 3000 == pytest.approx(share, abs=0.03)


def test_slots_are_the_words_of_the_entities(data: Path, tmp_path: Path) -> None:
    first = read_requests(data)[0]
    assert (first.text, first.slots) == ("tell anna about the light please", {"person": "anna", "place": "the light"})
    twice = request("anna", "light") | {"entities": [{"span": [1], "type": "x"}, {"span": [4], "type": "x"}]}
    (tmp_path / "slurp").mkdir()
    (tmp_path / "slurp" / "devel.jsonl").write_text(json.dumps(twice) + "\n")
    assert read_requests(tmp_path)[0].slots == {"x": "anna", "x 2": "light"}


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("{", "line 1: not JSON"), ('{"sentence": "a"}', "line 1: KeyError")],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "slurp").mkdir()
    if content is not None:
        (tmp_path / "slurp" / "devel.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_requests(tmp_path)


def test_people_keep_their_voice_and_share_variants_evenly(data: Path) -> None:
    domain = requests(data, 9, general(data, 9, 100))
    one, other = (people(domain, "learn", 25, np.random.default_rng(4)) for _ in range(2))
    assert one == other
    used = [person.voice.variant for person in one]
    counts = [used.count(variant) for variant in domain.variants["learn"]]
    assert max(counts) - min(counts) <= 1 and len({person.name for person in one}) == 25


BEFORE = ["a b"] * 40 + ["c d"] * 10
NOW = ["c d"] * 40 + ["a b"] * 10 + ["e f"] * 2


@pytest.mark.parametrize(
    ("factor", "least", "expected"),
    [
        (3.0, 3, {("c",), ("d",), ("c", "d")}),
        (5.0, 3, set()),
        (3.0, 1, {("c",), ("d",), ("c", "d"), ("e",), ("f",), ("e", "f")}),
    ],
)
def test_newly_frequent_ngrams(factor: float, least: int, expected: set[tuple[str, ...]]) -> None:
    assert newly_frequent(BEFORE, NOW, factor, least) == expected


def test_says_any() -> None:
    assert says_any("x c d", frozenset({("c", "d")}))
    assert not any(says_any(text, frozenset({("c", "d")})) for text in ("c", "d c", ""))
