"""A device's part in secure aggregation, over as many check-ins as it takes.

Every session asks the server what it waits for and answers until there is nothing to answer. What the device keeps of
the round is written down before its answer is sent. A delta is taken as it is when the device masks it; what was
learned stays. Counts leave the device's books with the masked input: they come back where the server says that the sum
is taken without this device, or not at all. Where they may be in a sum they stay off the books: once the device has
revealed its shares, whatever the server says of the group then; where the server does not know the round, since it may
have been restored from a time before it took the sum; and where the device itself stops, because the server showed it
something that no honest server would."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from device_sdk.checkin import budget, deltas, reports
from device_sdk.checkin.connection import Refused
from device_sdk.checkin.identity import server_name
from device_sdk.checkin.reports import take_back, taken_counts
from device_sdk.checks import reading
from device_sdk.errors import PrivacyError, ProtocolError
from device_sdk.personalization.cache import reported
from device_sdk.privacy.contributions import bounded_counts, locally_noised
from device_sdk.privacy.quantised import layout_digest, quantised
from device_sdk.privacy.spending import stream_of
from device_sdk.secure_aggregation.masks import check_capacity
from device_sdk.secure_aggregation.participant import Participant, advertise, answer
from device_sdk.sent import Sent
from device_sdk.state.outbox import Outgoing
from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from device_sdk.wire.secure_aggregation import MAX_WORDS, AggregationTask, StageMessage

if TYPE_CHECKING:
    from device_sdk.checkin.at_hand import Session
    from device_sdk.checkin.identity import Identity
    from device_sdk.learning.step import Arrays
    from device_sdk.state import Store
    from device_sdk.wire.messages import RoundOffer

_STEPS = 12
"""Requests of one session: twice the stages, and a few where a group moved on meanwhile."""
_ENDS = {
    "done": None,
    "dropped": "this device came too late for a stage; what it had to add is in no sum",
    "abandoned": "too few devices were left; what they had to add is in no sum",
    "late": "the group was ended without its sum, after this device's part",
}


class Participation(BaseModel):
    """What the state holds of a round. model_version: what a delta is measured on. restore: base64 of the counts that
    may go back to the books; empty before they left them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stream: Literal["marginals", "deltas"]
    participant: Participant
    plan: MarginalPlan | DeltaPlan
    model_version: str
    restore: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a session came. due_in_seconds: when the server wants the next answer, None where it waits for none.
    left_out: why an offered round is not joined."""

    due_in_seconds: float | None = None
    left_out: tuple[str, ...] = ()


def take_part(session: Session, who: Identity, offer: RoundOffer | None) -> Progress:
    """Joins the offered round, or goes on with the one joined before. CheckInError: not reached; everything is kept."""
    store = session.model_state.store
    kept = _read(store, who)
    if kept is None:
        if offer is None or (plan := _asked(session, who, offer)) is None:
            return Progress()
        try:
            why = budget.refusal(store, session.settings.bounds, plan)
        except PrivacyError as error:
            why = f"{stream_of(plan)}: {error}"
        if why is not None:
            return Progress(left_out=(why,))
        joined = _join(session, who, offer, plan)
        if not isinstance(joined, Participation):
            return Progress() if joined is None else Progress(left_out=(joined,))
        kept = joined
    try:
        return _go_on(session, who, kept)
    except Refused as error:
        if not reports.is_final(error):
            raise
        return _leave(session, who, _read(store, who) or kept, str(error), restore=False)


def _asked(session: Session, who: Identity, offer: RoundOffer) -> MarginalPlan | DeltaPlan | None:
    """The plan of the stream that the round adds up, where the user shares it and it was not answered before."""
    settings, consent, store = session.settings, session.model_state.consent, session.model_state.store
    for plan in (offer.marginals, offer.deltas):
        if plan is not None and plan.trust == "distributed":
            stream = stream_of(plan)
            shared = getattr(settings, f"share_{stream}") and getattr(consent, stream)
            return plan if shared and not reports.has_reported(store, who, offer.round_id, stream) else None
    return None


def _go_on(session: Session, who: Identity, kept: Participation) -> Progress:
    client, due = session.client, None
    for _ in range(_STEPS):
        try:
            task = client.aggregation_task(who, kept.participant.round_id)
        except Refused as error:
            if error.code != "not_joined":
                raise
            client.send_stage(who, kept.participant.advertised)
            continue
        due = task.retry_after_seconds
        if task.stage == "waiting":
            break
        if task.stage == "done" or task.stage == "dropped" or task.stage == "abandoned":
            late = task.stage == "abandoned" and kept.participant.revealed is not None
            return _leave(session, who, kept, _ENDS["late" if late else task.stage])
        try:
            kept, message = _answer(session, who, kept, task)
            client.send_stage(who, message)
        except (PrivacyError, ProtocolError) as error:
            return _leave(session, who, kept, str(error), restore=False)
        except Refused as error:
            if error.code != "other_stage":  # else the group has moved on: the next task says where to
                raise
    return Progress(due_in_seconds=due)


def _join(
    session: Session, who: Identity, offer: RoundOffer, plan: MarginalPlan | DeltaPlan
) -> Participation | str | None:
    """This device's part from here on; else why it takes none, None where it has too little to say."""
    model_state = session.model_state
    stream: Literal["marginals", "deltas"] = "deltas" if isinstance(plan, DeltaPlan) else "marginals"
    with session.turn, model_state.together():
        if isinstance(plan, DeltaPlan):
            due = deltas.due(model_state, session.settings, offer.model_version, plan)
            if not isinstance(due, deltas.Due):
                return due
            subject, words = _layout(offer.model_version, due.arrays)
            if words > MAX_WORDS:
                return f"deltas: part: found {words} values, expected at most {MAX_WORDS} to be masked"
        else:
            subject, words = model_state.cache.words_digest, len(model_state.cache.pending)
        participant = advertise(
            *(who.signing_key(), who.device_id or "", offer.round_id),
            subject=subject,
            words=words,
            minimum=max(2, plan.minimum_survivors),
        )
        kept = Participation(stream=stream, participant=participant, plan=plan, model_version=offer.model_version)
        reports.remember(model_state.store, who, offer.round_id, stream)
        budget.charge(model_state.store, session.settings.bounds, plan)
        model_state.store.put("aggregation", server_name(who.server), kept.model_dump_json().encode())
    return kept


