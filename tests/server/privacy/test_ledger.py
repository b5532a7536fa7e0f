"""The ledger: what is charged, how it composes, where it stops; and ledgers of years, which make nothing slower."""

import json
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import Connection

from device_sdk.errors import StateError
from device_sdk.privacy.gaussian import gaussian_epsilon
from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.backup import save, verify
from server.plans.round import RoundSettings
from server.privacy.charges import LEDGER_FIELDS, PAPER, Charge, charge_for
from server.privacy.composition import Spent, compose, quick_bound
from server.privacy.ledger import largest_histories
from server.service import Service
from server.storage.database import Database
from tests.server.parties import HEADERS, OPERATOR, Operator, Party, refusal, serving


def fill(url: str, charges: Mapping[Charge, int], devices: list[str] | None = None) -> int:
    """Write into the database so many published rounds of each charge, in each of which each of the devices, or every
    one there is, reported once. Returns how many lines the ledger has then. No server may have it open."""
    named, key = ", ".join(LEDGER_FIELDS), ", ".join(("device_id", "stream", *LEDGER_FIELDS))
    values = ", ".join(f":{name}" for name in LEDGER_FIELDS)
    own = "" if devices is None else f"AND devices.id IN ({', '.join(repr(each) for each in devices)})"
    pairs = f"FROM rounds JOIN devices ON true {own} WHERE rounds.number BETWEEN :first AND :last"
    new = "round_id IN (SELECT id FROM rounds WHERE number BETWEEN :first AND :last)"
    statements = (
        "WITH RECURSIVE numbers(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last) "
        "INSERT INTO rounds (id, number, state, settings, base_model, base_marginals, created_at, opened_at, "
        "deadline, marginals_reports, deltas_reports, words_reports, note) SELECT 'r' || n || '-old', n, "
        "'published', :settings, 'base-1', 0, n, n, n + 1, 1, 0, 0, '' FROM numbers",
        "INSERT INTO reports (id, device_id, round_id, stream, body_sha256, size, utterances, accepted_at) "
        f"SELECT rounds.number || '-' || devices.id, devices.id, rounds.id, 'marginals', 'ab', 900, 1, number {pairs}",
        f"INSERT INTO ledger (device_id, stream, round_id, report_id, draw, charged_at, {named}) SELECT devices.id, "
        f"'marginals', rounds.id, rounds.number || '-' || devices.id, 1, rounds.number, {values} {pairs}",
        f"INSERT INTO ledger_totals ({key}, times, settled) SELECT {key}, count(*), 0 FROM ledger WHERE {new} "
        f"GROUP BY {key} ON CONFLICT ({key}) DO UPDATE SET times = ledger_totals.times + excluded.times",
        f"INSERT INTO charged_rounds (stream, round_id) SELECT DISTINCT stream, round_id FROM ledger WHERE {new}",
    )
    with closing(Database(url)) as database, database.write() as connection:
        settings = json.dumps(RoundSettings().model_dump(mode="json"))
        first = 1 + _scalar(connection, "SELECT coalesce(max(number), 0) FROM rounds")
        for charge, rounds in charges.items():
            where = asdict(charge) | {"settings": settings, "first": first, "last": first + rounds - 1}
            for statement in statements:
                connection.exec_driver_sql(statement, where)
            first += rounds
        return _scalar(connection, "SELECT count(*) FROM ledger")


def _scalar(connection: Connection, query: str) -> int:
    return int(connection.exec_driver_sql(query).scalar_one())


DELTA = 1e-6
LAPLACE = Charge("discrete_laplace", "central", 256, 5120.0, 20, epsilon=1.0)


def test_charges() -> None:
    deltas = DeltaPlan(clip_norm=3.0, noise_stddev=0.5)
    plans = RoundSettings(marginals=MarginalPlan(epsilon=2.0), deltas=deltas, weighting="uniform", goal=8, minimum=4)
    counts, delta = charge_for("marginals", plans), charge_for("deltas", plans)
    assert (counts.epsilon, counts.mechanism, counts.trust) == (2.0, "discrete_laplace", "central")
    assert (counts.sensitivity, counts.coordinates, counts.scale) == (256, 20, 20 * 256 / 2.0)
    # The smallest cohort that may be released carries 4 shares of noise: 0.5 * sqrt(4).
    assert (delta.scale, delta.squared_ratio, delta.unbounded) == (1.0, 9.0, False)
    bare = charge_for("deltas", RoundSettings(deltas=DeltaPlan()))
    assert bare.unbounded and compose(Spent({bare: 1}), DELTA)[0] == math.inf, "no noise"


