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
    from device_sdk.model_state import ModelState
    from device_sdk.settings import DeviceSettings

__all__ = ["adopt"]


def adopt(
    client: Client,
    model_state: ModelState,
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
    version = model_state.base.version, model_state.marginals_version
    try:
        release = refresh(client, model_state.store, trusted_root, device_id)
    except CheckInError as error:
        return Adopted(refused=(f"updates: {error}; model {version[0]} and marginals {version[1]} stay",))
    try:
        if model_state.differs_in_model(release.model.version, release.model.sha256):
            content = _file(client, release.model, model_state, base_of(model_state))
            with turn:
                install(model_state, release.model.version, content, settings.learning.keep)
            new_model = True
    except CheckInError as error:
        refused.append(f"model {release.model.version}: {error}; model {version[0]} stays")
    if settings.learning.teacher.schedule == "server" and not refused:  # it belongs to its model
        try:
            _adopt_teacher(client, release.teacher, model_state, turn)
        except CheckInError as error:
            refused.append(f"teacher: {error}; the teacher stays")
    try:
        if model_state.differs_in_marginals(release.marginals.version, release.marginals.sha256):
            _adopt_marginals(client, release, model_state)
            new_marginals = True
    except CheckInError as error:
        refused.append(f"marginals {release.marginals.version}: {error}; marginals {version[1]} stay")
    return Adopted(
        new_model=new_model,
        new_marginals=new_marginals,
        refused=tuple(refused),
    )


def _file(client: Client, target: Target, model_state: ModelState, base: Base) -> bytes:
    """base: what the device has of its kind. CheckInError: other bytes than signed, or more than weights of this
    device's architecture can have: they are held in memory, whoever signed them."""
    most = largest(model_state.base.architecture)
    if target.length > most:
        raise CheckInError(f"{target.name}: length: found {target.length} as signed, expected at most {most}")
    wanted = Wanted(target.version, target.sha256, target.length, target.check)
    return fetch(client, model_state.store, wanted, base)


def _adopt_teacher(
    client: Client, target: Target | None, model_state: ModelState, turn: AbstractContextManager[object]
) -> None:
    if target is None:
        with turn:
            model_state.adopt_teacher(None)
    elif model_state.differs_in_teacher(target.version, target.sha256):
        content = _file(client, target, model_state, teacher_of(model_state))
        with turn:
            model_state.adopt_teacher(records.Published(target.version, content))


def _adopt_marginals(client: Client, release: Release, model_state: ModelState) -> None:
    target, words = release.marginals, model_state.base.words
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
    model_state.keep_marginals(message.marginals_version, words.digest, values)


def _download(client: Client, path: str, limit: int) -> bytes:
    return client.download(path, limit, patience(limit))
