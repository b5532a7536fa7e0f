"""A device that trusts a root, and a server whose answers are tampered with: it keeps what it has, and recognizes."""

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk import Bundle, Device
from tests.device_sdk.checkin.site import KEY
from tests.device_sdk.checkin.updates.fleet import UPDATES, Answer, Fleet, changed_root, running, signed_timestamp
from tests.device_sdk.state.audit import findings
from tests.signals import hiss

TIMESTAMP = f"{UPDATES}timestamp.json"
ROOT = f"{UPDATES}2.root.json"
MODEL = "/v1/models/third"


@dataclass(frozen=True)
class Scene:
    """first, second: metadata by role at two moments, both of which the device has seen; third: what is current,
    with its weights. state: the closed one of a device that has followed until ``second``."""

    fleet: Fleet
    state: Path
    first: Mapping[str, bytes]
    second: Mapping[str, bytes]
    third: Mapping[str, bytes]
    paths: Mapping[str, str]
    model: bytes

    def timestamp(self, snapshot: bytes, **by: Any) -> dict[str, Answer]:
        """Of this snapshot, newer than all that the server signs."""
        later = int(json.loads(self.third["timestamp"])["signed"]["version"]) + 1000
        return {TIMESTAMP: signed_timestamp(self.fleet.keys, snapshot, later, **by)}

    def root(self, *numbers: int, stranger: str = "", again: int = 0) -> bytes:
        """The next root, or one after it: signed by root keys of these numbers, which it names, and by a stranger."""
        keys, content = self.fleet.keys, self.fleet.root
        signers = {keys / f"root-{number}.pem": not stranger for number in numbers}
        if stranger:
            signers[keys / "server" / "keys" / f"{stranger}.pem"] = True
        for _ in range(1 + again):
            content = changed_root(content, signers)
        return content


def weights(answer: Answer) -> dict[str, Answer]:
    """Whichever way the device asks for them."""
    return {MODEL: answer, f"{MODEL}/from/second": answer}


def endless() -> Iterator[bytes]:
    return itertools.repeat(bytes(1 << 16))


def rolled_back(scene: Scene) -> dict[str, Answer]:
    """By somebody who has stolen the timestamp key."""
    snapshot = scene.first["snapshot"]
    path = f"{UPDATES}{json.loads(snapshot)['signed']['version']}.snapshot.json"
    return {**scene.timestamp(snapshot), path: snapshot}


def signed_twice(scene: Scene) -> dict[str, Answer]:
    metadata = json.loads(scene.root(1))
    metadata["signatures"] *= 2
    return {ROOT: json.dumps(metadata).encode()}


def of_strangers(scene: Scene) -> dict[str, Answer]:
    """Signed by its own keys, as the server's are here, and not by those before."""
    keys = scene.fleet.keys / "server" / "keys"
    return {ROOT: changed_root(scene.fleet.root, {keys / "targets.pem": True, keys / "snapshot.pem": True})}


