"""What attackers send, the experiment in small, and what its table says of finished cells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import ProtocolError
from device_sdk.privacy.quantised import quantised
from device_sdk.wire.messages import DeltaPlan
from examples.attackers import experiment
from examples.attackers.experiment import ATTACKS, AVERAGES, Attack, Averaging, Cell, Scale, run_cells
from examples.attackers.tables import charts, summary, table
from examples.runner import Errors, remark
from server.aggregation.robust import cosine_weights
from server.aggregation.validation import delta_norm, read_delta
from server.aggregation.weights_file import read_metadata
from server.lab.simulation.population import Shape
from server.registry.models import trainable
from tests.server.hostile.poison import PLANS, honest

SCALE = Scale(shape=Shape(1, 5, 2, 2, 1), rounds=1, batch=1, kinds=("sign-flip", "wrong transcripts"))
FIELDS = {"report_id": "r", "device_id": "d", "round_id": "o", "model_version": "m", "utterances": 1}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_poison_points_where_it_should_and_is_taken(name: str, attack: Attack) -> None:
    plan, shapes = PLANS[name], {"a": (40, 6), "b": (15,)}
    report = honest(np.random.default_rng(3), plan, shapes, FIELDS, size=0.3)
    body = experiment.poison(report.body(), plan, attack)
    found = read_delta(body, shapes, plan)
    assert read_metadata(body) == read_metadata(report.body())
    assert delta_norm(found) == pytest.approx(plan.clip_norm, rel=0.02)  # as large as the bound lets
    sent, meant = (np.concatenate([arrays[each].reshape(-1) for each in shapes]) for arrays in (found, report.arrays))
    cosine = sent @ meant / np.linalg.norm(sent) / np.linalg.norm(meant)
    assert cosine == pytest.approx(-1.0 if attack == "sign-flip" else 1.0, abs=0.02)
    with pytest.raises(ProtocolError, match="as the round asks for"):
        experiment.poison(report.body(), DeltaPlan(encoding="int8" if plan.encoding != "int8" else "float16"), attack)


def test_who_attacks_and_how_the_servers_rate_falls() -> None:
    assert {len(SCALE.attacking(10, seed)) for seed in range(20)} == {2}
    assert SCALE.attacking(10, 1) == SCALE.attacking(10, 1) <= set(range(10))
    assert len({SCALE.attacking(10, seed) for seed in range(20)}) > 10
    assert replace(SCALE, attackers=1.0).attacking(3, 1) == {0, 1, 2}
    scale = replace(SCALE, rounds=5, server_rate=2.0, floor=0.1)
    assert [scale.rate(number) for number in range(1, 6)] == pytest.approx([2.0, 1.55, 1.1, 0.65, 0.2])
    assert replace(scale, rounds=1).rate(1) == 2.0


def test_every_cell_is_there_and_the_honest_ones_repeat(tiny_bundle: Bundle, tmp_path: Path, monkeypatch) -> None:
    scale = replace(SCALE, bundle=str(tiny_bundle.path))
    cells = run_cells(scale, (1,), tmp_path / "one")
    assert [(cell.attack, cell.averaging) for cell in cells] == scale.rows
    assert len({sum(cell.errors.words) for cell in cells}) == 1
    assert run_cells(replace(scale, kinds=()), (1,), tmp_path / "two") == cells[: 1 + len(AVERAGES)]
    assert table(summary(scale, cells)).row_count == 3
    monkeypatch.setattr("examples.attackers.experiment.gather", None)
    assert run_cells(scale, (1,), tmp_path / "one") == cells, "finished cells are read, not run again"


@pytest.mark.parametrize("averaging", ["mean", "cosine"])
def test_the_server_makes_of_reports_what_numpy_makes(averaging: Averaging) -> None:
    rng = np.random.default_rng(0)
    base = {"a": rng.normal(size=(4, 3)).astype(np.float32), "features.mean": np.zeros(3, np.float32)}
    reports = [honest(rng, DeltaPlan(), trainable(base), FIELDS) for _ in range(5)]
    after = experiment.aggregate(base, [report.body() for report in reports], DeltaPlan(), averaging, 2.0)
    rows = np.stack([report.arrays["a"] for report in reports])
    products = np.tensordot(rows, rows, ([1, 2], [1, 2])).astype(np.float64)
    expected = {"mean": rows.mean(axis=0), "cosine": np.tensordot(cosine_weights(products, 1), rows, 1)}
    assert after["a"] == pytest.approx(base["a"] + 2.0 * expected[averaging], abs=1e-6)
    assert np.array_equal(after["features.mean"], base["features.mean"])


def test_masked_sums_take_what_is_beyond_the_bound() -> None:
    """One of ten devices sends ten times the bound: of honest deltas that are alike nothing is left."""
    plan, shapes = DeltaPlan(trust="distributed", minimum_survivors=2), {"a": (40, 6)}
    delta = {"a": np.full((40, 6), 240**-0.5, np.float32)}
    others = [quantised(delta, plan, "round-1") for _ in range(9)]
    for liar, left in ((others[0], 1.0), (-10 * others[0], -0.1), (-20 * others[0], 0.0)):
        mean = experiment.add_up([*others, liar], shapes, plan, 1)
        assert mean["a"] == pytest.approx(left * delta["a"], abs=2e-3)


def finished(scale: Scale, errors: dict[tuple[str | None, str | None], int]) -> list[Cell]:
    """Cells of four voices that say a hundred words each. errors: of each voice, 10 where nothing is said."""
    voices = [f"voice-{number}" for number in range(4)]
    return [
        Cell(attack, averaging, seed, Errors([errors.get((attack, averaging), 10)] * 4, [100] * 4, voices))
        for seed in (1, 2)
        for attack, averaging in scale.rows
    ]


def test_the_bar_is_against_the_mean_of_honest_devices() -> None:
    scale = replace(SCALE, kinds=("sign-flip", "scaling"))
    document = summary(scale, finished(scale, {("sign-flip", "cosine"): 12}))
    (cosine,) = map(remark, document["findings"])
    assert "does NOT hold: cosine" in cosine and "worst by sign-flip: +0.200 (+0.200 to +0.200)" in cosine
    rows = {(row["attack"], row["averaging"]): row for row in document["rows"]}
    assert rows["sign-flip", "cosine"]["above"]["mean"] == pytest.approx(0.2)
    assert rows["sign-flip", "cosine"]["wer"]["by_seed"] == {"1": 0.12, "2": 0.12}
    (holds,) = map(remark, summary(scale, finished(scale, {}))["findings"])
    assert "holds: cosine" in holds and document["words"] == 800 and charts(document)["attacks"].count("<title>") == 9
