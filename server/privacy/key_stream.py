"""Random bytes that follow from a secret key, so that noise can be drawn again to the last bit."""

from __future__ import annotations

import secrets

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes

__all__ = ["KEY_BYTES", "key_stream", "new_key"]

KEY_BYTES = 32


def new_key() -> bytes:
    """A secret key from the system's generator; there is no other way to make one."""
    return secrets.token_bytes(KEY_BYTES)


def key_stream(key: bytes, purpose: str) -> RandomBytes:
    """The bytes of a key for one purpose, from the first on: AES-256 in counter mode under HKDF-SHA256(key, purpose).

    Another key or another purpose has unrelated bytes. Raises PrivacyError for a key of another length.
    """
    if len(key) != KEY_BYTES:
        raise PrivacyError(f"key: found {len(key)} bytes, expected {KEY_BYTES}")
    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode()).derive(key)
    # Every derived key has one stream only, so its counter begins at 0.
    encryptor = Cipher(algorithms.AES256(derived), modes.CTR(bytes(16))).encryptor()
    return lambda size: encryptor.update(bytes(size))
