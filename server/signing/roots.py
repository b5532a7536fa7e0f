"""The root of trust: made, signed and rotated on a folder, away from the server.

A folder of ``init`` holds ``root-1.pem``, ``root-2.pem``, ... (offline keys, best moved to places of their own) and
``server``, all that a server gets: ``server/keys`` with the online keys and ``server/roots`` with every signed root.
Keys are Ed25519, as PEM files that their owner only can read, encrypted where there is a passphrase.
A change is a proposal, ``next.root.json``, until enough keys of the root before and of its own have signed it."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root

from device_sdk.errors import ConfigurationError

Online = Literal["targets", "snapshot", "timestamp"]
ONLINE: tuple[Online, ...] = get_args(Online)
PROPOSAL = "next.root.json"


@dataclass(frozen=True, slots=True)
class Signed:
    """One root of the chain. content: its exact bytes."""

    root: Root
    content: bytes


@dataclass(frozen=True, slots=True)
class Signing:
    """How far a root is signed. missing: signatures that it still needs; unsigned: ids of keys that could give them."""

    version: int
    signed: tuple[str, ...]
    unsigned: tuple[str, ...]
    missing: int


def create(
    folder: Path, *, keys: int, threshold: int, days: float, root_passphrase: str | None, passphrase: str | None
) -> Path:
    """A new repository in an empty folder -> its first root, signed by all of its keys. keys, threshold: of the root
    role. days: until the root expires. ConfigurationError: the folder is not empty, or more signatures are asked for
    than there are keys."""
    if not 1 <= threshold <= keys:
        raise ConfigurationError(f"threshold: found {threshold} of {keys} keys, expected at least 1 and at most {keys}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder}: found files there, expected a new or empty folder")
    root = Root(version=1, expires=_expiry(days), consistent_snapshot=True)
    offline = [new_key(folder / f"root-{number + 1}.pem", root_passphrase) for number in range(keys)]
    for signer in offline:
        root.add_key(public_key(signer), "root")
    root.roles["root"].threshold = threshold
    for role in ONLINE:
        root.add_key(public_key(new_key(folder / "server" / "keys" / f"{role}.pem", passphrase)), role)
    proposal = Metadata(root)
    for signer in offline:
        proposal.sign(signer, append=True)
    path = folder / "server" / "roots" / "1.root.json"
    _write(path, proposal.to_bytes())
    return path


def rotate(
    folder: Path,
    *,
    role: str | None,
    days: float,
    revoke: str | None = None,
    threshold: int | None = None,
    root_passphrase: str | None = None,
    passphrase: str | None = None,
) -> Signing:
    """Propose the next root. role: gets a new key; of an online role it takes the place of the old one, of ``root`` it
    takes the place of the key ``revoke``, or is one more; None only prolongs. The new online key lies in
    ``server/keys`` beside the old one until the root is signed. ConfigurationError: a proposal is there already, or
    ``role``, ``revoke`` or ``threshold`` do not fit."""
    if (folder / PROPOSAL).exists():
        raise ConfigurationError(f"{folder / PROPOSAL}: a root waits for signatures; sign or delete it first")
    if role is not None and role not in (*ONLINE, "root"):
        raise ConfigurationError(f"role: found {role!r}, expected root, {', '.join(ONLINE)}")
    latest = read_chain(folder / "server" / "roots")[-1].root
    root = Metadata[Root].from_bytes(Metadata(latest).to_bytes()).signed  # a copy
    root.version, root.expires = latest.version + 1, _expiry(days)
    if revoke is not None:
        if role != "root" or revoke not in root.roles["root"].keyids:
            raise ConfigurationError(f"revoke: found {revoke}, expected the id of a key of role root, and that role")
        root.revoke_key(revoke, "root")
    if role == "root":
        number = 1 + max((int(path.stem.partition("-")[2]) for path in folder.glob("root-*.pem")), default=0)
        root.add_key(public_key(new_key(folder / f"root-{number}.pem", root_passphrase)), "root")
    elif role is not None:
        for keyid in list(root.roles[role].keyids):
            root.revoke_key(keyid, role)
        path = folder / "server" / "keys" / f"{role}-{root.version}.pem"
        root.add_key(public_key(new_key(path, passphrase)), role)
    if threshold is not None:
        root.roles["root"].threshold = threshold
    if not 1 <= root.roles["root"].threshold <= len(root.roles["root"].keyids):
        raise ConfigurationError(
            f"threshold: found {root.roles['root'].threshold} of {len(root.roles['root'].keyids)} keys"
        )
    _write(folder / PROPOSAL, Metadata(root).to_bytes())
    return signing_of(Metadata(root), latest)


def sign(folder: Path, key: Path, root_passphrase: str | None) -> Signing:
    """Sign the proposal with an offline key; the last signature that it needs makes it the newest root in
    ``server/roots``. ConfigurationError: no proposal, or the key is of neither root."""
    found = proposed(folder)
    if found is None:
        raise ConfigurationError(f"{folder / PROPOSAL}: no root waits for signatures; run: idiolect updates rotate")
    latest = read_chain(folder / "server" / "roots")[-1].root
    signer = read_key(key, root_passphrase)
    known = {*latest.roles["root"].keyids, *found.signed.roles["root"].keyids}
    if public_key(signer).keyid not in known:
        raise ConfigurationError(f"{key}: is a key of neither this root nor the one before it")
    found.sign(signer, append=True)
    _write(folder / PROPOSAL, found.to_bytes())
    result = signing_of(found, latest)
    if not result.missing:
        path = folder / "server" / "roots" / f"{found.signed.version}.root.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        (folder / PROPOSAL).replace(path)
    return result


def proposed(folder: Path) -> Metadata[Root] | None:
    """The root that waits for signatures, if any."""
    path = folder / PROPOSAL
    return _read(path) if path.exists() else None


def signing_of(proposal: Metadata[Root], latest: Root) -> Signing:
    """What signatures a proposal has and lacks, by its own keys and those of the root before."""
    root = proposal.signed
    result = root.get_root_verification_result(latest, proposal.signed_bytes, proposal.signatures)
    missing = max(result.first.missing, result.second.missing)
    return Signing(root.version, tuple(sorted(result.signed)), tuple(sorted(result.unsigned)), missing)


def read_chain(folder: Path) -> tuple[Signed, ...]:
    """Every root, from the first, each signed by the one before and by itself. ConfigurationError: a break in it."""
    chain: list[Signed] = []
    while (path := folder / f"{len(chain) + 1}.root.json").is_file():
        found = _read(path)
        root = found.signed
        if root.version != len(chain) + 1:
            raise ConfigurationError(f"{path}: version: found {root.version}, expected {len(chain) + 1}")
        try:
            for judge in (chain[-1].root if chain else root, root):
                judge.verify_delegate(Root.type, found.signed_bytes, found.signatures)
        except RepositoryError as error:
            raise ConfigurationError(f"{path}: {error}; sign it with keys of the root before and its own") from error
        chain.append(Signed(root, path.read_bytes()))
    if not chain:
        raise ConfigurationError(f"{folder}: holds no 1.root.json; run: idiolect updates init")
    return tuple(chain)


def _read(path: Path) -> Metadata[Root]:
    try:
        found = Metadata[Root].from_bytes(path.read_bytes())
    except (OSError, RepositoryError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a root ({error})") from error
    if not isinstance(found.signed, Root):
        raise ConfigurationError(f"{path}: found metadata of role {found.signed.type}, expected root")
    return found


def _expiry(days: float) -> datetime:
    if not days > 0:
        raise ConfigurationError(f"days: found {days}, expected a positive number")
    return datetime.now(UTC) + timedelta(days=days)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
