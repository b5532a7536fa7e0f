"""Takes what is current, where its bytes are those that were signed. What is not leaves the device as it is."""

from __future__ import annotations

import base64
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pydantic import ValidationError

from device_sdk.checkin import exchange
from device_sdk.checkin.client import marginals_bytes
from device_sdk.checkin.updates.fetching import Base, Wanted, base_of, fetch, install, largest, patience, teacher_of
from device_sdk.checkin.updates.metadata import refresh
from device_sdk.checkin.updates.release import Adopted, Release, Target
from device_sdk.errors import CheckInError
from device_sdk.state import records
from device_sdk.wire.messages import Marginals

if TYPE_CHECKING:
    from device_sdk.checkin.client import Client
    from device_sdk.model_state import Knowledge
    from device_sdk.settings import DeviceSettings

__all__ = ["adopt"]


def adopt(
    client: Client,
    knowledge: Knowledge,
    settings: DeviceSettings,
    trusted_root: bytes,
    device_id: str = "",
    *,
    turn: AbstractContextManager[object],
) -> Adopted:
    """The signed metadata decides what is current, whatever the server's answer to the check-in says. turn: kept while
    what the device learned changes.

    Nothing that is refused is an error: the device goes on with what it has. BundleError: what was signed does not fit
    this device. ConfigurationError: ``trusted_root`` is none.
    """
    refused: list[str] = []
    new_model = new_marginals = False
    version = knowledge.base.version, knowledge.marginals_version
    try:
        release = refresh(client, knowledge.store, trusted_root, device_id)
    except CheckInError as error:
        return Adopted(refused=(f"updates: {error}; model {version[0]} and marginals {version[1]} stay",))
    try:
        if knowledge.differs_in_model(release.model.version, release.model.sha256):
            content = _file(client, release.model, knowledge, base_of(knowledge))
            with turn:
                install(knowledge, release.model.version, content, settings.learning.keep)
            new_model = True
    except CheckInError as error:
        refused.append(f"model {release.model.version}: {error}; model {version[0]} stays")
    if settings.learning.teacher.schedule == "server" and not refused:  # it belongs to its model
        try:
            _adopt_teacher(client, release.teacher, knowledge, turn)
        except CheckInError as error:
            refused.append(f"teacher: {error}; the teacher stays")
    try:
        if knowledge.differs_in_marginals(release.marginals.version, release.marginals.sha256):
            _adopt_marginals(client, release, knowledge)
            new_marginals = True
    except CheckInError as error:
        refused.append(f"marginals {release.marginals.version}: {error}; marginals {version[1]} stay")
    return Adopted(
        new_model=new_model,
        new_marginals=new_marginals,
        refused=tuple(refused),
    )


def _file(client: Client, target: Target, knowledge: Knowledge, base: Base) -> bytes:
    """base: what the device has of its kind. CheckInError: other bytes than signed, or more than weights of this
    device's architecture can have: they are held in memory, whoever signed them."""
    most = largest(knowledge.base.architecture)
    if target.length > most:
        raise CheckInError(f"{target.name}: length: found {target.length} as signed, expected at most {most}")
    wanted = Wanted(target.version, target.sha256, target.length, target.check)
    return fetch(client, knowledge.store, wanted, base)


def _adopt_teacher(
    client: Client, target: Target | None, knowledge: Knowledge, turn: AbstractContextManager[object]
) -> None:
    if target is None:
        with turn:
            knowledge.adopt_teacher(None)
    elif knowledge.differs_in_teacher(target.version, target.sha256):
        content = _file(client, target, knowledge, teacher_of(knowledge))
        with turn:
            knowledge.adopt_teacher(records.Published(target.version, content))


def _adopt_marginals(client: Client, release: Release, knowledge: Knowledge) -> None:
    target, words = release.marginals, knowledge.base.words
    if target.length != 8 * len(words):
        raise CheckInError(f"{target.name}: length: found {target.length} as signed, expected {8 * len(words)}")
    limit = marginals_bytes(len(words))
    try:
        message = Marginals.model_validate_json(_download(client, f"/v1/marginals/{target.version}", limit))
        content = base64.b64decode(message.probabilities, validate=True)
    except ValueError as error:  # ValidationError is one, too
        what = f"{error.error_count()} fields" if isinstance(error, ValidationError) else "probabilities"
        raise CheckInError(f"{target.name}: {what} cannot be read") from None
    target.check(content)
    if (str(message.marginals_version), message.words_digest) != (target.version, release.words_digest):
        raise CheckInError(f"{target.name}: found another version or word list than the signed one")
    values = exchange.decode_marginals(message, words.digest, len(words))
    knowledge.keep_marginals(message.marginals_version, words.digest, values)


def _download(client: Client, path: str, limit: int) -> bytes:
    return client.download(path, limit, patience(limit))
