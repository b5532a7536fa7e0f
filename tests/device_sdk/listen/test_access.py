"""Who is heard: by token alone where there are tokens, and beyond this machine only with them and TLS."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect

from device_sdk.commands import listen as command_of_listen
from device_sdk.commands.listen import command as listen
from device_sdk.errors import ConfigurationError, MissingExtraError
from device_sdk.listen.people import MOST
from tests.architecture.sources import ROOT
from tests.device_sdk.listen.clients import until, wave
from tests.device_sdk.listen.servers import listening
from tests.speech import clips, packaged

ANA, BEN = "a-token-of-ana-s-own", "a-token-of-ben-s-own"


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Self-signed, for this machine."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "home")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = made.add_extension(here, critical=False).sign(key, hashes.SHA256())
    paths = folder / "home.crt", folder / "home.key"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return paths


def test_a_token_is_who_speaks_over_tls(tmp_path: Path) -> None:
    packaged()
    (tmp_path / "tokens.json").write_text(json.dumps({ANA: "ana", BEN: "ben"}))
    certificate, key = _certificate(tmp_path)
    options = ["--tokens", tmp_path / "tokens.json", "--certificate", certificate, "--key", key, "--no-wyoming"]
    trusting = ssl.create_default_context(cafile=str(certificate))
    with listening(tmp_path / "state", *map(str, options)) as server:
        assert server.http.startswith("https://")
        with httpx.Client(base_url=server.http, verify=trusting, timeout=60) as http:
            assert http.get("/v1/me").status_code == 401
            assert (
                http.get("/v1/me", headers={"Authorization": "Bearer wrong"}).json()["error"]["code"]
                == "unknown_person"
            )
            ana = {"Authorization": f"Bearer {ANA}"}
            assert http.get("/v1/me", headers=ana).json()["person"] == "ana"
            assert http.get("/v1/me", headers={**ana, "X-Idiolect-Person": "ben"}).status_code == 401
            assert [each["id"] for each in http.get("/v1/models", headers=ana).json()["data"]] == ["idiolect", "ana"]
            assert http.get("/").status_code == 200 and "idiolect" in http.get("/").text

        async def spoken(token: str) -> str:
            url = f"{server.http.replace('https', 'wss', 1)}/v1/listen?token={token}"
            async with connect(url, ssl=trusting) as socket:
                (message,) = await until(socket, "ready" if token == BEN else "error")
                return str(message.get("person") or message["error"]["code"])

        assert asyncio.run(spoken(BEN)) == "ben" and asyncio.run(spoken("wrong")) == "unknown_person"


def test_who_has_no_token_is_refused_before_a_recording_is_read(tmp_path: Path, tiny_bundle) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps({ANA: "ana", BEN: "ben"}))
    options = ["--tokens", str(tmp_path / "tokens.json"), "--no-wyoming", "--no-learn"]
    with listening(tmp_path / "state", *options, bundle=tiny_bundle.path) as server:
        place = server.http.removeprefix("http://")
        with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2])), timeout=20) as line:
            head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {place}\r\nContent-Length: 1000000\r\n"
            line.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode())
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 401")

        def asked(model: str) -> int:
            """The header names another than the form does, which is more."""
            headers = {"Authorization": f"Bearer {ANA}", "X-Idiolect-Person": "ben"}
            url, files = f"{server.http}/v1/audio/transcriptions", {"file": wave(clips()[0])}
            return httpx.post(url, files=files, data={"model": model}, headers=headers, timeout=60).status_code

        assert [asked(model) for model in ("ana", "ben", "idiolect")] == [200, 401, 401]


def test_more_people_than_there_is_memory_for_are_refused(tmp_path: Path, tiny_bundle) -> None:
    with listening(tmp_path / "state", "--no-learn", bundle=tiny_bundle.path) as server:
        people = ({"X-Idiolect-Person": f"person {number}"} for number in range(MOST + 1))
        statuses = [httpx.get(f"{server.http}/v1/me", headers=each, timeout=60).status_code for each in people]
        assert statuses == [200] * MOST + [422]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "expected --tokens, --certificate and --key"),
        (["--wyoming", "tcp://0.0.0.0:10300"], "it has no login: --insecure"),
        (["--wyoming", "udp://127.0.0.1:1"], "expected tcp://HOST:PORT, unix:///PATH or stdio://"),
        (["--wyoming", "tcp://127.0.0.1:99999"], "expected tcp://HOST:PORT, unix:///PATH or stdio://"),
        (["--wyoming", "tcp://[::1"], "expected tcp://HOST:PORT, unix:///PATH or stdio://"),
        (["--wyoming", "unix://relative.sock"], "expected the absolute path of a socket, after three slashes"),
        (["--certificate", "x.pem"], "--certificate, --key: found one of them"),
        (["--tokens", "none.json"], "none.json: "),
        (["--tokens", "short.json"], "found a token of 5 characters, expected at least 16"),
        (["--tokens", "tokens.json", "--wyoming", "tcp://127.0.0.1:0"], "has no login, found --tokens"),
        (["--tokens", "tokens.json", "--wyoming", "tcp://127.0.0.1:0", "--insecure"], "run two servers"),
    ],
)
def test_what_would_be_no_secret_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    packaged()
    (tmp_path / "tokens.json").write_text(json.dumps({ANA: "ana"}))
    (tmp_path / "short.json").write_text(json.dumps({"short": "ana"}))
    command = [sys.executable, "-m", "device_sdk.cli", "listen", "--state", "state", "--port", "0", *options]
    own = {"PATH": "/usr/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_announcing_needs_zeroconf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(MissingExtraError, match=r"--announce: .*pip install zeroconf"):
        listen(tmp_path / "state", wyoming="tcp://127.0.0.1:0", announce=True)
    monkeypatch.setattr(command_of_listen, "find_spec", lambda _: True)
    for place in (None, "unix:///tmp/here.sock", "stdio://"):
        with pytest.raises(ConfigurationError, match=r"--announce: .*expected tcp://HOST:PORT"):
            listen(tmp_path / "state", wyoming=place, announce=True)


def _at_standard_streams(folder: Path, bundle: Path, asked: bytes) -> bytes:
    """What it answers."""
    command = [sys.executable, "-m", "device_sdk.cli", "listen", "--state", str(folder / "state"), "--port", "0"]
    command += ["--wyoming", "stdio://", "--bundle", str(bundle)]
    own = {"PATH": "/usr/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=asked, cwd=folder, env=own, capture_output=True, timeout=60)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_client_at_standard_streams(tmp_path: Path, tiny_bundle) -> None:
    packaged()
    asked = json.dumps({"type": "describe"}).encode() + b"\n"
    head, _, rest = _at_standard_streams(tmp_path, tiny_bundle.path, asked).partition(b"\n")
    size = json.loads(head)["data_length"]
    assert json.loads(head)["type"] == "info" and json.loads(rest[:size])["asr"][0]["name"] == "idiolect"


def test_input_that_ends_inside_an_event_ends_the_server(tmp_path: Path, tiny_bundle) -> None:
    asked = json.dumps({"type": "audio-chunk", "payload_length": 10}).encode() + b"\nabc"
    assert _at_standard_streams(tmp_path, tiny_bundle.path, asked) == b""
