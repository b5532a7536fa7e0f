"""The states of a round and the only ways between them."""

from __future__ import annotations

from enum import StrEnum

from server.problems import Refusal

__all__ = ["NEXT", "RoundState", "check"]


class RoundState(StrEnum):
    PLANNED = "planned"
    OPEN = "open"
    CLOSING = "closing"
    AGGREGATED = "aggregated"
    EVALUATED = "evaluated"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


NEXT: dict[RoundState, tuple[RoundState, ...]] = {
    RoundState.PLANNED: (RoundState.OPEN, RoundState.ABANDONED),
    RoundState.OPEN: (RoundState.CLOSING, RoundState.ABANDONED),
    RoundState.CLOSING: (RoundState.AGGREGATED, RoundState.ABANDONED),
    RoundState.AGGREGATED: (RoundState.EVALUATED, RoundState.ABANDONED),
    RoundState.EVALUATED: (RoundState.PUBLISHED, RoundState.ABANDONED),
    RoundState.PUBLISHED: (),
    RoundState.ABANDONED: (),
}


def check(source: RoundState, target: RoundState) -> None:
    """Raises Refusal (409) unless a round may go from ``source`` to ``target``."""
    if target not in NEXT[source]:
        allowed = ", ".join(NEXT[source]) or "nothing: it is final"
        raise Refusal(409, "wrong_state", f"round is {source}; it cannot become {target}, only {allowed}", "state")
