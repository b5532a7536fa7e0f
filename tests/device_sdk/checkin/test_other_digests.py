"""A version is a name that two servers may give twice, such as a lost one and the one restored in its place. A device
goes by digests: what it has of that name is what is current, or it takes what is."""

from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.wire.messages import FIXED_POINT
from server.aggregation.weights_file import dump_weights
from tests.device_sdk.checkin.site import Site, opened, site, taught
from tests.server.parties import ENROLMENT, NO_NOISE, Party


@pytest.fixture
def servers(tmp_path: Path, tiny_bundle: Bundle):
    with site(tmp_path / "lost", tiny_bundle) as lost, site(tmp_path / "restored", tiny_bundle) as restored:
        yield lost, restored


def pushed(server: Site, bundle: Bundle, seed: int) -> None:
    """Publish weights of version m7 that depend on the seed."""
    rng = np.random.default_rng(seed)
    moved = {name: old + rng.normal(size=old.shape).astype(np.float32) / 100 for name, old in bundle.weights.items()}
    moved |= {name: bundle.weights[name] for name in bundle.architecture.constant_shapes()}
    server.operator.post("models/m7", content=dump_weights(moved, {}))


def counted(server: Site, bundle: Bundle, word: int) -> int:
    """Publish marginals of one report of this word. Returns their version."""
    party, round_id = Party(server.operator.http, server.url).enrol(), server.open(marginals={"epsilon": NO_NOISE})
    assert party.send_counts(round_id, {word: FIXED_POINT}, words_digest=bundle.words.digest).status_code == 200
    return int(server.close(round_id)["marginals_version"])


def test_marginals_of_another_digest_are_taken(servers: tuple[Site, Site], tmp_path: Path, tiny_bundle: Bundle) -> None:
    lost, restored = servers
    with opened(tmp_path / "device", tiny_bundle) as device:
        first, second = tiny_bundle.words.id("turn"), tiny_bundle.words.id("light")
        assert counted(lost, tiny_bundle, first) == counted(restored, tiny_bundle, second) == 1
        assert device.check_in(lost.url, ENROLMENT).new_marginals
        assert device.check_in(restored.url, ENROLMENT).new_marginals, "their version is the same, and they are not"
        marginals = device._model_state.marginals
        assert marginals[second] / tiny_bundle.background[second] > marginals[first] / tiny_bundle.background[first]
        assert not device.check_in(restored.url).new_marginals, "and they are taken once"
    with opened(tmp_path / "device", tiny_bundle) as device:
        assert np.array_equal(device._model_state.marginals, marginals)


def test_a_model_of_another_digest_is_taken(servers: tuple[Site, Site], tmp_path: Path, tiny_bundle: Bundle) -> None:
    lost, restored = servers
    with opened(tmp_path / "device", tiny_bundle) as device:
        for seed, server in enumerate(servers):
            pushed(server, tiny_bundle, seed)
        assert device.check_in(lost.url, ENROLMENT).new_model
        before = device.base.weights
        taught(device, 1)
        restored.operator.open(marginals=None, deltas={"clip_norm": 100.0})
        report = device.check_in(restored.url, ENROLMENT)
        assert report.sent == (), "what was learned on other weights is no delta of these"
        assert report.new_model and report.model_version == "m7"
        assert any(not np.array_equal(before[name], values) for name, values in device.base.weights.items())
        assert not device.check_in(restored.url).new_model
        taught(device, 2)
        assert [sent.refused for sent in device.check_in(restored.url).sent] == [None]
