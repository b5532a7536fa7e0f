"""Which part to federate: what is measured of made voices, and what follows from it."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from server.lab.commands import tune
from server.lab.corpora.made import made_corpus
from server.lab.tuning.parts import (
    LOSSES,
    Aim,
    Measured,
    Sizes,
    bearable,
    curve,
    kept,
    kept_row,
    measure,
    population,
    summary,
)
from server.privacy.calibration import quick_noise

SMALL = Sizes(clients=3, held_out=2, each=2, said=1)
AIM = Aim(rounds=10)
ROW = Measured("norms", 1, 10_000, 0.5, 0.4, 2.0, 2.0, 0.1, (0.1, 0.09, 0.05, -0.1, -3.0), 0.01, 0.1)


@pytest.fixture(scope="module")
def corpus() -> Any:
    return made_corpus("devices", 6, 4, 0)


def test_a_part_is_measured_on_people_who_taught_nothing(tiny_bundle: Bundle, corpus: Any) -> None:
    for part in ("whole", "norms"):
        row = measure(tiny_bundle, corpus, part, 1, SMALL, AIM)
        numbers = [row.before, row.gain, row.large, row.large_loss, *row.noised]
        assert np.isfinite(numbers).all() and len(row.noised) == len(LOSSES)
        assert 0 < row.alignment <= 1.0001, "no delta is longer than twice the clip norm's mean"
        shapes = tiny_bundle.architecture.parameter_shapes()
        assert row.values == sum(math.prod(shape) for shape in shapes.values() if part == "whole" or len(shape) < 2)
    assert abs(row.noised[-1] - row.gain) > abs(row.large - row.gain), "a hundred times the signal shows"


def test_the_same_seed_learns_the_same(tiny_bundle: Bundle, corpus: Any) -> None:
    first, second = (measure(tiny_bundle, corpus, "norms", 3, SMALL, AIM) for _ in range(2))
    assert (first.clip_norm, first.gain, first.rate) == (second.clip_norm, second.gain, second.rate)
    assert first.noised != second.noised, "noise has no seed"
    assert measure(tiny_bundle, corpus, "norms", 4, SMALL, AIM).gain != first.gain


def test_finished_rows_are_read_and_others_are_refused(tiny_bundle: Bundle, corpus: Any, tmp_path: Path) -> None:
    first = kept_row(tmp_path, tiny_bundle, corpus, "norms", 1, SMALL, AIM)
    assert kept_row(tmp_path, tiny_bundle, corpus, "norms", 1, SMALL, AIM) == first
    with pytest.raises(DataError, match=r"norms-1\.json: found a row of .*another --folder"):
        kept_row(tmp_path, tiny_bundle, corpus, "norms", 1, SMALL, replace(AIM, rounds=11))
    (tmp_path / "norms-1.json").write_text("{")
    with pytest.raises(DataError, match=r"norms-1\.json.*delete it"):
        kept_row(tmp_path, tiny_bundle, corpus, "norms", 1, SMALL, AIM)
    with pytest.raises(DataError, match="expected 400"):
        measure(tiny_bundle, corpus, "norms", 1, replace(SMALL, clients=398), AIM)


def test_what_is_kept_lies_between_what_was_measured() -> None:
    assert [round(kept(ROW, loss), 6) for loss in LOSSES] == [1.0, 0.9, 0.5, -1.0, -30.0]
    assert kept(ROW, 1e-9) == 1.0 and 0.5 < kept(ROW, 5.0) < 0.9
    for share in (0.5, 0.8):
        assert kept(ROW, bearable(ROW, share)) == pytest.approx(share, abs=1e-6)
    assert bearable(replace(ROW, noised=(0.1,) * 5), 0.8) == LOSSES[-1]


def test_so_many_users_keep_the_share_and_fewer_do_not() -> None:
    found = population(ROW, 0.5, AIM)
    assert found is not None
    for users, enough in ((1.1 * found, True), (0.8 * found, False)):
        cohort = round(AIM.share * users)
        wish = AIM.wish(round(users), ROW.values, ROW.alignment)
        noise = quick_noise(wish, cohort)
        assert noise is not None and (kept(ROW, wish.loss(cohort, noise)) >= 0.5) is enough
    assert population(replace(ROW, gain=-0.1), 0.5, AIM) is None
    (gains,) = curve([ROW], AIM, found, (1.0, 8.0, 64.0))
    assert gains == sorted(gains) and gains[1] == pytest.approx(0.5 * ROW.gain, rel=0.1)


@pytest.mark.slow
def test_a_table_over_seeds(tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [replace(ROW, seed=seed, gain=0.1 + 0.001 * seed) for seed in (1, 2, 3)]
    (part,) = summary(rows, AIM, 100_000)["parts"]
    assert part["gain"]["low"] < part["gain"]["mean"] < part["gain"]["high"]
    assert part["population_50"]["mean"] < part["population_80"]["mean"] and not part["population_50"]["bounded"]
    assert part["large"]["devices"] == 10_000 and asdict(rows[0]) == part["seeds"][0]

    from server.lab.tuning import parts

    monkeypatch.setattr(parts, "PARTS", ("norms",))
    monkeypatch.setattr(parts, "Sizes", lambda: SMALL)
    words = [
        "parts",
        "made:devices",
        "--bundle",
        str(tiny_bundle.path),
        "--seeds",
        "2",
        "--rounds",
        "10",
        "--users",
        "5000",
    ]
    words += ["--folder", str(tmp_path), "--plot", str(tmp_path / "gain.svg")]
    result = CliRunner().invoke(tune.app, [*words, "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["data"]["name"].startswith("made")
    assert (tmp_path / "gain.svg").read_text().startswith("<svg") and len(list(tmp_path.glob("*.json"))) == 2
    assert "users: at epsilon 8" in CliRunner().invoke(tune.app, words, catch_exceptions=False).stdout
