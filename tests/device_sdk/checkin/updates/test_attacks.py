"""A device that trusts a root, and a server whose answers are tampered with: it keeps what it has, and recognizes."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.device import Device
from tests.device_sdk.checkin.site import KEY
from tests.device_sdk.checkin.updates.fleet import Answer, Fleet, changed_root, running, signed_timestamp
from tests.device_sdk.state.audit import findings
from tests.signals import hiss

pytest.importorskip("uvicorn")

UPDATES = "/v1/updates/"
TIMESTAMP = f"{UPDATES}timestamp.json"
MODEL = "/v1/models/third"


@dataclass(frozen=True)
class Scene:
    """first, second: metadata by role at two moments, both of which the device has seen; third: what is current,
    with its weights."""

    fleet: Fleet
    first: Mapping[str, bytes]
    second: Mapping[str, bytes]
    third: Mapping[str, bytes]
    paths: Mapping[str, str]
    model: bytes

    @property
    def keys(self) -> Path:
        return self.fleet.keys

    def later(self) -> int:
        """A version above all that the server signs."""
        return int(json.loads(self.third["timestamp"])["signed"]["version"]) + 1000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> Iterator[Fleet]:
    with running(tmp_path_factory.mktemp("fleet"), tiny_bundle) as found:
        yield found


def rollback_timestamp(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: scene.first["timestamp"]}


def rollback_snapshot(scene: Scene) -> dict[str, Answer]:
    """By somebody who has stolen the timestamp key."""
    number = json.loads(scene.first["snapshot"])["signed"]["version"]
    return {
        TIMESTAMP: signed_timestamp(scene.keys, scene.first["snapshot"], scene.later()),
        f"{UPDATES}{number}.snapshot.json": scene.first["snapshot"],
    }


def expired(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: signed_timestamp(scene.keys, scene.third["snapshot"], scene.later(), hours=-1.0)}


def mixed_targets(scene: Scene) -> dict[str, Answer]:
    return {scene.paths["targets"]: scene.second["targets"]}


def mixed_snapshot(scene: Scene) -> dict[str, Answer]:
    return {scene.paths["snapshot"]: scene.second["snapshot"]}


def unknown_key(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: signed_timestamp(scene.keys, scene.third["snapshot"], scene.later(), "targets")}


def root_of_too_few(scene: Scene) -> dict[str, Answer]:
    return _root(scene, {scene.keys / "root-1.pem": True})


def root_of_one_key_twice(scene: Scene) -> dict[str, Answer]:
    metadata = json.loads(changed_root(scene.fleet.root, {scene.keys / "root-1.pem": True}))
    metadata["signatures"] *= 2
    return {f"{UPDATES}2.root.json": json.dumps(metadata).encode()}


def root_of_strangers(scene: Scene) -> dict[str, Answer]:
    """Signed by its own keys, as the server's are here, and not by those before."""
    return _root(scene, {scene.keys / "server" / "keys" / f"{role}.pem": True for role in ("targets", "snapshot")})


def root_that_does_not_sign_itself(scene: Scene) -> dict[str, Answer]:
    """Signed by the keys before, and by one of the two that it names."""
    old = {scene.keys / f"root-{number}.pem": False for number in (1, 2)}
    stranger = scene.keys / "server" / "keys" / "targets.pem"
    answers = changed_root(scene.fleet.root, {**old, stranger: True})
    return {f"{UPDATES}2.root.json": answers}


def skipped_root(scene: Scene) -> dict[str, Answer]:
    """Rightly signed, and not the next version."""
    root = changed_root(scene.fleet.root, {scene.keys / f"root-{number}.pem": True for number in (1, 2, 3)})
    again = changed_root(root, {scene.keys / f"root-{number}.pem": True for number in (1, 2, 3)})
    return {f"{UPDATES}2.root.json": again}


def _root(scene: Scene, signers: Mapping[Path, bool]) -> dict[str, Answer]:
    return {f"{UPDATES}2.root.json": changed_root(scene.fleet.root, signers)}


def swapped_model(scene: Scene) -> dict[str, Answer]:
    """Weights that fit, as long as the true ones; one of them is another."""
    return _weights(scene.model[:-4] + np.float32(0.5).tobytes())


def longer_model(scene: Scene) -> dict[str, Answer]:
    return _weights(scene.model + b"\0")


def shorter_model(scene: Scene) -> dict[str, Answer]:
    return _weights(scene.model[:-1])


def endless_model(scene: Scene) -> dict[str, Answer]:
    return _weights(_endless)


def endless_timestamp(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: _endless}


def endless_root(scene: Scene) -> dict[str, Answer]:
    return {f"{UPDATES}2.root.json": _endless}


def deep_timestamp(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: b"[" * 16_000}


def no_metadata(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: b""}


