"""Poisoned deltas are refused with a reason, and the aggregate is to the bit what it is without them."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.wire.messages import DeltaPlan, Problem
from server.aggregation.weights_file import parse_weights
from tests.server.hostile.poison import KINDS, PLANS, Report, honest
from tests.server.parties import SHAPES, Operator, Party, serving

HONEST = 6


def opened(http: Any, plan: DeltaPlan) -> str:
    return Operator(http).open(marginals=None, deltas=plan.model_dump(mode="json"))


def fields(device_id: str, round_id: str, plan: DeltaPlan, report_id: str, utterances: int = 1) -> dict[str, Any]:
    who = {"report_id": report_id, "device_id": device_id, "round_id": round_id, "utterances": utterances}
    how = {"kind": plan.kind, "encoding": plan.encoding, "scale_per": plan.scale_per}
    return who | how | {"model_version": "base-1"}


def send(http: Any, party: Party, round_id: str, number: int, report: Report) -> None:
    said = fields(party.id, round_id, report.plan, f"honest-{number}", utterances=number + 1)
    party.post(f"/v1/rounds/{round_id}/deltas", report.with_fields(**said).body(), round_id).raise_for_status()


def result(http: Any, round_id: str) -> dict[str, bytes]:
    """The bytes of every parameter of what the round published."""
    found = Operator(http).close(round_id)
    assert (found["state"], found["reports"]["deltas"]) == ("published", HONEST)
    weights = parse_weights(http.get(f"/v1/models/{found['model_version']}").content)
    return {name: values.tobytes() for name, values in weights.items()}


def poison_a_round(folder: Path, plan: DeltaPlan, count: int, seed: int) -> Counter[str]:
    """``count`` poisoned deltas, in turn of every kind, between a round's honest ones. Returns codes of the answers."""
    rng = np.random.default_rng(7)
    good = [honest(rng, plan, SHAPES, {}) for _ in range(HONEST)]  # drawn once: int8 and float16 round at random
    with serving(folder / "clean") as http:
        round_id = opened(http, plan)
        for number, report in enumerate(good):
            send(http, Party(http).enrol(), round_id, number, report)
        expected = result(http, round_id)
    turns = itertools.cycle((name, kind) for name, kind in KINDS.items() if plan.encoding in kind.encodings)
    rng = np.random.default_rng(seed)
    codes: Counter[str] = Counter()
    with serving(folder / "poisoned") as http:
        round_id, attacker = opened(http, plan), Party(http).enrol()
        path = f"/v1/rounds/{round_id}/deltas"
        waiting = list(enumerate(good))
        for place in range(count):
            if place % max(1, count // HONEST) == 0 and waiting:
                send(http, Party(http).enrol(), round_id, *waiting.pop(0))
            name, kind = next(turns)
            base = honest(rng, plan, SHAPES, fields(attacker.id, round_id, plan, f"poison-{place}"))
            answer = attacker.post(path, kind.make(rng, base), round_id)
            assert 400 <= answer.status_code < 500, (name, place, answer.status_code, answer.text)
            told = Problem.model_validate_json(answer.content)
            assert told.code in kind.codes, (name, place, told)
            assert len(told.detail) > 10, (name, place, told)
            codes[told.code] += 1
        for number, report in waiting:
            send(http, Party(http).enrol(), round_id, number, report)
        stored = [path for path in (folder / "poisoned" / "blobs" / "deltas").rglob("*") if path.is_file()]
        assert len(stored) == HONEST  # nothing of what was refused is kept
        assert result(http, round_id) == expected
    assert sum(codes.values()) == count
    return codes


@pytest.mark.parametrize("name", ["float32 by layer", "int8"])
def test_a_poisoned_round(tmp_path: Path, name: str) -> None:
    codes = poison_a_round(tmp_path, PLANS[name], 2 * len(KINDS), seed=1)
    assert {"bad_delta", "bad_message", "stale_model", "other_plan"} <= codes.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_ten_thousand_poisoned_deltas(tmp_path: Path, name: str) -> None:
    """Two thousand for every plan."""
    poison_a_round(tmp_path, PLANS[name], 10_000 // len(PLANS), seed=2)
