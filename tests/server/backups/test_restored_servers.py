"""A server that was lost and brought back does not know what was released in between. It draws nothing a second time
for what was charged once, charges what it cannot know, and gives no version twice."""

import struct
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, select

from server.settings import database_url
from server.storage.database import Database
from server.storage.schema import releases, rounds
from tests.forks import idiolect
from tests.server.backups.machine import Machine, delta
from tests.server.parties import HEADERS, Operator, Party
from tests.server.postgres import fresh_database

NOISY = {"epsilon": 1.0, "trust": "central"}
EITHER = ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])]


class Lost:
    """A server, its backup, and the one that is brought back of it."""

    def __init__(self, folder: Path, kind: str, request: Any) -> None:
        self.folder = folder
        urls: list[str | None] = [None, None]
        if kind == "postgresql":
            urls = [fresh_database(request.getfixturevalue("postgres")) for _ in urls]
        names = ("before", "after")
        self.before, self.after = (Machine(folder / name, url) for name, url in zip(names, urls, strict=True))

    def back_up(self) -> None:
        made = idiolect("backup", self.folder / "server.tar", *self.before.place)
        assert made.returncode == 0, made.stderr

    def restore(self, *options: str) -> str:
        made = idiolect("restore", self.folder / "server.tar", *self.after.place, *options)
        assert made.returncode == 0, made.stderr
        return made.stdout + made.stderr

    def close(self) -> None:
        self.before.close()
        self.after.close()


@pytest.fixture(params=EITHER)
def lost(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lost]:
    with closing(Lost(tmp_path, request.param, request)) as found:
        yield found


def counted(operator: Operator, parties: list[Party]) -> dict[str, Any]:
    """One more round, in which all of them report."""
    round_id = operator.open(marginals=NOISY)
    for party in parties:
        assert party.send_counts(round_id, {3: 256}).status_code == 200
    return operator.close(round_id)


def epsilons(operator: Operator) -> dict[str, float]:
    """Of every device, as the ledger has it."""
    lines = operator.get("privacy")["devices"]
    return {line["device_id"]: line["epsilon"] for line in lines if line["stream"] == "marginals"}


def stored(machine: Machine, query: Select[Any]) -> list[bytes]:
    with closing(Database(database_url(machine.database))) as database, database.read() as connection:
        return list(connection.execute(query).scalars())


def test_a_round_is_not_drawn_a_second_time_uncharged(lost: Lost) -> None:
    """The reports of a round that was open at the backup, released by the lost server, are never released again."""
    with lost.before.running() as operator:
        parties = [lost.before.party() for _ in range(3)]
        round_id = operator.open(marginals=NOISY)
        for party in parties:
            assert party.send_counts(round_id, {3: 256}).status_code == 200
        lost.back_up()
        assert operator.close(round_id)["state"] == "published"
        spent = epsilons(operator)
    lost.restore()
    with lost.after.running() as operator:
        found = operator.get(f"rounds/{round_id}")
        closed = lost.after.http.post(f"{operator.url}rounds/{round_id}/close", headers=HEADERS).json()
        assert stored(lost.after, select(releases.c.counts)) == [], f"{found['state']}: {closed}"
        assert found["state"] == "abandoned" and "restored" in found["note"]
        known = epsilons(operator)
        assert all(known[device] >= spent[device] for device in spent)


def test_what_was_charged_after_the_backup_is_charged_to_everyone(lost: Lost) -> None:
    with lost.before.running() as operator:
        parties = [lost.before.party() for _ in range(3)]
        for _ in range(2):
            counted(operator, parties)
        lost.back_up()
        parties.append(lost.before.party())
        for _ in range(2):
            counted(operator, parties)
        spent = epsilons(operator)
    assert len(spent) == 4
    assert "2 rounds" in lost.restore("--rounds-since", "2"), "it says what it assumes"
    with lost.after.running() as operator:
        lost.after.moved(parties)
        again = Party(lost.after.http, lost.after.process.url)
        again.key, again.public = parties[3].key, parties[3].public
        assert again.enrol().id == parties[3].id, "enrolled after the backup, so this server did not know it"
        known = epsilons(operator)
        assert all(known[device] >= spent[device] for device in spent), (known, spent)
        counted(operator, [*parties[:3], again])
        assert all(epsilons(operator)[device] > known[device] for device in spent), "and it goes on"


def test_what_the_backup_does_not_know_is_assumed(lost: Lost) -> None:
    """How many rounds came after it, from how often they come. Marginals and rounds go on far above what the lost
    server may have given, and a round that was planned may have been opened, and closed, by it."""
    with lost.before.running() as operator:
        parties = [lost.before.party() for _ in range(2)]
        planned = operator.post("rounds", json={"settings": {"marginals": NOISY}, "open": False})["id"]
        for _ in range(3):
            counted(operator, parties)
        lost.back_up()
        taken = {counted(operator, parties)["marginals_version"] for _ in range(2)}
        numbers = {each["number"] for each in operator.get("rounds")["rounds"]}
        spent = epsilons(operator)
    lost.restore()
    with lost.after.running() as operator:
        lost.after.moved(parties)
        known = epsilons(operator)
        assert all(known[device] >= spent[device] for device in spent), (known, spent)
        fence = next(each for each in operator.get("rounds")["rounds"] if "restored" in each["note"])
        assert fence["state"] == "abandoned", "operators see it among the rounds"
        assert operator.get(f"rounds/{planned}")["state"] == "abandoned"
        current = operator.get("status")["marginals_version"]
        found = counted(operator, parties)
        assert found["state"] == "published" and not taken & {current, found["marginals_version"]}
        assert current > max(taken) and found["marginals_version"] > current and found["number"] > max(numbers) + 1000


def test_a_backup_holds_nothing_that_a_device_sent(machine: Machine, tmp_path: Path) -> None:
    """Nor a key: what a restore abandons is not saved. Words, counts and a delta of a round that is under way."""
    with machine.running() as operator:
        parties = [machine.party() for _ in range(3)]
        plan = {"marginals": NOISY, "words": {}, "deltas": {"clip_norm": 1e6}}
        round_id = operator.open(**plan, sampling={"kind": "poisson", "rate": 1.0})
        word, counts, value = "quitterjaune", {number: 101 + number for number in range(20)}, 0.1234567
        for party in parties:
            assert party.send_counts(round_id, counts).status_code == 200
            assert party.send_words(round_id, word).status_code == 200
            assert party.send_delta(round_id, delta(value)).status_code == 200
        assert idiolect("backup", tmp_path / "server.tar", *machine.place).returncode == 0
        content = (tmp_path / "server.tar").read_bytes()
    (key,) = stored(machine, select(rounds.c.sampling_key).where(rounds.c.id == round_id))
    assert len(key) == 32
    for raw in (word.encode(), b'"7": 108', struct.pack("<4f", *[value] * 4), key):
        for found in (raw, raw.hex().encode(), b64encode(raw).rstrip(b"=")[:-1]):
            assert found not in content
