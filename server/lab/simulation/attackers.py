"""Devices that mean harm, and what they send instead of what they learned.

An attacker knows the round's plan and the server's checks, and keeps to both: a delta beyond the norm bound would be
refused and do nothing. So whatever it sends is as large as the bound lets, and looks like an honest report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from safetensors.numpy import save

from device_sdk.checkin.client import Client
from device_sdk.checkin.identity import Identity
from device_sdk.errors import ConfigurationError
from device_sdk.privacy.clipping import clip
from device_sdk.state.outbox import Outgoing
from device_sdk.wire.delta_codec import decode, encode
from device_sdk.wire.messages import CheckedIn, CheckIn, DeltaPlan, Receipt
from server.aggregation.weights_file import parse_tensors, read_metadata

__all__ = ["ATTACKS", "Attack", "AttackKind", "PoisoningClient", "attackers", "poisoned"]

AttackKind = Literal["sign-flip", "scaling", "wrong transcripts"]
ATTACKS: tuple[AttackKind, ...] = get_args(AttackKind)


@dataclass(frozen=True, slots=True)
class Attack:
    """How a share of the devices attacks.

    kind: ``sign-flip`` sends minus what was learned, ``scaling`` what was learned, ``wrong transcripts`` what was
    learned from transcripts of other utterances; each ``factor`` times as large, then clipped as the round's plan says.
    share: of the devices, rounded to the nearest number of them.
    """

    kind: AttackKind
    share: float = 0.2
    factor: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in ATTACKS:
            raise ConfigurationError(f"attack: found {self.kind!r}, expected one of {', '.join(ATTACKS)}")
        if not 0 <= self.share <= 1:
            raise ConfigurationError(f"attackers: found {self.share!r}, expected a share in [0, 1]")
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ConfigurationError(f"factor: found {self.factor!r}, expected a positive number")


def attackers(attack: Attack | None, devices: int, seed: int) -> frozenset[int]:
    """Which of the devices, numbered from 0, attack: the same for every kind of attack with the same share and seed."""
    if attack is None:
        return frozenset()
    chosen = np.random.default_rng([seed, 0xA7]).permutation(devices)[: round(attack.share * devices)]
    return frozenset(chosen.tolist())


def poisoned(body: bytes, plan: DeltaPlan, attack: Attack) -> bytes:
    """The report that an attacker sends in place of an honest one: the same header, other values within the bounds.

    Raises ProtocolError where ``body`` is not a report of such a plan.
    """
    delta = decode(parse_tensors(body), plan.encoding, plan.scale_per)
    factor = np.float32(-attack.factor if attack.kind == "sign-flip" else attack.factor)
    bounded, _ = clip({name: values * factor for name, values in delta.items()}, plan.clip_norm, plan.clipping)
    tensors = encode(bounded, plan.encoding, plan.scale_per)
    return bytes(save({name: tensors[name] for name in sorted(tensors)}, metadata=read_metadata(body)))


class PoisoningClient(Client):
    """A client that poisons every delta it reports. The device behind it does not know. options: as of a client."""

    def __init__(self, url: str, attack: Attack, **options: Any) -> None:
        super().__init__(url, **options)
        self._attack = attack
        self._plan: DeltaPlan | None = None

    def check_in(self, identity: Identity, message: CheckIn) -> CheckedIn:
        answer = super().check_in(identity, message)
        self._plan = answer.round.deltas if answer.round is not None else None
        return answer

    def report(self, identity: Identity, outgoing: Outgoing) -> Receipt:
        if outgoing.kind == "deltas" and self._plan is not None:
            outgoing = replace(outgoing, body=poisoned(outgoing.body, self._plan, self._attack))
        return super().report(identity, outgoing)
