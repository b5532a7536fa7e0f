"""A check-in from the first request to the last: what is sent, asked and fetched, in that order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from device_sdk.checkin import aggregation, budget, exchange, identity
from device_sdk.checkin import word_report as naming
from device_sdk.checkin.refusals import Refused
from device_sdk.checkin.taken_back import take_back
from device_sdk.checkin.updates.fetching import Base, Wanted, base_of, fetch, install, largest, teacher_of
from device_sdk.checkin.updates.release import Adopted
from device_sdk.errors import CheckInError
from device_sdk.learning.delta import difference, mean
from device_sdk.state import records
from device_sdk.wire.messages import CheckedIn, CheckIn

if TYPE_CHECKING:
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.exchange import CheckInReport
    from device_sdk.checkin.identity import Identity
    from device_sdk.learning.memory import Recent
    from device_sdk.model_state import ModelState
    from device_sdk.settings import DeviceSettings
    from device_sdk.state import Store
    from device_sdk.wire.messages import DeltaPlan, MarginalPlan, RoundOffer, WordPlan

__all__ = ["run_session"]

_UNMEASURED = {
    "loss": (
        "deltas: found a round that weighs devices by their training loss, and no loss of at least 0 since the model "
        "came (REINFORCE has none); use another objective, or rounds that weigh devices in another way"
    ),
    "word_error": (
        "deltas: found a round that weighs devices by their word error, and no utterance since the model came whose "
        "words the user gave"
    ),
}
_NO_GRADIENTS = (
    "deltas: found a round that collects gradients of the published weights, and learning.subset 'adapters', which has "
    "gradients of its factors only; use another subset, or collect differences"
)


def run_session(
    client: Client,
    token: str | None,
    model_state: ModelState,
    recent: Recent,
    settings: DeviceSettings,
    trusted_root: bytes | None = None,
    *,
    turn: AbstractContextManager[object],
) -> CheckInReport:
    """Sends what waits and what is due, and fetches what is newer. token: to enrol with, where this is the first time.
    trusted_root: what is fetched must be signed by who it names; None takes the server's word. turn: kept while what
    the device learned is read or changed, and never over a request.

    A server that no longer knows this device, since it was lost or restored, gets to know it again by the same key; one
    whose clock is another than the device's is signed for by its own. Each is done once.

    CheckInError: the server cannot be reached or refuses. BundleError: its model is unfit. Either way everything is
    kept, and the next session goes on where this one ended.
    """
    who = _enrolled(client, token, model_state)
    mended: set[str] = set()
    while True:
        try:
            return _visit(client, who, model_state, recent, settings, trusted_root, turn)
        except Refused as error:
            if error.code in mended:
                raise
            mended.add(error.code)
            who = _mended(client, who, token or who.token, model_state.store, error)


def _mended(client: Client, who: Identity, token: str | None, store: Store, error: Refused) -> Identity:
    """Who the device is to a server that refused it, after what that takes. Raises the error where nothing helps."""
    if error.code == "unknown_device" and error.status == 401:
        if token is None:
            raise Refused(
                f"{error}; check in with an enrolment token", error.status, error.code, error.server_time
            ) from error
        return identity.enrolled(store, who, client.enrol(token, who), token)
    if error.code == "stale_time" and error.status == 401 and error.server_time is not None:
        found = identity.corrected(store, who, error.server_time)
        if found is None:
            days = identity.FARTHEST / 86_400
            raise CheckInError(
                f"{client.url}: this device's clock and the server's are more than {days:.0f} days apart, which is not "
                "corrected; set it"
            ) from error
        return found
    raise error


def _visit(
    client: Client,
    who: Identity,
    model_state: ModelState,
    recent: Recent,
    settings: DeviceSettings,
    trusted_root: bytes | None,
    turn: AbstractContextManager[object],
) -> CheckInReport:
    store = model_state.store
    sent = exchange.flush(client, store, who, partial(take_back, model_state))
    answer = client.check_in(
        who,
        CheckIn(
            device_id=who.device_id or "",
            bundle_format=model_state.packaged.manifest.format_version,
            model_version=model_state.base.version,
            marginals_version=model_state.marginals_version,
            words_digest=model_state.base.words.digest,
        ),
    )
    anew = model_state.differs_in_model(answer.model_version, answer.model_sha256)
    with turn:
        left_out = _enqueue(who, answer, model_state, recent, settings, same_model=not anew)
    sent += exchange.flush(client, store, who, partial(take_back, model_state))
    willing = settings.share_marginals and model_state.consent.marginals
    aggregated = aggregation.take_part(
        client, who, model_state, recent, answer.round, willing=willing, bounds=settings.bounds
    )
    sent += aggregated.sent
    if trusted_root is None:
        adopted = _adopt(client, answer, model_state, settings, turn)
    else:
        from device_sdk.checkin.updates.adoption import adopt

        adopted = adopt(client, model_state, settings, trusted_root, who.device_id or "", turn=turn)
    return exchange.CheckInReport(
        round_id=answer.round.round_id if answer.round else None,
        model_version=model_state.base.version,
        new_model=adopted.new_model,
        marginals_version=model_state.marginals_version,
        new_marginals=adopted.new_marginals,
        sent=sent,
        bytes_up=client.bytes_up,
        bytes_down=client.bytes_down,
        due_in_seconds=min(answer.retry_after_seconds, aggregated.due_in_seconds or answer.retry_after_seconds),
        teacher_version=model_state.student.teacher_version,
        left_out=left_out + aggregated.left_out,
        updates_refused=adopted.refused,
    )


def _adopt(
    client: Client,
    answer: CheckedIn,
    model_state: ModelState,
    settings: DeviceSettings,
    turn: AbstractContextManager[object],
) -> Adopted:
    """Fetches what is another than what is here, as the answer says."""
    new_model = model_state.differs_in_model(answer.model_version, answer.model_sha256)
    if new_model:
        content = _weights(client, model_state, answer.model_version, answer.model_sha256, base_of(model_state))
        with turn:
            install(model_state, answer.model_version, content, settings.learning.keep)
    if settings.learning.teacher.schedule == "server":
        _fetch_teacher(client, answer, model_state, turn)
    new_marginals = model_state.differs_in_marginals(answer.marginals_version, answer.marginals_sha256)
    if new_marginals:
        message = client.marginals(answer.marginals_version, len(model_state.base.words))
        digest = model_state.base.words.digest
        values = exchange.decode_marginals(message, digest, len(model_state.base.words))
        model_state.keep_marginals(message.marginals_version, digest, values)
    return Adopted(new_model, new_marginals)


def _enrolled(client: Client, token: str | None, model_state: ModelState) -> Identity:
    who = identity.load(model_state.store, client.url)
    if who is None or who.device_id is None:
        if token is None:
            raise CheckInError(f"{client.url}: this device is not enrolled there, expected an enrolment token")
        if who is None:
            who = identity.new(model_state.store, client.url)
        who = identity.enrolled(model_state.store, who, client.enrol(token, who), token)
    return who


def _enqueue(
    who: Identity,
    answer: CheckedIn,
    model_state: ModelState,
    recent: Recent,
    settings: DeviceSettings,
    *,
    same_model: bool,
) -> tuple[str, ...]:
    """Puts this round's reports into the outbox, each stream once a round, where the user has agreed to it. Returns why
    a stream that could be sent is left out. same_model: whether what is current is here, not only of its name."""
    offer, store = answer.round, model_state.store
    if offer is None:
        return ()
    left_out: list[str] = []
    bounds = settings.bounds

    def fits(kind: str, plan: MarginalPlan | DeltaPlan | WordPlan) -> bool:
        """Whether a report is due by this plan, and within what the device allows; says so where it is not."""
        if exchange.has_reported(store, who, offer.round_id, kind):
            return False
        why = budget.refused(store, bounds, plan)
        left_out.extend(() if why is None else (why,))
        return why is None

    with model_state.together():
        plan = offer.marginals
        wanted = settings.share_marginals and model_state.consent.marginals
        # A share of the noise hides nothing in the clear: such a round is answered under secure aggregation only.
        wanted = wanted and (plan is None or plan.trust != "distributed")
        if plan is not None and wanted and fits("marginals", plan):
            cache = exchange.enqueue_marginals(store, who, offer, plan, model_state.cache)
            if cache is not model_state.cache:
                budget.charge(store, bounds, plan)
            model_state.keep_cache(cache)
            recent.reported()
        named = offer.words if settings.share_words and model_state.consent.words else None
        if named is not None and fits("words", named):
            most, digest = settings.max_new_words, model_state.base.words.digest
            if naming.enqueue_words(store, who, offer, named, model_state.given, most, digest):
                budget.charge(store, bounds, named)
            model_state.keep_given({})
            recent.named()
        deltas = offer.deltas if settings.share_deltas and model_state.consent.deltas else None
        if offer.model_version == answer.model_version and not same_model:
            deltas = None
        if deltas is not None and deltas.kind == "gradient" and settings.learning.subset == "adapters":
            return (*left_out, _NO_GRADIENTS)
        if deltas is not None and fits("deltas", deltas):
            waiting = len(store.names("outbox"))
            why = _enqueue_delta(who, offer, deltas, model_state)
            if len(store.names("outbox")) > waiting:
                budget.charge(store, bounds, deltas)
            left_out.extend(() if why is None else (why,))
    return tuple(left_out)


def _enqueue_delta(who: Identity, offer: RoundOffer, plan: DeltaPlan, model_state: ModelState) -> str | None:
    """Puts what was learned into the outbox, once a round, where there is enough of the kind that the plan asks for.
    Returns why it is left out though there is enough.

    A plan of another kind than the last takes effect with what is heard from now on: gradients are of the published
    weights, and are summed up instead of taking steps. Every gradient leaves in one report.
    """
    limit = plan.batch_size if plan.kind == "gradient" else None
    gradients = model_state.student.gradients
    if limit != (None if gradients is None else gradients.limit):
        model_state.collect(limit)
    if offer.model_version != model_state.base.version or exchange.has_reported(
        model_state.store, who, offer.round_id, "deltas"
    ):
        return None
    student = model_state.student
    utterances = student.utterances if student.gradients is None else student.gradients.utterances
    if utterances < plan.minimum_utterances:
        return None
    measures = student.measures
    told = {"none": 0.0, "loss": measures.mean_loss, "word_error": measures.word_error}
    if told[plan.measure] is None:
        return _UNMEASURED[plan.measure]
    if student.gradients is not None:
        delta = mean(student.gradients)
    else:
        start = student.start or {name: model_state.base.weights[name] for name in student.weights}
        delta = difference(student.weights, start)
    exchange.enqueue_delta(model_state.store, who, offer, plan, delta, utterances, measures)
    if student.gradients is not None:
        model_state.collect(limit)
    return None


def _fetch_teacher(
    client: Client, answer: CheckedIn, model_state: ModelState, turn: AbstractContextManager[object]
) -> None:
    version, digest = answer.teacher_version, answer.teacher_sha256
    if version is None or digest is None:
        with turn:
            model_state.adopt_teacher(None)
    elif model_state.differs_in_teacher(version, digest):
        content = _weights(client, model_state, version, digest, teacher_of(model_state))
        with turn:
            model_state.adopt_teacher(records.Published(version, content))


def _weights(client: Client, model_state: ModelState, version: str, digest: str, base: Base) -> bytes:
    def check(content: bytes) -> None:
        found = sha256(content).hexdigest()
        if found != digest:
            raise CheckInError(f"model {version}: sha256: found {found}, expected {digest}; the download is dropped")

    return fetch(
        client, model_state.store, Wanted(version, digest, largest(model_state.base.architecture), check), base
    )
