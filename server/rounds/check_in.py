"""What a device is told when it checks in: what is current, which round wants something from it, when to come back."""

import logging
from typing import Any

from sqlalchemy import Connection, Row

from device_sdk.wire.messages import CheckedIn, CheckIn, RoundOffer
from server.devices.authentication import Sender, spend_nonce
from server.plans.round import RoundSettings, RoundState
from server.privacy.ledger import Caps
from server.problems import Refusal
from server.registry.marginals import find_marginals
from server.registry.models import current_version, find_model
from server.rounds.pacing import Demand, Fleet, demand_of, note_seen, window
from server.rounds.reports import is_affordable, reported_streams
from server.rounds.rollout.conduct import model_for
from server.rounds.sampling import is_sampled
from server.rounds.secure_aggregation.store import find_message
from server.rounds.secure_aggregation.unmasking import excluded_until
from server.rounds.store import read_settings, rounds_in
from server.settings import ServerSettings
from server.storage.database import Database

log = logging.getLogger("idiolect.server")


def check_in(
    database: Database, settings: ServerSettings, caps: Caps, sender: Sender, message: CheckIn, fleet: Fleet
) -> CheckedIn:
    """Answer one check-in, in a transaction. A stream is offered only if the device can still report in it: not yet
    reported, the same word list for marginals and words, and epsilon left under the cap. fleet: the process' count of
    its devices, which says with the open rounds when this one should come back. Raises Refusal: 403 ``other_device``,
    409 ``replayed``."""
    if message.device_id != sender.device_id:
        raise Refusal(403, "other_device", "device_id: differs from the device that signed", "device_id")
    with database.write() as connection:
        now = settings.clock()
        spend_nonce(connection, sender, now)
        note_seen(connection, message.device_id, now)
        model = model_for(connection, message.device_id, message.model_version, now)
        marginals = find_marginals(connection, int(current_version(connection, "marginals")))
        teacher = None if model.teacher is None else find_model(connection, model.teacher).sha256
        offer, demand = _offer(connection, caps, message, marginals.words_digest, now)
        devices, usual = fleet.size(connection, now), settings.retry_after_seconds
        return CheckedIn(
            model_version=model.version,
            model_sha256=model.sha256,
            marginals_version=marginals.version,
            marginals_sha256=marginals.sha256,
            round=offer,
            retry_after_seconds=window(devices, settings.check_ins_per_second, usual, demand).draw(),
            teacher_version=model.teacher,
            teacher_sha256=teacher,
        )


def _offer(
    connection: Connection, caps: Caps, message: CheckIn, words_digest: str, now: float
) -> tuple[RoundOffer | None, Demand | None]:
    opened = rounds_in(connection, RoundState.OPEN)
    if not opened:
        log.debug("offered nothing: no round is open")
    for row in opened:
        if row.deadline <= now or not is_sampled(connection, row, message.device_id):
            log.debug("round %s offers nothing: it did not draw this device, or is at its deadline", row.id)
            continue
        plans = read_settings(row)
        refused = _refused(connection, caps, message, row, plans, words_digest, now)
        wanted = [stream for stream in plans.streams if stream not in refused]
        reasons = "".join(f"; {stream} {why}" for stream, why in refused.items())
        log.debug("round %s offers %s%s", row.id, ", ".join(wanted) or "nothing", reasons)
        if wanted:
            offered = {stream: getattr(plans, stream) for stream in wanted}
            closes = row.deadline - now
            offer = RoundOffer(round_id=row.id, model_version=row.base_model, closes_in_seconds=closes, **offered)
            return offer, demand_of(row, plans, now)
    return None, None


def _refused(
    connection: Connection,
    caps: Caps,
    message: CheckIn,
    row: Row[Any],
    plans: RoundSettings,
    words_digest: str,
    now: float,
) -> dict[str, str]:
    """Streams of a round that a device cannot report in, and why."""
    done = reported_streams(connection, message.device_id, row.id)
    summed = plans.aggregated
    joined = summed and find_message(connection, row.id, message.device_id, "keys") is not None
    excluded = summed and excluded_until(connection, message.device_id, now) is not None
    found: dict[str, str] = {}
    for stream in plans.streams:
        if stream in done:
            found[stream] = "was reported already"
        elif stream == summed and joined:
            found[stream] = "is in a group already"
        elif stream == summed and excluded:
            found[stream] = "is left out of groups"
        elif plans.goal is not None and getattr(row, f"{stream}_reports") >= plans.goal:
            found[stream] = "has all its reports"
        elif stream != "deltas" and message.words_digest != words_digest:
            found[stream] = "is of another word list"
        elif not is_affordable(connection, message.device_id, stream, plans, caps):
            found[stream] = f"would pass the cap of epsilon, {caps.of(stream):g}"
    return found
