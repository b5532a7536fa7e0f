"""Rounds that collect words outside the public list: what is offered, taken, refused, charged and released."""

from pathlib import Path
from typing import Any

import pytest

from device_sdk.wire.messages import CheckedIn, WordPlan
from server.privacy.new_words import threshold
from server.rounds.releases import Release, store_release
from tests.server.parties import HEADERS, NO_NOISE, Operator, Party, serving

TWICE = {"epsilon": NO_NOISE}
"""A plan that releases what two devices name."""


def opened(operator: Operator, **plan: Any) -> str:
    return operator.open(marginals=None, words=TWICE | plan)


def test_what_enough_devices_name_is_released_and_nothing_else_stays(tmp_path: Path) -> None:
    plan = {"epsilon": 5.0, "delta": 1e-9, "max_words": 2}
    least = threshold(WordPlan.model_validate(plan))
    secrets = [f"secret{'abcdefghijklmnopqrst'[number]}" for number in range(3 * least // 2)]
    assert len(secrets) < 20
    with serving(tmp_path) as http:
        operator = Operator(http)
        round_id = opened(operator, **plan)
        for secret in secrets:
            assert Party(http).enrol().send_words(round_id, "cortado", secret).status_code == 200
        found = operator.close(round_id)
        assert (found["state"], found["reports"]["words"]) == ("published", len(secrets))
        assert (found["model_version"], found["marginals_version"]) == (None, None)
        release = found["releases"]["words"]
        assert list(release["words"]) == ["cortado"] and abs(release["words"]["cortado"] - len(secrets)) < 12
        noise = {"name": "discrete_laplace", "trust": "central", "scale": pytest.approx(0.4, rel=1e-5)}
        assert release["mechanism"] == plan | noise | {"threshold": least}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"cortado" in kept and not any(secret.encode() in kept for secret in secrets)


def test_it_is_offered_to_devices_that_can_take_part(operator: Operator, device: Party) -> None:
    round_id = opened(operator, max_words=3)
    assert device.check_in(words_digest="e" * 64).json()["round"] is None, "another list lacks other words"
    offer = CheckedIn.model_validate_json(device.check_in().content).round
    assert offer is not None and (offer.round_id, offer.marginals, offer.deltas) == (round_id, None, None)
    assert offer.words == WordPlan(max_words=3, epsilon=NO_NOISE)
    device.send_words(round_id, "cortado")
    assert device.check_in().json()["round"] is None


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"words": []}, 422, "bad_message", "words"),
        ({"words": "zzsecret"}, 422, "bad_message", "words"),
        ({"words": ["fine", "zzsecret words"]}, 422, "bad_message", "words.1"),
        ({"words": ["zzsecret" * 8]}, 422, "bad_message", "words.0"),
        ({"words": ["zzsecret", "zzsecret"]}, 422, "bad_message", "words"),
        ({"words": [f"zzsecret{'x' * number}" for number in range(6)]}, 422, "bad_words", "words"),
        ({"words": ["zzsecret", "word7"]}, 422, "bad_words", "words"),
        ({"words_digest": "e" * 64}, 409, "other_words", "words_digest"),
        ({"round_id": "r0"}, 422, "other_round", "round_id"),
        ({"device_id": "somebody"}, 403, "other_device", "device_id"),
    ],
)
def test_malformed_reports_are_refused_by_name(operator, device, changes, status: int, code: str, field: str) -> None:
    round_id = opened(operator)
    answer = device.send_words(round_id, "zzsecret", **changes)
    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (status, code, field)
    assert "zzsecret" not in answer.text and operator.get(f"rounds/{round_id}")["reports"]["words"] == 0


def test_a_server_that_was_killed_draws_the_same_words_again(http: Any, operator, devices, monkeypatch) -> None:
    """With a threshold in the middle of the counts: what passes is the noise's to say."""
    plan = {"epsilon": 0.5, "delta": 0.4, "max_words": 12}
    names = [f"cortado{letter}" for letter in "abcdefghijkl"]
    least = threshold(WordPlan.model_validate(plan))
    round_id = opened(operator, **plan)
    for party in devices(least):
        assert party.send_words(round_id, *names).status_code == 200
    drawn: list[Release] = []

    def killed(connection: Any, row: Any, release: Release, now: float) -> None:
        drawn.append(release)
        if len(drawn) < 3:
            raise RuntimeError("killed")
        store_release(connection, row, release, now)

    monkeypatch.setattr("server.rounds.advance.store_release", killed)
    for _ in range(2):
        http.post(f"/v1/operator/rounds/{round_id}/close", headers=HEADERS)
    found = operator.close(round_id)["releases"]["words"]["words"]
    assert len(drawn) >= 3 and all(release.words == found for release in drawn) and 0 < len(found) < len(names)
