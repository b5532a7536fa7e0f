"""Secrets given to a command are in no list of processes, no log and no error; and a schema that is too new is told."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from device_sdk.bundle import Bundle
from server.settings import database_url
from server.storage.database import Database
from tests.forks import idiolect
from tests.server.parties import until

ROOT = Path(__file__).parents[3]
SECRET = "s3cret-0f-the-database"
TOKENS = ("enrolment-t0ken-secret", "operator-t0ken-secret")

linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes where Linux shows them")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("IDIOLECT_")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def ran(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return idiolect(*words, folder=folder, environment=environment(**more))


@contextmanager
def serving(folder: Path, *words: str, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "device_sdk.cli", "serve", "--port", "0", "--ready-file", str(ready), *words]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(**more), stdout=log, stderr=log)
    try:
        until(lambda: ready.exists() or process.poll() is not None, 180)
        assert ready.exists(), (folder / "server.log").read_text()
        yield process, json.loads(ready.read_text())
        assert SECRET not in (folder / "server.log").read_text()
    finally:
        process.terminate()
        process.wait(60)


def shown(processes: Sequence[int]) -> str:
    """What a list of processes shows of these."""
    return " ".join(Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode() for each in processes)


def family(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in family(int(child)))]


@linux
@pytest.mark.postgres
@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("way", ["option", "one word", "environment"])
def test_a_database_password_is_in_no_list_of_processes(tmp_path: Path, tiny_bundle, place: str, way: str) -> None:
    """Neither of the server nor of the processes that it starts."""
    user, _, rest = place.removeprefix("postgresql://").partition("@")
    url = f"postgresql://{user.partition(':')[0]}:{SECRET}@{rest}"
    processes = 1 if way == "one word" else 2
    words = ["--bundle", str(tiny_bundle.path), "--blobs", str(tmp_path / "blobs"), "--processes", str(processes)]
    words += {"option": ["--database", url], "one word": [f"--database={url}"], "environment": []}[way]
    more = {"IDIOLECT_DATABASE": url} if way == "environment" else {}
    more |= {"IDIOLECT_ENROLMENT_TOKEN": TOKENS[0], "IDIOLECT_OPERATOR_TOKEN": TOKENS[1]}
    with serving(tmp_path, *words, **more) as (process, ready):
        assert ready["pid"] == process.pid
        running = family(process.pid)
        assert len(running) == (3 if processes == 2 else 1) and SECRET not in shown(running)
    if way == "environment":
        words = ["backup", str(tmp_path / "saved.tar"), "--json", "--blobs", str(tmp_path / "blobs")]
        found = ran(tmp_path, *words, IDIOLECT_DATABASE=url)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["rows"]["models"] == 1


@linux
def test_tokens_given_as_options_are_in_no_list_of_processes(tmp_path: Path, tiny_bundle: Bundle) -> None:
    words = ["--bundle", str(tiny_bundle.path), "--database", str(tmp_path / "a.db")]
    words += ["--enrolment-token", TOKENS[0], f"--operator-token={TOKENS[1]}"]
    with serving(tmp_path, *words) as (process, _):
        assert not any(token in shown(family(process.pid)) for token in TOKENS)
        assert str(tmp_path / "a.db") in shown([process.pid]), "what is no secret stays"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://idiolect:{SECRET}@127.0.0.1:1/none",
        f"postgresql://127.0.0.1:1/none?user=idiolect&password={SECRET}",
        f"postgresql://idiolect:{SECRET}@127.0.0.1:port/none",
        f"postgresql://idiolect:{SECRET}/with@127.0.0.1:1/none",
        f"postgresql://idiolect:{SECRET}#with@127.0.0.1:1/none",
    ],
)
def test_errors_do_not_tell_the_password(tmp_path: Path, url: str) -> None:
    pytest.importorskip("psycopg")
    found = ran(tmp_path, "backup", str(tmp_path / "saved.tar"), IDIOLECT_DATABASE=url)
    assert found.returncode != 0
    told = found.stdout + found.stderr
    assert SECRET not in told and "database" in told and "Traceback" not in told


def test_a_schema_of_a_newer_server_is_told_in_one_error(tmp_path: Path, tiny_bundle: Bundle, place: str) -> None:
    """Which revision was found, which is known, and what to do; and nothing is changed."""
    with closing(Database(database_url(place))) as own, own.write() as session:
        session.exec_driver_sql("UPDATE alembic_version SET version_num = '9042'")
    more = {"IDIOLECT_ENROLMENT_TOKEN": TOKENS[0], "IDIOLECT_OPERATOR_TOKEN": TOKENS[1]}
    for words in (("serve", "--bundle", str(tiny_bundle.path), "--port", "0"), ("backup", str(tmp_path / "saved.tar"))):
        found = ran(tmp_path, *words, "--database", place, "--blobs", str(tmp_path / "blobs"), **more)
        told = " ".join((found.stdout + found.stderr).replace("│", " ").split())
        assert found.returncode not in (0, -9), told
        assert "Traceback" not in told and "9042" in told and "newer" in told, told
