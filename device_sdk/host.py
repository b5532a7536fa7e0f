"""What an app brings besides bundle and settings: its costs, how its host is, speech to rehearse, whom to trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from device_sdk.feedback.signals import CostFunction
from device_sdk.learning.rehearsal import Transcribed
from device_sdk.policy import Conditions, Policy

__all__ = ["Host"]


class Host(TypedDict, total=False):
    """Keyword arguments of :meth:`Device.open <device_sdk.device.Device.open>` and
    :class:`~device_sdk.profiles.Profiles`, each with a default.

    cost_function: the app's own costs of hypotheses. conditions: tells how the host is just now; policy: whether that
    is a good time to learn or to check in, asked before and between. rehearsal: transcribed utterances that learning
    goes over between the user's own. trusted_root: bytes of a TUF ``root.json``; what check-ins fetch is then taken
    only where the keys that it names have signed it (extra ``secure-updates``).
    """

    cost_function: CostFunction | None
    policy: Policy
    conditions: Callable[[], Conditions]
    rehearsal: Sequence[Transcribed]
    trusted_root: bytes | None
