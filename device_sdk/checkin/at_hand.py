"""What a check-in works with, whichever part of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.checkin.client import Client
    from device_sdk.learning.memory import Recent
    from device_sdk.model_state import ModelState
    from device_sdk.sent import Sent
    from device_sdk.settings import DeviceSettings


@dataclass(frozen=True, slots=True)
class Session:
    """What a check-in has at hand. trusted_root: what is fetched must be signed by who it names; None takes the
    server's word. turn: kept while what the device learned is read or changed, and never over a request. sent: the
    reports so far, each as soon as its outcome is known; known also where something later fails."""

    client: Client
    model_state: ModelState
    recent: Recent
    settings: DeviceSettings
    trusted_root: bytes | None
    turn: AbstractContextManager[object]
    sent: list[Sent] = field(default_factory=list)
