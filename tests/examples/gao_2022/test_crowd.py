"""The crowd of Gao et al. 2022: who says what, who holds it, and a row from speech to word error."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.cohorts import DIGITS, Central, train_centrally
from examples.gao_2022.experiment import SILOS, SMALL, Experiment, Row, Scale
from examples.gao_2022.recipes import LANGUAGES, Recipe, by_cohort, federation
from examples.gao_2022.speech import CrowdScale, gather
from examples.gao_2022.tables import charts, summary, table
from server.lab.training.data import Example

pytest.importorskip("espeakng_loader")

TINY = Scale(
    crowd=CrowdScale(speakers=24, tested=2, held=3, least=2, most=6, digits=2),
    shape=replace(SMALL, size=32, feed_forward=64, layers=2),
    central=Central(steps=3, batch=4),
    rounds=2,
    cohort=3,
)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return Experiment(tmp_path_factory.mktemp("crowd"), TINY)


def test_a_crowd_is_a_function_of_its_seed(experiment: Experiment, tmp_path: Path) -> None:
    crowd, again, other = (experiment.crowd("it", 1), *(gather("it", TINY.crowd, seed, tmp_path) for seed in (1, 2)))
    assert list(crowd.learned) == list(again.learned)
    assert all(np.array_equal(each.features, again.learned[name].features) for name, each in crowd.learned.items())
    assert {each.text for each in other.learned.values()} != {each.text for each in crowd.learned.values()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_everyone_reads_digits_of_the_language(experiment: Experiment, language: str) -> None:
    crowd = experiment.crowd(language, 1)  # type: ignore[arg-type]
    assert {word for each in crowd.learned.values() for word in each.text.split()} <= set(DIGITS[language])
    assert len(_speakers(crowd.learned.values())) == TINY.crowd.speakers
    assert len(_speakers(crowd.tested.values())) == TINY.crowd.tested
    assert len(_speakers(crowd.held.values())) == TINY.crowd.held


def test_no_sentence_is_in_two_parts(experiment: Experiment) -> None:
    parts = experiment.parts("fr", 1)
    users = [example for own in parts.users.values() for example in own]
    held_back = [example for own in parts.own.values() for example in own]
    groups = [parts.warm_up, users, held_back, parts.tested, parts.held]
    assert sum(map(len, groups)) == len({id(example) for group in groups for example in group})
    speakers = [_speakers(group) for group in (parts.warm_up, [*users, *held_back], parts.tested, parts.held)]
    assert sum(map(len, speakers)) == len(set().union(*speakers))
    assert len(parts.warm_up) >= len(users)  # those who say most begin


@pytest.mark.parametrize(("holders", "clients"), [("users", None), ("pairs", None), ("silos", SILOS)])
def test_holders_share_out_what_users_said(experiment: Experiment, holders: str, clients: int | None) -> None:
    parts = experiment.parts("fr", 1)
    users, own = parts.users, parts.own
    expected = clients or {"users": len(users), "pairs": -(-len(users) // 2)}[holders]
    population = experiment.population(Recipe("row", holders, federation("examples", 1, 1)), "fr", 1)
    assert len(population) == expected
    assert sum(population.examples(client) for client in range(expected)) == sum(map(len, users.values()))
    assert population.held is not None
    for voice, kept in zip(population.voices, population.held.voices, strict=True):
        assert _speakers(kept) == _speakers(voice) and not {id(each) for each in kept} & {id(each) for each in voice}
    assert sum(map(len, population.held.voices)) == sum(map(len, own.values()))


@pytest.mark.parametrize("weighting", ["examples", "loss", "word_error"])
def test_a_row_is_run_once(experiment: Experiment, weighting: str) -> None:
    recipe = Recipe(f"users: {weighting}", "users", federation(weighting, 2, 3))  # type: ignore[arg-type]
    row = experiment.row(recipe, "fr", 1)
    assert row.error >= 0 and len(row.losses) == 2 and np.isfinite(row.losses).all() and any(row.clients)
    assert len(row.effective) == 2 and all(1 <= value <= 3 for value in row.effective)
    assert experiment.row(recipe, "fr", 1) == row


def test_the_rest_goes_on_from_the_warm_up(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    def noting(*given: Any) -> Any:
        begun.append(given[4])
        return train_centrally(*given)

    monkeypatch.setattr("examples.gao_2022.experiment.train_centrally", noting)
    experiment.central("rest", "fr", 2)
    warm_up = experiment.central("warm-up", "fr", 2)
    first, rest = begun  # the warm-up's own training, since the rest needs it
    assert first is None and all(np.array_equal(rest[name], warm_up[name]) for name in warm_up)


def test_scales_share_speech_and_nothing_else(experiment: Experiment) -> None:
    longer = Experiment(experiment.work.parent, replace(TINY, rounds=3))
    experiment.crowd("fr", 1)
    before = sorted(path.name for path in experiment.speech.iterdir())
    assert list(longer.crowd("fr", 1).learned) == list(experiment.crowd("fr", 1).learned)
    assert sorted(path.name for path in longer.speech.iterdir()) == before and longer.work != experiment.work


def test_findings_say_which_do_not_hold_and_figure_3_has_a_line_a_strategy() -> None:
    rates = {"users: FedAvg": 0.30, "users: loss-based": 0.28, "users: WER-based": 0.29, "central: warm-up": 0.40}
    rows = [
        Row(name, "fr", seed, rate + 0.01 * seed, [0.2, None, 1.5], [1.0], [9.0], 2.0)
        for name, rate in rates.items()
        for seed in (1, 2)
    ]
    document = json.loads(json.dumps(summary([Recipe(name, "users") for name in rates], rows, TINY)))
    entry = document["rows"]["users: FedAvg"]["fr"]
    assert entry["wer"]["mean"] == pytest.approx(0.315) and entry["clients"]["above_one"] == 0.5
    verdicts = {"loss-based minus FedAvg": True, "WER-based minus loss-based": False, "best minus warm-up": True}
    expected = [(f"fr, users: {text}", holds) for text, holds in verdicts.items()]
    assert [(each["finding"], each["holds"]) for each in document["findings"]] == expected
    assert table(document).row_count == 4 and set(charts(document)) == {"table_1", "figure_4_fr"}
    recipes = list(by_cohort(3))[::-1]
    rows = [Row(recipe.name, "fr", 1, 0.3, [], [1.0], [9.0], 2.0) for recipe in recipes]
    drawn = charts(summary(recipes, rows, TINY))["figure_3_fr"]
    assert drawn.count("<polyline") == 3 and all(name in drawn for name in ("FedAvg", "loss-based", "WER-based"))
    places = [drawn.index(f">{count} devices<") for count in (5, 10, 20, 40)]
    assert places == sorted(places)


def _speakers(examples: Iterable[Example]) -> set[str]:
    return {example.source for example in examples}
