"""``idiolect updates``: the keys that sign what devices install. Works on a folder; the server is not asked."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.commands.output import AsJson, deliver

app = typer.Typer(help="Make, sign and rotate the keys of signed updates.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder of the root keys; keep it off the server.")]
Days = Annotated[float, typer.Option(help="Days until the root expires.")]
RootPassphrase = Annotated[
    str | None, typer.Option(envvar="IDIOLECT_ROOT_PASSPHRASE", help="Encrypts root keys.", show_default=False)
]
Passphrase = Annotated[
    str | None,
    typer.Option(envvar="IDIOLECT_UPDATES_PASSPHRASE", help="Encrypts the server's keys.", show_default=False),
]


@app.command("init")
def init(
    folder: Folder,
    keys: Annotated[int, typer.Option(help="Root keys.", min=1)] = 3,
    threshold: Annotated[int, typer.Option(help="Signatures that a root needs.", min=1)] = 2,
    days: Days = 365.0,
    root_passphrase: RootPassphrase = None,
    passphrase: Passphrase = None,
) -> None:
    """Make the root keys, the server's keys and the first root. Apps ship that root; the server gets FOLDER/server."""
    from server.signing.roots import create

    path = create(
        folder, keys=keys, threshold=threshold, days=days, root_passphrase=root_passphrase, passphrase=passphrase
    )
    typer.echo(f"root for apps: {path}")
    typer.echo(f"for the server: idiolect serve --updates {folder / 'server'}")
    typer.echo(f"take {', '.join(f'root-{number + 1}.pem' for number in range(keys))} to safe places of their own")


@app.command("rotate")
def rotate(
    folder: Folder,
    role: Annotated[
        str | None,
        typer.Option(help="Role that gets a new key: root, targets, snapshot or timestamp.  [default: only prolong]"),
    ] = None,
    revoke: Annotated[str | None, typer.Option(help="Id of the root key that the new one takes the place of.")] = None,
    threshold: Annotated[int | None, typer.Option(help="Signatures that a root needs.  [default: as before]")] = None,
    days: Days = 365.0,
    root_passphrase: RootPassphrase = None,
    passphrase: Passphrase = None,
) -> None:
    """Propose the next root, with a new key or a later expiry; it counts once it is signed."""
    from server.signing.roots import rotate

    phrases = {"root_passphrase": root_passphrase, "passphrase": passphrase}
    found = rotate(folder, role=role, days=days, revoke=revoke, threshold=threshold, **phrases)
    typer.echo(f"root {found.version} needs {found.missing} signatures: idiolect updates sign-root {folder} KEY")


@app.command("sign-root")
def sign_root(
    folder: Folder,
    key: Annotated[Path, typer.Argument(help="A root key, of this root or the one before.")],
    root_passphrase: RootPassphrase = None,
) -> None:
    """Sign the proposed root. The last signature puts it into FOLDER/server/roots, to be copied to the server."""
    from server.signing.roots import sign

    found = sign(folder, key, root_passphrase)
    place = folder / "server" / "roots" / f"{found.version}.root.json"
    told = f"needs {found.missing} signatures more" if found.missing else f"is signed: {place}"
    typer.echo(f"root {found.version} {told}")


@app.command("status")
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show the newest root, its keys and expiry, and what a proposed one still needs."""
    from server.commands.shared import show
    from server.signing.roots import proposed, read_chain, signing_of

    latest = read_chain(folder / "server" / "roots")[-1].root
    roles = {name: {"threshold": role.threshold, "key_ids": list(role.keyids)} for name, role in latest.roles.items()}
    found: dict[str, Any] = {"version": latest.version, "expires": latest.expires.isoformat(), "roles": roles}
    proposal = proposed(folder)
    found["proposed"] = None if proposal is None else asdict(signing_of(proposal, latest))
    if deliver(found, as_json, None):
        return
    rows = [(name, role["threshold"], "\n".join(role["key_ids"])) for name, role in found["roles"].items()]
    show(f"Root {latest.version}, expires {found['expires']}", ("role", "signatures", "keys"), rows)
    if found["proposed"] is not None:
        typer.echo(f"root {found['proposed']['version']} needs {found['proposed']['missing']} signatures more")
