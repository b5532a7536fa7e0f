"""A state folder holds what is declared, and nothing else; an audit that finds nothing could have found something."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, Corrected, Device, OfferBounds
from device_sdk.checkin import aggregation, identity, reports
from device_sdk.checkin.at_hand import Session
from device_sdk.personalization.vocabulary import Phrases, VocabularyEntry, to_bytes, with_entries
from device_sdk.state import Store
from device_sdk.state.schema import TABLES
from device_sdk.wire.messages import MarginalPlan, RoundOffer, WordPlan
from tests.device_sdk.devices import KEY, quick, tell
from tests.device_sdk.state.audit import content_of, findings

SERVER = "https://server.example"
SETTINGS = replace(quick(wait_seconds=0.0), keep_corrected=True)
SAID = Corrected("turn on the borborygmus")


def test_a_record_is_declared_by_its_whole_name() -> None:
    assert content_of("settings", "deltas_sent") is not None
    for table, name in (("settings", "text"), ("counts", "weights"), ("outbox", "a" * 31), ("audio", "cache")):
        assert content_of(table, name) is None


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> Path:
    """The folder of a device that has heard, learned, and has a report waiting; closed, and as declared before that."""
    folder, bundle = tmp_path_factory.mktemp("audited") / "state", tiny_bundle
    with Device.open(folder, KEY, bundle, SETTINGS) as device:
        device.agree("keeping", "marginals", "deltas", "words")
        for seed in range(3):
            tell(device, seed, SAID)
            device.learn()
        store, model_state = device._store, device._model_state
        who = identity.keep_id(store, identity.create(store, SERVER), "device-1")
        plan = MarginalPlan(epsilon=1.0)
        offer = RoundOffer(round_id="r1", model_version=bundle.version, marginals=plan, closes_in_seconds=60.0)
        with store.transaction():
            reports.enqueue_words(who, offer, WordPlan(), OfferBounds(), model_state, 5)
            held = model_state.cache, bundle.background
            model_state.keep_cache(reports.enqueue_marginals(store, who, offer, plan, OfferBounds(), *held))
        shares = MarginalPlan(trust="distributed", mechanism="discrete_gaussian", minimum_survivors=2)
        session = Session(None, model_state, device._recent, SETTINGS, None, nullcontext())
        aggregation._join(session, who, offer.model_copy(update={"round_id": "r2", "marginals": shares}), shares)
        model_state.keep_marginals(3, bundle.words.digest, np.asarray(bundle.background, np.float64))
        tell(device, 9, SAID)
        files = {path.name.split(".")[-1] for path in folder.iterdir()}
        assert files == {"lock", "sealed", "sqlite", "sqlite-wal", "sqlite-shm"}
        assert findings(folder, KEY, bundle) == []
    return folder


def test_a_real_session_leaves_what_is_declared(state: Path, tmp_path: Path, tiny_bundle: Bundle) -> None:
    folder = shutil.copytree(state, tmp_path / "state")
    assert findings(folder, KEY, tiny_bundle) == []
    with closing(Store(folder, KEY)) as store:
        held = {f"{table}/{name}" for table in TABLES for name in store.names(table)}
        assert {"counts/cache", "counts/given", "marginals/global", "weights/local", "weights/teacher"} <= held
        assert store.names("outbox") and store.names("identity")
        store.erase()
    assert findings(folder, KEY, tiny_bundle) == []


def _sealed(table: str, name: str, value: bytes) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        with closing(Store(folder, KEY)) as store:
            store.put(table, name, value)

    return plant


def _vocabulary(*texts: str) -> Callable[[Path], None]:
    entry = VocabularyEntry(texts[0], texts[1:], source="correction")
    return _sealed("counts", "vocabulary", to_bytes(with_entries(Phrases(), [entry])))


def _sql(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "state.sqlite")) as connection, connection:
        connection.execute(statement, values)


def _file(pattern: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: min(folder.glob(pattern), default=folder / pattern).write_bytes(content)


def _in_the_clear(folder: Path) -> None:
    """Somewhere in a file, a value of the cache."""
    with closing(Store(folder, KEY)) as store, (folder / "state.sqlite").open("ab") as file:
        file.write(bytes(4096) + (store.get("counts", "cache") or b""))


NONE: dict[str, float] = {}
CACHE = {"format": 1, "words_digest": "d", "utterances": 1, "pending_utterances": 1}
CACHE |= {"listed": NONE, "unlisted": NONE, "confirmed": NONE}


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (_in_the_clear, "in the clear"),
        (_file("notes.txt", b"said"), "file notes.txt"),
        (_file("state.sqlite-journal", b""), "file state.sqlite-journal"),
        (_file("0" * 32 + ".sealed", b"said"), "no row names it"),
        (_file("lock", b"said"), "file lock: 4 bytes"),
        (_file("*.sealed", b"weights in the clear " * 1000), "not sealed with the key"),
        (lambda folder: _sql(folder, "CREATE TABLE transcripts (text TEXT)"), "table transcripts"),
        (lambda folder: _sql(folder, "CREATE INDEX words ON counts (value)"), "index words"),
        (lambda folder: _sql(folder, "ALTER TABLE counts ADD COLUMN text TEXT"), "columns of counts"),
        (lambda folder: _sql(folder, "INSERT INTO meta VALUES ('text', x'00')"), "meta text"),
        (lambda folder: _sql(folder, "UPDATE meta SET value = 'a longer text' WHERE name = 'check'"), "meta check"),
        (lambda folder: _sql(folder, "INSERT OR REPLACE INTO settings (name, value) VALUES ('bundle', ?)", bytes(30)),
         "settings/bundle: not sealed with the key"),
        (_sealed("settings", "transcript", b"x"), "record settings/transcript"),
        (_sealed("settings", "bundle", b"what was said " * 20), "settings/bundle: found b'what was said"),
        (_sealed("settings", "guard", json.dumps({"why": "said " * 50}).encode()), "settings/guard"),
        (_sealed("counts", "cache", json.dumps(CACHE | {"text": "said"}).encode()), "counts/cache"),
        (_sealed("counts", "cache", json.dumps(CACHE | {"unlisted": {"zoo": 1.0, "ant": 1.0}}).encode()),
         "counts/cache"),
        (_sealed("counts", "cache", json.dumps(CACHE | {"unlisted": {"ant zoo": 1.0}}).encode()), "counts/cache"),
        (_sealed("counts", "given", b'{"zoo": 1, "ant": 1}'), "counts/given"),
        (_sealed("counts", "given", b'{"ant zoo": 1}'), "counts/given"),
        (_sealed("counts", "given", b'{"light": 1}'), "counts/given"),
        (_vocabulary("what was said"), "counts/vocabulary"),
        (_vocabulary("zoo", "four words are many"), "counts/vocabulary"),
        (_sealed("weights", "local", b"features"), "weights/local"),
        (_sealed("outbox", "a" * 32, b"\0\0\0\2{}said"), "outbox/aaaa"),
        (_sealed("identity", "b" * 16, b'{"name": "of the user"}'), "identity/bbbb"),
        (_sealed("marginals", "global", b"said"), "marginals/global"),
    ],
)  # fmt: skip
def test_whatever_is_not_declared_is_found(state: Path, tmp_path: Path, tiny_bundle: Bundle, plant, finding) -> None:
    folder = shutil.copytree(state, tmp_path / "state")
    plant(folder)
    assert any(finding in each for each in findings(folder, KEY, tiny_bundle)), findings(folder, KEY, tiny_bundle)
