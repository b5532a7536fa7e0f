"""A check-in from the first request to the last: what is sent, asked and fetched, in that order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from device_sdk.checkin import aggregation, budget, deltas, identity, reports
from device_sdk.checkin.connection import Refused
from device_sdk.checkin.updates import adoption
from device_sdk.errors import CheckInError
from device_sdk.privacy.spending import stream_of
from device_sdk.wire.messages import CheckedIn, CheckIn, DeltaPlan, MarginalPlan, WordPlan

if TYPE_CHECKING:
    from device_sdk.checkin.at_hand import Session
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.identity import Identity
    from device_sdk.sent import Sent
    from device_sdk.state import Store
    from device_sdk.wire.messages import RoundOffer


@dataclass(frozen=True, slots=True)
class CheckInReport:
    """What a check-in did. round_id: the open round, if any. model_version, marginals_version: now on the device;
    new_model, new_marginals: whether this check-in brought them. bytes_up, bytes_down: bodies, without headers.
    due_in_seconds: when the server wants the device back. teacher_version: of the server's teacher that labels here,
    None where the teacher is the device's own. left_out: why streams that the user shares and the round asks for are
    not part of it. updates_refused: what the app's trusted root does not vouch for, by name, and why; nothing of it
    came."""

    round_id: str | None
    model_version: str
    new_model: bool
    marginals_version: int
    new_marginals: bool
    sent: tuple[Sent, ...]
    bytes_up: int
    bytes_down: int
    due_in_seconds: float
    teacher_version: str | None = None
    left_out: tuple[str, ...] = ()
    updates_refused: tuple[str, ...] = ()


def run_session(session: Session, token: str | None) -> CheckInReport:
    """Sends what waits and what is due, and fetches what is newer. token: to enrol with, where this is the first time.
    A server that no longer knows this device, since it was lost or restored, gets to know it again by the same key; one
    whose clock is another than the device's is signed for by its own. Each is done once. CheckInError: the server
    cannot be reached or refuses; its ``sent`` is what was done before. BundleError: its model is unfit. Either way
    everything is kept, and the next session goes on where this one ended."""
    try:
        return _run(session, token)
    except CheckInError as error:
        error.sent = tuple(session.sent)
        raise


def _run(session: Session, token: str | None) -> CheckInReport:
    client, store = session.client, session.model_state.store
    who = _enrolled(client, token, store)
    mended: set[str] = set()
    while True:
        try:
            return _exchange(session, who)
        except Refused as error:
            if error.code in mended:
                raise
            mended.add(error.code)
            who = _mended(client, who, token or who.token, store, error)


def _enrolled(client: Client, token: str | None, store: Store) -> Identity:
    who = identity.load(store, client.url)
    if who is not None and who.device_id is not None:
        return who
    if token is None:
        raise CheckInError(f"{client.url}: this device is not enrolled there, expected an enrolment token")
    if who is None:
        who = identity.create(store, client.url)
    return identity.keep_id(store, who, client.enrol(token, who), token)


def _mended(client: Client, who: Identity, token: str | None, store: Store, error: Refused) -> Identity:
    """Who the device is to a server that refused it, after what that takes. Raises the error where nothing helps."""
    if error.code == "unknown_device" and error.status == 401:
        if token is None:
            raise Refused(f"{error}; check in with an enrolment token", error.status, error.code) from error
        return identity.keep_id(store, who, client.enrol(token, who), token)
    if error.code == "stale_time" and error.status == 401 and error.server_time is not None:
        corrected = identity.correct_clock(store, who, error.server_time)
        if corrected is None:
            apart = f"more than {identity.FARTHEST / 86_400:.0f} days apart, which is not corrected; set it"
            raise CheckInError(f"{client.url}: this device's clock and the server's are {apart}") from error
        return corrected
    raise error


def _exchange(session: Session, who: Identity) -> CheckInReport:
    client, model_state = session.client, session.model_state
    take_back = partial(reports.take_back, model_state)
    flush = partial(reports.flush, client, model_state.store, who, take_back, session.sent)
    flush()
    has = CheckIn(
        device_id=who.device_id or "",
        bundle_format=model_state.packaged.manifest.format_version,
        model_version=model_state.base.version,
        marginals_version=model_state.marginals_version,
        words_digest=model_state.base.words.digest,
    )
    answer = client.check_in(who, has)
    offer = _offered(session, answer)
    left_out = _enqueue(session, who, offer)
    flush()
    aggregated = aggregation.take_part(session, who, offer)
    new_model, new_marginals, refused = _update(session, who, answer)
    return CheckInReport(
        round_id=answer.round.round_id if answer.round else None,
        model_version=model_state.base.version,
        new_model=new_model,
        marginals_version=model_state.marginals_version,
        new_marginals=new_marginals,
        sent=tuple(session.sent),
        bytes_up=client.bytes_up,
        bytes_down=client.bytes_down,
        due_in_seconds=min(answer.retry_after_seconds, aggregated.due_in_seconds or answer.retry_after_seconds),
        teacher_version=model_state.student.teacher_version,
        left_out=left_out + aggregated.left_out,
        updates_refused=refused,
    )


def _update(session: Session, who: Identity, answer: CheckedIn) -> tuple[bool, bool, tuple[str, ...]]:
    """With a root to trust, the signed metadata decides what is current, whatever the server's answer says."""
    client, model_state, root = session.client, session.model_state, session.trusted_root
    if root is None:
        release = adoption.announced(answer, model_state)
    else:
        from device_sdk.checkin.updates.metadata import refresh

        try:
            release = refresh(client, model_state.store, root, who.device_id or "")
        except CheckInError as error:
            stays = f"model {model_state.base.version} and marginals {model_state.marginals_version} stay"
            return False, False, (f"updates: {error}; {stays}",)
    return adoption.adopt(client, model_state, session.settings, release, signed=root is not None, turn=session.turn)


