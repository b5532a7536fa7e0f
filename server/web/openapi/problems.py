"""Every way in which a request is refused: its status, and a Problem as it may look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.problems import Refusal

__all__ = ["PROBLEMS"]


def _named(*refusals: Refusal, **others: Refusal) -> Mapping[str, Refusal]:
    return {refusal.code: refusal for refusal in refusals} | others


PROBLEMS: Final[Mapping[str, Refusal]] = _named(
    Refusal(400, "disconnected", "body: the client went away"),
    Refusal(401, "bad_signature", "the signature does not belong to this method, path, round, body, nonce and time"),
    Refusal(401, "bad_token", "expected an operator token of this server as Authorization: Bearer", "Authorization"),
    Refusal(401, "stale_time", "time: found 1795000000, expected within 300 s of the server's 1795300000", "time"),
    Refusal(401, "token_revoked", "the token of operator anna was revoked", "Authorization"),
    Refusal(401, "unknown_device", "this device is not enrolled here", "X-Idiolect-Device"),
    Refusal(401, "unsigned", "header X-Idiolect-Nonce is missing; sign the request", "X-Idiolect-Nonce"),
    Refusal(403, "device_revoked", "this device was revoked", "X-Idiolect-Device"),
    Refusal(
        403,
        "excluded",
        "this device is left out of groups for 2592000 s: in one, shares were not what they must be",
        "device_id",
    ),
    Refusal(403, "other_device", "device_id: differs from the device that signed", "device_id"),
    Refusal(403, "privacy_cap", "marginals: this device's epsilon would pass the cap 100"),
    Refusal(403, "role", "operator anna is viewer; this wants operator", "Authorization"),
    Refusal(403, "token_expired", "token: this enrolment token has expired; ask for a new one", "token"),
    Refusal(403, "token_used_up", "token: this enrolment token let in the 50 devices it was for", "token"),
    Refusal(404, "no_difference", "no short way from model m1 to model m5; take all of it", "base"),
    Refusal(404, "no_such_route", "Not Found"),
    Refusal(404, "unknown_enrolment_token", "enrolment token 'spring' does not exist", "name"),
    Refusal(404, "unknown_marginals", "marginals 7 are not in the registry", "version"),
    Refusal(404, "unknown_metadata", "updates: no '9.root.json' here", "name"),
    Refusal(404, "unknown_model", "model 'm7' is not in the registry", "version"),
    Refusal(404, "unknown_operator", "operator 'anna' does not exist", "name"),
    Refusal(404, "unknown_round", "round 'r7-0a1b2c3d4e' does not exist", "round_id"),
    Refusal(408, "too_slow", "body: did not arrive in time"),
    Refusal(409, "already_reported", "this device already sent its one deltas report of round r7-0a1b2c3d4e"),
    Refusal(409, "busy", "this device is in a group of another round; finish that first", "device_id"),
    Refusal(409, "rollout_running", "model m6 is with a rollout; promote it or roll it back first", "version"),
    Refusal(409, "is_current", "model m5 is what every device has already", "version"),
    Refusal(409, "message_conflict", "this device sent another message at stage keys of this round", "stage"),
    Refusal(409, "name_taken", "name: 'anna' is or was an operator; choose another", "name"),
    Refusal(409, "no_rollout", "no model is with a rollout; begin with: idiolect models rollout VERSION"),
    Refusal(409, "not_collected", "round r7-0a1b2c3d4e does not collect deltas", "round_id"),
    Refusal(409, "no_devices", "no device is enrolled that could be asked; sample once there are some", "sampling"),
    Refusal(409, "not_sampled", "round r7-0a1b2c3d4e did not ask this device; a later one may", "device_id"),
    Refusal(409, "not_joined", "this device is in no group of this round", "device_id"),
    Refusal(409, "other_stage", "stage: found shares, the group is at masked", "stage"),
    Refusal(409, "other_words", "words_digest: counts are over another word list", "words_digest"),
    Refusal(409, "replayed", "this request was received before; sign it anew", "X-Idiolect-Nonce"),
    Refusal(409, "report_conflict", "this report id was used for another report", "report_id"),
    Refusal(409, "round_closed", "round r7-0a1b2c3d4e is published; it takes no more reports", "round_id"),
    Refusal(409, "round_open", "round r7-0a1b2c3d4e is open; close or abandon it first", "state"),
    Refusal(409, "stale_model", "model_version: delta is on m4, the round is on m5", "model_version"),
    Refusal(409, "version_exists", "model m5 exists with other weights; choose a new version"),
    Refusal(409, "worse", "model m6: word error rose from 0.18 to 0.21; force it, or roll it back", "version"),
    Refusal(409, "wrong_state", "round is published; it cannot become open, only nothing", "state"),
    Refusal(410, "marginals_removed", "marginals 3 were removed with their round", "version"),
    Refusal(410, "model_removed", "model m1: its weights are no longer kept", "version"),
    Refusal(413, "too_large", "body: more than 65536 bytes"),
    Refusal(415, "encoding", "body: expected no content-encoding", "Content-Encoding"),
    Refusal(416, "bad_range", "Range: found nothing to send, expected bytes=FIRST-LAST within */9400000", "Range"),
    Refusal(422, "bad_counts", "counts: word 9 has 512, expected at most 256", "counts"),
    Refusal(422, "bad_delta", "encoder.0.W: found shape [8, 6], expected [1, 1280, 192]", "encoder.0.W"),
    Refusal(422, "bad_key", "public_key: expected the base64 of a raw Ed25519 key of 32 bytes", "public_key"),
    Refusal(422, "bad_marginals", "probabilities: found 39 words, expected 40", "probabilities"),
    Refusal(422, "bad_message", "CheckIn: Field required", "model_version"),
    Refusal(422, "bad_request", "Input should be less than or equal to 1000", "limit"),
    Refusal(422, "bad_weights", "encoder.0.W: not a parameter of this round's model"),
    Refusal(422, "bad_words", "words: found 9, expected at most 5", "words"),
    Refusal(422, "no_rehearsal", "this server has no transcribed speech; start it with --rehearsal", "rehearsal"),
    Refusal(422, "other_plan", "encoding: found float16, the round asks for float32", "encoding"),
    Refusal(422, "other_round", "round_id: found r6, the address says r7", "round_id"),
    Refusal(422, "too_few_utterances", "utterances: found 2, expected at least 8", "utterances"),
    Refusal(422, "too_many_utterances", "utterances: found 20, a gradient is of at most 16", "utterances"),
    Refusal(422, "unstorable", "a text of this request holds what no database stores, such as NUL"),
    Refusal(422, "utterances", "utterances: expected at most 1000000", "utterances"),
    Refusal(429, "too_many_requests", "this address asks too often; ask again in 3 s", retry_after=3),
    Refusal(500, "internal", "the server failed; nothing of this request was counted, send it again"),
    Refusal(503, "no_room", "the server takes in other bodies now; send it again later", retry_after=5),
    # Codes that mean something else elsewhere.
    bad_enrolment_token=Refusal(401, "bad_token", "token: not this server's enrolment token", "token"),
    enrolment_token_revoked=Refusal(403, "token_revoked", "token: this enrolment token was revoked", "token"),
    not_enrolled=Refusal(404, "unknown_device", "device '9f86d081884c7d65' is not enrolled", "device_id"),
    unread_range=Refusal(400, "bad_range", "Range: cannot be read, expected bytes=FIRST-LAST", "Range"),
    no_cap_left=Refusal(409, "privacy_cap", "deltas: a device that is eligible would pass the cap 8", "deltas"),
    dear_plan=Refusal(422, "privacy_cap", "deltas: one report costs more than this server's cap 8", "deltas"),
)
"""By code, or by a name of its own where a code has several statuses."""
