"""What an app brings besides bundle and settings: its costs, how its host is, speech to rehearse, whom to trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from device_sdk.checks import check_type
from device_sdk.errors import ConfigurationError
from device_sdk.feedback.signals import CostFunction
from device_sdk.learning.rehearsal import Transcribed
from device_sdk.policy import Conditions, Policy

__all__ = ["Host", "check_host"]


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


def check_host(host: Host) -> None:
    """ConfigurationError: something is of another type. A root of trust is looked at where it is used."""
    for name in ("cost_function", "policy", "conditions"):
        value = host.get(name)
        if not (callable(value) or name not in host or (value is None and name == "cost_function")):
            raise ConfigurationError(f"{name}: found {type(value).__name__}, expected a function")
    rehearsal: object = host.get("rehearsal", ())
    if not isinstance(rehearsal, Sequence) or isinstance(rehearsal, str | bytes):
        raise ConfigurationError(f"rehearsal: found {type(rehearsal).__name__}, expected a sequence of Transcribed")
    for index, each in enumerate(rehearsal):
        check_type(f"rehearsal[{index}]", each, Transcribed, "Transcribed")
