"""Holds a state folder against the declaration of what it may hold. The store itself is not asked: SQLite is, and the
cipher by its definition."""

import json
import re
import shutil
import sqlite3
import tempfile
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from safetensors.numpy import load

from device_sdk.bundle import Bundle
from device_sdk.checkin.aggregation import Participation
from device_sdk.personalization import vocabulary
from device_sdk.state.schema import COLUMNS, FILES, META, TABLES
from device_sdk.wire.messages import MarginalReport, WordReport
from device_sdk.wire.words import is_word

WINDOW = 16
"""Bytes of a decrypted value in a row that may stand nowhere on the disk."""
IDENTIFIER = r"[A-Za-z0-9._-]{1,64}"


def findings(folder: Path, key: bytes, bundle: Bundle) -> list[str]:
    """Everything in the folder that is not as declared: files, tables, columns, rows, values. Reads a copy, so that a
    folder in use can be audited with its write-ahead log."""
    names = (path.name for path in folder.iterdir())
    found = [f"file {name}" for name in names if not any(re.fullmatch(pattern, name) for pattern in FILES)]
    content = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    found += [f"file lock: {len(content['lock'])} bytes"] if content.get("lock") else []
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "copy"))
        with closing(sqlite3.connect(copy / "state.sqlite")) as connection:
            found += _structure(connection)
            if found:
                return found
            names = "\n".join(row[0] for table in TABLES for row in connection.execute(f"SELECT name FROM {table}"))
            values, named = list[bytes](), {""}
            for what in _values(connection, content, key, bundle):
                if isinstance(what, str):
                    found.append(what)
                else:
                    values.append(what[0])
                    named.add(what[1])
    found += [f"file {name}: no row names it" for name in content if name.endswith(".sealed") and name not in named]
    return found + _readable(values, content, names.encode())


def _structure(connection: sqlite3.Connection) -> list[str]:
    found = []
    for kind, name in connection.execute("SELECT type, name FROM sqlite_master"):
        known = {*TABLES, "meta", "sqlite_sequence"} if kind == "table" else ()
        if name not in known and not (kind == "index" and name.startswith("sqlite_autoindex_")):
            found.append(f"{kind} {name}")
    for table in TABLES:
        columns = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})")}
        found += [] if columns == COLUMNS else [f"columns of {table}: {columns}"]
    meta = dict(connection.execute("SELECT name, value FROM meta"))
    found += [f"meta {name}" for name in meta if name not in META]
    found += [f"meta {name}: {len(meta[name])} bytes" for name, size in (("salt", 32), ("check", 36))
              if len(meta[name]) != size]  # fmt: skip
    return found


def content_of(table: str, name: str) -> str | None:
    """What a value is, None where it is not declared."""
    records = TABLES[table].records if table in TABLES else {}
    return next((content for pattern, content in records.items() if re.fullmatch(pattern, name)), None)


def _values(connection: sqlite3.Connection, files: dict[str, bytes], key: bytes, bundle: Bundle) -> Iterator[Any]:
    """What is wrong with a value, or (the value, the file it lies in)."""
    salt = connection.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()[0]
    aead = AESGCM(HKDF(SHA256(), 32, salt, b"idiolect device state, version 1").derive(key))
    for table in TABLES:
        for name, value, file in connection.execute(f"SELECT name, value, file FROM {table}"):
            place = f"{table}/{name}"
            content = content_of(table, name)
            if content is None:
                yield f"record {place}"
                continue
            if file is not None and (value or not TABLES[table].filed or file not in files):
                yield f"record {place}: {len(value)} bytes beside file {file}"
                continue
            sealed, where = (value, place) if file is None else (files[file], f"{place}/{file}")
            try:
                plain = aead.decrypt(sealed[:12], sealed[12:], where.encode())
            except (InvalidTag, ValueError):
                yield f"record {place}: not sealed with the key"
                continue
            if len(sealed) > 4096 and len(zlib.compress(sealed)) < len(sealed):
                yield f"record {place}: what is stored has a structure"
            try:
                assert _CONTENTS[table](table, name, plain, bundle), "another form"
            except Exception as error:
                yield f"record {place}: found {plain[:40]!r} ({error}), expected {content}"
            yield plain, file or ""