def _offered(session: Session, answer: CheckedIn) -> RoundOffer | None:
    """The round, without deltas where what is current is another model than the device's, of the same name."""
    offer = answer.round
    if offer is None or offer.model_version != answer.model_version:
        return offer
    stale = session.model_state.differs_in_model(answer.model_version, answer.model_sha256)
    return offer.model_copy(update={"deltas": None}) if stale else offer


def _enqueue(session: Session, who: Identity, offer: RoundOffer | None) -> tuple[str, ...]:
    """Puts this round's reports into the outbox, once a stream that the user agreed to. Returns why one is left out."""
    model_state, settings = session.model_state, session.settings
    if offer is None:
        return ()
    left_out: list[str] = []
    with session.turn, model_state.together():
        for plan in (offer.marginals, offer.words, offer.deltas):
            if plan is None:
                continue
            stream = stream_of(plan)
            shared = getattr(settings, f"share_{stream}") and getattr(model_state.consent, stream)
            if not shared or reports.has_reported(model_state.store, who, offer.round_id, stream):
                continue
            if not isinstance(plan, WordPlan) and plan.trust == "distributed":
                continue  # a share of the noise hides nothing in the clear: secure aggregation answers it
            if isinstance(plan, DeltaPlan):
                why = _enqueue_delta(session, who, offer, plan)
            elif (why := budget.refusal(model_state.store, settings.bounds, plan)) is not None:
                pass
            elif isinstance(plan, MarginalPlan):
                held = model_state.cache, model_state.base.background
                cache = reports.enqueue_marginals(model_state.store, who, offer, plan, settings.bounds, *held)
                model_state.keep_cache(cache)
                session.recent.reported()
            else:
                reports.enqueue_words(who, offer, plan, settings.bounds, model_state, settings.max_new_words)
                session.recent.words_reported()
            left_out += [] if why is None else [why]
    return tuple(left_out)


def _enqueue_delta(session: Session, who: Identity, offer: RoundOffer, plan: DeltaPlan) -> str | None:
    """Puts what was learned into the outbox, where there is enough of the kind that the plan asks for. Returns why it
    is left out though the plan, or what was learned, would do otherwise."""
    model_state, bounds = session.model_state, session.settings.bounds
    if (why := budget.refusal(model_state.store, bounds, plan)) is not None:
        return why
    found = deltas.due(model_state, session.settings, offer.model_version, plan)
    if isinstance(found, deltas.Due):
        held = found.arrays, found.utterances, found.measures
        reports.enqueue_delta(model_state.store, who, offer, plan, bounds, *held)
        deltas.taken(model_state, plan)
        return None
    return found
