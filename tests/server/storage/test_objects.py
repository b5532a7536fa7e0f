"""Blobs in a real server that speaks S3's protocol, and a whole round over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk.errors import StateError
from server.storage.objects import HELD, open_blobs
from tests.server.parties import Operator, Party, serving

BUCKET = "idiolect"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    moto = pytest.importorskip("moto.server", reason="no S3 server here; install moto[server]")
    pytest.importorskip("obstore")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    import httpx

    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    for name, value in (keys | {"AWS_ENDPOINT": endpoint}).items():
        monkeypatch.setenv(name, value)
    httpx.put(f"{endpoint}/{BUCKET}")
    return f"s3://{BUCKET}/{request.node.originalname}"


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_blobs(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = open_blobs(request.getfixturevalue("bucket") if kind == "bucket" else tmp_path / "blobs")
    assert list(store.names("deltas")) == [] and not store.has("deltas/r1/b")
    for name in ("deltas/r1/b", "deltas/r1/a", "models/c.safetensors"):
        store.put(name, b"before")
        store.put(name, name.encode() * 1000)
    assert list(store.names("deltas")) == ["deltas/r1/a", "deltas/r1/b"]
    assert store.get("deltas/r1/a") == b"deltas/r1/a" * 1000
    store.hold("deltas/r1/a", tmp_path / "held")
    store.delete("deltas/r1/a")
    store.delete("deltas/r1/a")
    assert (tmp_path / "held").read_bytes() == b"deltas/r1/a" * 1000 and not store.has("deltas/r1/a")
    with pytest.raises(StateError, match="cannot be read"):
        store.get("deltas/r1/a")
    for wrong in ("", "/etc/passwd", "../x", "models", "models/../x", "models/.x", "a//b", "models/a b", "Models/x"):
        with pytest.raises(StateError, match="blob name"):
            store.put(wrong, b"")


def test_the_files_asked_for_last_are_held(bucket: str) -> None:
    store = open_blobs(bucket)
    names = [f"models/{number}.safetensors" for number in range(HELD + 2)]
    for name in names:
        store.put(name, name.encode())
    first = store.file(names[0])
    for name in [*names[1:HELD], names[0], *names[HELD:]]:
        assert store.file(name).read_bytes() == name.encode()
    assert first.exists() and first.read_bytes() == names[0].encode()  # asked for again meanwhile
    assert len(list(first.parent.iterdir())) == HELD and store.file(names[1]).read_bytes() == names[1].encode()


def test_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(StateError, match="expected one like s3://"):
        open_blobs("nothing://bucket")


def test_a_round_of_deltas(bucket: str, tmp_path: Path) -> None:
    with serving(tmp_path, blobs=bucket) as http:
        operator = Operator(http)
        party = Party(http).enrol()
        opened = operator.open(deltas={"clip_norm": 10.0}, marginals=None)
        assert party.send_delta(opened, value=0.5).status_code == 200
        ended = operator.close(opened)
        assert ended["state"] == "published"
        version = ended["model_version"]
        for name in (version, "base-1", version):
            whole = http.get(f"/v1/models/{name}")
            assert whole.status_code == 200 and len(whole.content) > 100
            rest = http.get(f"/v1/models/{name}", headers={"Range": "bytes=50-"})
            assert rest.status_code == 206 and rest.content == whole.content[50:]
    store = open_blobs(bucket)
    assert list(store.names("deltas")) == [] and len(list(store.names("models"))) == 2
    with serving(tmp_path, blobs=bucket) as http:
        assert Operator(http).get("status")["model_version"] == version