def _answer(
    session: Session, who: Identity, kept: Participation, task: AggregationTask
) -> tuple[Participation, StageMessage]:
    """The answer to a task, kept before it is sent; the one that was kept, where there is one."""
    model_state, before, restore = session.model_state, kept.participant, kept.restore
    vector = partial(_delta if isinstance(kept.plan, DeltaPlan) else _counts, session, kept)
    with session.turn, model_state.together():
        participant, message = answer(before, who.signing_key(), task, vector)
        if message is None:
            raise ProtocolError(f"task: found stage {task.stage} without what it needs")
        if before.masked is None and participant.masked is not None:
            restore = _taken(session, kept.plan)
        kept = kept.model_copy(update={"participant": participant, "restore": restore})
        model_state.store.put("aggregation", server_name(who.server), kept.model_dump_json().encode())
    return kept, message


def _taken(session: Session, plan: MarginalPlan | DeltaPlan) -> str:
    """What was masked is off the books. Returns what of it may go back to them."""
    model_state = session.model_state
    if isinstance(plan, DeltaPlan):
        deltas.taken(model_state, plan)
        return ""
    cache = model_state.cache
    model_state.keep_cache(reported(cache))
    session.recent.reported()
    return base64.b64encode(taken_counts(cache, plan)).decode()


def _counts(session: Session, kept: Participation) -> NDArray[np.int64]:
    cache, plan = session.model_state.cache, kept.plan
    assert isinstance(plan, MarginalPlan)
    if cache.words_digest != kept.participant.advertised.subject:
        raise ProtocolError("subject: the word list has changed since this device joined")
    bounded = bounded_counts(cache.pending, session.model_state.base.background, plan)
    counts = locally_noised(bounded, len(cache.pending), plan)
    vector = np.zeros(len(cache.pending), np.int64)
    vector[list(counts.keys())] = list(counts.values())
    if kept.participant.roster is not None:
        check_capacity(vector, kept.participant.roster)
    return vector


def _delta(session: Session, kept: Participation) -> NDArray[np.int64]:
    joined, plan = kept.participant.advertised, kept.plan
    assert isinstance(plan, DeltaPlan)
    due = deltas.due(session.model_state, session.settings, kept.model_version, plan)
    if not isinstance(due, deltas.Due) or _layout(kept.model_version, due.arrays) != (joined.subject, joined.words):
        raise ProtocolError("subject: what this device learned since it joined is of another model, or gone")
    return quantised(due.arrays, plan, joined.round_id)


def _layout(model_version: str, delta: Arrays) -> tuple[str, int]:
    """(digest of what a vector of these arrays is of, its length)."""
    shapes = {name: array.shape for name, array in delta.items()}
    return layout_digest(model_version, shapes), sum(array.size for array in delta.values())


def _leave(
    session: Session, who: Identity, kept: Participation, refused: str | None, *, restore: bool = True
) -> Progress:
    """The end of this device's part. refused: why what it had to add is not in a sum, None where it is. Counts that
    have been revealed, or were about to be when the app ended, come back in no case: the server may have the sum."""
    participant, model_state, stream = kept.participant, session.model_state, kept.stream
    restore = restore and participant.revealed is None
    report_id = participant.advertised.signature.hex()[:32]
    with model_state.together():
        model_state.store.delete("aggregation", server_name(who.server))
        if participant.masked is None:  # nothing of the user was sent
            budget.refund(model_state.store, session.settings.bounds, kept.plan)
        if refused is None:
            reports.count_sent(model_state.store, stream)
        elif kept.restore and restore:
            taken = base64.b64decode(kept.restore)
            take_back(model_state, Outgoing(report_id, who.server, stream, participant.round_id, b"", taken))
    size = len(participant.masked.body) if participant.masked is not None else 0
    session.sent.append(Sent(report_id, participant.round_id, stream, size, refused=refused))
    return Progress()


def _read(store: Store, who: Identity) -> Participation | None:
    name = server_name(who.server)
    content = store.get("aggregation", name)
    with reading(f"aggregation/{name}"):
        return None if content is None else Participation.model_validate_json(content)
