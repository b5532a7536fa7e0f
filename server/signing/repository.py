"""The repository that devices ask: metadata signed when something was published, and again before it expires."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from securesystemslib.signer import CryptoSigner
from sqlalchemy import Connection
from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp

from device_sdk.errors import ConfigurationError
from server.settings import UpdateSettings
from server.signing import store
from server.signing.roots import ONLINE, Online, Signed, public_key, read_chain, read_key
from server.storage.database import Database

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
    goes on above what devices have seen."""

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
        named: store.Row | None = None
        for role in ONLINE:
            row = store.newest(connection, role)
            if role in due:
                version = max(int(now), 1 if row is None else row.version + 1)
                expires = now + getattr(self._settings, role)
                content = _content(connection, role, named, version, datetime.fromtimestamp(int(expires), UTC))
                metadata: Metadata[Any] = Metadata(content)
                signer = trust.signers[role]
                metadata.sign(signer)
                row = store.Row(role, version, metadata.to_bytes(), public_key(signer).keyid, expires, latest)
                store.keep(connection, row)
            named = row

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
    newest, keys = roots[-1].root, settings.folder / "keys"
    read = [read_key(path, settings.passphrase) for path in sorted(keys.glob("*.pem"))]
    held = {public_key(signer).keyid: signer for signer in read}
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


def _content(
    connection: Connection, role: Online, named: store.Row | None, version: int, expires: datetime
) -> Targets | Snapshot | Timestamp:
    """What a role says. named: the metadata that it names, of the role before; None for targets."""
    if named is None:
        targets = {
            file.path: TargetFile(
                file.length, {"sha256": file.sha256}, file.path, {"custom": file.custom} if file.custom else None
            )
            for file in store.published_files(connection)
        }
        return Targets(version=version, expires=expires, targets=targets)
    meta = MetaFile.from_data(named.version, named.body, ["sha256"])
    if role == "snapshot":
        return Snapshot(version=version, expires=expires, meta={"targets.json": meta})
    return Timestamp(version=version, expires=expires, snapshot_meta=meta)
