"""Rounds whose deltas a server sees in sums alone: what it publishes, charges and refuses, over HTTP."""

import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from device_sdk.privacy.quantised import clip_steps, flat, layout_digest, quantised, squared_sensitivity
from device_sdk.wire.messages import DeltaPlan
from server.aggregation.weights_file import parse_weights
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose
from server.storage.schema import aggregation_messages as messages
from tests.server.parties import HEADERS, SHAPES, Party, initial, refusal, serving, until, values_of, weights_of
from tests.server.rounds.secure_aggregation.members import Member, through
from tests.server.rounds.secure_aggregation.processes import Fleet, Site

PLAN = DeltaPlan(trust="distributed", minimum_survivors=2)
VALUES = sum(math.prod(shape) for shape in SHAPES.values())
LAYOUT = layout_digest("base-1", SHAPES)
Shapes = dict[str, tuple[int, ...]]
ALIKE: dict[str, Any] = {"marginals": None, "weighting": "uniform", "minimum": 2}


class Local(Site):
    """A server in this process."""

    def __init__(self, folder: Path, http: Any) -> None:
        self.folder, self.http = folder, http


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Local]:
    with serving(tmp_path) as http:
        yield Local(tmp_path, http)


def drawn(seed: int, shapes: Shapes = SHAPES) -> dict[str, NDArray[np.float32]]:
    """A delta within the bound, of norm 0.4 or so."""
    rng, scale = np.random.default_rng(seed), 0.4 / math.sqrt(sum(math.prod(shape) for shape in shapes.values()))
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def join(
    site: Site,
    parties: list[Party],
    plan: DeltaPlan = PLAN,
    shapes: Shapes = SHAPES,
    base: str = "base-1",
    **changes: Any,
) -> list[Member]:
    """The parties in a new round, each with a delta of its own."""
    groups = {"size": len(parties), "stage_seconds": 600}
    round_id = site.operator.open(**ALIKE | {"deltas": plan.model_dump(), "groups": groups} | changes)
    own: dict[str, Any] = {"minimum": plan.minimum_survivors, "digest": layout_digest(base, shapes)}
    vectors = [quantised(drawn(seed, shapes), plan, round_id) for seed in range(len(parties))]
    found = [Member(party, round_id, vector, **own) for party, vector in zip(parties, vectors, strict=True)]
    for member in found:
        member.join().raise_for_status()
    return found


def moved(site: Site, closed: dict[str, Any]) -> NDArray[np.float64]:
    """How the published model differs from the first: of every value that a round moves."""
    after, before = weights_of(site.http, closed["model_version"]), initial().weights
    return flat({name: after[name] - before[name] for name in SHAPES})


def is_mean(found: NDArray[np.float64], seeds: range, shapes: Shapes = SHAPES) -> None:
    """The mean of these deltas, to less than a step in every value before it was rotated back, and what float32 leaves
    of the weights."""
    expected = np.mean([flat(drawn(seed, shapes)) for seed in seeds], axis=0)
    rounding = math.sqrt(found.size) / clip_steps(PLAN) + 1e-6
    assert np.linalg.norm(found - expected) < rounding < 0.2 * np.linalg.norm(expected)


def published(site: Site, members: list[Member]) -> dict[str, Any]:
    return until(lambda: (now := site.round(members[0].round_id))["state"] == "published" and now)


def test_trusted_and_masked_rounds_publish_the_same(site: Local) -> None:
    parties = site.parties(5)
    members = join(site, parties)
    through(members, "unmasking")
    site.operator.close(members[0].round_id)
    closed = published(site, members)
    assert closed["reports"]["deltas"] == 5
    is_mean(moved(site, closed), range(5))
    mechanism = closed["releases"]["deltas"]["mechanism"]
    assert {name: mechanism[name] for name in ("trust", "name", "bits", "minimum_survivors", "denominator")} == {
        "trust": "distributed", "name": "none", "bits": 14, "minimum_survivors": 2, "denominator": 5.0,
    }  # fmt: skip
    first = moved(site, closed)
    trusted = site.operator.open(marginals=None, weighting="uniform", deltas={})
    base = closed["model_version"]
    for seed, party in enumerate(parties):
        party.send_delta(trusted, drawn(seed), model_version=base).raise_for_status()
    second = moved(site, site.operator.close(trusted)) - first
    assert np.linalg.norm(second - first) < math.sqrt(VALUES) / clip_steps(PLAN) + 1e-6


