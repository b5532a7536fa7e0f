"""Keys of releases: one for one set of accepted reports, another key and another charge for others, and none twice."""

import hashlib
import hmac
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.ledger import Caps, record
from server.privacy.noise import KEY_BYTES, add_noise, key_stream, new_key
from server.rounds import release_keys as keeping
from server.rounds.release_keys import obtain_key
from server.rounds.releases import release_deltas
from server.rounds.store import find_round, read_settings
from server.service import Service
from server.storage.schema import devices, ledger, release_keys, reports, rounds
from tests.server.parties import initial, settings
from tests.server.releases.rounds import Killed, go_on, open_copy, published

CAP = 0.55
"""Enough for one draw of the rounds here, and too little for two."""
CUTS = ("advance.release_marginals", "releases.add_noise", "advance.store_release")


def test_a_stream_is_aes_in_counter_mode_under_hkdf() -> None:
    """By the two standards, written out."""
    key, purpose = bytes(range(32)), b"r1\nmarginals"
    derived = hmac.digest(hmac.digest(bytes(32), key, hashlib.sha256), purpose + b"\1", hashlib.sha256)
    blocks = b"".join(number.to_bytes(16, "big") for number in range(4))
    encryptor = Cipher(algorithms.AES256(derived), modes.ECB()).encryptor()
    source = key_stream(key, purpose.decode())
    assert source(10) + source(0) + source(54) == encryptor.update(blocks)
    assert key_stream(key, "r1\ndeltas")(64) != key_stream(key, purpose.decode())(64)
    with pytest.raises(PrivacyError, match="key: found 31 bytes"):
        key_stream(bytes(31), "")
    assert len(new_key()) == KEY_BYTES and new_key() != new_key()


@pytest.fixture
def service(closed: tuple[Path, str], tmp_path: Path) -> Iterator[Service]:
    found = open_copy(closed[0], tmp_path / "server")
    yield found
    found.close()


def obtained(service: Service, round_id: str, caps: Caps | None = None) -> Any:
    with service.database.write() as connection:
        plans = read_settings(find_round(connection, round_id))
        return obtain_key(connection, round_id, "marginals", plans, caps or Caps(), 1.0)


def change(service: Service, report_id: str | None = None) -> None:
    """Another body was accepted under a report's id, any one's or this, as after a restore of a part of the books."""
    with service.database.write() as connection:
        changed = {"body_sha256": f"{random.getrandbits(256):064x}", "counts": {"9": 256}}
        first = select(func.min(reports.c.id)).where(reports.c.stream == "marginals").scalar_subquery()
        connection.execute(update(reports).where(reports.c.id == (report_id or first)).values(**changed))


def charges(service: Service) -> list[list[int]]:
    """Of every report the draws that it was charged for."""
    with service.database.read() as connection:
        found: defaultdict[str, list[int]] = defaultdict(list)
        query = select(ledger.c.report_id, ledger.c.draw).where(ledger.c.stream == "marginals").order_by(ledger.c.id)
        for report_id, draw in connection.execute(query):
            found[report_id].append(draw)
        return list(found.values())


def test_the_same_reports_have_one_key(service: Service, closed: tuple[Path, str]) -> None:
    first, second = obtained(service, closed[1]), obtained(service, closed[1])
    assert first == second
    assert first.source(b"sum")(64) == second.source(b"sum")(64) != first.source(b"another sum")(64)
    assert repr(first.key) not in repr(first), "a key is not printed"
    assert charges(service) == [[1]] * 3


def test_other_reports_have_another_key_and_another_charge(service: Service, closed: tuple[Path, str]) -> None:
    first, before = obtained(service, closed[1]), service.privacy()["marginals"]["epsilon"]
    change(service)
    second = obtained(service, closed[1])
    assert first.key != second.key and first.inputs_sha256 != second.inputs_sha256
    assert charges(service) == [[1, 2]] * 3 and obtained(service, closed[1]) == second
    go_on(service, closed[1])
    found = published(service, closed[1])
    assert [each[1] for each in found.releases if each[0] == "marginals"] == [second.inputs_sha256]
    assert service.privacy()["marginals"]["epsilon"] > 1.2 * before, "two draws cost more than one"


def test_a_second_charge_stops_at_the_cap(service: Service, closed: tuple[Path, str]) -> None:
    obtained(service, closed[1])
    change(service)
    with pytest.raises(PrivacyError, match="another draw would pass a device's cap"):
        obtained(service, closed[1], Caps(1e-6, {"marginals": CAP}))
    assert charges(service) == [[1]] * 3
    service.settings = settings(service.settings.lock_folder.parent, marginals_cap=CAP)
    go_on(service, closed[1])
    found = published(service, closed[1])
    assert [each[0] for each in found.releases] == ["deltas"], "nothing is released that could not be paid for"


def test_reports_that_change_under_way_are_not_released_by_the_old_key(service: Service, closed, monkeypatch) -> None:
    whole, calls = release_deltas, []

    def changing(*arguments: Any) -> Any:
        calls.append("")
        if len(calls) == 1:
            change(service)
        return whole(*arguments)

    monkeypatch.setattr("server.rounds.advance.release_deltas", changing)
    go_on(service, closed[1])
    assert len(calls) == 2 and charges(service) == [[1, 2]] * 3 and len(published(service, closed[1]).releases) == 2


