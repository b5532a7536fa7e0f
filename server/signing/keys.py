"""Ed25519 keys of TUF roles as PEM files: readable by their owner only, and encrypted where there is a passphrase."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey

from device_sdk.errors import ConfigurationError

__all__ = ["new_key", "public_key", "read_key"]


def new_key(path: Path, passphrase: str | None) -> CryptoSigner:
    """A fresh key, written to ``path``, mode 600. ConfigurationError: there is a file already."""
    private = Ed25519PrivateKey.generate()
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    content = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{path}: a key cannot be written there ({error.strerror})") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return CryptoSigner(private)


def read_key(path: Path, passphrase: str | None) -> CryptoSigner:
    """ConfigurationError: missing, readable by others while not encrypted, no Ed25519 key, or another passphrase."""
    try:
        content = path.read_bytes()
        others = path.stat().st_mode & 0o077
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); expected a key in PEM") from error
    encrypted = b"ENCRYPTED" in content.split(b"\n", 1)[0]
    if others and not encrypted and os.name == "posix":
        raise ConfigurationError(f"{path}: others can read this key, which is not encrypted; run: chmod 600 {path}")
    if encrypted and passphrase is None:
        raise ConfigurationError(f"{path}: this key is encrypted, and no passphrase is set")
    try:
        private = load_pem_private_key(content, passphrase.encode() if encrypted and passphrase else None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a key, or the passphrase is another one") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigurationError(f"{path}: found {type(private).__name__}, expected an Ed25519 key")
    return CryptoSigner(private)


def public_key(signer: CryptoSigner) -> SSlibKey:
    key = signer.public_key
    assert isinstance(key, SSlibKey)
    return key
