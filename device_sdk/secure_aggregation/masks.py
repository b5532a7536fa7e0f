"""Masks: uniform words modulo 2^b from AES-256 in counter mode, which cancel in the sum over all who added them.

Every pair of devices agrees on a mask that the one with the smaller id adds and the other subtracts; every device adds
one more of its own. Whoever misses a single one of them sees uniform words."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError, ProtocolError
from device_sdk.secure_aggregation.keys import agreed_key, derived_key
from device_sdk.wire.secure_aggregation import Roster

Words = NDArray[np.unsignedinteger[Any]]
"""[words], uint32 or uint64, whichever holds b bits: what lies above these is of no meaning, and is never sent."""


def capacity(roster: Roster) -> int:
    """Largest magnitude of one device's values such that no sum over the roster leaves the signed b-bit numbers."""
    return ((1 << (roster.word_bits - 1)) - 1) // len(roster.members)


def check_capacity(vector: NDArray[np.int64], roster: Roster) -> None:
    """Of a vector whose sum must never wrap around. PrivacyError: values that a sum cannot hold."""
    largest = max(int(vector.max()), -int(vector.min()))
    if largest > capacity(roster):
        most = f"{capacity(roster)} in words of {roster.word_bits} bits among {len(roster.members)} devices"
        raise PrivacyError(f"vector: found a value of {largest}, expected at most {most}; use wider words")


def to_words(vector: NDArray[np.int64], roster: Roster) -> Words:
    """A device's vector modulo 2^b. ProtocolError: another length."""
    if vector.shape != (roster.words,) or vector.dtype != np.int64:
        raise ProtocolError(f"vector: found {vector.dtype} {list(vector.shape)}, expected int64 [{roster.words}]")
    return vector.astype(_dtype(roster))  # two's complement: negative values wrap around


def signed(words: Words, roster: Roster) -> NDArray[np.int64]:
    """The signed numbers that words stand for, as int64."""
    above = 8 * words.itemsize - roster.word_bits
    shifted = (words << words.dtype.type(above)).view(np.dtype(f"i{words.itemsize}"))
    return (shifted >> shifted.dtype.type(above)).astype(np.int64)


def pack(words: Words, roster: Roster) -> bytes:
    """The b lowest bits of every word, one after the other."""
    if 8 * words.itemsize == roster.word_bits:
        return words.tobytes()
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").reshape(roster.words, -1)
    return np.packbits(bits[:, : roster.word_bits], bitorder="little").tobytes()


def read_words(content: bytes, roster: Roster) -> Words:
    """A masked vector from its bytes. ProtocolError: another length than the roster's."""
    dtype, size = _dtype(roster), roster.words * roster.word_bits
    if len(content) != -(-size // 8):
        raise ProtocolError(f"masked: found {len(content)} bytes, expected {-(-size // 8)}: {roster.words} words")
    if 8 * dtype.itemsize == roster.word_bits:
        return np.frombuffer(content, dtype)
    bits = np.zeros((roster.words, 8 * dtype.itemsize), np.uint8)
    unpacked = np.unpackbits(np.frombuffer(content, np.uint8), count=size, bitorder="little")
    bits[:, : roster.word_bits] = unpacked.reshape(roster.words, -1)
    return np.packbits(bits, bitorder="little").view(dtype)


def keystream(key: bytes, roster: Roster) -> Words:
    """Uniform words under a key that is used for nothing else, so that the counter may start at zero."""
    encryptor, dtype = Cipher(AES256(key), CTR(bytes(16))).encryptor(), _dtype(roster)
    return np.frombuffer(encryptor.update(bytes(roster.words * dtype.itemsize)), dtype)


def own_mask(seed: bytes, device_id: str, roster: Roster, digest: bytes) -> Words:
    """The mask that a device adds besides those of its pairs, from its 16-byte seed. digest: the roster's."""
    return keystream(derived_key(seed, digest, "own mask", roster.round_id, device_id), roster)


def pair_mask(private: X25519PrivateKey, device_id: str, peer_id: str, roster: Roster, digest: bytes) -> Words:
    """What a device adds for one peer, whose ``pair_mask`` is minus this. ProtocolError: an unusable key."""
    first, second = sorted((device_id, peer_id))
    peer = roster.member(peer_id).masking_key
    mask = keystream(agreed_key(private, peer, digest, "pair mask", roster.round_id, first, second), roster)
    return mask if device_id == first else np.negative(mask)


def _dtype(roster: Roster) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype("<u4" if roster.word_bits <= 32 else "<u8")
