"""Real devices of a rollout, beside those that are not in it: each has what was signed for it."""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from device_sdk import Bundle, BundleError, CheckInError, Device
from device_sdk.checkin import identity
from device_sdk.checkin.updates.metadata import release_of
from device_sdk.wire.rollout import MILLIONTHS, arm_of, millionths
from tests.device_sdk.checkin.site import KEY
from tests.device_sdk.checkin.updates.fleet import Fleet, running
from tests.server.parties import until
from tests.signals import hiss

QUIET = hiss(1)


@dataclass
class Scene:
    """devices: every second one trusts a root, the others take the server's word."""

    fleet: Fleet
    devices: list[Device]
    clock: list[float]

    def check_in(self) -> list[str]:
        """What each has afterwards; nothing that is signed is ever refused."""
        for device in self.devices:
            with suppress(BundleError):
                assert self.fleet.check_in(device).updates_refused == ()
        return [device.model_version for device in self.devices]

    def arms(self, version: str) -> list[str]:
        known = (identity.load(device._model_state.store, self.fleet.url) for device in self.devices)
        return [arm_of(each.device_id or "", version, 0.5) for each in known if each is not None]

    def begin(self, version: str, seed: int, scale: float = 0.01, **settings: Any) -> None:
        self.fleet.publish(version, seed, published=False, scale=scale)
        self.again(version, **settings)

    def again(self, version: str, **settings: Any) -> None:
        settings = {"share": 0.5, "minimum": 2, "seconds": 1e6, "patience": 1e6} | settings
        self.fleet.operator.post("rollout", json={"version": version, "settings": settings})

    def state(self) -> dict[str, Any]:
        return dict(self.fleet.operator.get("rollout")["rollouts"][0])

    def named(self, name: str) -> str:
        """A version for which both arms have a device of either kind of trust."""
        versions = (f"{name}-{number}" for number in itertools.count())
        both = [["control", "rollout"]] * 2
        return next(each for each in versions if [sorted(self.arms(each)[kind::2]) for kind in (0, 1)] == both)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> Iterator[Scene]:
    folder, clock = tmp_path_factory.mktemp("fleet"), [time.time()]
    settings = {"clock": lambda: clock[0], "window_seconds": 1e6}
    with running(folder, tiny_bundle, server_settings=settings) as fleet, ExitStack() as stack:
        devices = []
        for number, root in enumerate((None, fleet.root, None, fleet.root)):
            devices.append(stack.enter_context(Device.open(folder / f"d{number}", KEY, tiny_bundle, trusted_root=root)))
        scene = Scene(fleet, devices, clock)
        assert scene.check_in() == [tiny_bundle.version] * 4
        yield scene


def test_a_share_goes_first_and_back_or_ahead_with_all(scene: Scene, tiny_bundle: Bundle) -> None:
    version = scene.named("second")
    scene.begin(version, 2)
    before = scene.devices[0].recognize(QUIET, 16_000).text
    arms = scene.arms(version)
    for _ in range(2):
        assert scene.check_in() == [version if arm == "rollout" else tiny_bundle.version for arm in arms]
    assert scene.state()["arms"]["rollout"]["seen"] == arms.count("rollout")
    scene.fleet.operator.post("rollout/roll-back")
    assert scene.check_in() == [tiny_bundle.version] * 4 and scene.devices[0].recognize(QUIET, 16_000).text == before
    scene.again(version)
    assert scene.check_in() == [version if arm == "rollout" else tiny_bundle.version for arm in arms]
    scene.fleet.operator.post("rollout/promote")
    assert scene.check_in() == [version] * 4
    for device in scene.devices:
        device.recognize(QUIET, 16_000)


def test_weights_that_no_device_takes_are_rolled_back_by_themselves(scene: Scene) -> None:
    """Finite, of the right shapes, and of a size that no trained weight has."""
    good = scene.devices[0].model_version
    version = scene.named("unfit")
    scene.begin(version, 3, scale=1e7, patience=1000.0, doubt=0.9)
    asked = f"/v1/models/{version}"
    for _ in range(3):
        assert scene.check_in() == [good] * 4 and scene.state()["state"] == "running"
        tries = [path for path, answers in scene.fleet.line.heard.items() for _ in answers if path.startswith(asked)]
        assert len(tries) == scene.arms(version).count("rollout"), "what is unfit is fetched once"
        scene.clock[0] += 450.0
    found = until(lambda: (now := scene.state())["state"] != "running" and now, 30)
    assert found["state"] == "rolled_back", found
    count = found["arms"]["rollout"]["seen"]
    assert f"{count} of {count} devices failed with it, 0 of {4 - count} without" in found["note"]
    assert scene.check_in() == [good] * 4
    scene.fleet.publish("afterwards", 4)
    assert scene.check_in() == ["afterwards"] * 4


def targets(*rollouts: tuple[str, Any]) -> dict[str, Any]:
    hashes = {"sha256": "0" * 64}
    found: dict[str, Any] = {
        "models/one.safetensors": (8, hashes, {"current": True, "teacher": None}),
        "marginals/3.float64": (8, hashes, {"current": True, "words_digest": "w"}),
    }
    for version, share in rollouts:
        found[f"models/{version}.safetensors"] = (9, hashes, {"rollout": share, "teacher": "one"})
    return found


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_a_device_reads_its_own_place_from_what_is_signed(share: float) -> None:
    for number in range(40):
        device_id = f"{number:032x}"
        release = release_of(targets(("two", millionths(share))), device_id)
        wanted = "two" if arm_of(device_id, "two", share) == "rollout" else "one"
        assert release.model.version == wanted and (release.teacher is None) == (wanted == "one")
        assert release_of(targets(), device_id).model.version == "one"


def test_who_takes_what_is_current() -> None:
    for share in ("all", None, 1.0, [MILLIONTHS], {"share": MILLIONTHS}):
        assert release_of(targets(("two", share)), "0" * 32).model.version == "one", "a share that is none"
    assert release_of(targets(("two", MILLIONTHS))).model.version == "one", "a device that is not enrolled"
    found = targets(("two", MILLIONTHS // 2))
    found.pop("models/one.safetensors")
    with pytest.raises(CheckInError, match="found 0 targets"):
        release_of(found, "0" * 32)
