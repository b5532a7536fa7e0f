"""The largest epsilons that devices may spend, and the charges that they bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.ledger import charge_population, check_population, within


@dataclass(frozen=True, slots=True)
class Caps:
    """The largest epsilon a device may spend in each stream, at ``delta``; a stream without one has no bound."""

    delta: float = 1e-6
    streams: dict[str, float] = field(default_factory=dict)

    def of(self, stream: str) -> float:
        return self.streams.get(stream, float("inf"))

    def allow(self, connection: Connection, device_id: str, stream: str, settings: RoundSettings) -> bool:
        """Whether a device may report in a stream of a round once more. Where accounting is amplified it may: it was
        charged when the round opened."""
        charge = charge_for(stream, settings)
        return settings.amplified or within(connection, device_id, stream, charge, self.of(stream), self.delta)

    def charge_all(
        self,
        connection: Connection,
        round_id: str,
        streams: Iterable[str],
        settings: RoundSettings,
        now: float,
        *,
        eligible: int,
        eligible_at: float,
        draw: int = 1,
    ) -> None:
        """Charge all who may be asked for streams of an amplified round, or nobody: Refusal (409 ``privacy_cap``)."""
        charges = {stream: charge_for(stream, settings) for stream in streams}
        for stream, charge in charges.items():
            check_population(connection, stream, charge, self.of(stream), self.delta, eligible_at)
        whom: dict[str, Any] = {"round_id": round_id, "eligible": eligible, "eligible_at": eligible_at}
        for stream, charge in charges.items():
            charge_population(connection, stream=stream, charge=charge, now=now, draw=draw, **whom)
