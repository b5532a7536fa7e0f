"""The whole of what a device may keep: every table, every record in it, every file of the state folder.

Nothing else has a place there. Audio is in none of it. Features, transcripts, hypotheses and tokens are in table
``kept`` alone, which is empty unless the app and its user let it hold what the user confirmed, or may yet, until it was
learned from. What stays of an utterance is counts, and what steps made of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the state file. what: what it is for. records: pattern of a row's whole name, which is not
    encrypted -> what its value is, which is. filed: whether its large values lie in files of their own; zeroed: whether
    these are overwritten before they are removed, as SQLite does with its rows."""

    what: str
    records: Mapping[str, str]
    filed: bool = False
    zeroed: bool = False


TABLES: Mapping[str, Table] = {
    "counts": Table(
        "what the device counted: weights of words, never their order",
        {
            "cache": "JSON: weight of every word heard and not yet reported, sorted, never in the order spoken",
            "reported": "JSON: weight of every word id in the reports of rounds in mode paper so far",
            "vocabulary": "JSON: phrases that app and user gave, each with its spellings, where from and when",
            "given": "JSON: in how many utterances the user gave each unlisted word, sorted; not reported",
        },
    ),
    "marginals": Table(
        "the global distribution last pulled from the server",
        {"global": "float64 probabilities over the public word list"},
    ),
    "weights": Table(
        "model parameters, as safetensors",
        {
            "published": "the published model, as downloaded",
            "published_teacher": "the teacher published beside it, as downloaded",
            "gradients": "sum of the gradients due in the next report",
            "start": "what local steps set out from, where it is not the base",
            "local": "the parameters that local steps changed",
            "proven": "changes of the base that feedback has proven, float16",
            "teacher": "the parameters of the teacher that are not the base's",
        },
        filed=True,
    ),
    "outbox": Table(
        "exact bytes of reports until the server acknowledges them",
        {"[0-9a-f]{32}": "a report's head and body, and the counts that go back if it is refused"},
        filed=True,
    ),
    "aggregation": Table(
        "the device's part in a secure aggregation that is not over",
        {"[0-9a-f]{16}": "JSON: keys of one round, exact messages, and the counts that go back"},
        filed=True,
    ),
    "identity": Table(
        "who the device is at a server, by the hash of its URL",
        {"[0-9a-f]{16}": "JSON: Ed25519 key, device id, enrolment token and the clock's distance"},
    ),
    "settings": Table(
        "versions, counters, choices, and the ledger of what was sent",
        {
            "bundle": "name and version of the app's bundle",
            "published": "version of the published model",
            "unfit": "SHA-256 of a published model that this device cannot use",
            "published_teacher": "version of the teacher published beside it",
            "gradients": "JSON: base version of the gradients due, how many, how many at most",
            "local": "JSON: base version, number of steps and utterances of the local weights",
            "proven": "JSON: number of utterances of the proven weights",
            "measures": "JSON: base version, loss and word errors of what was learned",
            "due": "JSON: when which server wants the device back",
            "guard": "JSON: what the guard over learning has seen: costs, and why it undid",
            "marginals": "JSON: version and word list of the global distribution",
            "reported": "JSON: which rounds of which server had which stream",
            "consent": "JSON: which streams the user agreed to",
            "spent": "JSON: what reports have cost so far, by stream; an erasure leaves it",
            "profile": "the name of the user, where several share the device",
            "(marginals|deltas|words)_sent": "number of reports sent",
            "handed_on": "how often the counts that were due went into a report",
        },
    ),
    "updates": Table(
        "signed metadata of updates, as last verified",
        {r"([0-9]+\.root|timestamp|snapshot|targets)\.json": "TUF metadata, as the server signed it"},
    ),
    "downloads": Table(
        "the beginning of a published file, until all of it is there",
        {"head": "JSON: the published file's path and ETag", "[0-9]{6}": "some of its bytes, in order"},
        filed=True,
    ),
    "kept": Table(
        "what the user confirmed, or may, until it was learned from, for a day at most",
        {"[0-9a-f]{32}": "safetensors: features of an utterance; its n-best list and feedback"},
        filed=True,
        zeroed=True,
    ),
}
"""Every table and every value. Beside a value lie in the clear: the row's name and number, and its sealed length."""

COLUMNS: Mapping[str, str] = {"id": "INTEGER", "name": "TEXT", "value": "BLOB", "file": "TEXT"}
"""Columns of every table: order of arrival; name; nonce, ciphertext and tag, empty where ``file`` names their file."""

META: Mapping[str, str] = {
    "salt": "random; with the app's key it makes the key that seals everything; a new one when all is erased",
    "check": "a constant, sealed: shows whether a key is the right one",
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