@pytest.mark.parametrize(
    ("plan", "epsilon"),
    [
        ({"mechanism": "discrete_gaussian"}, 1.0),
        ({"mechanism": "discrete_gaussian", "epsilon": 4.0, "delta": 1e-8}, 4.0),
        ({"mechanism": "discrete_gaussian", "trust": "local"}, 1.0),
        ({"mechanism": "discrete_gaussian", "trust": "distributed", "minimum_survivors": 4}, 1.0),
        ({"trust": "local", "epsilon": 8.0}, 8.0),
        ({"max_words": 1, "max_weight": 2.0, "epsilon": 0.5}, 0.5),
    ],
)
def test_a_report_costs_what_its_plan_says(plan: dict[str, Any], epsilon: float) -> None:
    whole = MarginalPlan(**plan)
    total = Spent().plus(charge_for("marginals", RoundSettings(marginals=whole, minimum=4)))
    found, _ = compose(total, whole.delta)
    if whole.mechanism == "discrete_gaussian":
        assert found == pytest.approx(epsilon, rel=2e-3)
    else:
        assert found <= epsilon * (1 + 1e-9)
        assert compose(total, 1e-300)[0] == pytest.approx(epsilon, rel=1e-3), "pure: without a delta it costs all of it"


def test_mode_paper_promises_one_count_and_no_more() -> None:
    charge = charge_for("marginals", RoundSettings(marginals=MarginalPlan(mode="paper", epsilon=0.5)))
    total = Spent({charge: 2})
    assert (charge.mechanism, charge.unbounded, charge.count_epsilon) == (PAPER, True, 0.5)
    assert total.count_epsilon == 1.0, "a count said in the first round is in the second release too"
    assert compose(total, DELTA) == (math.inf, 0.0) and Spent({LAPLACE: 1}).count_epsilon is None


