"""``idiolect listen``: one server on the user's own machine for the clients that people already have."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.state import BundlePath, KeyFile, state_key
from device_sdk.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from device_sdk.listen.people import People


def command(
    state: Annotated[Path, typer.Option("--state", envvar="IDIOLECT_STATE", help="Folder of everybody's state.")],
    host: Annotated[str, typer.Option(help="Address to listen at; beyond this machine tokens and TLS are needed.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Of HTTP; 0 is any.")] = 8_765,
    page: Annotated[bool, typer.Option("--page", help="Serve the page on which one sees it learn.")] = False,
    files: Annotated[bool, typer.Option("--openai", help="Serve OpenAI's file API.")] = False,
    wyoming: Annotated[
        str | None, typer.Option(help="Serve Home Assistant's protocol: tcp://HOST:PORT, unix://PATH or stdio://.")
    ] = None,
    announce: Annotated[bool, typer.Option("--announce", help="Tell Home Assistant of it (mDNS).")] = False,
    tokens: Annotated[Path | None, typer.Option(help="JSON file of an object: token to person.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    name: Annotated[list[str] | None, typer.Option("--name", help="Host name that clients ask by, besides --host.")] = (
        None
    ),
    vocabulary: Annotated[
        Path | None, typer.Option(help="Names that everybody says, a line each: of rooms, lamps, people.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Wyoming though it has no login.")] = (False),
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
    known = _tokens(tokens)
    tls = certificate is not None and key is not None
    if not _loopback(host) and not (known and tls):
        raise ConfigurationError(
            f"--host: found {host}, which others can reach; expected --tokens, --certificate and --key with it, since "
            "browsers give no microphone and tokens are no secret without TLS"
        )
    if (certificate is None) != (key is None):
        raise ConfigurationError("--certificate, --key: found one of them, expected both")
    if wyoming is not None and known and not insecure:
        raise ConfigurationError("--wyoming: has no login, found --tokens; expected --insecure if anybody may speak")
    if wyoming is not None and not insecure and not _wyoming_here(wyoming):
        raise ConfigurationError(f"--wyoming: found {wyoming}, which others can reach; it has no login: --insecure")
    options = {
        "requests": requests_a_minute,
        "tls": (certificate, key) if tls else None,
        "hosts": (host, *(name or ())),
    }
    phrases = [] if vocabulary is None else vocabulary.read_text("utf-8").splitlines()
    from device_sdk.bundle import Bundle
    from device_sdk.listen.people import People
    from device_sdk.listen.wyoming import place_of
    from device_sdk.profiles import Profiles
    from device_sdk.settings import DeviceSettings

    if wyoming is not None:
        place_of(wyoming)
    settings = DeviceSettings(keep_corrected=True)
    exists = state.is_dir() and any(state.iterdir())
    profiles = Profiles(state, state_key(key_file, exists=exists), Bundle.open(bundle), settings)
    with People(profiles, known, learn=learn, expected=[each for each in phrases if each.strip()]) as people:
        asyncio.run(_serve(people, host, port, page, files, wyoming, announce, options))


async def _serve(
    people: People,
    host: str,
    port: int,
    page: bool,
    files: bool,
    wyoming: str | None,
    announce: bool,
    options: dict[str, Any],
) -> None:
    import uvicorn

    from device_sdk.listen.app import LOOPBACK, create_app
    from device_sdk.listen.gate import Gate, Limits
    from device_sdk.listen.wyoming import Wyoming

    gate = Gate(Limits(requests_a_minute=options["requests"]))
    app = create_app(people, gate, page=page, files=files, hosts=[*LOOPBACK, *options["hosts"]])
    certificate, key = options["tls"] or (None, None)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ws_max_size=1 << 20,
        limit_concurrency=256,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    events = Wyoming(people, gate)
    ready: dict[str, Any] = {"http": _address(server, host, certificate is not None)}
    stdio = wyoming == "stdio://"
    if wyoming is not None and not stdio:
        ready["wyoming"] = await events.start(wyoming)
    if announce and "wyoming" in ready:
        from wyoming.zeroconf import HomeAssistantZeroconf

        await HomeAssistantZeroconf(int(ready["wyoming"].rpartition(":")[2]), "idiolect", host).register_server()
    print(json.dumps(ready), file=sys.stderr if stdio else sys.stdout, flush=True)
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(each, stop.set)
    running = asyncio.create_task(server.main_loop())
    waiting = asyncio.create_task(events.standard_streams() if stdio else stop.wait())
    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await events.close()
    await running
    await server.shutdown()


def _address(server: Any, host: str, tls: bool) -> str:
    port = server.servers[0].sockets[0].getsockname()[1]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _tokens(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--tokens: {path}: {error}; expected a JSON object of token to person") from error
    if not isinstance(found, dict) or not found or not all(isinstance(each, str) for each in found.values()):
        raise ConfigurationError(f"--tokens: {path}: expected a JSON object of token to person, one at least")
    if short := [token for token in found if len(token) < 16]:
        raise ConfigurationError(f"--tokens: {path}: found a token of {len(short[0])} characters, expected at least 16")
    return found


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wyoming_here(uri: str) -> bool:
    scheme, _, rest = uri.partition("://")
    return scheme != "tcp" or _loopback(rest.rpartition(":")[0].strip("[]"))
