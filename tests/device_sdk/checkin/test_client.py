import base64
import copy
import json
from hashlib import sha256
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from safetensors.numpy import load

from device_sdk import CheckInError, Client, OfferBounds, StateError
from device_sdk.checkin import identity
from device_sdk.checkin.connection import Refused
from device_sdk.checkin.reports import enqueue_delta, enqueue_marginals, flush, has_reported, restored_counts
from device_sdk.checkin.updates.adoption import decode_marginals
from device_sdk.learning.delta import difference
from device_sdk.personalization.cache import MarginalCache
from device_sdk.sent import Sent
from device_sdk.state import Store, records
from device_sdk.state.outbox import Outgoing, keep, release, waiting
from device_sdk.wire import messages, signing
from device_sdk.wire.messages import CheckIn, DeltaPlan, MarginalPlan, MarginalReport, Marginals, RoundOffer
from tests.device_sdk.devices import even

URL = "http://server.test"


@pytest.fixture
def who(store: Store) -> identity.Identity:
    return identity.keep_id(store, identity.create(store, URL), "device-1")


class Answers:
    """A server as a list of answers; remembers every request. An exception in the list is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> Client:
        return Client(URL, transport=httpx.MockTransport(self), pause=self.pauses.append, plain_http=True)


def receipt(report_id: str, duplicate: bool = False) -> httpx.Response:
    return httpx.Response(200, json={"version": 1, "report_id": report_id, "duplicate": duplicate})


def problem(status: int, code: str = "round_closed") -> httpx.Response:
    return httpx.Response(status, json={"version": 1, "code": code, "detail": "it is over", "field": "round_id"})


REPORT = Outgoing("report-1", URL, "deltas", "round-3", bytes(100))


def test_identity_survives_and_is_bound_to_its_server(store: Store) -> None:
    assert identity.load(store, URL) is None
    fresh = identity.create(store, URL)
    assert identity.load(store, URL) == fresh
    named = identity.keep_id(store, fresh, "device-7")
    assert identity.load(store, URL) == named and named.public_key == fresh.public_key
    assert len(base64.b64decode(named.public_key)) == 32 and identity.load(store, "http://other.test") is None
    other = identity.create(store, "http://other.test")
    assert identity.load(store, URL) == named and other.public_key != named.public_key
    store.put("identity", store.names("identity")[0], b"{}")
    with pytest.raises(StateError, match="identity/"):
        identity.load(store, URL)


def test_signed_requests_can_be_verified(who: identity.Identity) -> None:
    report = Outgoing("report-1", URL, "marginals", "round-3", b'{"a":1}')
    server = Answers(receipt("report-1"))
    client = server.client()
    assert not client.report(who, report).duplicate
    request = server.requests[0]
    assert request.url.path == "/v1/rounds/round-3/marginals" and request.content == report.body
    assert request.headers[signing.DEVICE] == "device-1"
    digest, stamp = sha256(request.content).hexdigest(), int(request.headers[signing.TIMESTAMP])
    assert request.headers[signing.BODY_DIGEST] == digest
    message = signing.signed_digest("POST", request.url.path, "round-3", digest, request.headers[signing.NONCE], stamp)
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(who.public_key))
    public.verify(base64.b64decode(request.headers[signing.SIGNATURE]), message)
    assert client.bytes_up == len(report.body) and client.bytes_down > 0


def test_a_dropped_answer_is_retried_with_the_same_bytes_and_another_nonce(who: identity.Identity) -> None:
    server = Answers(httpx.ReadTimeout("lost"), httpx.Response(503), receipt("report-1", duplicate=True))
    assert server.client().report(who, REPORT).duplicate
    assert [request.content for request in server.requests] == [REPORT.body] * 3
    assert len({request.headers[signing.NONCE] for request in server.requests}) == 3
    assert len(server.pauses) == 2 and 0 < server.pauses[0] < server.pauses[1] * 2 + 1


def test_a_server_that_is_asked_too_often_is_left_alone_as_long_as_it_wants(who: identity.Identity) -> None:
    limited = [httpx.Response(429, headers={"Retry-After": told}) for told in ("20", "soon")]
    server = Answers(*limited, receipt("report-1"))
    server.client().report(who, REPORT)
    assert 20 < server.pauses[0] < 21.1 and server.pauses[1] < 3
    server = Answers(httpx.Response(429, headers={"Retry-After": "3600"}))
    with pytest.raises(CheckInError, match=r"a pause of 3600 s .*everything is kept"):
        server.client().report(who, REPORT)
    assert server.pauses == []


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([httpx.ConnectError("refused")] * 3, r"http://server.test/v1/check-in: no usable answer after 3 tries.*kept"),
        ([httpx.Response(500)] * 3, "status 500"),
        ([problem(401, "bad_signature")], "status 401, bad_signature: round_id: it is over"),
        ([httpx.Response(404, text="<html>")], "refused with status 404"),
        ([httpx.Response(200, text="not json")], r"CheckedIn\."),
        ([httpx.Response(200, json={"version": 2})], r"CheckedIn\."),
    ],
)
def test_errors_name_the_url(who: identity.Identity, answers: list[Any], words: str) -> None:
    message = CheckIn(device_id="d", bundle_format=1, model_version="m", marginals_version=0, words_digest="w")
    with pytest.raises(CheckInError, match=words):
        Answers(*answers).client().check_in(who, message)


def test_what_is_no_receipt(who: identity.Identity) -> None:
    with pytest.raises(Refused) as raised:
        Answers(problem(409)).client().report(who, REPORT)
    other = copy.copy(raised.value)
    assert (str(other), other.status, other.code) == (str(raised.value), 409, "round_closed"), "it is whole as a copy"
    with pytest.raises(CheckInError, match="receipt: found report 'other'"):
        Answers(receipt("other")).client().report(who, REPORT)


@pytest.mark.parametrize("url", ["ftp://server.test", "no address", "http://[::bad"])
def test_unusable_addresses(url: str) -> None:
    with pytest.raises(CheckInError, match=r"expected http|not a usable"):
        Client(url)


def cache(pending: list[float], utterances: int = 3) -> MarginalCache:
    values = np.array(pending)
    return MarginalCache("digest", values + 1.0, values, {"secret": 2.0}, 10, utterances)


OFFER = RoundOffer(round_id="round-1", model_version="m1", closes_in_seconds=60)


def test_marginals_are_taken_off_the_books_and_put_back_on_refusal(store: Store, who: identity.Identity) -> None:
    before = cache([0.0, 3.0, 0.5, 0.25])
    after = enqueue_marginals(
        store, who, OFFER, MarginalPlan(max_words=2), OfferBounds(), before, even(len(before.pending))
    )
    assert after.pending.sum() == 0 and after.pending_utterances == 0
    assert has_reported(store, who, "round-1", "marginals") and not has_reported(store, who, "round-1", "deltas")
    (report,) = waiting(store, URL)
    message = MarginalReport.model_validate_json(report.body)
    assert message.counts == {1: 256, 2: 128} and message.utterances == 3
    assert b"secret" not in report.body + report.restore
    back = restored_counts(store, after, report)
    np.testing.assert_array_equal(back.pending, before.pending)
    assert back.pending_utterances == 3
    other = MarginalCache("another list", after.counts, after.pending, {})
    assert restored_counts(store, other, report) is other


def test_mode_paper_sends_every_count_so_far(store: Store, who: identity.Identity) -> None:
    """Without a bound, and again in every round; what a server refuses is counted once all the same."""
    plan = MarginalPlan(mode="paper")

    def counts(round_id: str, pending: list[float]) -> tuple[dict[int, int], MarginalCache]:
        offer = OFFER.model_copy(update={"round_id": round_id})
        after = enqueue_marginals(store, who, offer, plan, OfferBounds(), cache(pending), even(len(pending)))
        return MarginalReport.model_validate_json([*waiting(store, URL)][-1].body).counts, after

    assert counts("round-1", [0.0, 3.0, 0.5])[0] == {1: 768, 2: 128}
    second, after = counts("round-2", [30.0, 1.0, 0.0])
    assert second == {0: 7680, 1: 1024, 2: 128} and after.pending.sum() == 0
    back = restored_counts(store, after, [*waiting(store, URL)][-1])
    np.testing.assert_array_equal(back.pending, [30.0, 1.0, 0.0])
    assert counts("round-3", back.pending.tolist())[0] == second
    assert records.read_reported(store, "another list", 3).sum() == 0
    store.delete("counts", "reported")
    assert counts("round-4", [1.0, 0.0, 0.0])[0] == {0: 256}


def test_nothing_to_say_sends_nothing(store: Store, who: identity.Identity) -> None:
    before = cache([0.0, 0.0])
    assert (
        enqueue_marginals(store, who, OFFER, MarginalPlan(), OfferBounds(), before, even(len(before.pending))) is before
    )
    assert [*waiting(store, URL)] == [] and has_reported(store, who, "round-1", "marginals")


def test_local_trust_tells_neither_whether_nor_how_much_was_said(store: Store, who: identity.Identity) -> None:
    for number, pending in enumerate(([0.0] * 200, [1.0] * 200)):
        offer = OFFER.model_copy(update={"round_id": f"r{number}"})
        plan = MarginalPlan(trust="local", max_weight=1e-4)
        enqueue_marginals(store, who, offer, plan, OfferBounds(), cache(pending), even(len(pending)))
    silent, spoke = (MarginalReport.model_validate_json(report.body) for report in waiting(store, URL))
    assert silent.utterances == spoke.utterances == 0 and len(silent.counts) > 100


def test_the_delta_is_drawn_once(store: Store, who: identity.Identity) -> None:
    base = {"b": np.zeros(4, np.float32), "a": np.zeros((2, 2), np.float32)}
    local = {name: array + 1 for name, array in base.items()}
    noisy, delta = DeltaPlan(clip_norm=0.5, noise_stddev=0.1), difference(local, base)
    enqueue_delta(store, who, OFFER, noisy, OfferBounds(), delta, 7)
    (first,), (second,) = waiting(store, URL), waiting(store, URL)
    assert first.body == second.body
    size = int.from_bytes(first.body[:8], "little")
    header = messages.DeltaHeader.model_validate_json(json.loads(first.body[8 : 8 + size])["__metadata__"]["header"])
    assert (header.report_id, header.utterances, header.model_version) == (first.report_id, 7, "m1")
    assert {name: array.shape for name, array in load(first.body).items()} == {"a": (2, 2), "b": (4,)}
    enqueue_delta(store, who, OFFER, DeltaPlan(clip_norm=0.5), OfferBounds(), delta, 7)
    np.testing.assert_allclose(load([*waiting(store, URL)][1].body)["b"], 0.5 / np.sqrt(8), rtol=1e-6)


def test_the_outbox_empties_only_on_receipts_and_final_refusals(store: Store, who: identity.Identity) -> None:
    for name in ("one", "two", "three", "four"):
        keep(store, Outgoing(name, URL, "marginals", "round-1", name.encode(), b"held " + name.encode()))
    returned: list[bytes] = []
    sent: list[Sent] = []

    def take_back(report: Outgoing) -> None:
        release(store, report.report_id)
        returned.append(report.restore)

    server = Answers(httpx.Response(404, text="<html>"))
    with pytest.raises(Refused, match="404, without a reason"):  # not the server's own words: nothing is settled
        flush(server.client(), store, who, take_back, sent)
    assert len([*waiting(store, URL)]) == 4
    server = Answers(receipt("one"), problem(410), problem(401, "unknown_device"))
    with pytest.raises(Refused, match="unknown_device"):
        flush(server.client(), store, who, take_back, sent)
    assert [report.report_id for report in waiting(store, URL)] == ["three", "four"] and returned == [b"held two"]
    server = Answers(receipt("three", duplicate=True), *[httpx.ConnectError("down")] * 3)
    with pytest.raises(CheckInError):
        flush(server.client(), store, who, take_back, sent)
    assert [report.body for report in waiting(store, URL)] == [b"four"]
    flush(Answers(receipt("four")).client(), store, who, take_back, sent)
    assert [(each.report_id, each.duplicate, each.refused is None, each.size) for each in sent] == [
        *(("one", False, True, 3), ("two", False, False, 3), ("three", True, True, 5), ("four", False, True, 4))
    ]
    assert records.read_number(store, "marginals_sent") == 3 and [*waiting(store, URL)] == []
    store.put("outbox", "bad", b"\x00\x00\x00\x09{")
    with pytest.raises(StateError, match="outbox/bad"):
        next(waiting(store, URL))


def published(values: list[float], digest: str = "digest") -> Marginals:
    text = base64.b64encode(np.array(values, "<f8").tobytes()).decode()
    return Marginals(marginals_version=3, words_digest=digest, probabilities=text)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (published([0.5, 0.5], "other"), "words_digest"),
        (published([0.5, 0.25, 0.25]), "found 24 bytes, expected 16"),
        (published([0.5, 0.6]), "sum to 1"),
        (published([1.5, -0.5]), "sum to 1"),
        (published([np.nan, 0.5]), "sum to 1"),
        (Marginals(marginals_version=3, words_digest="digest", probabilities="!!"), "base64"),
    ],
)
def test_marginals_that_cannot_be_used(message: Marginals, words: str) -> None:
    with pytest.raises(CheckInError, match=words):
        decode_marginals(message, "digest", 2)
    np.testing.assert_array_equal(decode_marginals(published([0.25, 0.75]), "digest", 2), [0.25, 0.75])