def test_summary_over_rounds(operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    first, second = devices(2)
    for number in range(2):
        round_id = operator.open(marginals={"epsilon": 0.5}, deltas={"noise_stddev": 2.0}, goal=9, weighting="uniform")
        assert first.send_counts(round_id, {1: 10}).status_code == 200
        if number == 0:
            assert second.send_counts(round_id, {1: 10}).status_code == 200
        first.send_delta(round_id, model_version=operator.get("status")["model_version"]).raise_for_status()
        operator.close(round_id)
    found = operator.get("privacy")
    marginals, deltas = found["streams"]["marginals"], found["streams"]["deltas"]
    once = charge_for("marginals", RoundSettings(marginals=MarginalPlan(epsilon=0.5)))
    first_spent, second_spent = (compose(Spent({once: rounds}), DELTA)[0] for rounds in (2, 1))
    assert second_spent < first_spent < 1.0, "less than 0.5 a round"
    assert (marginals["epsilon"], marginals["delta"]) == (first_spent, DELTA)
    assert (marginals["rounds"], marginals["devices"]) == (2, 2)
    # An utterance is in one round, where all 20 words may give way to 20 others.
    assert marginals["utterance_epsilon"] == compose(Spent({replace(once, coordinates=40, epsilon=1.0): 1}), DELTA)[0]
    assert marginals["count_epsilon"] is None and marginals["trust_model"].startswith("central")
    assert deltas["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2) / 2, DELTA))
    assert (deltas["delta"], deltas["devices"]) == (DELTA, 1)
    assert deltas["utterance_epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2), DELTA))
    assert {"adjacency", "utterance_adjacency", "sampling", "trust_model"} <= deltas.keys()
    lines = [line["epsilon"] for line in found["devices"] if line["stream"] == "marginals"]
    assert lines == [first_spent, second_spent]


@pytest.mark.parametrize(
    ("stream", "plan", "dear", "send"),
    [
        ("marginals", {"epsilon": 0.5}, {"mode": "paper"}, lambda device, name: device.send_counts(name, {1: 1})),
        (
            "words",
            {"epsilon": 1.0, "delta": 1e-7},
            {"epsilon": 50.0},
            lambda device, name: device.send_words(name, "x"),
        ),
    ],
    ids=["marginals", "words"],
)
def test_fails_closed_at_the_cap(tmp_path: Path, stream: Any, plan: dict[str, Any], dear: dict[str, Any], send) -> None:
    charge = charge_for(stream, RoundSettings.model_validate({"marginals": None, stream: plan}))
    two, three = (compose(Spent({charge: rounds}), DELTA)[0] for rounds in (2, 3))
    with serving(tmp_path, deltas_cap=50.0, **{f"{stream}_cap": (two + three) / 2}) as http:
        operator, device = Operator(http), Party(http).enrol()
        for number in range(3):
            round_id = operator.open(**{"marginals": None, stream: plan})
            offer = device.check_in().json()["round"]
            answer = send(device, round_id)
            operator.close(round_id)
            assert (offer is not None, answer.status_code) == ((True, 200) if number < 2 else (False, 403))
        assert answer.json()["code"] == "privacy_cap"
        found = operator.get("privacy")
        assert found["streams"][stream]["epsilon"] == two <= found["caps"][stream]
        assert found["streams"][stream]["trust_model"].startswith("central")
        for other, asked in ((stream, dear), ("deltas", {})):
            settings = {"settings": {"marginals": None, other: asked}}
            refused = http.post("/v1/operator/rounds", json=settings, headers=HEADERS)
            assert refusal(refused) == (422, "privacy_cap") and refused.json()["field"] == other


def test_a_backup_whose_totals_are_not_those_of_its_lines_is_refused(http: Any, operator, device, tmp_path) -> None:
    device.send_counts(operator.open(marginals={"epsilon": 1.0}), {1: 1})
    own: Service = http.app.state.service
    save(own.database, own.blobs, tmp_path / "good.tar")
    verify(tmp_path / "good.tar")
    with own.database.write() as connection:
        connection.exec_driver_sql("UPDATE ledger_totals SET times = times + 1")
    with pytest.raises(StateError, match=f"totals.*device {device.id}, marginals: 1 lines.*total says 2"):
        save(own.database, own.blobs, tmp_path / "wrong.tar")
        verify(tmp_path / "wrong.tar")


histories = st.lists(
    st.dictionaries(st.sampled_from([LAPLACE, replace(LAPLACE, scale=10240.0, epsilon=0.5)]), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


@examples(max_examples=25, deadline=None)
@given(histories)
def test_the_dearest_histories_cost_as_much_as_any(found: list[dict[Charge, int]]) -> None:
    totals = [Spent(charges) for charges in found]
    chosen = largest_histories(totals)
    assert max(compose(each, DELTA)[0] for each in chosen) == max(compose(each, DELTA)[0] for each in totals)
    assert len(chosen) <= len(totals)


CHARGE = charge_for("marginals", RoundSettings(marginals=MarginalPlan()))


def seconds(ask: Callable[[], Any], times: int = 5) -> float:
    """Of this process, in which the server is, so that other work of the machine does not count."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        answer = ask()
        found.append(time.process_time() - begun)
        assert answer.status_code == 200, answer.text
    return median(found)


def test_neither_the_overview_nor_a_check_in_takes_longer_for_a_long_ledger(tmp_path: Path) -> None:
    with serving(tmp_path, marginals_cap=1e6) as http:
        parties = [Party(http).enrol() for _ in range(60)]
    assert fill(f"sqlite:///{tmp_path / 'server.db'}", {CHARGE: 2000}) == 120_000
    with serving(tmp_path, marginals_cap=1e6) as http:
        operator = Operator(http)
        found = operator.get("privacy")
        stream = found["streams"]["marginals"]
        assert (stream["rounds"], stream["devices"]) == (2000, 60), "and it is as long as it is"
        assert stream["epsilon"] == compose(Spent({CHARGE: 2000}), DELTA)[0]
        assert {line["rounds"] for line in found["devices"] if line["stream"] == "marginals"} == {2000}
        assert http.post("/dashboard/sign-in", data={"token": OPERATOR}).status_code == 200
        assert "published" in http.get("/dashboard").text
        overview = seconds(lambda: http.get("/dashboard"))
        operator.open(marginals={"epsilon": 1.0})
        check_in = seconds(parties[0].check_in)
    assert overview < 0.25, f"{overview:.2f} s"
    assert check_in < 0.05, f"{check_in:.3f} s"


def test_a_check_in_does_not_wait_for_what_another_device_has_spent_to_be_composed(tmp_path: Path) -> None:
    """A device with a history that nobody has composed yet: seconds of work, in which others go on."""
    plans = (MarginalPlan(mechanism="discrete_gaussian", epsilon=0.3 + 0.0137 * number) for number in range(5))
    history = {charge_for("marginals", RoundSettings(marginals=plan)): 20 for plan in plans}
    cap = 0.9 * quick_bound(Spent(history), DELTA)  # what takes no time does not say
    with serving(tmp_path, marginals_cap=cap) as http:
        old, *others = (Party(http).enrol() for _ in range(3))
    fill(f"sqlite:///{tmp_path / 'server.db'}", history, [old.id])
    compose(Spent({CHARGE: 3}), DELTA)  # what is loaded once is loaded
    with serving(tmp_path, marginals_cap=cap) as http:
        Operator(http).open(marginals={"epsilon": 1.0})
        for party in (old, *others):
            party.http = http

        answered = 0
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(old.check_in)
            while not first.done():
                assert {party.check_in().status_code for party in others} == {200}
                answered += len(others)
        assert first.result().status_code == 200
    assert answered > 4 * len(others), f"{answered} check-ins of others meanwhile"
