"""The noise of deltas that a target epsilon needs, by an accountant of others too, and what it leaves of a signal."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from typer.testing import CliRunner

from device_sdk.errors import IdiolectError, PrivacyError
from device_sdk.privacy.gaussian import gaussian_ratio
from server.commands import privacy
from server.privacy.calibration import Wish, losses, needed_noise, smallest_cohort, smallest_population

WISH = Wish(population=100_000, rounds=300, epsilon=8.0, delta=1e-7, values=15_000, alignment=0.5)


def independent(wish: Wish, cohort: int, z: float) -> float:
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(PoissonSampledDpEvent(cohort / wish.population, GaussianDpEvent(z)), wish.rounds)
    return float(accountant.get_epsilon(wish.delta))


@pytest.mark.parametrize(
    ("wish", "cohort"),
    [(WISH, 1_000), (replace(WISH, epsilon=1.0, rounds=30, delta=1e-6), 5_000)],
)
def test_noise_is_what_the_target_needs_and_no_more(wish: Wish, cohort: int) -> None:
    z = needed_noise(wish, cohort)
    assert independent(wish, cohort, z) <= wish.epsilon * 1.002
    assert independent(wish, cohort, z / 1.01) > wish.epsilon


def test_users_who_are_in_every_round_need_what_composed_gaussians_do() -> None:
    z = needed_noise(replace(WISH, population=500), 500)
    exact = math.sqrt(WISH.rounds) / gaussian_ratio(WISH.epsilon, WISH.delta)
    assert exact <= z <= 1.002 * exact


def test_the_loss_is_that_of_noise_that_is_drawn() -> None:
    rng, cohort, z = np.random.default_rng(0), 50, 0.7
    noise = rng.normal(0.0, z * WISH.clip_norm / cohort, WISH.values)
    mean = np.zeros(WISH.values)
    mean[:9] = WISH.alignment * WISH.clip_norm / 3
    assert np.linalg.norm(noise) / np.linalg.norm(mean) == pytest.approx(WISH.loss(cohort, z), rel=0.02)


def test_the_smallest_cohort_is_enough_and_a_smaller_one_is_not() -> None:
    def epsilon(cohort: int, population: int) -> float:
        """By dp-accounting's Rényi divergences, with the noise that is bearable there."""
        z = cohort * WISH.alignment / math.sqrt(WISH.values)
        accountant = RdpAccountant()
        accountant.compose(PoissonSampledDpEvent(cohort / population, GaussianDpEvent(z)), WISH.rounds)
        return float(accountant.get_epsilon(WISH.delta))

    fewest = smallest_cohort(WISH, 1.0)
    assert fewest is not None
    assert (
        epsilon(round(1.05 * fewest), WISH.population) <= WISH.epsilon < epsilon(round(0.9 * fewest), WISH.population)
    )
    assert smallest_cohort(replace(WISH, population=20), 1.0) is None
    users = smallest_population(WISH, 0.01, 1.0)
    assert users is not None
    enough, few = (epsilon(round(0.01 * share * users), round(share * users)) for share in (1.05, 0.9))
    assert enough <= WISH.epsilon < few


def test_larger_cohorts_and_populations_lose_less() -> None:
    found = losses(WISH, (100, 1_000, 200_000), (1, 10))
    assert found[1][2] is None and found[10][2] is not None
    for first, second in pairwise(value for value in found[10] if value is not None):
        assert first > second
    assert all(
        many < few for few, many in zip(found[1], found[10], strict=True) if few is not None and many is not None
    )


@pytest.mark.parametrize(
    "changes",
    [
        *({"population": 0}, {"rounds": 0}, {"values": 0}, {"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 1.0}),
        *({"clip_norm": -1.0}, {"alignment": 1.5}, {"alignment": math.nan}),
    ],
)
def test_wishes_outside_their_domain_are_refused_by_name(changes: dict[str, float]) -> None:
    (name,) = changes
    with pytest.raises(PrivacyError, match=name):
        replace(WISH, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("cohort", [0, 100_001])
def test_a_cohort_is_of_the_population(cohort: int) -> None:
    with pytest.raises(PrivacyError, match=f"cohort: found {cohort}"):
        needed_noise(WISH, cohort)


@pytest.mark.slow
def test_a_plan_in_words_in_numbers_and_drawn(tmp_path: Path) -> None:
    words = ["plan", "2000", "--deltas", "--cohort", "200", "--rounds", "20", "--delta", "1e-5", "--values", "6000"]
    plot = tmp_path / "loss.svg"
    told = CliRunner().invoke(privacy.app, [*words, "--plot", str(plot)], catch_exceptions=False).stdout
    document = json.loads(CliRunner().invoke(privacy.app, [*words, "--json"], catch_exceptions=False).stdout)
    wish = Wish(2000, 20, 10.0, 1e-5, 6000, alignment=0.3)
    assert document["noise_multiplier"] == needed_noise(wish, 200) and document["epsilon"] <= 10.0
    assert document["loss_of_signal"] == wish.loss(200, document["noise_multiplier"])
    assert document["smallest_cohort"] == smallest_cohort(wish, 1.0)
    for field in ("noise_multiplier", "loss_of_signal"):
        assert f"{document[field]:.3g}"[:4] in told, told
    assert f"Smallest cohort: {document['smallest_cohort']:,} users" in told
    assert plot.read_text("utf-8").startswith("<svg") and "2,000 users" in plot.read_text("utf-8")


# Each as its default: what was given is refused, not what differs.
WITH_DELTAS = (
    *(["--values", "4000000"], ["--clip-norm", "1.0"], ["--alignment", "0.3"], ["--loss", "1.0"]),
    ["--plot", "x.svg"],
)
WITHOUT_DELTAS = (["--noise", "1"], ["--scales", "10,100"], ["--populations", "10"], ["--pld"])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--deltas", "--plot", "x.png"], r"--plot x\.png: found '\.png'"),
        *((words, f"^{words[0]}: found it without --deltas; expected both") for words in WITH_DELTAS),
        *((["--deltas", *words], f"^{words[0]}.*: found it with --deltas; expected one") for words in WITHOUT_DELTAS),
        (["--deltas", "--no-pld"], "^--pld/--no-pld: found it with --deltas"),
        (["--deltas", "--loss", "0"], "--loss: found 0"),
        (["--deltas", "--alignment", "2"], "alignment: found 2"),
    ],
)
def test_plans_that_are_none_are_refused_by_name(words: list[str], found: str) -> None:
    result = CliRunner().invoke(privacy.app, ["plan", "1000", "--cohort", "100", *words])
    assert isinstance(result.exception, IdiolectError) and re.search(found, str(result.exception))
