"""Devices that sign what they send, over connections that are opened again when they break."""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk.checkin.identity import Identity, signed_headers
from device_sdk.wire.messages import FIXED_POINT, CheckIn, MarginalReport
from server.devices.enrolment import device_id_of

SECONDS = 120.0
"""For one answer."""


@dataclass(frozen=True, slots=True)
class Device:
    """One of a fleet, by its number."""

    number: int
    key: Ed25519PrivateKey
    id: str

    def headers(self, path: str, round_id: str | None, body: bytes) -> dict[str, str]:
        """Of a signed POST."""
        return signed_headers(Identity(self.key.private_bytes_raw(), "", self.id), "POST", path, round_id, body)


def device_of(secret: bytes, number: int) -> Device:
    """The same for the same secret, in any process."""
    key = Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, str(number).encode(), "sha256"))
    return Device(number, key, device_id_of(key.public_key().public_bytes_raw()))


@dataclass(frozen=True, slots=True)
class Target:
    """A server: its address, what its devices' keys are drawn from, and what a check-in has to tell. words: how many
    there are on its list."""

    url: str
    secret: bytes
    model_version: str
    words_digest: str
    words: int

    def word_of(self, number: int) -> int:
        """The word that a device says; its own, where there are no more devices than words."""
        return 1 + number % (self.words - 1)

    def check_in(self, device: Device) -> bytes:
        found = CheckIn(
            device_id=device.id,
            bundle_format=1,
            model_version=self.model_version,
            marginals_version=0,
            words_digest=self.words_digest,
        )
        return found.model_dump_json().encode()

    def report(self, device: Device, round_id: str) -> bytes:
        """One word, said once."""
        found = MarginalReport(
            report_id=secrets.token_hex(8),
            device_id=device.id,
            round_id=round_id,
            words_digest=self.words_digest,
            utterances=1,
            counts={self.word_of(device.number): FIXED_POINT},
        )
        return found.model_dump_json().encode()


class _Connection(HTTPConnection):
    """Small requests go out at once."""

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Line:
    """Owns one connection to a server."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._http = _Connection(str(place.hostname), place.port, timeout=SECONDS)

    def send(self, device: Device, path: str, body: bytes, round_id: str | None = None) -> tuple[int, bytes]:
        """Status and content of an answer. Raises ConnectionError where none came."""
        return self._exchange("POST", path, body, device.headers(path, round_id, body))

    def get(self, path: str) -> tuple[int, bytes]:
        return self._exchange("GET", path, b"", {})

    def insist(self, device: Device, path: str, body: bytes, round_id: str | None = None) -> tuple[int, bytes]:
        """The same again until an answer comes that is the server's own word. Raises TimeoutError after minutes."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                status, content = self.send(device, path, body, round_id)
            except ConnectionError:
                time.sleep(0.05)
                continue
            if status < 500:
                return status, content
            time.sleep(0.05)
        raise TimeoutError(f"{path}: no answer within {SECONDS:.0f} s")

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        try:
            self._http.request(method, path, body or None, headers)
            answer = self._http.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            self._http.close()
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        self._http.close()
