"""Keys of one device and round: agreement (X25519), derivation (HKDF-SHA256), signatures (Ed25519), sealing (AES-GCM).

Whatever is derived or signed names the protocol, what it is for, the round and who is meant, and derived keys the
roster too: nothing made for one purpose, round or roster can be used in another."""

import json
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from device_sdk.errors import ProtocolError
from device_sdk.wire.secure_aggregation import KEY_BYTES, KeyAdvertisement, Roster

PROTOCOL = "idiolect-secure-aggregation-v3"
_NONCE = bytes(12)


def load_private_key(private: bytes) -> X25519PrivateKey:
    """An X25519 key from its 32 bytes. Costs as much as an agreement: load a key once, then agree many times."""
    return X25519PrivateKey.from_private_bytes(private)


def public_key(private: bytes) -> bytes:
    """The X25519 public key, 32 bytes, of 32 private ones."""
    return load_private_key(private).public_key().public_bytes_raw()


def mask_key(seed: bytes) -> bytes:
    """The private X25519 key, 32 bytes, that a device agrees on masks with; its seed is what is shared."""
    return derived_key(seed, b"", "mask key")


def agreeable(peer: bytes) -> bool:
    """Whether something secret can be agreed on with the owner of an X25519 public key: it has no small order."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        return False
    return True


def commitment(seed: bytes) -> bytes:
    """Binds a device to its seed before anybody has a share of it; says nothing about 128 random bits."""
    return sha256(_statement("seed").encode() + seed).digest()


def agreed_key(
    private: X25519PrivateKey, peer: bytes, salt: bytes, purpose: str, *names: str, size: int = KEY_BYTES
) -> bytes:
    """The key of ``size`` bytes that two devices share for one purpose. peer: the other's X25519 public key; salt: the
    roster's digest. ProtocolError: the peer's key is one that nothing secret can be agreed on with."""
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise ProtocolError("X25519 public key: found a point of small order, expected one made at random") from error
    return derived_key(shared, salt, purpose, *names, size=size)


def derived_key(secret: bytes, salt: bytes, purpose: str, *names: str, size: int = KEY_BYTES) -> bytes:
    """``size`` bytes of HKDF-SHA256 under ``salt``, for a purpose and those it concerns."""
    return HKDF(SHA256(), size, salt, _statement(purpose, *names).encode()).derive(secret)


def seal(key: bytes, content: bytes, *names: str) -> bytes:
    """AES-256-GCM; ``names`` (round, from, to) are authenticated with it. The key is of one roster, sender and
    receiver, and what is sealed follows from the sender's secrets and that roster: no nonce meets two contents."""
    return AESGCM(key).encrypt(_NONCE, content, _statement("share", *names).encode())


def open_sealed(key: bytes, sealed: bytes, *names: str) -> bytes:
    """What was sealed. ProtocolError: with another key, for others, or altered."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, _statement("share", *names).encode())
    except (InvalidTag, ValueError) as error:
        raise ProtocolError(f"sealed share {' '.join(names)}: not sealed for this device, or altered") from error


def advertised_bytes(message: KeyAdvertisement) -> bytes:
    """What a device signs of its keys: everything but the signature."""
    keys = (message.identity_key, message.sharing_key, message.masking_key, message.seed_commitment)
    names = (message.round_id, message.device_id, message.subject, str(message.words))
    return _statement("keys", *names, *(key.hex() for key in keys)).encode()


def survivor_bytes(round_id: str, digest: bytes, survivors: tuple[str, ...]) -> bytes:
    """What every survivor signs: the sorted ids of those whose masked inputs are to be added, in this roster."""
    return _statement("survivors", round_id, digest.hex(), *survivors).encode()


def signed_by(identity_key: bytes, signature: bytes, content: bytes) -> bool:
    """Whether an Ed25519 signature is that of the key's owner. identity_key: raw, 32 bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(identity_key).verify(signature, content)
    except (ValueError, InvalidSignature):
        return False
    return True


def roster_digest(roster: Roster) -> bytes:
    """SHA-256 over everything the members must agree on: round, vectors, minimum, and each one's signed keys."""
    members = [advertised_bytes(member).hex() for member in roster.members]
    sizes = (str(roster.words), str(roster.word_bits), str(roster.minimum))
    return sha256(_statement("roster", roster.round_id, *sizes, *members).encode()).digest()


def _statement(purpose: str, *names: str) -> str:
    """One text for one meaning: a JSON list, so that no two lists of names read the same."""
    return json.dumps([PROTOCOL, purpose, *names], separators=(",", ":"))
