"""What a device is asked to do next, read from what its group has reached."""

from __future__ import annotations

from sqlalchemy import Connection

from device_sdk.wire.secure_aggregation import AggregationTask, DealtShares, SurvivorSignature
from server.plans.round import RoundSettings
from server.problems import Refusal
from server.rounds.secure_aggregation import store
from server.rounds.secure_aggregation.store import StoredGroup
from server.rounds.store import find_round, read_settings

__all__ = ["next_task"]


def next_task(connection: Connection, device_id: str, round_id: str, retry_after_seconds: float) -> AggregationTask:
    """The task of a device that joined. Raises Refusal: 404 ``unknown_round``, 409 ``not_joined``."""
    row = find_round(connection, round_id)
    settings = read_settings(row)
    joined = store.find_message(connection, round_id, device_id, "keys")
    if joined is None:
        if row.forgotten:  # nobody knows any more whether its counts are in the sum: they are not reported again
            return AggregationTask(stage="done", retry_after_seconds=_retry_after(settings, retry_after_seconds))
        raise Refusal(409, "not_joined", "this device has not joined this round", "device_id")
    retry = _retry_after(settings, retry_after_seconds)
    if joined.group_id is None:
        return AggregationTask(stage="abandoned" if joined.body is None else "waiting", retry_after_seconds=retry)
    stored = store.find_group(connection, joined.group_id)
    group = stored.group
    survived = device_id in group.answered("masked")
    if stored.ended is not None:
        stage = "abandoned" if stored.ended == "abandoned" else "done" if survived else "dropped"
        return AggregationTask.model_validate({"stage": stage, "retry_after_seconds": retry})
    if group.stage is not None and device_id in group.expected - group.answered(group.stage):
        return _asked(connection, stored, device_id, retry)
    late = group.stage is not None and device_id not in group.expected and not survived
    return AggregationTask(stage="dropped" if late else "waiting", retry_after_seconds=retry)


def _asked(connection: Connection, stored: StoredGroup, device_id: str, retry: float) -> AggregationTask:
    group = stored.group
    match group.stage:
        case "shares":
            return AggregationTask(stage="shares", retry_after_seconds=retry, roster=group.roster)
        case "masked":
            dealt = store.bodies(connection, stored.id, "shares", DealtShares)
            own = {name: each.sealed[device_id] for name, each in dealt.items() if name != device_id}
            return AggregationTask(stage="masked", retry_after_seconds=retry, deliveries=own)
        case "consistency":
            return AggregationTask(stage="consistency", retry_after_seconds=retry, survivors=group.survivors)
        case _:
            signed = store.bodies(connection, stored.id, "consistency", SurvivorSignature)
            signatures = {name: each.signature for name, each in signed.items()}
            return AggregationTask(stage="unmasking", retry_after_seconds=retry, signatures=signatures)


def _retry_after(settings: RoundSettings, seconds: float) -> float:
    """Often enough to answer within a stage, or a device that is awake would be dropped."""
    return min(seconds, settings.groups.stage_seconds / 4)
