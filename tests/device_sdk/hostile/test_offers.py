"""What a server may ask of a device is bounded by the device, whatever the offer says."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from device_sdk import Bundle, CheckInError, Client, Corrected, Device, DeviceSettings, LearningSettings, OfferBounds
from device_sdk.checkin.session import CheckInReport
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, RoundOffer, WordPlan
from tests.device_sdk.checkin import site
from tests.device_sdk.hostile.server import TOKEN, Hostile

SETTINGS = DeviceSettings(learning=LearningSettings(passes=1, replays=0, cost_weight=0.0))
FAIR: dict[str, Any] = {"clip_norm": 1.0, "noise_stddev": 1.0}


def offer(bundle: Bundle, round_id: str = "r1", **plans: Any) -> RoundOffer:
    return RoundOffer(round_id=round_id, model_version=bundle.version, closes_in_seconds=60.0, **plans)


opened = partial(site.opened, settings=SETTINGS, streams=("marginals", "deltas", "words"))
taught = partial(site.taught, signal=Corrected("turn on the light by grobnitz"))


def asked(device: Device, server: Hostile, round_: RoundOffer) -> tuple[CheckInReport, list[str]]:
    """(what a check-in says, which streams it sent)."""
    server.offer = round_
    before = len(server.heard)
    report = device.check_in(server.url, TOKEN)
    paths = [request.path for request in server.heard[before:]]
    return report, [path.split("/")[4] for path in paths if path.startswith("/v1/rounds/")]


def test_a_device_without_settings_of_its_own_gives_nothing_away(tmp_path: Path, tiny_bundle: Bundle) -> None:
    greedy = offer(
        tiny_bundle,
        marginals=MarginalPlan(mode="paper", epsilon=1e9),
        deltas=DeltaPlan(clip_norm=1e9),
        words=WordPlan(epsilon=1e9, max_words=1000),
    )
    with opened(tmp_path, tiny_bundle) as device, Hostile(tiny_bundle) as server:
        taught(device)
        report, sent = asked(device, server, greedy)
        assert sent == [] and device.learned().waiting == 0
        assert [why.split(":")[0] for why in report.left_out] == ["marginals", "words", "deltas"]
        assert all("found" in why and "allows" in why for why in report.left_out), report.left_out
        fair = offer(tiny_bundle, "r2", marginals=MarginalPlan(), deltas=DeltaPlan(**FAIR))
        report, sent = asked(device, server, fair)
        assert (sorted(sent), report.left_out) == (["deltas", "marginals"], ()), "what was refused took nothing away"


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (MarginalPlan(mode="paper"), "mode"),
        (MarginalPlan(max_words=21), "max_words"),
        (MarginalPlan(max_weight=1.01), "max_weight"),
        (MarginalPlan(epsilon=1e4), "epsilon"),
        (MarginalPlan(epsilon=1e4, trust="local"), "epsilon"),
        (MarginalPlan(mechanism="discrete_gaussian", delta=0.9), "epsilon"),
        (MarginalPlan(trust="distributed", mechanism="discrete_gaussian", max_words=1000), "max_words"),
        (DeltaPlan(clip_norm=1e9, noise_stddev=1e9), "clip_norm"),
        (DeltaPlan(clip_norm=1.0), "noise_stddev"),
        (DeltaPlan(clip_norm=1.0, noise_stddev=1e-3), "noise_stddev"),
        (DeltaPlan(clip_norm=1.0, noise_stddev=0.02), "epsilon"),
        (DeltaPlan(**FAIR, measure="loss"), "measure"),
        (DeltaPlan(trust="distributed", minimum_survivors=2), "noise_stddev"),
        (DeltaPlan(trust="distributed", minimum_survivors=2, noise_stddev=0.02), "epsilon"),
        (DeltaPlan(trust="distributed", minimum_survivors=2, clip_norm=1e-300, noise_stddev=1.0), "clip_norm"),
        (DeltaPlan(clip_norm=1e9, kind="gradient", noise_stddev=1e9), "clip_norm"),
        (WordPlan(epsilon=1e4), "epsilon"),
        (WordPlan(delta=0.5), "delta"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_stream_that_asks_too_much_is_left_out_and_the_others_go_on(plan, named: str, tmp_path, tiny_bundle) -> None:
    stream = {MarginalPlan: "marginals", DeltaPlan: "deltas", WordPlan: "words"}[type(plan)]
    plans: dict[str, Any] = {"marginals": MarginalPlan(), "deltas": DeltaPlan(**FAIR), "words": WordPlan()}
    with opened(tmp_path, tiny_bundle) as device, Hostile(tiny_bundle) as server:
        taught(device)
        report, sent = asked(device, server, offer(tiny_bundle, **plans | {stream: plan}))
        assert sorted(sent) == sorted(plans.keys() - {stream})
        (why,) = report.left_out
        assert why.startswith(f"{stream}: {named}: found "), why
        report, sent = asked(device, server, offer(tiny_bundle, "r2", **{stream: plans[stream]}))
        assert (sent, report.left_out) == ([stream], ()), "it is still there for a round that asks less"


ROUNDS = {
    "marginals": MarginalPlan(epsilon=5.0),
    "deltas": DeltaPlan(clip_norm=1.0, noise_stddev=0.5),
    "words": WordPlan(epsilon=5.0),
}


@pytest.mark.parametrize("stream", ROUNDS)
def test_rounds_add_up_over_a_life_whoever_asks(stream: str, tmp_path: Path, tiny_bundle: Bundle) -> None:
    number, sent_in_all = 0, 0

    def life(device: Device, server: Hostile, rounds: int) -> list[str]:
        nonlocal number, sent_in_all
        device.agree("marginals", "deltas", "words")
        for _ in range(rounds):
            number += 1
            taught(device, number)
            report, sent = asked(device, server, offer(tiny_bundle, f"r{number}", **{stream: ROUNDS[stream]}))
            assert (sent == []) == bool(report.left_out)
            sent_in_all += len(sent)
        return list(report.left_out)

    with Hostile(tiny_bundle) as server, Hostile(tiny_bundle) as other:
        with opened(tmp_path, tiny_bundle) as device:
            (why,) = life(device, server, 16)
            assert why.startswith(f"{stream}: epsilon: found ") and "over this device's life" in why
            assert 2 <= sent_in_all <= 12
            before = sent_in_all
        with opened(tmp_path, tiny_bundle) as device:
            life(device, server, 1)
            life(device, other, 1)
            device.forget()
            life(device, server, 1)
            assert device.learned().utterances == 1
        with opened(tmp_path, tiny_bundle) as device:
            life(device, other, 1)
        assert sent_in_all == before, "neither a restart, another server nor an erasure begins anew"


@pytest.mark.parametrize("url", ["http://server.example", "http://192.0.2.7:8470", "http://localhost.example/"])
def test_only_this_machine_is_spoken_to_in_the_clear(url: str) -> None:
    with pytest.raises(CheckInError, match="expected https"):
        Client(url)
    for good in ("http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9", "https://server.example"):
        Client(good).close()


def test_an_app_allows_more_where_it_says_so(tmp_path: Path, tiny_bundle: Bundle) -> None:
    bounds = OfferBounds(clip_norm=1e9, least_noise=0.0, deltas_epsilon=math.inf)
    settings = DeviceSettings(learning=SETTINGS.learning, bounds=bounds)
    with opened(tmp_path, tiny_bundle, settings=settings) as device, Hostile(tiny_bundle) as server:
        taught(device)
        report, sent = asked(device, server, offer(tiny_bundle, deltas=DeltaPlan(clip_norm=1e8)))
        assert (sent, report.left_out) == (["deltas"], ()) and device.spent()["deltas"] == math.inf
