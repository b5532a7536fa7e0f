"""The repository that devices ask: metadata signed when something was published, and again before it expires."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from securesystemslib.signer import CryptoSigner
from sqlalchemy import Connection

from device_sdk.errors import ConfigurationError
from server.settings import UpdateSettings
from server.signing import signing, store
from server.signing.keys import public_key, read_key
from server.signing.roots import ONLINE, Online, Signed, read_chain
from server.storage.database import Database

__all__ = ["Repository"]

log = logging.getLogger("idiolect.server")

_VERSIONED = re.compile(r"([1-9][0-9]{0,17})\.(root|snapshot|targets)\.json")


@dataclass(frozen=True, slots=True)
class Trust:
    """Roots from the first to the newest, and the online key that the newest one names for every role."""

    roots: tuple[Signed, ...]
    signers: dict[Online, CryptoSigner]


class Repository:
    """Owns the online keys. What is signed is compared with the list of publications whenever it is asked for, and all
    of it is written in one transaction: a crash leaves the old metadata or the new, never a part of it.

    Versions are times in seconds where these are larger than the version before: a server restored from an old backup
    goes on above what devices have seen.
    """

    def __init__(self, settings: UpdateSettings, database: Database, clock: Callable[[], float]) -> None:
        """ConfigurationError: keys or roots are missing, damaged, or do not belong together."""
        self._settings, self._database, self._clock = settings, database, clock
        self._loading = threading.Lock()
        self._seen = self._files()
        self._trust = _load(settings)

    def renew(self) -> None:
        """Sign what is due. A new root in the folder is taken up first; one that is not in order is left there."""
        trust = self._newest()
        now = self._clock()
        with self._database.read() as connection:
            due = self._due(connection, trust, now)
        if due:
            with self._database.write() as connection:
                self._sign(connection, trust, self._due(connection, trust, now), now)

    def document(self, name: str) -> bytes | None:
        """Metadata by its file name, such as ``timestamp.json`` and ``2.root.json``; None where there is none."""
        if name == "timestamp.json":
            self.renew()
            with self._database.read() as connection:
                row = store.newest(connection, "timestamp")
            return None if row is None else row.body
        found = _VERSIONED.fullmatch(name)
        if found is None:
            return None
        version, role = int(found[1]), found[2]
        if role == "root":
            roots = self._newest().roots  # before the timestamp that its keys sign is asked for
            return roots[version - 1].content if version <= len(roots) else None
        with self._database.read() as connection:
            return store.find(connection, role, version)

    def _due(self, connection: Connection, trust: Trust, now: float) -> frozenset[Online]:
        """Roles that need a new version: of a publication not yet named, another key, or half a lifetime gone by."""
        due: set[Online] = set()
        latest = store.last_publication(connection)
        for role in ONLINE:  # each is named by the next: a new one makes that due too
            row = store.newest(connection, role)
            if (
                due
                or row is None
                or (role == "targets" and row.publication != latest)
                or row.key_id != public_key(trust.signers[role]).keyid
                or row.expires_at - now < getattr(self._settings, role) / 2
            ):
                due.add(role)
        return frozenset(due)

    def _sign(self, connection: Connection, trust: Trust, due: frozenset[Online], now: float) -> None:
        latest = store.last_publication(connection)
        rows = {role: store.newest(connection, role) for role in ONLINE}
        for role in ONLINE:
            if role not in due:
                continue
            before = rows[role]
            version = max(int(now), 0 if before is None else before.version + 1, 1)
            expires = now + getattr(self._settings, role)
            signer = trust.signers[role]
            if role == "targets":
                body = signing.signed_targets(store.published_files(connection), version, expires, signer)
            elif role == "snapshot":
                named = _there(rows["targets"])
                body = signing.signed_snapshot(named.body, named.version, version, expires, signer)
            else:
                named = _there(rows["snapshot"])
                body = signing.signed_timestamp(named.body, named.version, version, expires, signer)
            row = store.Row(role, version, body, public_key(signer).keyid, expires, latest)
            store.keep(connection, row)
            rows[role] = row

    def _newest(self) -> Trust:
        """Roots and keys as the folder has them, read again when it has changed."""
        with self._loading:
            seen = self._files()
            if seen != self._seen:
                try:
                    self._trust = _load(self._settings)
                except ConfigurationError as error:
                    log.error("updates: the root before stays: %s", error)
                self._seen = seen
            return self._trust

    def _files(self) -> tuple[tuple[str, int, int], ...]:
        """What tells whether the folder has changed."""
        found = [path for place in ("keys", "roots") for path in (self._settings.folder / place).glob("*")]
        states = [(str(path), path.stat()) for path in found if path.is_file()]
        return tuple(sorted((name, state.st_size, state.st_mtime_ns) for name, state in states))


def _load(settings: UpdateSettings) -> Trust:
    roots = read_chain(settings.folder / "roots")
    newest = roots[-1].root
    keys = settings.folder / "keys"
    held = {}
    for path in sorted(keys.glob("*.pem")):
        signer = read_key(path, settings.passphrase)
        held[public_key(signer).keyid] = signer
    signers: dict[Online, CryptoSigner] = {}
    for role in ONLINE:
        known = [held[keyid] for keyid in newest.roles[role].keyids if keyid in held]
        if newest.roles[role].threshold != 1 or not known:
            raise ConfigurationError(
                f"{keys}: holds no key of role {role} in root {newest.version} that could sign alone; expected one of "
                f"{', '.join(newest.roles[role].keyids)}"
            )
        signers[role] = known[0]
    return Trust(roots, signers)


def _there(row: store.Row | None) -> store.Row:
    assert row is not None, "a role is signed after the one that it names"
    return row
