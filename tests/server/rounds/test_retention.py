"""What a long series of rounds leaves behind: the newest whole, of older ones what ledger and lineage need."""

from pathlib import Path
from typing import Any

from sqlalchemy import func, select, update

from server.privacy.ledger import differences
from server.rounds.retention import forget_old
from server.service import Service
from server.storage import schema
from server.storage.schema import ledger, marginals, release_keys, releases, reports, rounds, transitions
from tests.server.parties import HEADERS, Operator, Party, refusal, serving, until

KEEP = 3
BY_ROUND = (ledger, reports, releases, transitions, release_keys)
BY_ROUND += (schema.aggregation_messages, schema.aggregation_groups)


def service(http: Any) -> Service:
    return http.app.state.service


def run(http: Any, parties: list[Party], count: int, **plan: Any) -> list[tuple[str, list[bytes]]]:
    """Rounds to which every party sends its counts -> their ids and bodies."""
    made, operator = [], Operator(http)
    for number in range(count):
        round_id = operator.open(**{"marginals": {"epsilon": 1.0}} | plan)
        bodies = [party.counts(round_id, {1 + number % 30: 10}) for party in parties]
        for party, body in zip(parties, bodies, strict=True):
            party.post(f"/v1/rounds/{round_id}/marginals", body, round_id).raise_for_status()
        operator.close(round_id)
        made.append((round_id, bodies))
    return made


def kept(http: Any) -> set[str]:
    """Rounds of which reports are there."""
    with service(http).database.read() as connection:
        return set(connection.execute(select(reports.c.round_id).distinct()).scalars())


def settled(http: Any, ids: set[str]) -> None:
    """Waits until reports of these rounds are there and of no others, and nothing is half forgotten."""

    def found() -> bool:
        with service(http).database.read() as connection:
            half = connection.execute(select(rounds.c.id).where(rounds.c.forgotten == 1)).first()
        return half is None and kept(http) == ids

    until(found)


def test_old_rounds_lose_their_lines_and_reports_and_the_ledger_says_what_it_said(tmp_path: Path, place: str) -> None:
    with serving(tmp_path, database=place, keep_rounds=KEEP) as http:
        made = run(http, [Party(http).enrol() for _ in range(4)], 9)
        newest = {round_id for round_id, _ in made[-KEEP:]}
        # The marginals that the oldest of these began from are of one round more.
        settled(http, newest | {made[-KEEP - 1][0]})
        with service(http).database.read() as connection:
            for table in BY_ROUND:
                found = set(connection.execute(select(table.c.round_id).distinct()).scalars())
                assert found <= newest | {made[-KEEP - 1][0]}, table.name
            assert connection.execute(select(func.count()).select_from(rounds)).scalar() == 9, "lineage stays"
            assert connection.execute(select(func.count()).select_from(schema.charged_rounds)).scalar() == 9
            assert differences(connection) == []
            contents = {
                row.version: len(row.probabilities) + len(row.counts)
                for row in connection.execute(select(marginals).order_by(marginals.c.version))
            }
        found = Operator(http).get("privacy")
        assert {line["rounds"] for line in found["devices"]} == {9}
        assert (found["streams"]["marginals"]["rounds"], found["streams"]["marginals"]["devices"]) == (9, 4)
        assert [version for version, size in contents.items() if size] == [0, 6, 7, 8, 9]
        assert refusal(http.get("/v1/marginals/2")) == (410, "marginals_removed")
        assert refusal(http.post("/v1/operator/marginals/2/publish", headers=HEADERS)) == (410, "marginals_removed")
        assert http.get("/v1/operator/marginals/2", headers=HEADERS).status_code == 410
        http.post("/dashboard/sign-in", data={"token": "operator-token"})
        for page in ("", "/rounds", f"/rounds/{made[0][0]}", "/marginals?version=6", "/privacy"):
            assert http.get(f"/dashboard{page}").status_code == 200, page


def test_numbers_that_are_left_out_forget_no_round(tmp_path: Path) -> None:
    with serving(tmp_path) as http:
        made = run(http, [Party(http).enrol()], KEEP + 1)
        with service(http).database.write() as connection:
            connection.execute(update(rounds).where(rounds.c.id == made[-1][0]).values(number=1_000_000))
        forget_old(service(http).database, KEEP + 1)
        assert kept(http) == {round_id for round_id, _ in made}
        forget_old(service(http).database, 2)
        assert kept(http) == {round_id for round_id, _ in made[-3:]}, "and that whose marginals they begin from"


def test_a_report_of_a_forgotten_round_is_never_counted_again(tmp_path: Path) -> None:
    """Its device may have missed the receipt; told that it was refused, it would report anew what was counted."""
    with serving(tmp_path, keep_rounds=KEEP) as http:
        parties = [Party(http).enrol() for _ in range(2)]
        made = run(http, parties, 6)
        settled(http, {round_id for round_id, _ in made[-KEEP - 1 :]})
        before = Operator(http).get("privacy")["devices"]
        for round_id, bodies in made:
            again = parties[0].post(f"/v1/rounds/{round_id}/marginals", bodies[0], round_id)
            assert (again.status_code, again.json().get("duplicate")) == (200, True), again.text
        assert Operator(http).get("privacy")["devices"] == before
        fresh = parties[0].send_counts(made[-1][0], {1: 1})
        assert refusal(fresh) == (409, "round_closed"), "that of a kept one is refused"


def test_a_delta_of_a_forgotten_round_is_not_taken_by_a_later_one_of_its_series(tmp_path: Path) -> None:
    with serving(tmp_path, keep_rounds=2) as http:
        operator, party = Operator(http), Party(http).enrol()
        plan = {"marginals": None, "deltas": {}, "weighting": "uniform", "goal": 1, "rounds": 50, "no_privacy": True}
        first = operator.post("rounds", json={"settings": plan})["id"]
        body = party.delta(first)
        assert party.post(f"/v1/rounds/{first}/deltas", body, first).status_code == 200

        def send_to_the_next() -> bool:
            status = operator.get("status")
            taking = [each["id"] for each in status["rounds"] if each["state"] == "open"]
            version = status["model_version"]
            return bool(taking) and party.send_delta(taking[0], model_version=version).status_code == 200

        for _ in range(6):
            until(send_to_the_next)
        until(lambda: first not in kept(http))
        count = Operator(http).get("privacy")["devices"][0]["rounds"]
        again = party.post(f"/v1/rounds/{first}/deltas", body, first)
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        assert Operator(http).get("privacy")["devices"][0]["rounds"] == count == 7


def test_bytes_a_round_tend_to_a_small_constant(tmp_path: Path) -> None:
    """Of a list of 5,000 words and 10 reports a round: a round takes some 100 kB while it is kept. What is free in the
    file is used again, so that only pages in use count: how many rounds waited at once depends on the machine."""
    with serving(tmp_path, words=5000, keep_rounds=5) as http:
        parties = [Party(http).enrol() for _ in range(10)]
        sizes: list[int] = []
        made: list[Any] = []
        for _ in range(9):
            made += run(http, parties, 3)
            settled(http, {round_id for round_id, _ in made[-6:]})
            with service(http).database.read() as connection:
                pages, free, size = (
                    connection.exec_driver_sql(f"PRAGMA {each}").scalar_one()
                    for each in ("page_count", "freelist_count", "page_size")
                )
            sizes.append((pages - free) * size)
    grown = (sizes[8] - sizes[5]) / 9
    assert grown < 12_000, f"{grown:.0f} bytes a round"
    assert pages * size < 30 * 100_000, "27 rounds were made, and not all kept"
