"""What a device trusts, over time: handed on by roots, ended by expiry, and never by the server's word alone."""

import base64
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tuf.api.metadata import TargetFile, Targets

from device_sdk import Bundle, CheckInError, ConfigurationError, Device, DeviceSettings, MissingExtraError
from device_sdk.checkin.updates.metadata import Release, Target, release_of
from device_sdk.learning import LearningSettings, TeacherSettings
from server.registry.models import add_model, publish, store
from server.signing.roots import public_key, read_key, rotate, sign
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from tests.device_sdk.checkin.site import KEY
from tests.device_sdk.checkin.updates.fleet import FAR, UPDATES, Fleet, changed_root, forged, in_hours, running, signed
from tests.device_sdk.hostile.server import checked_in
from tests.device_sdk.state.audit import findings


@pytest.fixture
def fleet(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Fleet]:
    with running(tmp_path / "fleet", tiny_bundle) as found:
        yield found


def opened(folder: Path, bundle: Bundle, fleet: Fleet) -> Device:
    return Device.open(folder, KEY, bundle, trusted_root=fleet.root)


@pytest.fixture
def device(fleet: Fleet, tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Device]:
    """A device that trusts the fleet's root, and has followed it to ``first``."""
    with opened(tmp_path / "state", tiny_bundle, fleet) as found:
        fleet.publish("first", 1)
        assert fleet.check_in(found).new_model
        yield found


def signed_rotation(keys: Path, role: str | None, *signers: str, revoke: str | None = None) -> None:
    """The owner replaces a key, and signs with these."""
    assert rotate(keys, role=role, days=30.0, revoke=revoke).missing == 2
    results = [sign(keys, keys / f"{name}.pem", None) for name in signers]
    assert [each.missing == 0 for each in results] == [False] * (len(signers) - 1) + [True]


