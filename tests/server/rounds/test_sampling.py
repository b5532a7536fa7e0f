"""Who a round asks: the draw itself, and rounds that sample, over HTTP and through the ledger."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import binomtest, chisquare, kstest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DatabaseError

from server.plans.round import RoundSettings, SamplingPlan
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose
from server.rounds import advance as advancing
from server.rounds.sampling import SPACE, draw, is_sampled, new_sample
from server.rounds.store import create_round, find_round
from server.service import Service
from server.storage.database import Database
from server.storage.schema import devices as device_table
from server.storage.schema import population_charges, rounds
from tests.server.parties import HEADERS, Devices, Operator, Party, bias_moved, refusal, serving

DELTA = 1e-6
AMPLIFIED = {"kind": "poisson", "rate": 0.5, "amplified": True}
NOISED: dict[str, Any] = {
    "marginals": None,
    "deltas": {"clip_norm": 0.5},
    "noise_multiplier": 1.0,
    "weighting": "uniform",
    "sampling": AMPLIFIED,
}


def test_draws_are_uniform_and_of_one_round_only() -> None:
    names = [f"device-{number}" for number in range(20_000)]
    first, second = ([draw(key * 32, name) / SPACE for name in names] for key in (b"a", b"b"))
    assert first == [draw(b"a" * 32, name) / SPACE for name in names], "nobody needs to keep a list"
    assert kstest(first, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03, "who was asked once is no likelier to be asked again"


@pytest.fixture
def fleet(tmp_path: Path) -> Database:
    """2,000 devices, of which 200 enrol after a round opens at 100 and 100 were revoked before."""
    database = Database(f"sqlite:///{tmp_path}/fleet.db")
    with database.write() as connection:
        for number in range(2000):
            row = {"id": f"device-{number}", "public_key": number.to_bytes(32, "big")}
            times = {
                "enrolled_at": 200.0 if number < 200 else 50.0,
                "revoked_at": 60.0 if 200 <= number < 300 else None,
            }
            connection.execute(insert(device_table).values(**row, **times))
    return database


def _asked(database: Database, plan: SamplingPlan, goal: int | None = None, now: float = 100.0) -> tuple[set[str], int]:
    with database.write() as connection:
        sample = new_sample(connection, plan, goal, now)
        round_id = create_round(connection, RoundSettings(), now)
        drawn = {"sampling_key": sample.key, "sampling_threshold": sample.threshold, "opened_at": now}
        connection.execute(update(rounds).where(rounds.c.id == round_id).values(drawn))
        row = find_round(connection, round_id)
        asked = {name for name in (f"device-{n}" for n in range(2000)) if is_sampled(connection, row, name)}
        return asked, sample.eligible


def test_poisson_asks_each_on_its_own_with_the_rate(fleet: Database) -> None:
    """Over rounds, every device is asked as often as the rate says, and pairs as often as if they were independent."""
    asked, eligible = _asked(fleet, SamplingPlan(rate=0.3))
    assert eligible == 1700
    assert asked.isdisjoint(f"device-{n}" for n in range(300)), "who enrolled later or was revoked before is not asked"
    inside = np.zeros((40, 1700), bool)
    with fleet.read() as connection:
        for number in range(40):
            sample = new_sample(connection, SamplingPlan(rate=0.3), None, 100.0)
            inside[number] = [draw(sample.key, f"device-{n}") < sample.threshold for n in range(300, 2000)]
    assert binomtest(int(inside.sum()), inside.size, 0.3).pvalue > 1e-4
    counts = np.bincount(inside.sum(axis=0), minlength=41)
    expected = np.array([math.comb(40, k) * 0.3**k * 0.7 ** (40 - k) for k in range(41)]) * 1700
    middle = slice(6, 19)
    observed = np.append(counts[middle], counts.sum() - counts[middle].sum())
    assert chisquare(observed, np.append(expected[middle], 1700 - expected[middle].sum())).pvalue > 1e-4
    both = inside[:, :850] & inside[:, 850:]
    assert binomtest(int(both.sum()), both.size, 0.09).pvalue > 1e-4
    assert len(set(inside.sum(axis=1).tolist())) > 5, "the cohort's size is not fixed"


@pytest.mark.parametrize(
    ("plan", "goal", "size"),
    [
        (SamplingPlan(kind="fixed"), 50, 50),
        (SamplingPlan(kind="fixed", over_selection=1.3), 50, 65),
        (SamplingPlan(kind="fixed", over_selection=1.01), 50, 51),
        (SamplingPlan(kind="fixed"), 5000, 1700),
        (SamplingPlan(rate=1.0), None, 1700),
    ],
)
def test_fixed_sampling_asks_so_many(fleet: Database, plan: SamplingPlan, goal: int | None, size: int) -> None:
    first, second = (_asked(fleet, plan, goal)[0] for _ in range(2))
    assert len(first) == len(second) == size
    assert (first == second) == (size == 1700), "another round, other devices"


def test_poisson_for_a_goal_asks_as_many_on_the_average(fleet: Database) -> None:
    found = sum(len(_asked(fleet, SamplingPlan(over_selection=1.5), 100)[0]) for _ in range(5))
    assert binomtest(found, 5 * 1700, 150 / 1700).pvalue > 1e-4


def _asks(http: Any, round_id: str, device: Party) -> bool:
    with http.app.state.service.database.read() as connection:
        return is_sampled(connection, find_round(connection, round_id), device.id)


def test_only_who_is_sampled_is_offered_the_round_and_heard(http: Any, operator: Operator, devices: Devices) -> None:
    fleet = devices(8)
    round_id = operator.open(goal=3, minimum=1, sampling={"kind": "fixed", "over_selection": 1.3})
    late = devices(1)
    asked = [device for device in fleet if _asks(http, round_id, device)]
    assert len(asked) == 4
    for device in (*fleet, *late):
        offer, answer = device.check_in().json()["round"], None
        if device not in asked or device is asked[3]:
            assert (offer is not None) == (device in asked)
            answer = device.send_counts(round_id, {1: 256}) if device not in asked else None
            assert answer is None or (answer.status_code, answer.json()["code"]) == (409, "not_sampled")
    for device in asked[:3]:
        assert device.send_counts(round_id, {1: 256}).status_code == 200
    assert refusal(asked[3].send_counts(round_id, {1: 256})) == (409, "round_closed"), "over-selected, and not needed"
    found = operator.close(round_id)
    assert (found["releases"]["marginals"]["reports"], found["eligible"]) == (3, 8)
    assert operator.get("privacy")["streams"]["marginals"]["devices"] == 3, "unamplified: who reported is charged"
    assert operator.get("privacy")["streams"]["marginals"]["sampling"].startswith("none")


def test_a_straggler_after_the_deadline_is_told_so(tmp_path: Path) -> None:
    now = [1000.0]
    with serving(tmp_path, clock=lambda: now[0], tick_seconds=60.0) as http:
        operator, device = Operator(http), Party(http).enrol()
        round_id = operator.open(seconds=100.0)
        now[0] = 1100.0
        path, body = f"/v1/rounds/{round_id}/marginals", device.counts(round_id, {1: 1})
        answer = device.post(path, body, round_id, at=now[0])
        assert refusal(answer) == (409, "round_closed") and "deadline" in answer.json()["detail"]


def test_an_amplified_round_charges_everyone_once_by_the_accountant(http: Any, operator, devices: Devices) -> None:
    fleet = devices(6)
    for _ in range(2):
        round_id = operator.open(**NOISED)
        version = operator.get("status")["model_version"]
        for device in [device for device in fleet if _asks(http, round_id, device)]:
            assert device.send_delta(round_id, model_version=version).status_code == 200
        found = operator.close(round_id)
        mechanism = found["releases"]["deltas"]["mechanism"]
        assert found["state"] == "published", "however few were asked"
        assert (mechanism["denominator"], mechanism["sampling_rate"]) == (3.0, 0.5), "q N, not who answered"
        assert (mechanism["name"], mechanism["trust"]) == ("gaussian", "central")
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0)), 2)
    stream = operator.get("privacy")["streams"]["deltas"]
    assert stream["epsilon"] == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert (stream["devices"], stream["rounds"]) == (6, 2), "asked or not"
    assert stream["sampling"].startswith("Poisson") and stream["trust_model"].startswith("central")
    assert stream["utterance_epsilon"] > stream["epsilon"]
    assert devices(1)[0].id not in {line["device_id"] for line in operator.get("privacy")["devices"]}
    own: Service = http.app.state.service
    with own.database.read() as connection:
        charges = connection.execute(select(population_charges)).all()
        assert [(row.eligible, row.sampling) for row in charges] == [(6, 0.5)] * 2
        assert connection.exec_driver_sql("SELECT count(*) FROM ledger").scalar() == 0
    for statement in ("DELETE FROM population_charges", "UPDATE population_charges SET sampling = 0.01"):
        with pytest.raises(DatabaseError, match="append-only"), own.database.write() as connection:
            connection.exec_driver_sql(statement)


def test_the_amplified_mean_is_over_the_fixed_denominator(http: Any, operator: Operator, devices: Devices) -> None:
    fleet = devices(8)
    round_id = operator.open(**NOISED | {"noise_multiplier": 1e-3, "sampling": AMPLIFIED | {"rate": 0.75}})
    asked = [device for device in fleet if _asks(http, round_id, device)]
    for device in asked:
        assert device.send_delta(round_id, value=0.05).status_code == 200
    moved = bias_moved(http, operator.close(round_id)["model_version"])
    assert moved == pytest.approx(0.05 * len(asked) / 6.0, abs=5e-4)


def test_an_amplified_round_that_nobody_answers_releases_noise(operator: Operator, device: Party) -> None:
    found = operator.close(operator.open(**NOISED | {"sampling": AMPLIFIED | {"rate": 1e-9}}))
    assert (found["state"], found["releases"]["deltas"]["reports"]) == ("published", 0)
    counts = operator.close(operator.open(marginals={"epsilon": 0.5}, sampling=AMPLIFIED))
    assert counts["state"] == "published", "whether anybody came must not show"


def test_an_amplified_round_does_not_open_past_the_cap(tmp_path: Path) -> None:
    charge = charge_for("deltas", RoundSettings.model_validate(NOISED))
    cap = (compose(Spent({charge: 1}), DELTA)[0] + compose(Spent({charge: 2}), DELTA)[0]) / 2
    with serving(tmp_path, deltas_cap=cap, tick_seconds=60.0) as http:
        operator = Operator(http)
        answer = http.post("/v1/operator/rounds", json={"settings": NOISED}, headers=HEADERS)
        assert refusal(answer) == (409, "no_devices")
        Party(http).enrol()
        found = operator.close(operator.open(**NOISED | {"rounds": 3}))
        following = [row for row in operator.get("rounds")["rounds"] if row["number"] == found["number"] + 1]
        assert following[0]["state"] == "planned" and "cap" in following[0]["note"], "the next would pass it"
        answer = http.post("/v1/operator/rounds", json={"settings": NOISED}, headers=HEADERS)
        assert (refusal(answer), answer.json()["field"]) == ((409, "privacy_cap"), "deltas")
        assert operator.get("privacy")["streams"]["deltas"]["epsilon"] <= cap


def test_a_killed_server_releases_the_same_noised_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut between the draw and the transaction that stores it: the resumed round makes the identical weights."""
    made: list[str] = []
    store = advancing.store_release

    def cut(connection: Any, row: Any, release: Any, now: float) -> None:
        made.append(release.stored.sha256)
        if len(made) == 1:
            raise KeyboardInterrupt
        store(connection, row, release, now)

    monkeypatch.setattr(advancing, "store_release", cut)
    with serving(tmp_path, tick_seconds=60.0) as http:
        operator, device = Operator(http), Party(http).enrol()
        round_id = operator.open(**NOISED | {"sampling": AMPLIFIED | {"rate": 1.0}})
        assert device.send_delta(round_id).status_code == 200
        own: Service = http.app.state.service
        with pytest.raises(KeyboardInterrupt):
            own.close_round(round_id)
        assert own.close_round(round_id)["state"] == "published" and made[0] == made[1]
        with own.database.read() as connection:
            assert len(connection.execute(select(population_charges)).all()) == 1, "one draw, one charge"
