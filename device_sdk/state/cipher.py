"""Values at rest: AES-256-GCM under a key derived from the app's key."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from device_sdk.errors import StateError

__all__ = ["MINIMUM_KEY_BYTES", "Cipher", "checked_key"]

MINIMUM_KEY_BYTES = 16
_NONCE_BYTES = 12
_INFO = b"idiolect device state, version 1"


def checked_key(key: bytes) -> bytes:
    """The app's key as bytes. StateError: it is something else, or too short."""
    if not isinstance(key, bytes | bytearray) or len(key) < MINIMUM_KEY_BYTES:
        found = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else type(key).__name__
        raise StateError(f"key: found {found}, expected at least {MINIMUM_KEY_BYTES} random bytes from the app")
    return bytes(key)


class Cipher:
    """Seals and opens values. The derived key exists in memory only.

    key: the app's secret, at least 16 bytes of full entropy (a random key, not a password: HKDF does not slow down
    guessing).
    salt: random, stored beside the data; a new salt makes everything sealed under the old one unreadable.
    """

    __slots__ = ("_aead",)

    def __init__(self, key: bytes, salt: bytes) -> None:
        self._aead = AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=_INFO).derive(checked_key(key)))

    def seal(self, value: bytes, place: str) -> bytes:
        """nonce | ciphertext | tag. ``place`` (table and name) is authenticated, so values cannot be swapped."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, value, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """The value that was sealed for ``place``. StateError: another key, another place or a damaged value."""
        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError) as error:
            raise StateError(
                f"{place}: the value cannot be decrypted, expected one sealed with this key; "
                "open the state with the key it was written with, or delete the folder to start afresh"
            ) from error
