"""The repository that devices ask: metadata signed when something was published, and again before it expires."""

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from securesystemslib.signer import CryptoSigner
from sqlalchemy import Connection, delete, func, insert, select
from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp

from device_sdk.errors import ConfigurationError
from device_sdk.wire.rollout import millionths
from server.registry.marginals import find_marginals
from server.registry.models import current_version, find_model, list_models
from server.rounds.rollout.conduct import read_settings, running
from server.settings import UpdateSettings
from server.signing.roots import ONLINE, Online, Signed, public_key, read_chain, read_key
from server.storage.database import Database
from server.storage.schema import publications, update_metadata

LISTED = 1000
"""Older published models than so many are named no more: no device is sent back that far."""
KEPT = 8
"""Versions of a role that stay, for devices that have seen the timestamp before the newest."""


@dataclass(frozen=True, slots=True)
class Published:
    """One file that devices may install. path: its target's name; custom: what the signature says of it besides."""

    path: str
    length: int
    sha256: str
    custom: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """role, version, body: the metadata. key_id: who signed it. publication: the newest that it knows of."""

    role: str
    version: int
    body: bytes
    key_id: str
    expires_at: float
    publication: int


def newest(connection: Connection, role: Online) -> Row | None:
    table = update_metadata
    query = select(table).where(table.c.role == role).order_by(table.c.version.desc())
    row = connection.execute(query.limit(1)).first()
    return None if row is None else Row(*row)


def find(connection: Connection, role: str, version: int) -> bytes | None:
    query = select(update_metadata.c.body).where(update_metadata.c.role == role, update_metadata.c.version == version)
    found: bytes | None = connection.execute(query).scalar()
    return found


def keep(connection: Connection, row: Row) -> None:
    """Adds a version and drops those that no device can ask for any more."""
    table = update_metadata
    connection.execute(insert(table).values(asdict(row)))
    of_role = table.c.role == row.role
    oldest = connection.execute(
        select(table.c.version).where(of_role).order_by(table.c.version.desc()).limit(1).offset(KEPT)
    ).scalar()
    if oldest is not None:
        connection.execute(delete(table).where(of_role, table.c.version <= oldest))


def last_publication(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(publications.c.id), 0))).scalar_one())


def published_files(connection: Connection) -> list[Published]:
    """Every published model with its teacher, and the marginals; which of them is current is part of what is signed, so
    that nobody can send a device back to a version that was good once. So is the share of the devices that gets another
    model first: a device knows by itself whether it belongs to it (:mod:`device_sdk.wire.rollout`)."""
    current = find_model(connection, current_version(connection, "model"))
    latest = func.max(publications.c.id)
    of_models = select(publications.c.version).where(publications.c.kind == "model")
    newest_first = of_models.group_by(publications.c.version).order_by(latest.desc())
    recent = connection.execute(newest_first.limit(LISTED)).scalars()
    models = {str(row.version): row for row in list_models(connection)}
    wanted = {version: models[version] for version in recent if version in models}
    tried = running(connection)
    if tried is not None:
        wanted[tried.version] = models[tried.version]
    wanted |= {row.teacher: models[row.teacher] for row in list(wanted.values()) if row.teacher is not None}
    files = []
    for version, row in sorted(wanted.items()):
        custom = {"current": True, "teacher": row.teacher} if version == current.version else {}
        if tried is not None and version == tried.version and tried.base == current.version:
            custom = {"rollout": millionths(read_settings(tried).share), "teacher": row.teacher}
        files.append(Published(f"models/{version}.safetensors", row.size, row.sha256, custom))
    marginals = find_marginals(connection, int(current_version(connection, "marginals")))
    described = {"current": True, "words_digest": marginals.words_digest}
    length = len(marginals.probabilities)
    files.append(Published(f"marginals/{marginals.version}.float64", length, marginals.sha256, described))
    return files


log = logging.getLogger("idiolect.server")

_VERSIONED = re.compile(r"([1-9][0-9]{0,17})\.(root|snapshot|targets)\.json")


@dataclass(frozen=True, slots=True)
class Trust:
    """Roots from the first to the newest, and the online key that the newest one names for every role."""

    roots: tuple[Signed, ...]
    signers: dict[Online, CryptoSigner]


class Repository:
    """Owns the online keys. What is signed is compared with the list of publications whenever it is asked for, and all
    of it is written in one transaction: a crash leaves the old metadata or the new, never a part of it. Versions are
    times in seconds where these are larger than the version before: a server restored from an old backup goes on above
    what devices have seen."""

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
                row = newest(connection, "timestamp")
            return None if row is None else row.body
        found = _VERSIONED.fullmatch(name)
        if found is None:
            return None
        version, role = int(found[1]), found[2]
        if role == "root":
            roots = self._newest().roots  # before the timestamp that its keys sign is asked for
            return roots[version - 1].content if version <= len(roots) else None
        with self._database.read() as connection:
            return find(connection, role, version)

    def _due(self, connection: Connection, trust: Trust, now: float) -> frozenset[Online]:
        """Roles that need a new version: of a publication not yet named, another key, or half a lifetime gone by."""
        due: set[Online] = set()
        latest = last_publication(connection)
        for role in ONLINE:  # each is named by the next: a new one makes that due too
            row = newest(connection, role)
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
        latest = last_publication(connection)
        named: Row | None = None
        for role in ONLINE:
            row = newest(connection, role)
            if role in due:
                version = max(int(now), 1 if row is None else row.version + 1)
                expires = now + getattr(self._settings, role)
                content = _content(connection, role, named, version, datetime.fromtimestamp(int(expires), UTC))
                metadata: Metadata[Any] = Metadata(content)
                signer = trust.signers[role]
                metadata.sign(signer)
                row = Row(role, version, metadata.to_bytes(), public_key(signer).keyid, expires, latest)
                keep(connection, row)
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
    connection: Connection, role: Online, named: Row | None, version: int, expires: datetime
) -> Targets | Snapshot | Timestamp:
    """What a role says. named: the metadata that it names, of the role before; None for targets."""
    if named is None:
        targets = {
            file.path: TargetFile(
                file.length, {"sha256": file.sha256}, file.path, {"custom": file.custom} if file.custom else None
            )
            for file in published_files(connection)
        }
        return Targets(version=version, expires=expires, targets=targets)
    meta = MetaFile.from_data(named.version, named.body, ["sha256"])
    if role == "snapshot":
        return Snapshot(version=version, expires=expires, meta={"targets.json": meta})
    return Timestamp(version=version, expires=expires, snapshot_meta=meta)
