"""``idiolect listen``: one server on the user's own machine for the clients that people already have."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from device_sdk.checks import is_this_machine, read_utf8
from device_sdk.commands.state import BundlePath, KeyFile, state_key
from device_sdk.errors import ConfigurationError, MissingExtraError
from device_sdk.sockets import listening
from device_sdk.transcripts import in_letters

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from device_sdk.listen.gate import Limits
    from device_sdk.listen.people import People

_ARENA_MAX = -8  # of glibc's mallopt


def command(
    state: Annotated[Path, typer.Option("--state", envvar="IDIOLECT_STATE", help="Folder of everybody's state.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; beyond this machine tokens and TLS are needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Of HTTP; 0 is any.")] = 8_765,
    page: Annotated[bool, typer.Option("--page", help="Serve the page on which one sees it learn.")] = False,
    files: Annotated[bool, typer.Option("--openai", help="Serve OpenAI's file API.")] = False,
    wyoming: Annotated[
        str | None, typer.Option(help="Serve Home Assistant's protocol: tcp://HOST:PORT, unix:///PATH or stdio://.")
    ] = None,
    announce: Annotated[bool, typer.Option("--announce", help="Tell Home Assistant of it (mDNS).")] = False,
    tokens: Annotated[Path | None, typer.Option(help="JSON file of an object: token to person.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Host name that clients ask by, besides --host.")
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="Names that everybody says, a line each: of rooms, lamps, people.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Wyoming though it has no login.")] = False,
    learn: Annotated[bool, typer.Option(help="Learn in the background.")] = True,
    requests_a_minute: Annotated[int, typer.Option(min=1, help="That one address may make.")] = 600,
    key_file: KeyFile = None,
    bundle: BundlePath = None,
) -> None:
    """Listen for clients over HTTP, WebSocket and Wyoming, each person with a device of their own that learns.

    Prints one line of JSON with the addresses when it is ready. Nothing is served that is not asked for, but for the
    WebSocket and feedback.
    """
    try:
        import uvicorn  # noqa: F401
        import wyoming as _wyoming  # noqa: F401
        from starlette.applications import Starlette  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"listen: {error}; install it: pip install 'idiolect[listen]'") from error
    if announce and find_spec("zeroconf") is None:
        raise MissingExtraError("--announce: needs the module 'zeroconf'; install it: pip install zeroconf")
    _few_arenas()
    known = _tokens(tokens)
    if (certificate is None) != (key is None):
        raise ConfigurationError("--certificate, --key: found one of them, expected both")
    if not is_this_machine(host) and not (known and certificate):
        raise ConfigurationError(
            f"--host: found {host}, which others can reach; expected --tokens, --certificate and --key with it, since "
            "browsers give no microphone and tokens are no secret without TLS"
        )
    if wyoming is not None and known:
        raise ConfigurationError(
            "--wyoming: has no login, found --tokens, without one of which nobody is heard; run two servers: one with "
            "--tokens for the page and files, one without for Wyoming, with another --state and --port"
        )
    from device_sdk.listen.wyoming import place_of

    place = None if wyoming is None else place_of(wyoming)
    if place is not None and not insecure and not is_this_machine(place.hostname or "localhost"):
        raise ConfigurationError(f"--wyoming: found {wyoming}, which others can reach; it has no login: --insecure")
    if announce and (place is None or place.scheme != "tcp"):
        raise ConfigurationError(f"--announce: found --wyoming {wyoming}, expected tcp://HOST:PORT, which others find")
    from device_sdk.bundle import Bundle
    from device_sdk.listen.gate import Limits
    from device_sdk.listen.people import People
    from device_sdk.profiles import Profiles
    from device_sdk.settings import DeviceSettings

    used = Bundle.open(bundle)
    phrases = [] if vocabulary is None else _phrases(vocabulary, used)
    places = _Places(host, port, page, files, wyoming, announce, (host, *(name or ())), certificate, key)
    exists = state.is_dir() and any(state.iterdir())
    settings = DeviceSettings(keep_corrected=True)
    profiles = Profiles(state, state_key(key_file, exists=exists), used, settings)
    with People(profiles, known, learn=learn, expected=phrases) as people:
        asyncio.run(_serve(people, places, Limits(requests_a_minute=requests_a_minute)))


def _phrases(path: Path, bundle: Bundle) -> list[str]:
    """Of a file, one a line. Raises ConfigurationError, which names the line that the model cannot spell."""
    from device_sdk.decoding.hotwords import phrase_of

    found: list[str] = []
    for number, line in enumerate(read_utf8(path, ConfigurationError, "--vocabulary").splitlines(), 1):
        if line.strip():
            where = f"--vocabulary: {path}, line {number}"
            found.append(in_letters(phrase_of(line, where), bundle.tokenizer.letters, where, ConfigurationError))
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """What is served where. hosts: names that clients ask by."""

    host: str
    port: int
    page: bool
    files: bool
    wyoming: str | None
    announce: bool
    hosts: tuple[str, ...]
    certificate: Path | None
    key: Path | None


async def _serve(people: People, places: _Places, limits: Limits) -> None:
    """Until SIGINT or SIGTERM, or until the one client at standard streams has gone."""
    import uvicorn

    from device_sdk.listen.app import LOOPBACK, create_app
    from device_sdk.listen.gate import Gate
    from device_sdk.listen.wyoming import Wyoming, place_of

    gate = Gate(limits)
    app = create_app(people, gate, page=places.page, files=places.files, hosts=[*LOOPBACK, *places.hosts])
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            ssl_certfile=places.certificate,
            ssl_keyfile=places.key,
            ws_max_size=1 << 20,
            limit_concurrency=256,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
        )
    )
    listener = listening(places.host, places.port)
    events, at_streams = Wyoming(people, gate), places.wyoming == "stdio://"
    scheme = "http" if places.certificate is None else "https"
    shown = f"[{places.host}]" if ":" in places.host else places.host
    ready = {"http": f"{scheme}://{shown}:{listener.getsockname()[1]}"}
    if places.wyoming is not None and not at_streams:
        ready["wyoming"] = await events.start(places.wyoming)
        if places.announce:
            from wyoming.zeroconf import HomeAssistantZeroconf

            place = place_of(ready["wyoming"])
            address = socket.gethostbyname(place.hostname or "")
            found = None if address == "0.0.0.0" else address
            await HomeAssistantZeroconf(place.port or 0, "idiolect", found).register_server()
    print(json.dumps(ready), file=sys.stderr if at_streams else sys.stdout, flush=True)
    if places.page and sys.stderr.isatty():
        print(f"idiolect: open {ready['http']} in a browser; Ctrl-C ends", file=sys.stderr)
    for each in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again once it has ended in good order
        signal.signal(each, lambda *_: None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    if at_streams:
        await events.standard_streams()
        server.should_exit = True
    await serving
    await events.close()


def _few_arenas() -> None:
    """Threads share heaps: with one of glibc's for each of them some twelve megabytes are never used again."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def _tokens(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found = json.loads(read_utf8(path, ConfigurationError, "--tokens"))
    except ValueError as error:
        raise ConfigurationError(f"--tokens: {path}: {error}; expected a JSON object of token to person") from error
    if not isinstance(found, dict) or not found or not all(isinstance(each, str) for each in found.values()):
        raise ConfigurationError(f"--tokens: {path}: expected a JSON object of token to person, one at least")
    if short := [token for token in found if len(token) < 16]:
        raise ConfigurationError(f"--tokens: {path}: found a token of {len(short[0])} characters, expected at least 16")
    return found
