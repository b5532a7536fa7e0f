"""A device's part in secure aggregation, over as many check-ins as it takes.

Every session asks the server what it waits for and answers until there is nothing to answer. What the device keeps of
the round is written down before its answer is sent, and the counts leave the device's books with the masked input: they
come back where the server says that the sum is taken without this device, or not at all. Where they may be in a sum
they stay off the books: once the device has revealed its shares, whatever the server says of the group then; where the
server does not know the round, since it may have been restored from a time before it took the sum; and where the device
itself stops, because the server showed it something that no honest server would."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

from device_sdk.checkin import budget, reports
from device_sdk.checkin.connection import Refused
from device_sdk.checkin.identity import server_name
from device_sdk.checkin.reports import Sent, take_back, taken_counts
from device_sdk.checks import reading
from device_sdk.errors import PrivacyError, ProtocolError
from device_sdk.personalization.cache import reported
from device_sdk.privacy.contributions import bounded_counts, locally_noised
from device_sdk.secure_aggregation.participant import Participant, advertise, agree, mask, reveal, share
from device_sdk.state.outbox import Outgoing
from device_sdk.wire.messages import MarginalPlan, Message
from device_sdk.wire.secure_aggregation import AggregationTask

if TYPE_CHECKING:
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.identity import Identity
    from device_sdk.learning.memory import Recent
    from device_sdk.model_state import ModelState
    from device_sdk.privacy.bounds import OfferBounds
    from device_sdk.settings import DeviceSettings
    from device_sdk.state import Store
    from device_sdk.wire.messages import RoundOffer

_STEPS = 12
"""Requests of one session: twice the stages, and a few where a group moved on meanwhile."""
_ENDS = {
    "done": None,
    "dropped": "this device came too late for a stage; its counts are in no sum",
    "abandoned": "too few devices were left; their counts are in no sum",
    "late": "the group was ended without its sum, after this device's part",
}


class Participation(BaseModel):
    """What the state holds of a round. restore: base64 of what may go back to the books; empty before it left them."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    participant: Participant
    plan: MarginalPlan
    restore: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a session did. sent: the report, once its outcome is known. due_in_seconds: when the server wants the next
    answer, None where it waits for none. left_out: why an offered round is not joined."""

    sent: tuple[Sent, ...] = ()
    due_in_seconds: float | None = None
    left_out: tuple[str, ...] = ()


def take_part(
    client: Client,
    who: Identity,
    model_state: ModelState,
    recent: Recent,
    offer: RoundOffer | None,
    settings: DeviceSettings,
) -> Progress:
    """Joins the offered round, or goes on with the one joined before. CheckInError: not reached; everything is kept."""
    kept, bounds = _read(model_state.store, who), settings.bounds
    if kept is None:
        willing = settings.share_marginals and model_state.consent.marginals
        plan = offer.marginals if offer is not None and willing else None
        if offer is None or plan is None or plan.trust != "distributed":
            return Progress()
        if reports.has_reported(model_state.store, who, offer.round_id, "marginals"):
            return Progress()
        if (why := budget.refusal(model_state.store, bounds, plan)) is not None:
            return Progress(left_out=(why,))
        kept = _join(who, model_state, offer.round_id, plan, bounds)
    try:
        return _go_on(client, who, model_state, recent, kept)
    except Refused as error:
        if not reports.is_final(error):
            raise
        return _leave(who, model_state, _read(model_state.store, who) or kept, str(error), restore=False)


def _go_on(client: Client, who: Identity, model_state: ModelState, recent: Recent, kept: Participation) -> Progress:
    due = None
    for _ in range(_STEPS):
        try:
            task = client.aggregation_task(who, kept.participant.round_id)
        except Refused as error:
            if error.code != "not_joined":
                raise
            client.send_stage(who, kept.participant.round_id, "keys", kept.participant.advertised)
            continue
        due = task.retry_after_seconds
        if task.stage == "waiting":
            break
        if task.stage == "done" or task.stage == "dropped" or task.stage == "abandoned":
            late = task.stage == "abandoned" and kept.participant.revealed is not None
            return _leave(who, model_state, kept, _ENDS["late" if late else task.stage])
        try:
            kept, message = _answer(who, model_state, recent, kept, task)
            client.send_stage(who, kept.participant.round_id, task.stage, message)
        except (PrivacyError, ProtocolError) as error:
            return _leave(who, model_state, kept, str(error), restore=False)
        except Refused as error:
            if error.code != "other_stage":  # else the group has moved on: the next task says where to
                raise
    return Progress(due_in_seconds=due)


def _join(
    who: Identity, model_state: ModelState, round_id: str, plan: MarginalPlan, bounds: OfferBounds
) -> Participation:
    cache = model_state.cache
    participant = advertise(
        who.signing_key(),
        who.device_id or "",
        round_id,
        words_digest=cache.words_digest,
        words=len(cache.pending),
        minimum=max(2, plan.minimum_survivors),
    )
    kept = Participation(participant=participant, plan=plan)
    with model_state.together():
        reports.remember(model_state.store, who, round_id, "marginals")
        budget.charge(model_state.store, bounds, plan)
        model_state.store.put("aggregation", server_name(who.server), kept.model_dump_json().encode())
    return kept


def _answer(
    who: Identity, model_state: ModelState, recent: Recent, kept: Participation, task: AggregationTask
) -> tuple[Participation, Message]:
    """The answer to a task, kept before it is sent; the one that was kept, where there is one."""
    participant, restore = kept.participant, kept.restore
    with model_state.together():
        message: Message | None = None
        if task.roster is not None:
            participant = share(participant, task.roster)
            message = participant.dealt
        elif task.deliveries is not None:
            if participant.masked is None:
                participant, restore = _masked(model_state, recent, kept, task.deliveries)
            else:
                participant = mask(participant, task.deliveries, np.zeros(participant.words, np.int64))
            message = participant.masked
        elif task.survivors is not None:
            participant = agree(participant, who.signing_key(), task.survivors)
            message = participant.agreed
        elif task.signatures is not None:
            participant = reveal(participant, task.signatures)
            message = participant.revealed
        if message is None:
            raise ProtocolError(f"task: found stage {task.stage} without what it needs")
        kept = kept.model_copy(update={"participant": participant, "restore": restore})
        model_state.store.put("aggregation", server_name(who.server), kept.model_dump_json().encode())
    return kept, message


def _masked(
    model_state: ModelState, recent: Recent, kept: Participation, deliveries: dict[str, bytes]
) -> tuple[Participant, str]:
    """Takes the bounded counts off the books, adds this device's share of the noise and the masks."""
    cache, plan = model_state.cache, kept.plan
    if cache.words_digest != kept.participant.advertised.words_digest:
        raise ProtocolError("words_digest: the word list has changed since this device joined")
    bounded = bounded_counts(cache.pending, model_state.base.background, plan)
    counts = locally_noised(bounded, len(cache.pending), plan)
    vector = np.zeros(len(cache.pending), np.int64)
    vector[list(counts.keys())] = list(counts.values())
    participant = mask(kept.participant, deliveries, vector)
    model_state.keep_cache(reported(cache))
    recent.reported()
    return participant, base64.b64encode(taken_counts(cache, plan)).decode()


def _leave(
    who: Identity, model_state: ModelState, kept: Participation, refused: str | None, *, restore: bool = True
) -> Progress:
    """The end of this device's part. refused: why its counts are not in a sum, None where they are. What has been
    revealed, or was about to be when the app ended, comes back in no case: the server may have the sum."""
    participant, store = kept.participant, model_state.store
    restore = restore and participant.revealed is None
    report_id = participant.advertised.signature.hex()[:32]
    with model_state.together():
        store.delete("aggregation", server_name(who.server))
        if participant.masked is None:  # nothing of the user was sent
            budget.refund(store, kept.plan)
        if refused is None:
            reports.count_sent(store, "marginals")
        elif kept.restore and restore:
            taken = base64.b64decode(kept.restore)
            take_back(model_state, Outgoing(report_id, who.server, "marginals", participant.round_id, b"", taken))
    size = len(participant.masked.model_dump_json()) if participant.masked is not None else 0
    return Progress((Sent(report_id, participant.round_id, "marginals", size, refused=refused),))


def _read(store: Store, who: Identity) -> Participation | None:
    name = server_name(who.server)
    content = store.get("aggregation", name)
    with reading(f"aggregation/{name}"):
        return None if content is None else Participation.model_validate_json(content)
