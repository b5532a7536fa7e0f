"""Takes what is current, where its bytes are those that were announced or, with a root to trust, signed: weights as the
difference to what the device has where there is one, and from where they broke off. What is refused changes nothing."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from device_sdk.checkin.client import Partial
from device_sdk.checkin.connection import Refused
from device_sdk.checkin.updates import difference
from device_sdk.checkin.updates.metadata import Release, Target
from device_sdk.errors import BundleError, CheckInError, ProtocolError
from device_sdk.model_state import with_published
from device_sdk.state import records
from device_sdk.wire.messages import CheckedIn, Marginals

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from device_sdk.bundle.streaming import AnyArchitecture
    from device_sdk.checkin.client import Client
    from device_sdk.model_state import ModelState
    from device_sdk.settings import DeviceSettings

_HEADER = 1 << 20
"""Bytes that a weights file may have beside its values."""
_UNFIT = "unfit"
_PATIENCE = 60.0
_SLOWEST = 16_384
"""Seconds that every download may take, and bytes a second that it brings at least beyond these."""


def announced(answer: CheckedIn, model_state: ModelState) -> Release:
    """What is current by the server's answer to the check-in, for a device that was given no root to trust."""
    most, words = _largest(model_state.base.architecture), model_state.base.words
    teacher = None
    if answer.teacher_version is not None and answer.teacher_sha256 is not None:
        teacher = Target(f"model {answer.teacher_version}", answer.teacher_version, most, answer.teacher_sha256)
    version = str(answer.marginals_version)
    return Release(
        Target(f"model {answer.model_version}", answer.model_version, most, answer.model_sha256),
        teacher,
        Target(f"marginals version {version}", version, 8 * len(words), answer.marginals_sha256),
        words.digest,
    )


def adopt(
    client: Client,
    model_state: ModelState,
    settings: DeviceSettings,
    release: Release,
    *,
    signed: bool,
    turn: AbstractContextManager[object],
) -> tuple[bool, bool, tuple[str, ...]]:
    """Fetches and installs what is another than what is here. Returns whether that is a model, whether marginals, and
    why something was refused, by name. turn: kept while what the device learned changes. What cannot be had is an error
    where the server's word is taken, CheckInError; of a ``signed`` release it is said in the answer, and the device
    goes on with what it has. BundleError: what was fetched does not fit this device."""
    refused: list[str] = []

    def attempt(step: Callable[[], bool], what: str, stays: str) -> bool:
        try:
            return step()
        except CheckInError as error:
            if not signed:
                raise
            refused.append(f"{what}: {error}; {stays}")
            return False

    def take_model() -> bool:
        if not model_state.differs_in_model(model.version, model.sha256):
            return False
        content = fetch(client, model_state, model, model_state.base)
        with turn:
            try:
                model_state.adopt(records.Published(model.version, content), settings.learning.keep)
            except BundleError:  # remembered, so that what no device can use costs each of them one download
                records.write_text(model_state.store, _UNFIT, sha256(content).hexdigest())
                raise
        return True

    def take_teacher() -> bool:
        if teacher is None:
            with turn:
                model_state.adopt_teacher(None)
        elif model_state.differs_in_teacher(teacher.version, teacher.sha256):
            # Before there is a teacher here, the base, which the first one is near to.
            held = records.read_published(model_state.store, "published_teacher")
            base = model_state.base if held is None else with_published(model_state.packaged, held)
            content = fetch(client, model_state, teacher, base)
            with turn:
                model_state.adopt_teacher(records.Published(teacher.version, content))
        return True

    def take_marginals() -> bool:
        if not model_state.differs_in_marginals(marginals.version, marginals.sha256):
            return False
        values = _fetch_marginals(client, release, model_state)
        model_state.keep_marginals(int(marginals.version), model_state.base.words.digest, values)
        return True

    model, teacher, marginals = release.model, release.teacher, release.marginals
    new_model = attempt(take_model, f"model {model.version}", f"model {model_state.base.version} stays")
    if settings.learning.teacher.schedule == "server" and not refused:  # it belongs to its model
        attempt(take_teacher, "teacher", "the teacher stays")
    stays = f"marginals {model_state.marginals_version} stay"
    new_marginals = attempt(take_marginals, f"marginals {marginals.version}", stays)
    return new_model, new_marginals, tuple(refused)


def decode_marginals(message: Marginals, words_digest: str, count: int) -> NDArray[np.float64]:
    """The global distribution, float64 [count]. CheckInError: of another word list or size, or no distribution."""
    where = f"marginals version {message.marginals_version}"
    if message.words_digest != words_digest:
        raise CheckInError(f"{where}: words_digest: found {message.words_digest}, expected {words_digest}")
    try:
        content = base64.b64decode(message.probabilities, validate=True)
    except ValueError as error:
        raise CheckInError(f"{where}: probabilities: not base64 ({error})") from error
    if len(content) != 8 * count:
        raise CheckInError(f"{where}: probabilities: found {len(content)} bytes, expected {8 * count}")
    values = np.frombuffer(content, "<f8").astype(np.float64)
    if not np.all(np.isfinite(values)) or values.min() < 0 or abs(float(values.sum()) - 1.0) > 1e-6:
        raise CheckInError(f"{where}: probabilities: expected non-negative values that sum to 1")
    return values


def _fetch_marginals(client: Client, release: Release, model_state: ModelState) -> NDArray[np.float64]:
    target, words = release.marginals, model_state.base.words
    if target.length != 8 * len(words):
        raise CheckInError(f"{target.name}: length: found {target.length} as signed, expected {8 * len(words)}")
    message = client.marginals(int(target.version), len(words))
    if (str(message.marginals_version), message.words_digest) != (target.version, release.words_digest):
        raise CheckInError(f"{target.name}: found another version or word list than the one that is current")
    values = decode_marginals(message, words.digest, len(words))
    target.check(values.astype("<f8").tobytes())
    return values


def _largest(architecture: AnyArchitecture) -> int:
    """Bytes of a weights file, at most."""
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    return _HEADER + 4 * sum(math.prod(shape) for shape in shapes.values())


def fetch(client: Client, model_state: ModelState, target: Target, base: Bundle) -> bytes:
    """The bytes of the safetensors file ``target``; what came of it before is gone on with. base: near to it.
    CheckInError: not to be had, other bytes than these, or more than weights of this device's architecture can have,
    which are held in memory, whoever signed them. What came of a line that broke is kept. BundleError: these very bytes
    were found unfit for this device before; they are not fetched again."""
    most = _largest(model_state.base.architecture)
    if target.length > most:
        raise CheckInError(f"{target.name}: length: found {target.length} as signed, expected at most {most}")
    if records.read_text(model_state.store, _UNFIT) == target.sha256:
        raise BundleError(f"model {target.version}: was found unfit for this device before; it is not fetched again")
    path = f"/v1/models/{quote(target.version, safe='')}"
    partial, seconds = Partial(model_state.store), _PATIENCE + target.length / _SLOWEST
    if partial.path != path:
        try:
            packed = client.download(f"{path}/from/{quote(base.version, safe='')}", target.length, seconds, partial)
            content = difference.apply(base.weights, packed, target.length)
        except (Refused, ProtocolError):
            content = b""
        partial.drop()
        if sha256(content).hexdigest() == target.sha256:
            return content  # else there is no difference, or it leads elsewhere: all of the file is taken
    content = client.download(path, target.length, seconds, partial)
    partial.drop()
    target.check(content)
    return content
