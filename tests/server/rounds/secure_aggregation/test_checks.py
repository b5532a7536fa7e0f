"""Messages that no honest device sends: refused by name of the field, or found out before a sum is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from device_sdk.errors import ProtocolError
from device_sdk.wire import secure_aggregation as wire
from server.rounds.secure_aggregation import answers as checks
from tests.device_sdk.secure_aggregation.parties import advertised, resigned
from tests.server.rounds.secure_aggregation.rounds import Tamper, added, names, simulate, unmask

VECTORS = {name: np.arange(8, dtype=np.int64) * (index - 1) for index, name in enumerate(names(6))}
HONEST = simulate(VECTORS, {"device-005": "masked"})


def changed(**fields: Any) -> Tamper:
    return lambda message: message.model_copy(
        update={name: value(message) if callable(value) else value for name, value in fields.items()}
    )


def test_the_honest_round_is_exact() -> None:
    survivors = [name for name in VECTORS if name != "device-005"]
    assert HONEST.sum is not None
    np.testing.assert_array_equal(HONEST.sum, added(VECTORS, survivors))


@pytest.mark.parametrize(
    ("device", "stage", "tamper", "note"),
    [
        ("device-001", "shares", changed(sealed=lambda m: dict(list(m.sealed.items())[1:])), "sealed: device-000 is m"),
        ("device-001", "shares", changed(sealed=lambda m: {**m.sealed, "x": bytes(156)}), "sealed: found x"),
        ("device-001", "masked", changed(masked=bytes(31)), "masked: found 31 bytes, expected 32"),
        ("device-001", "masked", changed(masked=bytes(36)), "masked: found 36 bytes"),
        ("device-001", "consistency", changed(signature=bytes(64)), "signature: not this device's over the 5 surv"),
        ("device-000", "unmasking", changed(seeds=lambda m: {**m.seeds, "x": bytes(64)}), "seeds: found x"),
        ("device-000", "unmasking", changed(seeds=lambda m: {**m.seeds, "device-005": bytes(64)}), "seeds: found dev"),
        ("device-000", "unmasking", changed(mask_keys=lambda m: {"device-001": bytes(64)}), "mask_keys: found device-"),
        ("device-000", "unmasking", changed(seeds=lambda m: {**m.seeds, "device-001": b"\xff" * 64}), "seeds.device-0"),
    ],
)
def test_tampered_messages(device: str, stage: wire.Stage, tamper: Tamper, note: str) -> None:
    outcome = simulate(VECTORS, {"device-005": "masked"}, tamper={(device, stage): tamper})
    assert outcome.sum is None
    assert outcome.note.startswith(note), outcome.note


def test_a_false_vector_changes_the_sum_and_nothing_notices() -> None:
    """What secure aggregation cannot do: nobody sees one device's counts, so nobody can check them."""
    flipped = {("device-000", "masked"): changed(masked=lambda m: bytes([m.masked[0] ^ 1]) + m.masked[1:])}
    outcome = simulate(VECTORS, {}, tamper=flipped)  # type: ignore[arg-type]
    assert outcome.sum is not None
    assert not np.array_equal(outcome.sum, added(VECTORS, VECTORS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sharing_key": bytes(32)}, "sharing_key: found a point of small order"),
        ({"masking_key": b"\x01" + bytes(31)}, "masking_key: found a point of small order"),
        ({"masking_key": None}, "masking_key: found the sharing_key again"),
    ],
)
def test_keys_that_are_of_no_use(changes: dict[str, Any], message: str) -> None:
    party = advertised(1)["device-000"]
    own = party.participant.advertised
    changes = {name: own.sharing_key if value is None else value for name, value in changes.items()}
    with pytest.raises(ProtocolError, match=message):
        checks.check_advertisement(resigned(party, **changes), own.identity_key)


def test_keys_of_another_device_or_unsigned() -> None:
    one, other = (party.participant.advertised for party in advertised(2).values())
    checks.check_advertisement(one, one.identity_key)
    with pytest.raises(ProtocolError, match="identity_key: found another"):
        checks.check_advertisement(one, other.identity_key)
    with pytest.raises(ProtocolError, match="signature: not that of identity_key"):
        checks.check_advertisement(one.model_copy(update={"signature": other.signature}), one.identity_key)


def test_too_few_shares_make_no_sum() -> None:
    masked = {name: message.masked for name, message in HONEST.sent["masked"].items()}  # type: ignore[attr-defined]
    revealed: list[Any] = list(HONEST.sent["unmasking"].values())
    with pytest.raises(ProtocolError, match="device-000: shares: found 3, expected at least 4"):
        unmask(HONEST, masked, revealed[:3])
    with pytest.raises(ProtocolError, match="device-005: shares: found 0"):
        unmask(HONEST, masked, [each.model_copy(update={"mask_keys": {}}) for each in revealed])