ATTACKS: dict[str, tuple[Callable[[Scene], dict[str, Answer]], str]] = {
    "older timestamp": (lambda scene: {TIMESTAMP: scene.first["timestamp"]},
                        r"updates: .*BadVersionNumberError: New timestamp version"),
    "older snapshot": (rolled_back, r"updates: .*BadVersionNumberError: New snapshot version"),
    "expired": (lambda scene: scene.timestamp(scene.third["snapshot"], hours=-1.0),
                r"updates: .*ExpiredMetadataError: timestamp.json is expired"),
    "mixed targets": (lambda scene: {scene.paths["targets"]: scene.second["targets"]},
                      r"updates: .*LengthOrHashMismatchError"),
    "mixed snapshot": (lambda scene: {scene.paths["snapshot"]: scene.second["snapshot"]},
                       r"updates: .*LengthOrHashMismatchError"),
    "unknown key": (lambda scene: scene.timestamp(scene.third["snapshot"], role="targets"),
                    r"updates: .*UnsignedMetadataError: timestamp was signed by 0/1 keys"),
    "root of too few": (lambda scene: {ROOT: scene.root(1)},
                        r"updates: .*UnsignedMetadataError: root was signed by 1/2 keys"),
    "root of one key twice": (signed_twice, r"updates: .*DeserializationError"),
    "root of strangers": (of_strangers, r"updates: .*UnsignedMetadataError: root was signed by 0/2 keys"),
    "root that does not sign itself": (lambda scene: {ROOT: scene.root(1, 2, stranger="targets")},
                                       r"updates: .*UnsignedMetadataError: root was signed by 1/2 keys"),
    "skipped root": (lambda scene: {ROOT: scene.root(1, 2, 3, again=1)},
                     r"updates: .*BadVersionNumberError: Expected root version 2"),
    "swapped model": (lambda scene: weights(scene.model[:-4] + np.float32(0.5).tobytes()),
                      r"model third: models/third.safetensors: sha256: found \w+, expected \w+; .*; model second"),
    "longer model": (lambda scene: weights(scene.model + b"\0"), r"model third: .*found more than \d+ bytes"),
    "shorter model": (lambda scene: weights(scene.model[:-1]),
                      r"model third: models/third.safetensors: sha256: found"),
    "endless model": (lambda scene: weights(endless), r"model third: .*found more than \d+ bytes"),
    "endless timestamp": (lambda scene: {TIMESTAMP: endless},
                          r"updates: .*DownloadError: .*found more than 16384 bytes"),
    "endless root": (lambda scene: {ROOT: endless}, r"updates: .*DownloadError: .*found more than 512000 bytes"),
    "deep timestamp": (lambda scene: {TIMESTAMP: b"[" * 16_000}, r"updates: .*DeserializationError"),
    "no metadata": (lambda scene: {TIMESTAMP: b""}, r"updates: .*DeserializationError"),
    "other role": (lambda scene: {TIMESTAMP: scene.third["snapshot"]},
                   r"updates: .*RepositoryError: Expected 'timestamp', got 'snapshot'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Bundle) -> Iterator[Scene]:
    folder, seen = tmp_path_factory.mktemp("fleet"), []
    with running(folder, tiny_bundle) as fleet:
        with Device.open(folder / "state", KEY, tiny_bundle, trusted_root=fleet.root) as device:
            for seed, version in enumerate(("first", "second"), 1):
                fleet.publish(version, seed)
                report = fleet.check_in(device)
                assert (report.new_model, report.updates_refused, device.model_version) == (True, (), version)
                seen.append(fleet.metadata())
        assert findings(folder / "state", KEY, tiny_bundle) == []
        fleet.publish("third", 3)
        yield Scene(fleet, folder / "state", *seen, fleet.metadata(), fleet.paths(), fleet.get(MODEL))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_costs_nothing(scene: Scene, tmp_path: Path, tiny_bundle: Bundle, name: str) -> None:
    fleet, folder, waveform, (attack, why) = scene.fleet, tmp_path / "state", hiss(1), ATTACKS[name]
    shutil.copytree(scene.state, folder)
    with Device.open(folder, KEY, tiny_bundle, trusted_root=fleet.root) as device:
        heard = device.recognize(waveform, 16_000).text
        before = {name: array.copy() for name, array in device.base.weights.items()}
        fleet.line.exchanged, fleet.line.sent = attack(scene), 0
        try:
            report = fleet.check_in(device)
        finally:
            fleet.line.exchanged = {}
        (refused,) = report.updates_refused
        assert re.search(why, refused, re.DOTALL), refused
        assert (report.new_model, report.model_version, device.model_version) == (False, "second", "second")
        assert all(np.array_equal(before[name], array) for name, array in device.base.weights.items())
        assert device.recognize(waveform, 16_000).text == heard
        assert fleet.line.sent <= 2 * len(scene.model) + (1 << 20), "an endless answer is left"
    with Device.open(folder, KEY, tiny_bundle, trusted_root=fleet.root) as device:
        assert device.model_version == "second"
        report = fleet.check_in(device)  # the server is honest again
        assert (report.new_model, report.updates_refused, device.model_version) == (True, (), "third")
        device.recognize(waveform, 16_000)
    assert findings(folder, KEY, tiny_bundle) == []
