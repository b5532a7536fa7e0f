"""A real server with signing keys, an operator, and a line to it on which answers can be exchanged."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save
from tuf.api.metadata import Metadata, MetaFile, Root, Signed, Snapshot, Timestamp

from device_sdk import Bundle, CheckInReport, Client, Device
from server.settings import UpdateSettings
from server.signing.roots import create, public_key, read_key
from tests.device_sdk.checkin.site import site
from tests.server.parties import ENROLMENT, Operator

UPDATES = "/v1/updates/"
FAR = int(time.time()) + 10**8
"""A version ahead of every honest one."""
Answer = bytes | Callable[[], Iterator[bytes]]
"""What is sent instead of the server's own answer: bytes, or a source that may never end."""


class Line(httpx.BaseTransport):
    """Passes requests on, keeps every answer to a GET by its path, and gives ``exchanged`` ones instead."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.exchanged: dict[str, Answer] = {}
        self.heard: dict[str, list[bytes]] = {}
        self.sent = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path in self.exchanged:
            given = self.exchanged[path]
            return httpx.Response(200, content=self._counted(iter([given]) if isinstance(given, bytes) else given()))
        answer = self._inner.handle_request(request)
        content = answer.read()
        answer.close()
        if request.method == "GET" and answer.is_success:
            self.heard.setdefault(path, []).append(content)
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)

    def close(self) -> None:
        self._inner.close()

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.sent += len(chunk)
            yield chunk


@dataclass
class Fleet:
    """keys: the folder that ``idiolect updates init`` makes."""

    url: str
    keys: Path
    operator: Operator
    bundle: Bundle
    line: Line = field(default_factory=Line)

    @property
    def root(self) -> bytes:
        """What the app ships."""
        return (self.keys / "server" / "roots" / "1.root.json").read_bytes()

    def publish(self, version: str, seed: int, *, published: bool = True, scale: float = 0.01) -> bytes:
        content = weights(self.bundle, seed, scale)
        self.operator.post(f"models/{version}", content=content, params={"note": version, "published": published})
        return content

    def get(self, path: str) -> bytes:
        answer = self.operator.http.get(self.url + path)
        assert answer.is_success, answer.text
        return answer.content

    def check_in(self, device: Device) -> CheckInReport:
        with Client(self.url, transport=self.line, pause=lambda seconds: None) as client:
            self.line._inner = httpx.HTTPTransport()
            return device.check_in(client, ENROLMENT)

    def metadata(self) -> dict[str, bytes]:
        """Timestamp, and the snapshot and targets that it leads to, as served now; by role."""
        return {role: self.get(path) for role, path in self.paths().items()}

    def paths(self) -> dict[str, str]:
        """Where those lie."""
        found = {"timestamp": "/v1/updates/timestamp.json"}
        for before, role in (("timestamp", "snapshot"), ("snapshot", "targets")):
            number = json.loads(self.get(found[before]))["signed"]["meta"][f"{role}.json"]["version"]
            found[role] = f"/v1/updates/{number}.{role}.json"
        return found


def weights(bundle: Bundle, seed: int, scale: float = 0.01) -> bytes:
    rng = np.random.default_rng(seed)
    moved = {name: np.array(array) for name, array in bundle.weights.items()}
    for name in bundle.architecture.parameter_shapes():
        moved[name] += np.float32(scale) * rng.standard_normal(moved[name].shape).astype(np.float32)
    return save(moved)


def signed_timestamp(keys: Path, snapshot: bytes, version: int, role: str = "timestamp", hours: float = 1.0) -> bytes:
    """What whoever holds the timestamp key can say; or the key of another role."""
    meta = MetaFile.from_data(json.loads(snapshot)["signed"]["version"], snapshot, ["sha256"])
    return signed(keys, role, Timestamp(version=version, expires=in_hours(hours), snapshot_meta=meta))


def forged(fleet: Fleet, targets: bytes) -> dict[str, Answer]:
    """What leads to these targets, by somebody who has the online keys, ahead of every honest version."""
    meta = {"targets.json": MetaFile.from_data(json.loads(targets)["signed"]["version"], targets, ["sha256"])}
    snapshot = signed(fleet.keys, "snapshot", Snapshot(version=FAR, expires=in_hours(1.0), meta=meta))
    timestamp = signed_timestamp(fleet.keys, snapshot, FAR)
    return {f"{UPDATES}timestamp.json": timestamp, f"{UPDATES}{FAR}.snapshot.json": snapshot}


def signed(keys: Path, role: str, content: Signed) -> bytes:
    metadata = Metadata(content)
    metadata.sign(read_key(keys / "server" / "keys" / f"{role}.pem", None))
    return metadata.to_bytes()


def in_hours(hours: float) -> datetime:
    return (datetime.now(UTC) + timedelta(hours=hours)).replace(microsecond=0)


def changed_root(content: bytes, signers: Mapping[Path, bool], days: float = 1.0) -> bytes:
    """The next root. signers: which keys sign; whether each is a root key of the new root, which has no others."""
    root = Metadata[Root].from_bytes(content).signed
    root.version, root.expires = root.version + 1, in_hours(24 * days)
    known = {public_key(read_key(path, None)).keyid for path in signers} <= set(root.roles["root"].keyids)
    if not (known and all(signers.values())):
        for keyid in list(root.roles["root"].keyids):
            root.revoke_key(keyid, "root")
    for path in (path for path, belongs in signers.items() if belongs):
        root.add_key(public_key(read_key(path, None)), "root")
    metadata = Metadata(root)
    for path in signers:
        metadata.sign(read_key(path, None), append=True)
    return metadata.to_bytes()


@contextmanager
def running(folder: Path, bundle: Bundle, *, server_settings: Any = None, **changes: Any) -> Iterator[Fleet]:
    """changes: of the settings of updates."""
    keys = folder / "keys"
    create(keys, keys=3, threshold=2, days=2.0, root_passphrase=None, passphrase=None)
    with site(folder, bundle, updates=UpdateSettings(keys / "server", **changes), **(server_settings or {})) as found:
        yield Fleet(found.url, keys, found.operator, bundle)