def test_what_the_database_refuses(service: Service, closed: tuple[Path, str]) -> None:
    key = obtained(service, closed[1])
    values = {"round_id": closed[1], "stream": "marginals", "made_at": 0.0, "key": key.key}
    other = hashlib.sha256(key.key).hexdigest()
    for row in (
        values | {"inputs_sha256": "other", "key_sha256": other},  # a key for a second set of reports
        values | {"inputs_sha256": key.inputs_sha256, "key_sha256": "other"},  # a second key for the same
    ):
        with pytest.raises(IntegrityError), service.database.write() as connection:
            connection.execute(insert(release_keys).values(**row))
    with service.database.write() as connection:
        keeping.forget_keys(connection, closed[1])
    with pytest.raises(PrivacyError, match="was forgotten"):
        obtained(service, closed[1])


def test_too_few_reports_have_no_key(service: Service, closed: tuple[Path, str]) -> None:
    with service.database.write() as connection:
        plans = read_settings(find_round(connection, closed[1])).model_copy(update={"minimum": 4})
        assert obtain_key(connection, closed[1], "marginals", plans, Caps(), 1.0) is None
        assert connection.execute(select(func.count()).select_from(release_keys)).scalar_one() == 0


@pytest.mark.parametrize("simulated", [40, pytest.param(10_000, marks=pytest.mark.slow)], ids=["part", "whole"])
def test_no_key_meets_two_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: int) -> None:
    """Rounds by the thousand, whose process ends anywhere between key and publication and whose reports change:
    whatever is drawn, is drawn from a key that saw these reports only."""
    inputs: defaultdict[bytes, set[str]] = defaultdict(set)
    keys: defaultdict[str, set[bytes]] = defaultdict(set)

    def watched(key: bytes, purpose: str) -> RandomBytes:
        inputs[key].add(purpose)  # names the round, the stream, the reports and their sum
        keys[purpose].add(key)
        return key_stream(key, purpose)

    monkeypatch.setattr(keeping, "key_stream", watched)
    own, dice = Service(settings(tmp_path, tick_seconds=1e9), initial()), random.Random(0)
    plan = RoundSettings.model_validate({"marginals": {"epsilon": 1.0}})
    cuts: Counter[str] = Counter()
    try:
        with own.database.write() as connection:
            for number in range(3):
                row = {"id": f"d{number}", "public_key": bytes([number]) * 32, "enrolled_at": 0}
                connection.execute(insert(devices).values(row))
        for number in range(simulated):
            round_id = _accepted_round(own, plan, number)
            while not _ended(own, round_id):
                point = dice.choice([*CUTS, "end", "end", "end"])
                cuts[point] += 1
                with monkeypatch.context() as patch, suppress(Killed):
                    if point != "end":
                        _cut(patch, point)
                    go_on(own, round_id)
                if not _ended(own, round_id) and dice.random() < 0.4:
                    change(own, f"{number}-{dice.randrange(3)}")
                    cuts["changed"] += 1
        with own.database.read() as connection:
            made = connection.execute(select(func.count()).select_from(release_keys)).scalar_one()
            again = connection.execute(select(func.count()).where(ledger.c.draw > 1)).scalar_one()
    finally:
        own.close()
    assert {len(met) for met in inputs.values()} == {1}, "no key has met two inputs"
    assert {len(used) for used in keys.values()} == {1}, "and no inputs two keys"
    assert made > simulated and again == 3 * (made - simulated), "each further key is a further charge of every report"
    assert all(cuts[point] > simulated / 20 for point in (*CUTS, "changed")), dict(cuts)


def _accepted_round(own: Service, plan: RoundSettings, number: int) -> str:
    """A closing round with three reports, each charged."""
    round_id = str(own.create_round(plan, opened=True)["id"])
    with own.database.write() as connection:
        for device in range(3):
            report_id = f"{number}-{device}"
            named: dict[str, Any] = {"device_id": f"d{device}", "round_id": round_id, "stream": "marginals"}
            values = named | {"id": report_id, "body_sha256": report_id, "size": 1, "utterances": 1}
            connection.execute(insert(reports).values(**values, accepted_at=0.0, counts={"3": 256}))
            record(connection, **named, report_id=report_id, charge=charge_for("marginals", plan), now=0.0)
        connection.execute(update(rounds).where(rounds.c.id == round_id).values(state="closing", marginals_reports=3))
    return round_id


def _ended(own: Service, round_id: str) -> bool:
    with own.database.read() as connection:
        return find_round(connection, round_id).state == "published"


def _cut(patch: pytest.MonkeyPatch, point: str) -> None:
    """The process ends before the reports are read, right after the draw, or before the release is stored."""

    def end(*arguments: Any) -> None:
        if point == "releases.add_noise":
            add_noise(*arguments)
        raise Killed

    patch.setattr(f"server.rounds.{point}", end)
