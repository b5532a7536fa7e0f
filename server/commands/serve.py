"""``idiolect serve``: a server over HTTP, of one process or several."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from device_sdk.commands.secrets import holds_password, keep_from_process_list
from device_sdk.errors import ConfigurationError
from server.buckets import Rate
from server.logs import configure
from server.processes import end_with_parent, own_command, watch
from server.storage.forgetting import keep_private

if TYPE_CHECKING:
    from server.lab.evaluation.gate import WordErrorGate
    from server.lab.rehearsal import PseudoDevices
    from server.registry.initial import InitialModel
    from server.rounds.advance import Evaluate
    from server.rounds.releases import Rehearse
    from server.settings import ServerSettings

__all__ = ["command", "read_tokens", "run", "run_many"]


DESCRIPTORS = 8192
"""Files and connections that a process asks the system for; many grant only 1,024 to who does not ask."""


class LogFormat(StrEnum):
    """Of what is logged."""

    TEXT = "text"
    JSON = "json"


def command(
    bundle: Annotated[
        Path | None, typer.Option(help="Bundle whose weights, word list and background start a new database.")
    ] = None,
    database: Annotated[
        str, typer.Option(envvar="IDIOLECT_DATABASE", help="SQLite file, or a database URL.", show_envvar=True)
    ] = "idiolect-server.db",
    blobs: Annotated[
        str | None,
        typer.Option(
            envvar="IDIOLECT_BLOBS",
            help="Folder of weights and raw deltas, or s3://bucket/prefix.  [default: the database's name + .blobs]",
        ),
    ] = None,
    rehearsal: Annotated[
        list[str] | None,
        typer.Option(
            help="Transcribed speech for the pseudo-devices of rounds: KIND:PATH with KIND barista, fsdd or folder, or "
            "made:base; may be given several times."
        ),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Transcribed speech, as for --rehearsal, that every model is tried on before it is published: one "
            "that makes more word errors than the model before it is refused."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="How much higher, as a share, the word error on it may be.", min=0)
    ] = 0.02,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8470,
    token_file: Annotated[
        Path | None,
        typer.Option(help="JSON with enrolment_token and operator_token; made with fresh secrets if missing."),
    ] = None,
    enrolment_token: Annotated[
        str | None, typer.Option(envvar="IDIOLECT_ENROLMENT_TOKEN", help="What devices show to enrol.")
    ] = None,
    operator_token: Annotated[
        str | None, typer.Option(envvar="IDIOLECT_OPERATOR_TOKEN", help="What operators' commands show.")
    ] = None,
    marginals_cap: Annotated[
        float, typer.Option(help="Largest epsilon a device may spend on marginals; 'inf' for no bound.")
    ] = 100.0,
    deltas_cap: Annotated[
        float, typer.Option(help="Largest epsilon a device may spend on deltas; deltas without noise need 'inf'.")
    ] = float("inf"),
    words_cap: Annotated[
        float, typer.Option(help="Largest epsilon a device may spend on naming new words; 'inf' for no bound.")
    ] = 100.0,
    retry_after: Annotated[
        float, typer.Option(help="Seconds after which devices check in again, where they are not too many.", min=0.01)
    ] = 60.0,
    check_ins: Annotated[
        float, typer.Option(help="Check-ins a second to stand; a larger fleet is told to come less often.", min=0.01)
    ] = 100.0,
    keep_models: Annotated[
        int | None, typer.Option(help="Keep the weights of so many of the newest models.  [default: of all]", min=2)
    ] = None,
    keep_rounds: Annotated[
        int,
        typer.Option(
            help="Keep reports, lines of the ledger and releases of so many of the newest rounds; what older ones cost "
            "stays in the ledger's totals. 0 keeps all.",
            min=0,
        ),
    ] = 1000,
    updates: Annotated[
        Path | None,
        typer.Option(help="Sign what devices install, with the keys and roots of this folder (idiolect updates init)."),
    ] = None,
    updates_passphrase: Annotated[
        str | None,
        typer.Option(envvar="IDIOLECT_UPDATES_PASSPHRASE", help="Of encrypted signing keys.", show_default=False),
    ] = None,
    canary: Annotated[
        float | None,
        typer.Option(
            help="Share of the devices that a round's model goes to first; all get it once these do not fare worse."
            "  [default: all at once]",
            min=0.0,
            max=0.5,
        ),
    ] = None,
    canary_seconds: Annotated[float, typer.Option(help="How long they have it alone.", min=0.01)] = 172_800.0,
    canary_patience: Annotated[
        float, typer.Option(help="Seconds after which a device that has not come back counts as lost.", min=0.01)
    ] = 86_400.0,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that add up a round's deltas.  [default: the server's own, or all of Ray]", min=1),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Ray cluster that does it instead: ray://host:10001, auto, or local.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Processes that serve; more than 1 with a postgresql:// database.", min=1)
    ] = 1,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            envvar="IDIOLECT_TRUSTED_PROXY",
            help="Address or network of a proxy that is believed when it says whom a request is from; may be given "
            "several times.  [default: this machine]",
        ),
    ] = None,
    address_rate: Annotated[
        str, typer.Option(metavar="RATE:BURST", help="Requests a second of one address, and at once after a rest.")
    ] = "50:3000",
    device_rate: Annotated[
        str, typer.Option(metavar="RATE:BURST", help="Requests a second of one device, and at once after a rest.")
    ] = "2:120",
    enrolment_rate: Annotated[
        str, typer.Option(metavar="RATE:BURST", help="Enrolments a second of one address, and at once after a rest.")
    ] = "1:100",
    enrolment_uses: Annotated[
        int, typer.Option(help="Devices that the enrolment token lets in; 0 for any number.", min=0)
    ] = 10_000,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written with the URL as JSON once the server accepts connections.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people, or JSON objects.")] = LogFormat.TEXT,
    verbose: Annotated[bool, typer.Option(help="Log every request, and what comes of it, at DEBUG.")] = False,
    inherited: Annotated[int | None, typer.Option("--socket", hidden=True)] = None,
) -> None:
    """Serve devices and operators until stopped. Stop it with Ctrl-C, or kill it: nothing accepted is lost."""
    from server.plans.rollout import CanarySettings
    from server.registry.initial import initial_from_bundle
    from server.settings import THIS_MACHINE, Rates, ServerSettings, default_blobs
    from server.signing.settings import UpdateSettings

    keep_from_process_list(
        {
            "--database": ("IDIOLECT_DATABASE", database if holds_password(database) else None),
            "--enrolment-token": ("IDIOLECT_ENROLMENT_TOKEN", enrolment_token),
            "--operator-token": ("IDIOLECT_OPERATOR_TOKEN", operator_token),
            "--updates-passphrase": ("IDIOLECT_UPDATES_PASSPHRASE", updates_passphrase),
        }
    )
    _check_place("--database", database, folder=False)
    _check_place("--blobs", str(blobs or default_blobs(database)), folder=True)
    os.umask(0o077)  # what a server writes is its user's alone
    configure(log_format.value, verbose=verbose)
    stem = Path(database) if "://" not in database else Path("idiolect-server")
    tokens = read_tokens(token_file or stem.with_suffix(".tokens.json"), enrolment_token, operator_token)
    settings = ServerSettings(
        database=database,
        blobs=blobs or default_blobs(database),
        enrolment_token=tokens[0],
        operator_token=tokens[1],
        marginals_cap=marginals_cap,
        deltas_cap=deltas_cap,
        words_cap=words_cap,
        retry_after_seconds=retry_after,
        check_ins_per_second=check_ins,
        keep_models=keep_models,
        keep_rounds=keep_rounds or None,
        updates=UpdateSettings(updates, updates_passphrase) if updates is not None else None,
        canary=CanarySettings(share=canary, seconds=canary_seconds, patience=canary_patience) if canary else None,
        workers=workers,
        ray=ray,
        rates=Rates(
            _rate("address-rate", address_rate),
            _rate("device-rate", device_rate),
            _rate("enrolment-rate", enrolment_rate),
        ),
        enrolment_uses=enrolment_uses or None,
        trusted_proxies=tuple(trusted_proxy) if trusted_proxy else THIS_MACHINE,
        processes=processes,
        member=inherited is not None,
    )
    if processes > 1 and inherited is None:
        run_many(settings, initial_from_bundle(bundle), host=host, port=port, ready_file=ready_file)
        return
    run(
        settings,
        initial_from_bundle(bundle),
        host=host,
        port=port,
        ready_file=ready_file,
        inherited=inherited,
        rehearse=_pseudo_devices(bundle, rehearsal) if rehearsal else None,
        evaluate=_gate(bundle, held_out, tolerance) if held_out else None,
    )


def run(
    settings: ServerSettings,
    initial: InitialModel | None,
    *,
    host: str,
    port: int,
    ready_file: Path | None = None,
    inherited: int | None = None,
    rehearse: Rehearse | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError when the address cannot be used.

    inherited: descriptor of a socket that listens already, from the process that started this one and ends it.
    """
    import uvicorn

    from server.app import create_app
    from server.web.connections import deadline_protocol

    os.umask(0o077)
    _allow_descriptors()
    # Bound before the state is opened: a port in use is found while nothing has happened, and 0 becomes a number.
    listener = _listen(host, port) if inherited is None else socket.socket(fileno=inherited)
    url = f"http://{host}:{listener.getsockname()[1]}"
    try:
        app = create_app(settings, initial, evaluate, rehearse)
        config = uvicorn.Config(
            app,
            http=deadline_protocol(settings.limits, settings.trusted_proxies),
            log_config=None,
            log_level="warning",
            access_log=False,  # it would quote addresses with their queries; requests are logged by their routes
            proxy_headers=False,  # the application decides whom it believes
            timeout_graceful_shutdown=10,
        )
        server = uvicorn.Server(config)
        if ready_file is not None:
            # Connections queue in the listener's backlog from here on, so the address works before the loop runs.
            _write_private(ready_file, {"url": url, "pid": os.getpid()})
        logging.getLogger("idiolect.server").info("serving on %s", url)

        def stop(_number: int, _frame: FrameType | None) -> None:
            server.should_exit = True

        # uvicorn raises the signal it stopped for once more when it is done; with this handler that is a clean exit.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if inherited is not None:
            end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
        server.run(sockets=[listener])
    finally:
        listener.close()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def run_many(
    settings: ServerSettings, initial: InitialModel | None, *, host: str, port: int, ready_file: Path | None = None
) -> None:
    """Serve with several processes until SIGINT or SIGTERM: claim the state, bring it up to date, and watch over them.

    Raises ConfigurationError when the address cannot be used, StateError when a process does not come up.
    """
    from server.service import Service

    os.umask(0o077)
    listener = _listen(host, port)
    url = f"http://{host}:{listener.getsockname()[1]}"

    def told(ids: list[int]) -> None:
        if ready_file is not None:
            _write_private(ready_file, {"url": url, "pid": os.getpid(), "processes": ids})
        logging.getLogger("idiolect.server").info("serving on %s with %d processes", url, len(ids))

    try:
        # Held, not started: the processes do the work.
        held = Service(replace(settings, workers=None, ray=None, updates=None, canary=None), initial)
        try:
            watch(own_command(), settings.processes, listener, told)
        finally:
            held.close()
    finally:
        listener.close()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _check_place(option: str, given: str, *, folder: bool) -> None:
    """Raises ConfigurationError where something else is in the place of a file or a folder."""
    place = Path(given)
    if "://" not in given and place.exists() and place.is_dir() is not folder:
        found, expected = ("file", "folder") if folder else ("folder", "file")
        raise ConfigurationError(f"{option}: {place} is a {found}; expected a {expected}, or a name that is free")


