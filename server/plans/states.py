"""The states of a round and the only ways between them.

| state | what is true | leads to, when |
|---|---|---|
| planned | the settings are valid and stored; nothing is offered | open: the operator, or the round before it ended |
| open | the base is fixed, who is asked is drawn; reports are taken | closing: goal, deadline or operator |
| closing | no more reports; noise has its key before it is drawn | aggregated; abandoned: too few, diverged |
| aggregated | the release is stored, nobody has it; raw reports are gone | evaluated; abandoned: it hears worse |
| evaluated | it may be published | published |
| published | final: it is current, or with a rollout; the next round opens | |
| abandoned | final: nothing is released, what was charged stays charged | |

An operator may abandon every round that is not final. Every way is one transaction, with a line in ``transitions``; a
report, its count and its charge are one, too, and so are a round's opening and the charge of everyone where accounting
is amplified. A server that is killed goes on from the last way taken. A report after the goal or the deadline is
answered 409 ``round_closed``, and its device puts the counts back on its books.
"""

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
