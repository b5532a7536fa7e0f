"""``idiolect serve``: a server over HTTP, of one process or several."""

import json
import os
import secrets
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from device_sdk.commands.secrets import holds_password, keep_from_process_list
from device_sdk.errors import ConfigurationError
from server.commands.backup import Blobs, Place
from server.logs import configure
from server.rate_limit import Rate
from server.serve import run, run_many, write_private
from server.storage.blobs import keep_private


def _rate_option(what: str) -> Any:
    return typer.Option(metavar="RATE:BURST", help=f"{what}, and at once after a rest.")


def _cap_option(what: str) -> Any:
    return typer.Option(help=f"Largest epsilon a device may spend on {what}.")


def command(
    bundle: Annotated[
        Path | None, typer.Option(help="Bundle whose weights, word list and background start a new database.")
    ] = None,
    database: Place = "idiolect-server.db",
    blobs: Blobs = None,
    rehearsal: Annotated[
        list[str] | None,
        typer.Option(
            help="Transcribed speech for the pseudo-devices of rounds: KIND:PATH, such as folder:PATH or made:base; "
            "may be given several times."
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
    marginals_cap: Annotated[float, _cap_option("marginals; 'inf' for no bound")] = 100.0,
    deltas_cap: Annotated[float, _cap_option("deltas; deltas without noise need 'inf'")] = float("inf"),
    words_cap: Annotated[float, _cap_option("naming new words; 'inf' for no bound")] = 100.0,
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
    rollout: Annotated[
        float | None,
        typer.Option(
            help="Share of the devices that a round's model goes to first; all get it once these do not fare worse."
            "  [default: all at once]",
            min=0.0,
            max=0.5,
        ),
    ] = None,
    rollout_seconds: Annotated[float, typer.Option(help="How long they have it alone.", min=0.01)] = 172_800.0,
    rollout_patience: Annotated[
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
    address_rate: Annotated[str, _rate_option("Requests a second of one address")] = "50:3000",
    device_rate: Annotated[str, _rate_option("Requests a second of one device")] = "2:120",
    enrolment_rate: Annotated[str, _rate_option("Enrolments a second of one address")] = "1:100",
    enrolment_uses: Annotated[
        int, typer.Option(help="Devices that the enrolment token lets in; 0 for any number.", min=0)
    ] = 10_000,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written with the URL as JSON once the server accepts connections.")
    ] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines for people, or JSON objects.")] = "text",
    verbose: Annotated[bool, typer.Option(help="Log every request, and what comes of it, at DEBUG.")] = False,
    inherited: Annotated[int | None, typer.Option("--socket", hidden=True)] = None,
) -> None:
    """Serve devices and operators until stopped. Stop it with Ctrl-C, or kill it: nothing accepted is lost."""
    from server.plans.round import RolloutSettings
    from server.registry.initial import initial_from_bundle
    from server.settings import THIS_MACHINE, Rates, ServerSettings, UpdateSettings, default_blobs

    keep_from_process_list(
        {
            "--database": ("IDIOLECT_DATABASE", database if holds_password(database) else None),
            "--enrolment-token": ("IDIOLECT_ENROLMENT_TOKEN", enrolment_token),
            "--operator-token": ("IDIOLECT_OPERATOR_TOKEN", operator_token),
            "--updates-passphrase": ("IDIOLECT_UPDATES_PASSPHRASE", updates_passphrase),
        }
    )
    _check_place("--database", database, folder=False)
    place = blobs or default_blobs(database)
    _check_place("--blobs", str(place), folder=True)
    os.umask(0o077)  # what a server writes is its user's alone
    configure(log_format, verbose=verbose)
    stem = Path(database) if "://" not in database else Path("idiolect-server")
    tokens = read_tokens(token_file or stem.with_suffix(".tokens.json"), enrolment_token, operator_token)
    settings = ServerSettings(
        database=database,
        blobs=place,
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
        rollout=RolloutSettings(share=rollout, seconds=rollout_seconds, patience=rollout_patience) if rollout else None,
        workers=workers,
        ray=ray,
        rates=Rates(_rate("address", address_rate), _rate("device", device_rate), _rate("enrolment", enrolment_rate)),
        enrolment_uses=enrolment_uses or None,
        trusted_proxies=tuple(trusted_proxy) if trusted_proxy else THIS_MACHINE,
        processes=processes,
        member=inherited is not None,
    )
    initial = initial_from_bundle(bundle)
    if processes > 1 and inherited is None:
        run_many(settings, initial, host=host, port=port, ready_file=ready_file)
        return
    rehearse = _speech("rehearsal")(bundle, rehearsal) if rehearsal else None
    evaluate = _speech("held-out")(bundle, held_out, tolerance) if held_out else None
    where: dict[str, Any] = {"host": host, "port": port, "ready_file": ready_file, "inherited": inherited}
    run(settings, initial, **where, rehearse=rehearse, evaluate=evaluate)


def _check_place(option: str, given: str, *, folder: bool) -> None:
    """Raises ConfigurationError where something else is in the place of a file or a folder."""
    place = Path(given)
    if "://" not in given and place.exists() and place.is_dir() is not folder:
        found, expected = ("file", "folder") if folder else ("folder", "file")
        raise ConfigurationError(f"{option}: {place} is a {found}; expected a {expected}, or a name that is free")


def _rate(name: str, given: str) -> Rate:
    """Raises ConfigurationError."""
    per_second, _, burst = given.partition(":")
    try:
        return Rate(float(per_second), float(burst))
    except ValueError as error:
        raise ConfigurationError(f"--{name}-rate: found {given!r}, expected RATE:BURST such as 50:3000") from error


def read_tokens(path: Path, enrolment: str | None, operator: str | None) -> tuple[str, str]:
    """The two secrets: given ones first, then those in the file; a missing file is made with fresh ones (mode 600)."""
    if enrolment is not None and operator is not None:
        return enrolment, operator
    if not path.exists():
        known = "enrolment_token" if operator is not None else "enrolment_token, and the operators' operator_token"
        fresh = {"enrolment_token": secrets.token_urlsafe(24), "operator_token": secrets.token_urlsafe(24)}
        write_private(path, fresh)
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


def _speech(use: str) -> Callable[..., Any]:
    """What makes use of transcribed speech on the server, by the name it is registered under."""
    (entry,) = entry_points(group="idiolect.speech", name=use)
    return cast("Callable[..., Any]", entry.load())
