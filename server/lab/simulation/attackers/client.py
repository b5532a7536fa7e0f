"""A real device's connection in an attacker's hands: signed and idempotent like any other, with other deltas in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from device_sdk.checkin.client import Client
from device_sdk.checkin.identity import Identity
from device_sdk.state.outbox import Outgoing
from device_sdk.wire.messages import CheckedIn, CheckIn, DeltaPlan, Receipt
from server.lab.simulation.attackers.attacks import Attack, poisoned

__all__ = ["PoisoningClient"]


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