def other_role(scene: Scene) -> dict[str, Answer]:
    return {TIMESTAMP: scene.third["snapshot"]}


def _weights(answer: Answer) -> dict[str, Answer]:
    """Whichever way the device asks for them."""
    return {MODEL: answer, f"{MODEL}/from/second": answer}


def _endless() -> Iterator[bytes]:
    return itertools.repeat(bytes(1 << 16))


ATTACKS: list[tuple[Callable[[Scene], dict[str, Answer]], str]] = [
    (rollback_timestamp, r"updates: .*BadVersionNumberError: New timestamp version"),
    (rollback_snapshot, r"updates: .*BadVersionNumberError: New snapshot version"),
    (expired, r"updates: .*ExpiredMetadataError: timestamp.json is expired"),
    (mixed_targets, r"updates: .*LengthOrHashMismatchError"),
    (mixed_snapshot, r"updates: .*LengthOrHashMismatchError"),
    (unknown_key, r"updates: .*UnsignedMetadataError: timestamp was signed by 0/1 keys"),
    (root_of_too_few, r"updates: .*UnsignedMetadataError: root was signed by 1/2 keys"),
    (root_of_one_key_twice, r"updates: .*DeserializationError"),
    (root_of_strangers, r"updates: .*UnsignedMetadataError: root was signed by 0/2 keys"),
    (root_that_does_not_sign_itself, r"updates: .*UnsignedMetadataError: root was signed by 1/2 keys"),
    (skipped_root, r"updates: .*BadVersionNumberError: Expected root version 2"),
    (swapped_model, r"model third: models/third.safetensors: sha256: found \w+, expected \w+; .*; model second"),
    (longer_model, r"model third: .*found more than \d+ bytes"),
    (shorter_model, r"model third: models/third.safetensors: sha256: found"),
    (endless_model, r"model third: .*found more than \d+ bytes"),
    (endless_timestamp, r"updates: .*DownloadError: .*found more than 16384 bytes"),
    (endless_root, r"updates: .*DownloadError: .*found more than 512000 bytes"),
    (deep_timestamp, r"updates: .*DeserializationError"),
    (no_metadata, r"updates: .*DeserializationError"),
    (other_role, r"updates: .*RepositoryError: Expected 'timestamp', got 'snapshot'"),
]


@pytest.fixture(scope="module")
def scene(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> tuple[Scene, Path]:
    """And the closed state of a device that has followed until ``second``."""
    folder = tmp_path_factory.mktemp("device") / "state"
    seen = []
    with Device.open(folder, KEY, tiny_bundle, trusted_root=fleet.root) as device:
        for number, version in enumerate(("first", "second")):
            fleet.publish(version, number + 1)
            report = fleet.check_in(device)
            assert (report.new_model, report.updates_refused, device.model_version) == (True, (), version)
            seen.append(fleet.metadata())
    assert findings(folder, KEY, tiny_bundle) == []
    fleet.publish("third", 3)
    return Scene(fleet, seen[0], seen[1], fleet.metadata(), fleet.paths(), fleet.get(MODEL)), folder


@pytest.mark.parametrize(("attack", "why"), ATTACKS, ids=lambda each: getattr(each, "__name__", ""))
def test_an_attack_is_refused_and_costs_nothing(
    scene: tuple[Scene, Path],
    tmp_path: Path,
    tiny_bundle: Bundle,
    attack: Callable[[Scene], dict[str, Answer]],
    why: str,
) -> None:
    place, state = scene
    fleet, folder = place.fleet, tmp_path / "state"
    shutil.copytree(state, folder)
    waveform = hiss(1)
    with Device.open(folder, KEY, tiny_bundle, trusted_root=fleet.root) as device:
        heard = device.recognize(waveform, 16_000).text
        before = {name: array.copy() for name, array in device.base.weights.items()}
        fleet.line.exchanged, fleet.line.sent = attack(place), 0
        try:
            report = fleet.check_in(device)
        finally:
            fleet.line.exchanged = {}
        assert len(report.updates_refused) == 1
        assert re.search(why, report.updates_refused[0], re.DOTALL), report.updates_refused
        assert (report.new_model, report.model_version, device.model_version) == (False, "second", "second")
        assert all(np.array_equal(before[name], array) for name, array in device.base.weights.items())
        assert device.recognize(waveform, 16_000).text == heard
        assert fleet.line.sent <= 2 * len(place.model) + (1 << 20), "an endless answer is left"
    with Device.open(folder, KEY, tiny_bundle, trusted_root=fleet.root) as device:
        assert device.model_version == "second"
        report = fleet.check_in(device)  # the server is honest again
        assert (report.new_model, report.updates_refused, device.model_version) == (True, (), "third")
        device.recognize(waveform, 16_000)
    assert findings(folder, KEY, tiny_bundle) == []
