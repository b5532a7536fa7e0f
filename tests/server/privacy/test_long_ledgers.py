"""A ledger of years: nothing that a page or a check-in needs takes longer with its lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from device_sdk.wire.messages import MarginalPlan
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose, quick_bound
from tests.server.histories import fill
from tests.server.parties import OPERATOR, Operator, Party, serving

DELTA = 1e-6
CHARGE = charge_for("marginals", RoundSettings(marginals=MarginalPlan()))


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    return partial(serving, tmp_path)


def seconds(ask: Callable[[], Any], times: int = 5) -> float:
    """Of this process, in which the server is, so that other work of the machine does not count."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        answer = ask()
        found.append(time.process_time() - begun)
        assert answer.status_code == 200, answer.text
    return median(found)


def test_neither_the_overview_nor_a_check_in_takes_longer_for_a_long_ledger(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    with serve(marginals_cap=1e6) as http:
        parties = [Party(http).enrol() for _ in range(60)]
    lines = fill(f"sqlite:///{tmp_path / 'server.db'}", {CHARGE: 2000})
    assert lines == 120_000
    with serve(marginals_cap=1e6) as http:
        operator = Operator(http)
        found = operator.get("privacy")
        stream = found["streams"]["marginals"]
        assert (stream["rounds"], stream["devices"]) == (2000, 60), "and it is as long as it is"
        assert stream["epsilon"] == compose(Spent({CHARGE: 2000}), DELTA)[0]
        assert {line["rounds"] for line in found["devices"] if line["stream"] == "marginals"} == {2000}
        assert http.post("/dashboard/sign-in", data={"token": OPERATOR}).status_code == 200
        assert "published" in http.get("/dashboard").text
        overview = seconds(lambda: http.get("/dashboard"))
        operator.open(marginals={"epsilon": 1.0})
        check_in = seconds(parties[0].check_in)
    assert overview < 0.25, f"{overview:.2f} s"
    assert check_in < 0.05, f"{check_in:.3f} s"


def test_a_check_in_does_not_wait_for_what_another_device_has_spent_to_be_composed(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    """A device with a history that nobody has composed yet: seconds of work, in which others go on."""
    plans = (MarginalPlan(mechanism="discrete_gaussian", epsilon=0.3 + 0.0137 * number) for number in range(5))
    history = {charge_for("marginals", RoundSettings(marginals=plan)): 20 for plan in plans}
    cap = 0.9 * quick_bound(Spent(history), DELTA)  # what takes no time does not say
    with serve(marginals_cap=cap) as http:
        old, *others = (Party(http).enrol() for _ in range(3))
    fill(f"sqlite:///{tmp_path / 'server.db'}", history, [old.id])
    compose(Spent({CHARGE: 3}), DELTA)  # what is loaded once is loaded
    with serve(marginals_cap=cap) as http:
        Operator(http).open(marginals={"epsilon": 1.0})
        for party in (old, *others):
            party.http = http

        def wait(party: Party) -> float:
            begun = time.perf_counter()
            assert party.check_in().status_code == 200
            return time.perf_counter() - begun

        waits = []
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(wait, old)
            while not first.done():
                waits += map(wait, others)
    assert first.result() > 4 * max(waits), f"{first.result():.2f} s for the one, {max(waits):.2f} s for the others"
