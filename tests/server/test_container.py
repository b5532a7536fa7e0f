"""The image keeps what the documentation says of it: a volume, a port, and a proxy that is believed."""

import inspect
import json
import re
import shlex
from ipaddress import ip_address, ip_network
from pathlib import Path

from server.commands import serve

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """(name, arguments) of the image's last stage."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in TEXT.splitlines() if not line.startswith("#")))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    last = max(number for number, words in enumerate(found) if words[0] == "FROM")
    return [(words[0], words[1]) for words in found[last:]]


def only(name: str) -> str:
    found = [arguments for each, arguments in instructions() if each == name]
    assert len(found) == 1, f"{name}: found {found}"
    return found[0]


def test_its_state_lies_in_a_volume_that_its_user_may_write() -> None:
    volume = json.loads(only("VOLUME"))
    assert volume == [only("WORKDIR")], "state lies in the working folder where nobody says otherwise"
    made = " ".join(arguments for name, arguments in instructions() if name == "RUN")
    assert f"--home-dir {volume[0]} {only('USER')}" in made
    names = [name for name, _ in instructions()]
    assert names.index("RUN") < names.index("VOLUME"), "what is made after a volume is declared is not in it"


def test_it_serves_the_documented_port() -> None:
    port = str(inspect.signature(serve.command).parameters["port"].default)
    assert only("EXPOSE") == port and f"127.0.0.1:{port}/" in only("HEALTHCHECK")
    command = json.loads(only("CMD"))
    assert "--port" not in command or command[command.index("--port") + 1] == port
    documented = [(ROOT / "server/deployment" / name).read_text() for name in ("README.md", "Caddyfile")]
    assert f":{port}" in "".join(documented)


def test_its_proxy_is_believed() -> None:
    """A proxy reaches a container from the container network's own addresses."""
    environment = dict(
        pair.split("=", 1) for name, told in instructions() if name == "ENV" for pair in shlex.split(told)
    )
    networks = [ip_network(each) for each in environment["IDIOLECT_TRUSTED_PROXY"].split()]
    option = inspect.signature(serve.command, eval_str=True).parameters["trusted_proxy"]
    assert "IDIOLECT_TRUSTED_PROXY" in str(option.annotation.__metadata__[0].envvar)
    for proxy in ("127.0.0.1", "172.17.0.1", "10.88.0.1", "192.168.65.1", "fd00::1"):
        assert any(ip_address(proxy) in network for network in networks), proxy
    assert not any(ip_address("203.0.113.7") in network for network in networks)
