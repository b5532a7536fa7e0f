"""Databases as a server leaves them that has had many rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import Connection

from server.plans.round import RoundSettings
from server.privacy.charges import LEDGER_FIELDS, Charge
from server.storage.database import Database


def fill(url: str, charges: Mapping[Charge, int], devices: list[str] | None = None) -> int:
    """Write into the database so many published rounds of each charge, in each of which each of the devices, or every
    one there is, reported once. Returns how many lines the ledger has then. No server may have it open."""
    database = Database(url)
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
    with database.write() as connection:
        settings = json.dumps(RoundSettings().model_dump(mode="json"))
        first = 1 + _scalar(connection, "SELECT coalesce(max(number), 0) FROM rounds")
        for charge, rounds in charges.items():
            where = asdict(charge) | {"settings": settings, "first": first, "last": first + rounds - 1}
            for statement in statements:
                connection.exec_driver_sql(statement, where)
            first += rounds
        lines = _scalar(connection, "SELECT count(*) FROM ledger")
    database.close()
    return lines


def _scalar(connection: Connection, query: str) -> int:
    return int(connection.exec_driver_sql(query).scalar_one())