def _allow_descriptors() -> None:
    """As many as the system lets this process have: a download takes one for its connection and one for its file."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _rate(option: str, given: str) -> Rate:
    """Raises ConfigurationError."""
    per_second, _, burst = given.partition(":")
    try:
        return Rate(float(per_second), float(burst))
    except ValueError as error:
        raise ConfigurationError(f"--{option}: found {given!r}, expected RATE:BURST such as 50:3000") from error


def _pseudo_devices(bundle: Path | None, sources: Sequence[str]) -> PseudoDevices:
    from device_sdk.bundle import Bundle
    from server.lab.corpora import open_corpus
    from server.lab.rehearsal import PseudoDevices

    utterances = [utterance for source in sources for utterance in open_corpus(source).utterances]
    return PseudoDevices(Bundle.open(bundle), utterances)


def _gate(bundle: Path | None, sources: Sequence[str], tolerance: float) -> WordErrorGate:
    from device_sdk.bundle import Bundle
    from server.lab.corpora import open_corpus
    from server.lab.evaluation.gate import WordErrorGate

    return WordErrorGate(Bundle.open(bundle), [open_corpus(source) for source in sources], tolerance)


def read_tokens(path: Path, enrolment: str | None, operator: str | None) -> tuple[str, str]:
    """The two secrets: given ones first, then those in the file; a missing file is made with fresh ones (mode 600)."""
    if enrolment is not None and operator is not None:
        return enrolment, operator
    if not path.exists():
        known = "enrolment_token" if operator is not None else "enrolment_token, and the operators' operator_token"
        fresh = {"enrolment_token": secrets.token_urlsafe(24), "operator_token": secrets.token_urlsafe(24)}
        _write_private(path, fresh)
        typer.echo(f"{path}: written with the devices' {known}", err=True)
    keep_private(path)
    try:
        content = json.loads(path.read_text())
        found = content["enrolment_token"], content["operator_token"]
        if not all(isinstance(value, str) for value in found):
            raise TypeError("not a string")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: found {error.__class__.__name__} ({error}), expected JSON with the strings enrolment_token and "
            "operator_token"
        ) from error
    return enrolment or found[0], operator or found[1]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named because asyncio sends small answers at once (TCP_NODELAY) only where it can see it;
        # without, every answer waits 40 ms for the client's delayed acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise ConfigurationError(f"{host}:{port}: cannot listen there ({error}); choose another --port") from error
    return listener


def _write_private(path: Path, content: Mapping[str, str | int | list[int]]) -> None:
    """Whole or not at all, readable by the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)