def _readable(values: list[bytes], files: dict[str, bytes], names: bytes) -> list[str]:
    """Parts of decrypted values that stand in a file as they are. names: of rows, which do, beside any other byte."""
    found = []
    for value in values:
        step = max(1, (len(value) - WINDOW) // 64)
        windows = {value[at : at + WINDOW] for at in range(0, len(value) - WINDOW + 1, step)}
        windows = {window for window in windows if len(set(window)) > 4}
        windows = {window for window in windows if window[1:] not in names and window[:-1] not in names}
        found += [f"file {name}: {window!r} in the clear" for name, content in files.items() for window in windows
                  if window in content]  # fmt: skip
    return found


def _counts(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    if table == "marginals":
        return len(plain) == 8 * len(bundle.words)
    fields = json.loads(plain)
    if name == "given":
        return _given(plain, bundle)
    if name == "vocabulary":
        known = vocabulary.from_bytes(plain)
        learned = [each for each in known.entries.values() if each.source == "correction"]
        single = all(each.phrase.split() == [each.phrase] and each.phrase not in bundle.words for each in learned)
        return single and all(len(one.split()) <= 3 for each in learned for one in (*each.spellings, *each.refused))
    listed, unlisted, confirmed = fields.pop("listed"), fields.pop("unlisted"), fields.pop("confirmed")
    return (
        set(fields) == {"format", "words_digest", "utterances", "pending_utterances"}
        and fields["words_digest"] == bundle.words.digest
        and all(isinstance(fields[each], int) for each in ("format", "utterances", "pending_utterances"))
        and list(listed) == sorted(listed, key=bundle.words.id)
        and list(unlisted) == sorted(unlisted)
        and list(confirmed) == sorted(confirmed)
        and all(word.split() == [word] for word in (*listed, *unlisted, *confirmed))
        and all(isinstance(weight, float) for pair in listed.values() for weight in pair)
        and all(isinstance(weight, float) for weight in (*unlisted.values(), *confirmed.values()))
    )


def _given(plain: bytes, bundle: Bundle) -> bool:
    """Words outside the public list, each with how often, and not in the order they were given."""
    counts = json.loads(plain)
    return list(counts) == sorted(counts) and all(
        is_word(word) and word not in bundle.words and isinstance(count, int) and count > 0
        for word, count in counts.items()
    )


def _weights(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    shapes = bundle.architecture.parameter_shapes() | bundle.architecture.constant_shapes()
    arrays = load(plain)
    header = json.loads(plain[8 : 8 + int.from_bytes(plain[:8], "little")])
    known = name.startswith("published")  # the server's own words about its model
    fit = all(shapes.get(each) == array.shape for each, array in arrays.items())
    return fit and (known or "__metadata__" not in header)


def _identity(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    fields = json.loads(plain)
    known = fields["device_id"] is None or re.fullmatch(IDENTIFIER, fields["device_id"]) is not None
    known = known and isinstance(fields["token"], str | None) and isinstance(fields["clock"], float)
    return known and len(fields) == 4 and len(b64decode(fields["private_key"])) == 32


def _outbox(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    if table == "aggregation":
        kept = Participation.model_validate_json(plain)  # nothing but keys, bytes of fixed length and ids
        if kept.stream == "deltas":
            return kept.restore == ""
        return (kept.restore == "" and kept.participant.masked is None) or _held(b64decode(kept.restore), bundle)
    start = 4 + int.from_bytes(plain[:4], "big")
    head = json.loads(plain[4:start])
    body, restore = plain[start : start + head["body"]], plain[start + head["body"] :]
    if head["kind"] == "deltas":
        return restore == b"" and set(json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])) > {"__metadata__"}
    if head["kind"] == "words":
        report = WordReport.model_validate_json(body)
        return report.report_id == name and set(report.words) <= set(json.loads(restore)) and _given(restore, bundle)
    known = set(head) == {"server", "kind", "round_id", "body"}
    return known and MarginalReport.model_validate_json(body).report_id == name and _held(restore, bundle)


def _held(restore: bytes, bundle: Bundle) -> bool:
    """The counts that go back to the books."""
    held = json.loads(restore)
    numbers = [*held.pop("pending").items(), ("0", held.pop("utterances"))]
    return held == {"words_digest": bundle.words.digest, "mode": "bounded"} and all(
        word.isdigit() and isinstance(weight, int | float) for word, weight in numbers
    )


def _settings(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    """No free text: numbers, truths, nothing, and short names of versions, rounds, servers and reasons."""

    def short(value: Any) -> bool:
        if isinstance(value, dict):
            return all(short(each) for pair in value.items() for each in pair)
        if isinstance(value, list):
            return all(short(each) for each in value)
        return value is None or isinstance(value, int | float) or len(value) <= 128

    text = plain.decode()
    return short(json.loads(text)) if text[:1] in "[{" else len(text) <= 128


def _updates(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    fields = json.loads(plain)
    role = name.removesuffix(".json").rpartition(".")[2]
    return set(fields) == {"signed", "signatures"} and fields["signed"]["_type"] == role


def _kept(table: str, name: str, plain: bytes, bundle: Bundle) -> bool:
    found = load(plain)
    features, head = found["features"], json.loads(found["head"].tobytes())
    declared = {"heard", "counted", "due", "nbest", "probability", "signals", "expected"}
    frames, bins = features.shape
    fits = features.dtype == "float32" and bins == bundle.features.mel_bins and frames <= 100 * 60
    return set(found) == {"features", "head"} and set(head) == declared and fits


_CONTENTS: dict[str, Callable[[str, str, bytes, Bundle], bool]] = {
    **dict.fromkeys(("counts", "marginals"), _counts),
    **dict.fromkeys(("outbox", "aggregation"), _outbox),
    "weights": _weights,
    "identity": _identity,
    "settings": _settings,
    "updates": _updates,
    "downloads": lambda table, name, plain, bundle: name != "head" or set(json.loads(plain)) == {"path", "etag"},
    "kept": _kept,
}
