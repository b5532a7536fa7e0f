"""Databases as a server leaves them that has had many rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from server.plans.round import RoundSettings
from server.privacy.charges import LEDGER_FIELDS, Charge
from server.storage.database import Database

KEY = ("device_id", "stream", *LEDGER_FIELDS)


def fill(
    url: str, charges: Mapping[Charge, int], devices: list[str] | None = None, *, stream: str = "marginals"
) -> int:
    """Write into the database so many published rounds of each charge, in each of which each of the devices, or every
    one there is, reported once. Returns how many lines the ledger has then. No server may have it open."""
    database = Database(url)
    with database.write() as connection:
        settings = json.dumps(RoundSettings().model_dump(mode="json"))
        first = 1 + int(_scalar(connection, "SELECT coalesce(max(number), 0) FROM rounds"))
        for charge, rounds in charges.items():
            where = {"first": first, "last": first + rounds - 1}
            connection.exec_driver_sql(
                "WITH RECURSIVE numbers(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last) "
                "INSERT INTO rounds (id, number, state, settings, base_model, base_marginals, created_at, opened_at, "
                "deadline, marginals_reports, deltas_reports, words_reports, note) SELECT 'r' || n || '-old', n, "
                "'published', :settings, 'base-1', 0, n, n, n + 1, 1, 0, 0, '' FROM numbers",
                where | {"settings": settings},
            )
            own = "" if devices is None else f"AND devices.id IN ({', '.join(repr(each) for each in devices)})"
            pairs = f"FROM rounds JOIN devices ON true {own} WHERE rounds.number BETWEEN :first AND :last"
            connection.exec_driver_sql(
                "INSERT INTO reports (id, device_id, round_id, stream, body_sha256, size, utterances, accepted_at) "
                "SELECT rounds.number || '-' || devices.id, devices.id, rounds.id, 'marginals', 'ab', 900, 1, "
                f"rounds.number {pairs}",
                where,
            )
            values: dict[str, Any] = {name: getattr(charge, name) for name in LEDGER_FIELDS}
            connection.exec_driver_sql(
                f"INSERT INTO ledger (device_id, stream, round_id, report_id, draw, charged_at, {', '.join(values)}) "
                "SELECT devices.id, 'marginals', rounds.id, rounds.number || '-' || devices.id, 1, rounds.number, "
                f"{', '.join(f':{name}' for name in values)} {pairs}",
                where | values,
            )
            new = "round_id IN (SELECT id FROM rounds WHERE number BETWEEN :first AND :last)"
            connection.exec_driver_sql(
                f"INSERT INTO ledger_totals ({', '.join(KEY)}, times, settled) SELECT {', '.join(KEY)}, count(*), 0 "
                f"FROM ledger WHERE {new} GROUP BY {', '.join(KEY)} "
                f"ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET times = ledger_totals.times + excluded.times",
                where,
            )
            connection.exec_driver_sql(
                "INSERT INTO charged_rounds (stream, round_id) SELECT DISTINCT stream, round_id "
                f"FROM ledger WHERE {new}",
                where,
            )
            first += rounds
        lines = int(_scalar(connection, "SELECT count(*) FROM ledger"))
    database.close()
    return lines


def _scalar(connection: Connection, query: str) -> Any:
    return connection.exec_driver_sql(query).scalar_one()