def offset(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """The clock by which a device judges expiry is so far ahead."""

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + datetime.timedelta(days=days)

    monkeypatch.setattr(
        "tuf.ngclient._internal.trusted_metadata_set.datetime",
        SimpleNamespace(datetime=Shifted, timezone=datetime.timezone),
    )


def test_keys_are_rotated_and_devices_follow(device: Device, fleet: Fleet, tmp_path: Path, tiny_bundle: Bundle) -> None:
    """A root key is replaced, and signed in by its successor and one that stays; then every online key."""
    old = json.loads(fleet.root)["signed"]["roles"]["root"]["keyids"]
    replaced = public_key(read_key(fleet.keys / "root-1.pem", None)).keyid
    signed_rotation(fleet.keys, "root", "root-1", "root-2", "root-4", revoke=replaced)
    for role in ("timestamp", "snapshot", "targets"):
        signed_rotation(fleet.keys, role, "root-2", "root-4")
    fleet.publish("second", 2)
    assert (fleet.check_in(device).updates_refused, device.model_version) == ((), "second")
    device.close()
    chain = sorted(fleet.line.heard.keys() & {f"{UPDATES}{number}.root.json" for number in range(9)})
    assert chain == [f"{UPDATES}{number}.root.json" for number in (2, 3, 4, 5)]
    newest = json.loads(fleet.line.heard[f"{UPDATES}5.root.json"][0])["signed"]["roles"]
    assert len(set(old) & set(newest["root"]["keyids"])) == 2 and findings(tmp_path / "state", KEY, tiny_bundle) == []
    with opened(tmp_path / "state", tiny_bundle, fleet) as device:  # what was handed on is remembered
        assert fleet.check_in(device).updates_refused == ()
        assert len(fleet.line.heard[f"{UPDATES}2.root.json"]) == 1, "roots are fetched once"
        device.forget()
        assert device._store.names("updates") == []
        assert (fleet.check_in(device).updates_refused, device.model_version) == ((), "second")


def test_stolen_online_keys_bring_back_no_old_release_and_a_new_root_ends_them(device: Device, fleet: Fleet) -> None:
    first = fleet.metadata()
    fleet.publish("second", 2)
    fleet.check_in(device)
    number = json.loads(first["targets"])["signed"]["version"]
    fleet.line.exchanged = forged(fleet, first["targets"]) | {f"{UPDATES}{number}.targets.json": first["targets"]}
    (refused,) = fleet.check_in(device).updates_refused
    assert "targets.json version" in refused and "model second and marginals 0 stay" in refused
    fleet.line.exchanged = {}
    fleet.publish("third", 3)
    (refused,) = fleet.check_in(device).updates_refused
    assert "New timestamp version" in refused, "the thieves' timestamp is ahead of every honest one"
    device.recognize(np.zeros(9600, np.float32), 16_000)
    for role in ("timestamp", "snapshot"):
        signed_rotation(fleet.keys, role, "root-1", "root-3")
    assert (fleet.check_in(device).updates_refused, device.model_version) == ((), "third")


def test_metadata_is_refused_once_it_has_expired(device: Device, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's clock goes on, the answers do not: first the timestamp's day is over, then the root's two."""
    frozen = dict(zip(fleet.paths().values(), fleet.metadata().values(), strict=True))
    fleet.publish("second", 2)
    for days, role in ((1.5, "timestamp"), (3.0, "root")):
        with monkeypatch.context() as patched:
            offset(patched, days)
            fleet.line.exchanged = dict(frozen)
            (refused,) = fleet.check_in(device).updates_refused
            assert f"{role}.json is expired" in refused and device.model_version == "first"
    fleet.line.exchanged = {}
    offset(monkeypatch, 0.25)
    assert (fleet.check_in(device).updates_refused, device.model_version) == ((), "second")


def test_a_prolonged_root_ends_its_expiry(device: Device, fleet: Fleet) -> None:
    signers = {fleet.keys / f"root-{number}.pem": True for number in (1, 2)}
    expired = changed_root(fleet.root, signers, days=-1.0)
    fleet.publish("second", 2)
    fleet.line.exchanged = {f"{UPDATES}2.root.json": expired}
    (refused,) = fleet.check_in(device).updates_refused
    assert "root.json is expired" in refused and device.model_version == "first"
    device.recognize(np.zeros(9600, np.float32), 16_000)
    fleet.line.exchanged |= {f"{UPDATES}3.root.json": changed_root(expired, signers, days=1.0)}
    assert (fleet.check_in(device).updates_refused, device.model_version) == ((), "second")


def test_the_answer_to_a_check_in_cannot_send_a_device_back(device: Device, fleet: Fleet) -> None:
    """The first model is still among the signed targets: that it is not the current one is signed, too."""
    first = fleet.operator.get("models")["models"][0]
    fleet.publish("second", 2)
    assert fleet.check_in(device).new_model
    older = checked_in(fleet.bundle, model_version=first["version"], model_sha256=first["sha256"])
    fleet.line.exchanged = {"/v1/check-in": older}
    report = fleet.check_in(device)
    assert (first["version"], report.new_model, report.model_version) == ("first", False, "second")
    fleet.line.exchanged = {}
    fleet.operator.post("models/first/publish")  # the operator may: it is signed as current
    assert fleet.check_in(device).new_model and device.model_version == "first"


def _other_distribution(message: dict[str, object]) -> bytes:
    values = np.frombuffer(base64.b64decode(str(message["probabilities"])), "<f8")[::-1]
    return json.dumps(message | {"probabilities": base64.b64encode(values.tobytes()).decode()}).encode()


@pytest.mark.parametrize(
    ("tampered", "why"),
    [
        (_other_distribution, "sha256: found"),
        (lambda message: json.dumps(message | {"words_digest": "0" * 64}).encode(), "another version or word list"),
        (lambda message: json.dumps(message | {"marginals_version": 9}).encode(), "another version or word list"),
        (lambda message: b" " * (1 << 20), "found more than"),
    ],
    ids=["values", "words", "version", "long"],
)
def test_marginals_are_those_that_were_signed(marginals, tampered, why: str) -> None:
    fleet, device, message = marginals
    fleet.line.exchanged = {"/v1/marginals/1": tampered(message)}
    report = fleet.check_in(device)
    fleet.line.exchanged = {}
    assert (report.marginals_version, report.new_marginals) == (0, False)
    (refused,) = report.updates_refused
    assert refused.startswith("marginals 1: ") and why in refused and refused.endswith("; marginals 0 stay")
    try:
        assert fleet.check_in(device).new_marginals
    finally:
        device.forget()


@pytest.fixture(scope="module")
def marginals(tmp_path_factory, tiny_bundle: Bundle) -> Iterator[tuple[Fleet, Device, dict[str, object]]]:
    """A server with marginals of its own, a device without, and what the server says of them."""
    folder = tmp_path_factory.mktemp("marginals")
    with running(folder / "fleet", tiny_bundle) as fleet, opened(folder / "state", tiny_bundle, fleet) as device:
        values = np.asarray(tiny_bundle.background, np.float64) + 1e-4
        values /= values.sum()
        body = {"probabilities": base64.b64encode(values.astype("<f8").tobytes()).decode(), "publish": True}
        fleet.operator.post("marginals", json=body)
        yield fleet, device, json.loads(fleet.get("/v1/marginals/1"))


def test_an_endless_answer_is_left_in_time(device: Device, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then would keep a device busy for as long as the length that is allowed lasts."""

    def drip() -> Iterator[bytes]:
        for _ in range(10_000):
            time.sleep(0.02)
            yield b" "

    monkeypatch.setattr("device_sdk.checkin.updates.metadata.METADATA_SECONDS", 0.3)
    fleet.line.exchanged = {f"{UPDATES}timestamp.json": drip}
    (refused,) = fleet.check_in(device).updates_refused
    assert "not there after 0.3 s; the download is dropped" in refused and fleet.line.sent < 1000


def test_lengths_beyond_what_a_device_could_use_are_refused_before_anything_comes(device: Device, fleet: Fleet) -> None:
    """By somebody who has stolen every online key, and would fill the device's memory."""
    custom = {"custom": {"current": True, "words_digest": "d"}}
    names = ("models/huge.safetensors", "marginals/7.float64")
    files = {name: TargetFile(1 << 40, {"sha256": "0" * 64}, name, custom) for name in names}
    targets = signed(fleet.keys, "targets", Targets(version=FAR, expires=in_hours(1.0), targets=files))
    asked = forged(fleet, targets) | {f"{UPDATES}{FAR}.targets.json": targets}
    fleet.line.exchanged = asked | {"/v1/models/huge": b"unasked", "/v1/marginals/7": b"unasked"}
    refused = fleet.check_in(device).updates_refused
    assert [each.split(":")[0] for each in refused] == ["model huge", "marginals 7"]
    assert all("length: found 1099511627776 as signed" in each for each in refused)
    assert fleet.line.sent == sum(len(bytes(each)) for each in asked.values())


def test_a_teacher_is_the_one_that_was_signed(fleet: Fleet, tmp_path: Path, tiny_bundle: Bundle) -> None:
    """Everything else of the release is taken; the teacher follows when its bytes are the signed ones."""
    folder = fleet.keys.parent
    database, blobs = Database(f"sqlite:///{folder / 'server.db'}"), FolderBlobs(folder / "blobs", tidy=False)
    made = {}
    for name, factor in (("teacher", 1.01), ("student", 0.99)):
        moved = {each: array * np.float32(factor) for each, array in tiny_bundle.weights.items()}
        made[name] = store(blobs, moved, {"version": name})
    with database.write() as connection:
        add_model(connection, "teacher", made["teacher"], now=time.time())
        add_model(connection, "student", made["student"], now=time.time(), teacher="teacher")
        publish(connection, "model", "student", time.time(), "")
    database.close()
    settings = DeviceSettings(learning=LearningSettings(teacher=TeacherSettings(schedule="server")))
    with Device.open(tmp_path / "state", KEY, tiny_bundle, settings, trusted_root=fleet.root) as device:
        other = blobs.get(f"models/{made['student'].sha256}.safetensors")
        fleet.line.exchanged = {"/v1/models/teacher": other, "/v1/models/teacher/from/student": other}
        report = fleet.check_in(device)
        assert (report.model_version, report.teacher_version) == ("student", None)
        (refused,) = report.updates_refused
        assert refused.startswith("teacher: models/teacher.safetensors: ") and refused.endswith("; the teacher stays")
        fleet.line.exchanged = {}
        report = fleet.check_in(device)
        assert (report.updates_refused, report.teacher_version) == ((), "teacher")


def test_a_trusting_device_gets_nothing_without_signatures(device, fleet, tmp_path, tiny_bundle, monkeypatch) -> None:
    fleet.publish("second", 1)
    with monkeypatch.context() as patched:
        patched.setattr("server.signing.repository.Repository.document", lambda self, name: None)
        report = fleet.check_in(device)
        assert "status 404, unknown_metadata" in report.updates_refused[0] and device.model_version == "first"
    assert fleet.check_in(device).new_model
    with Device.open(tmp_path / "plain", KEY, tiny_bundle) as plain:  # who trusts the server needs no signature
        report = fleet.check_in(plain)
        assert (report.updates_refused, report.model_version) == ((), "second")
        assert plain._store.names("updates") == []


def test_a_root_that_is_none_is_refused_when_the_device_is_opened(tmp_path: Path, tiny_bundle: Bundle) -> None:
    other = json.dumps({"signed": {"_type": "targets", "version": 1}, "signatures": []}).encode()
    unread = "cannot be read"
    for content, why in ((b"", unread), (b"[]", unread), (other, "found metadata of role 'targets'")):
        with pytest.raises(ConfigurationError, match=f"trusted_root: {why}"):
            Device.open(tmp_path / "state", KEY, tiny_bundle, trusted_root=content)
    Device.open(tmp_path / "state", KEY, tiny_bundle).close()


def test_a_root_that_does_not_sign_itself_is_refused_by_name(fleet: Fleet, tmp_path: Path, tiny_bundle: Bundle) -> None:
    root = json.loads(fleet.root)
    root["signatures"] = root["signatures"][:1]
    with (
        Device.open(tmp_path / "state", KEY, tiny_bundle, trusted_root=json.dumps(root).encode()) as device,
        pytest.raises(ConfigurationError, match="trusted_root: root was signed by 1/2 keys"),
    ):
        fleet.check_in(device)


def test_the_missing_extra_is_named(tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_sdk.checkin.updates.metadata.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'idiolect\[secure-updates\]'"):
        Device.open(tmp_path / "state", KEY, tiny_bundle, trusted_root=b"{}")


HASHES = {"sha256": "0" * 64}
GOOD = {
    "models/a.safetensors": (5, HASHES, {}),
    "models/b.safetensors": (6, HASHES, {"current": True, "teacher": "a"}),
    "marginals/3.float64": (8, HASHES, {"current": True, "words_digest": "d"}),
}


def test_a_release_is_what_is_marked_as_current() -> None:
    assert release_of(GOOD) == Release(
        Target("models/b.safetensors", "b", 6, "0" * 64),
        Target("models/a.safetensors", "a", 5, "0" * 64),
        Target("marginals/3.float64", "3", 8, "0" * 64),
        "d",
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"models/a.safetensors": (5, HASHES, {"current": True})}, "found 2 targets models/"),
        ({"models/b.safetensors": (5, HASHES, {"current": 1})}, "found 0 targets models/"),
        ({"models/b.safetensors": (5, HASHES, None)}, "found 0 targets models/"),
        ({"marginals/3.float64": (8, HASHES, [])}, "found 0 targets marginals/"),
        ({"models/b.safetensors": (6, HASHES, {"current": True, "teacher": "c"})}, "c.safetensors is not among them"),
        ({"models/b.safetensors": (6, {"sha512": ""}, {"current": True})}, "expected sha256"),
    ],
)
def test_targets_with_no_current_are_refused(changes: dict[str, tuple[int, dict[str, str], object]], why: str) -> None:
    with pytest.raises(CheckInError, match=why):
        release_of(GOOD | changes)
