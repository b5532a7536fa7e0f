from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")
from examples.rao_2023.domains import Domain, general
from examples.rao_2023.speech import Clip, Said, clips_each


@pytest.fixture(scope="module")
def domain(data: Path) -> Domain:
    return general(data, 9, 100)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Said, "CHUNK", 3)


def same(one: list[Clip], other: list[Clip]) -> bool:
    return all(
        a.sentence == b.sentence and a.person == b.person and np.array_equal(a.features, b.features)
        for a, b in zip(one, other, strict=True)
    )


def test_what_is_said_is_the_same_kept_or_not(domain: Domain, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    kept = Said(domain, 4, 7, 5, tmp_path, lambda *done: told.append(done))
    whole = kept[:]
    assert len(whole) == 7 and told == [(number, 7) for number in range(1, 8)]
    assert len(list(tmp_path.iterdir())) == 3
    passing = Said(domain, 4, 7, 5, None)
    assert same([*passing[4:], *passing[:4]], [*whole[4:], *whole[:4]])
    told.clear()
    again = Said(domain, 4, 7, 5, tmp_path, lambda *done: told.append(done))
    assert same(again[2:6], whole[2:6]) and not told, "read, not made again"
    assert not same(Said(domain, 4, 7, 6, None)[:], whole), "another seed says something else"
    more = Said(domain, 4, 9, 5, tmp_path)
    assert same(more[:7], whole) and len(more[:]) == 9, "what was kept for fewer is no limit"


def test_a_test_hears_everybody_and_every_sentence_in_turn(domain: Domain) -> None:
    sentences = len(domain.sentences["development"])
    found = clips_each(domain, "development", 3, sentences, 1)
    assert len({clip.person for clip in found}) == 3
    assert {clip.sentence.text for clip in found} == {s.text for s in domain.sentences["development"]}
