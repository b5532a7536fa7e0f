"""The experiment of Rao et al. 2023 from end to end, as small as it can be: every part is the real one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import PRESETS
from device_sdk.errors import ConfigurationError
from examples.rao_2023 import base
from examples.rao_2023.base import STAGES, Start, train_base
from examples.rao_2023.domains import Domain, Sentence, general
from examples.rao_2023.experiment import INITIAL, Experiment, Scale, errors, methods
from examples.rao_2023.methods import CohortSettings
from examples.rao_2023.speech import Clip, Said, clips_each
from examples.rao_2023.tables import summary
from examples.runner import Errors
from tests.examples.full import texts

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")

SMALL = Scale(persons=3, tested=2, test=4, development=2, cohort=CohortSettings(rounds=2, devices=2, evaluate_every=2))


def experiment(data: Path, work: Path, bundle: Bundle) -> Experiment:
    return Experiment(data, work, SMALL, base=bundle.path / "weights.safetensors", bundle=bundle)


def test_rows_are_run_kept_and_summed_up(data: Path, tmp_path: Path, tiny_bundle: Bundle, monkeypatch) -> None:
    chosen = [None, *(method for method in methods(SMALL) if "slots" in method.name)]
    held = experiment(data, tmp_path, tiny_bundle)
    rows = [held.row(method, seed) for method in chosen for seed in (1, 2)]
    assert [row.name for row in rows[::2]] == [
        INITIAL,
        "EMA + transcript + slots",
        "EMA + slots",
        "EMA + slots, equal weights",
    ]
    assert all(len(row.losses) == 2 and [number for number, _ in row.curve] == [2] for row in rows[2:])
    document: dict[str, Any] = summary(held, rows)
    initial = document["rows"][INITIAL]["requests"]
    assert len(set(initial["by_seed"].values())) == 1, "one base model and one test for all seeds"
    change = document["rows"]["EMA + slots"]["requests"]["against"][INITIAL]
    assert change["rate_a"] == pytest.approx(initial["mean"]) and change["groups"] == 2
    assert document["findings"][0]["finding"].startswith("initial")
    json.dumps(document)
    monkeypatch.setattr("examples.rao_2023.experiment.transcribe", None)
    again = experiment(data, tmp_path, tiny_bundle)
    assert [again.row(method, seed) for method in chosen for seed in (1, 2)] == rows, "read, not run again"


def test_rows_of_other_settings_lie_elsewhere(data: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    weights = tiny_bundle.path / "weights.safetensors"
    other = tmp_path / "other.safetensors"
    other.write_bytes(weights.read_bytes() + b" ")
    longer = replace(SMALL, cohort=replace(SMALL.cohort, rounds=3))
    folders = {
        Experiment(data, tmp_path, scale, base=base, bundle=tiny_bundle).work
        for scale, base in ((SMALL, weights), (longer, weights), (SMALL, other), (SMALL, None))
    }
    assert len(folders) == 4


def test_a_new_network_has_pieces_of_its_own(data: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    start = Start.untrained("tiny", said := texts(1))
    assert start.weights is None and start.architecture == PRESETS["tiny"]
    assert (
        start.tokenizer.size == PRESETS["tiny"].pieces
        and start.tokenizer.decode(start.tokenizer.encode(said[0])) == said[0]
    )
    with pytest.raises(ConfigurationError, match="'tiny' beside a bundle"):
        Experiment(data, tmp_path, replace(SMALL, preset="tiny"), bundle=tiny_bundle)
    with pytest.raises(ConfigurationError, match="pieces cannot be made from this text"):
        _ = Experiment(data, tmp_path, replace(SMALL, preset="tiny")).start


def test_equal_weights_are_a_row_here_and_every_row_at_full_size() -> None:
    names = {each.name: each.weight for each in methods(Scale())}
    assert names["EMA + score"] == 2.0
    assert names["EMA + score, equal weights"] == names["EMA + slots, equal weights"] == 1.0
    full = methods(Scale.full())
    assert all(each.weight == 1.0 for each in full) and not any("equal" in each.name for each in full)


def test_errors_are_counted_clip_by_clip() -> None:
    nothing = np.zeros((3, 64), np.float16)
    clips = [Clip(nothing, Sentence("play some jazz"), "p"), Clip(nothing, Sentence("stop"), "q")]
    assert errors(clips, ["play jazz", "stop it"]) == Errors([1, 1], [3, 1], ["p", "q"])


@pytest.mark.slow
def test_stages_follow_each_other_and_are_kept(data: Path, tmp_path: Path, tiny_bundle: Bundle, monkeypatch) -> None:
    stages = [replace(stage, share=0.5, people=min(stage.people, 4)) for stage in STAGES[1:]]
    first = train_base(data, Start.of(tiny_bundle), tmp_path / "work", 0.02, 8, 100, [], stages=stages)
    assert any((first[name] != value).any() for name, value in tiny_bundle.weights.items())

    begun, real = [], base.train_rnnt

    def spied(*given: object, **named: object) -> object:
        begun.append(named["begin"])
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(base, "train_rnnt", spied)
    again = train_base(data, Start.of(tiny_bundle), tmp_path / "work", 0.02, 8, 100, [], stages=stages)
    assert not begun and all((again[name] == first[name]).all() for name in first)

    training = tmp_path / "work" / "stage-2" / "training.json"
    training.write_text(training.read_text().replace('"finished"', '"stopped"'))
    train_base(data, Start.of(tiny_bundle), tmp_path / "work", 0.02, 8, 100, [], stages=stages)
    (weights,) = begun
    assert any((weights[name] != first[name]).any() for name in first), "the second stage begins with the first's"
    assert all(np.isfinite(value).all() for value in weights.values())


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
    whole = Said(domain, 4, 7, 5, tmp_path, lambda *done: told.append(done))[:]
    assert len(whole) == 7 and told == [(number, 7) for number in range(1, 8)] and len(list(tmp_path.iterdir())) == 3
    passing = Said(domain, 4, 7, 5, None)
    assert same([*passing[4:], *passing[:4]], [*whole[4:], *whole[:4]])
    told.clear()
    again = Said(domain, 4, 7, 5, tmp_path, lambda *done: told.append(done))
    assert same(again[2:6], whole[2:6]) and not told, "read, not made again"
    assert not same(Said(domain, 4, 7, 6, None)[:], whole), "another seed says something else"
    more = Said(domain, 4, 9, 5, tmp_path)
    assert same(more[:7], whole) and len(more[:]) == 9, "what was kept for fewer is no limit"


def test_a_test_hears_everybody_and_every_sentence_in_turn(domain: Domain) -> None:
    found = clips_each(domain, "development", 3, len(domain.sentences["development"]), 1)
    assert len({clip.person for clip in found}) == 3
    assert {clip.sentence.text for clip in found} == {s.text for s in domain.sentences["development"]}
