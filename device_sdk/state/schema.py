"""The whole of what a device may keep: every table, every record in it, every file of the state folder.

Nothing else has a place there. Audio is in none of it. Features, transcripts, hypotheses and tokens are in table
``kept`` alone, which is empty unless the app and its user let it hold what the user confirmed, or may yet, until it was
learned from. What stays of an utterance is counts, and what steps made of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["COLUMNS", "FILES", "META", "RECORDS", "TABLES", "Holds", "Record", "Table", "record_of"]

Holds = Literal["counts", "weights", "identity", "outbox", "settings", "updates", "downloads", "kept"]
"""What a value is made of. counts: weights of words, never their order; a mean over everything heard; weights: model
parameters; identity: keys and ids at servers; outbox: exact bytes of reports on their way; settings: versions,
counters, choices; updates: signed metadata about what a server publishes; downloads: the beginning of a file that a
server publishes; kept: an utterance that the user confirmed, or may."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the state file. what: what it is for; filed: whether its large values lie in files of their own;
    zeroed: whether these are overwritten before they are removed, as SQLite does with its rows."""

    what: str
    filed: bool = False
    zeroed: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """One value or one kind of values. name: pattern of its whole row name, which is not encrypted; content: what the
    value is, which is."""

    table: str
    name: str
    holds: Holds
    content: str


TABLES: Mapping[str, Table] = {
    "counts": Table(
        "the n-best cache of this device: unigram counts, what of them was not yet reported; words given; "
        "the mean of what was heard"
    ),
    "marginals": Table("the global distribution last pulled from the server"),
    "weights": Table("the published base where it is newer than the bundle, the local weights and the teacher's", True),
    "outbox": Table("exact bytes of reports until the server acknowledges them", True),
    "aggregation": Table("the device's part in a secure aggregation that is not over", True),
    "identity": Table("the device's signing key, id and enrolment token at a server"),
    "settings": Table("versions, counters and the ledger of what was sent"),
    "updates": Table("signed metadata of updates, as last verified"),
    "downloads": Table("the beginning of a published file, until all of it is there", True),
    "kept": Table("what the user confirmed, or may, until it was learned from, for a day at most", True, True),
}
"""Every table that holds values, and all that it may hold."""

RECORDS: tuple[Record, ...] = (
    Record("counts", "cache", "counts", "JSON: weight of every word heard, sorted, never in the order spoken"),
    Record("counts", "channel", "counts", "JSON: mean log-mel frame of many utterances, and of how many seconds"),
    Record(
        "counts", "reported", "counts", "JSON: weight of every word id in the reports of rounds in mode paper so far"
    ),
    Record(
        "counts",
        "given",
        "counts",
        "JSON: in how many utterances the user gave each unlisted word, sorted; not reported",
    ),
    Record("marginals", "global", "counts", "float64 probabilities over the public word list, from the server"),
    Record("weights", "published", "weights", "safetensors: the published model, as downloaded"),
    Record("weights", "published_teacher", "weights", "safetensors: the teacher published beside it, as downloaded"),
    Record("weights", "gradients", "weights", "safetensors: sum of the gradients due in the next report"),
    Record("weights", "start", "weights", "safetensors: what local steps set out from, where it is not the base"),
    Record("weights", "local", "weights", "safetensors: the parameters that local steps changed"),
    Record("weights", "proven", "weights", "safetensors: changes of the base that feedback has proven, float16"),
    Record("weights", "teacher", "weights", "safetensors: the parameters of the teacher that are not the base's"),
    Record(
        "outbox", "[0-9a-f]{32}", "outbox", "a report's head and body, and the counts that go back if it is refused"
    ),
    Record(
        "aggregation", "[0-9a-f]{16}", "outbox", "JSON: keys of one round, exact messages, and the counts that go back"
    ),
    Record(
        "identity",
        "[0-9a-f]{16}",
        "identity",
        "JSON: Ed25519 key, device id, enrolment token and clock's distance at the server of that URL's hash",
    ),
    Record("settings", "bundle", "settings", "name and version of the app's bundle"),
    Record("settings", "published", "settings", "version of the published model"),
    Record("settings", "unfit", "settings", "SHA-256 of a published model that this device cannot use"),
    Record("settings", "published_teacher", "settings", "version of the teacher published beside it"),
    Record("settings", "gradients", "settings", "JSON: base version of the gradients due, how many, how many at most"),
    Record("settings", "local", "settings", "JSON: base version, number of steps and utterances of the local weights"),
    Record("settings", "proven", "settings", "JSON: number of utterances of the proven weights"),
    Record("settings", "measures", "settings", "JSON: base version, loss and word errors of what was learned"),
    Record("settings", "due", "settings", "JSON: when which server wants the device back"),
    Record("settings", "guard", "settings", "JSON: what the guard over learning has seen: costs, and why it undid"),
    Record("settings", "marginals", "settings", "JSON: version and word list of the global distribution"),
    Record("settings", "reported", "settings", "JSON: which rounds of which server had which stream"),
    Record("settings", "consent", "settings", "JSON: which streams the user agreed to"),
    Record("settings", "spent", "settings", "JSON: what reports have cost so far, by stream; an erasure leaves it"),
    Record("settings", "profile", "settings", "the name of the user, where several share the device"),
    Record("settings", "(marginals|deltas|words)_sent", "settings", "number of reports sent"),
    Record("settings", "handed_on", "settings", "how often the counts that were due went into a report"),
    Record(
        "updates",
        r"([0-9]+\.root|timestamp|snapshot|targets)\.json",
        "updates",
        "TUF metadata, as the server signed it",
    ),
    Record("downloads", "head", "downloads", "JSON: the published file's path and ETag"),
    Record("downloads", "[0-9]{6}", "downloads", "some of its bytes, in order"),
    Record("kept", "[0-9a-f]{32}", "kept", "safetensors: features of an utterance; its n-best list and feedback"),
)
"""Every value. What lies beside it in the clear: the row's name and number, and the length of what was sealed."""

COLUMNS: Mapping[str, str] = {"id": "INTEGER", "name": "TEXT", "value": "BLOB", "file": "TEXT"}
"""Columns of every table: order of arrival; the record's name; nonce, ciphertext and tag, empty where ``file`` names
the file that has them."""

META: Mapping[str, str] = {
    "salt": "random; with the app's key it makes the key that seals everything; a new one when all is erased",
    "check": "a constant, sealed: tells the right key from a wrong one",
    "erasing": "there while an erasure is not finished; the next opening finishes it",
}
"""Rows of table ``meta``: what is needed before anything can be decrypted."""

FILES: Mapping[str, str] = {
    r"state\.sqlite": "the tables",
    r"state\.sqlite-(wal|shm)": "SQLite's write-ahead log and its index: copies of pages of the tables",
    r"[0-9a-f]{32}\.sealed": "one large value: nonce, ciphertext and tag",
    r"lock": "empty; locked by the one process that owns the folder",
    r"profiles": "a folder of such folders, one for each of several users",
}
"""Pattern of a file's name -> what it is. Nothing else of a user is written; SQLite's temporaries are in
memory. Metadata of updates, which is public, is checked in a temporary folder elsewhere."""


def record_of(table: str, name: str) -> Record | None:
    """The declaration of a value, None where it is not declared."""
    return next((each for each in RECORDS if each.table == table and re.fullmatch(each.name, name)), None)