def test_what_a_sum_costs_is_in_the_ledger(site: Local) -> None:
    plan = PLAN.model_copy(update={"noise_stddev": 2.0})
    members = join(site, site.parties(3), plan, goal=3)
    through(members, "unmasking")
    assert published(site, members)["releases"]["deltas"]["mechanism"]["name"] == "discrete_gaussian"
    books = site.operator.get("privacy")
    line = books["streams"]["deltas"]
    settings = RoundSettings.model_validate(ALIKE | {"deltas": plan, "goal": 3})
    expected = compose(Spent({charge_for("deltas", settings): 1}), 1e-6)[0]
    assert line["epsilon"] == pytest.approx(expected) and line["trust_model"].startswith("distributed: ")
    assert {each["epsilon"] for each in books["devices"] if each["stream"] == "deltas"} == {line["epsilon"]}
    assert math.sqrt(squared_sensitivity(plan)) > clip_steps(plan), "rounding is charged"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"digest": layout_digest("base-2", SHAPES)}, "stale_model"),
        ({"digest": layout_digest("base-1", {"encoder.0.W": SHAPES["encoder.0.W"]})}, "stale_model"),
        ({"vector": np.zeros(VALUES - 1, np.int64)}, "stale_model"),
    ],
)
def test_vectors_of_anything_else_are_refused(site: Local, changes: dict[str, Any], code: str) -> None:
    round_id = site.operator.open(**ALIKE | {"deltas": PLAN.model_dump()})
    (party,) = site.parties(1)
    own: dict[str, Any] = {"vector": np.zeros(VALUES, np.int64), "digest": LAYOUT} | changes
    assert refusal(Member(party, round_id, **own).join()) == (409, code)
    answer = party.send_delta(round_id, values_of(0.01))
    assert refusal(answer) == (422, "other_plan") and answer.json()["field"] == "trust"


def test_what_cannot_be_masked_is_not_opened(site: Local) -> None:
    def opened(**changes: Any) -> Any:
        plan = PLAN.model_dump() | changes
        body = {"settings": ALIKE | {"deltas": plan, "goal": 9, "no_privacy": True}}
        return site.http.post("/v1/operator/rounds", headers=HEADERS, content=json.dumps(body))

    assert opened().status_code == 201
    answer = opened(noise_stddev=1e-3)
    assert answer.status_code == 422 and "a share of variance 68 squared steps" in answer.json()["detail"]


def test_a_device_that_lies_spoils_its_group_and_no_more(site: Local) -> None:
    """Nobody can see one delta. A sum that honest devices cannot make is in no release; one that they could is."""
    members = join(site, site.parties(4), groups={"size": 2, "stage_seconds": 600})
    members[0].vector = members[0].vector + clip_steps(PLAN)
    through(members, "unmasking")
    site.operator.close(members[0].round_id)
    found = published(site, members)
    assert [group["stage"] for group in found["groups"]] == ["abandoned", "done"]
    assert found["groups"][0]["note"].startswith("sum: found 7.") and found["reports"]["deltas"] == 2
    assert np.linalg.norm(moved(site, found)) < 0.5
    again = join(site, site.parties(2), base=found["model_version"])
    again[0].vector = 3 * again[0].vector
    through(again, "unmasking")
    site.operator.close(again[0].round_id)
    assert published(site, again)["reports"]["deltas"] == 2, "it said three times what it was to say"


WIDE: Shapes = {"w": (1024,)}
MOST = PLAN.model_copy(update={"minimum_survivors": 34})


def take_part(url: str, round_id: str, seed: int, silent: bool) -> str:
    """A device, from its enrolment to the sum. silent: from when it has dealt its shares. Returns how it ended."""
    with httpx.Client(timeout=120) as http:
        vector = quantised(drawn(seed, WIDE), MOST, round_id)
        party = Party(http, url).enrol()
        member = Member(party, round_id, vector, minimum=34, digest=layout_digest("base-1", WIDE))
        member.join().raise_for_status()
        while (stage := member.step()) not in ("done", "dropped", "abandoned"):
            if stage == "shares" and silent:
                return "silent"
            time.sleep(0.2)
    return stage


@pytest.mark.slow
def test_fifty_processes_publish_what_a_trusted_sum_would(tmp_path: Path) -> None:
    """Forty-five of them: five fall silent after they have dealt shares."""
    fleet = Fleet(tmp_path, str(tmp_path / "server.db"), values=1024)
    ways = get_context("forkserver")
    ways.set_forkserver_preload([__name__])
    try:
        groups = {"size": 50, "stage_seconds": 600}
        round_id = fleet.operator.open(**ALIKE | {"deltas": MOST.model_dump(), "groups": groups, "minimum": 34})
        with ProcessPoolExecutor(50, ways) as pool:
            devices = [pool.submit(take_part, fleet.url, round_id, seed, seed >= 45) for seed in range(50)]
            masked = select(messages.c.device_id).where(messages.c.stage == "masked")
            until(lambda: len(fleet.rows(masked)) == 45, 300)
            with fleet.database.write() as connection:
                connection.exec_driver_sql("UPDATE aggregation_groups SET deadline = 0")
            assert [device.result() for device in devices] == ["done"] * 45 + ["silent"] * 5
        fleet.operator.close(round_id)
        closed = until(lambda: (now := fleet.round(round_id))["state"] == "published" and now)
        assert closed["releases"]["deltas"]["reports"] == 45
        content = fleet.http.get(f"{fleet.url}/v1/models/{closed['model_version']}").content
        is_mean(flat(parse_weights(content)), range(45), WIDE)
    finally:
        fleet.close()


@pytest.mark.slow
def test_a_part_that_is_too_large_to_mask_is_refused_by_name(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, str(tmp_path / "server.db"), values=(1 << 20) + 1)
    try:
        body = {"settings": ALIKE | {"deltas": PLAN.model_dump()}}
        answer = fleet.http.post(f"{fleet.url}/v1/operator/rounds", headers=HEADERS, content=json.dumps(body))
        assert refusal(answer) == (422, "too_many_values")
        assert "has 1048577 values of 13 bits, expected at most 1048576" in answer.json()["detail"]
    finally:
        fleet.close()
