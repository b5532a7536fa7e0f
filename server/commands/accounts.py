"""Who may run a server (``idiolect operators``), and whose devices may report (``idiolect enrolment``, ``devices``)."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from server.commands.shared import Answer, command, line, moment, table
from server.operators.accounts import Role
from server.operators.client import OperatorClient

operators = typer.Typer(help="Say who may run the server, and see what each did.", no_args_is_help=True)
enrolment = typer.Typer(help="Make and end the tokens that let devices enrol.", no_args_is_help=True)
devices = typer.Typer(help="List and revoke devices.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Letters, digits, '.', '_' and '-'; never given twice.")]


@command(operators, "add")
def add_operator(
    client: OperatorClient,
    name: Name,
    role: Annotated[
        Role,
        typer.Option(help="viewer reads; operator runs rounds and publishes too; administrator says who may do what."),
    ] = Role.OPERATOR,
) -> Answer:
    """Add an operator and print the token, which is shown this once."""
    found = client.add_operator(name, role)
    return found, lambda: _tell(found.token, f"{found.role} {found.name}: IDIOLECT_OPERATOR_TOKEN")


@command(operators, "list")
def list_operators(client: OperatorClient) -> Answer:
    """List operators, those who were revoked too."""
    found = client.operators()
    rows = [
        (entry.name, entry.role, moment(entry.created_at), entry.created_by, moment(entry.revoked_at))
        for entry in found
    ]
    return {"operators": _plain(found)}, table("Operators", ("name", "role", "added", "by", "revoked"), rows)


@command(operators, "revoke")
def revoke_operator(client: OperatorClient, name: Name) -> Answer:
    """Refuse an operator's token, and the web pages opened with it, from now on."""
    found = client.revoke_operator(name)
    return found, line(f"operator {found.name} is revoked")


@command(operators, "me")
def show_me(client: OperatorClient) -> Answer:
    """Show whose token is used, and its role."""
    found = client.me()
    return found, line(f"{found.name}, {found.role}")


@command(operators, "audit")
def audit(
    client: OperatorClient,
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1, max=1000)] = 50,
) -> Answer:
    """Show what operators did, the newest first."""
    found = client.actions(limit)
    rows = [(moment(entry.at), entry.operator, entry.action, entry.subject, entry.note) for entry in found]
    return {"actions": _plain(found)}, table("Actions", ("when", "operator", "action", "of", "note"), rows)


@command(enrolment, "add")
def add_token(
    client: OperatorClient,
    name: Name,
    uses: Annotated[int, typer.Option(help="Devices it lets in; 0 for any number.", min=0)] = 1000,
    hours: Annotated[float | None, typer.Option(help="Until it ends.  [default: never]", min=1e-3)] = None,
) -> Answer:
    """Make a token that lets devices enrol and print it, this once."""
    found = client.add_enrolment_token(name, uses=uses or None, seconds=None if hours is None else hours * 3600)
    return found, lambda: _tell(found.token, f"enrolment token {found.name}")


@command(enrolment, "list")
def list_tokens(client: OperatorClient) -> Answer:
    """List tokens and how many devices each let in, the newest first."""
    found = client.enrolment_tokens()
    rows = [
        (
            entry.name,
            f"{entry.used} of {'any number' if entry.uses is None else entry.uses}",
            moment(entry.expires_at) or "never",
            entry.created_by,
            moment(entry.revoked_at),
        )
        for entry in found
    ]
    shown = table("Enrolment tokens", ("name", "used", "ends", "by", "revoked"), rows)
    return {"enrolment_tokens": _plain(found)}, shown


@command(enrolment, "revoke")
def revoke_token(client: OperatorClient, name: Name) -> Answer:
    """Let nobody in with a token any more. Devices that it let in stay."""
    found = client.revoke_enrolment_token(name)
    return found, line(f"enrolment token {found.name} is revoked; it let in {found.used} devices")


@command(devices, "list")
def list_devices(
    client: OperatorClient,
    let_in_by: Annotated[str | None, typer.Option("--enrolment-token", help="Only those that it let in.")] = None,
) -> Answer:
    """List every device with when and how it enrolled."""
    found = [entry for entry in client.devices() if let_in_by is None or entry.enrolment_token == let_in_by]
    rows = [
        (entry.device_id, moment(entry.enrolled_at), entry.enrolment_token, moment(entry.revoked_at)) for entry in found
    ]
    shown = table(f"{len(found)} devices", ("device", "enrolled", "with", "revoked"), rows)
    return {"devices": _plain(found)}, shown


@command(devices, "revoke")
def revoke_devices(
    client: OperatorClient,
    device_ids: Annotated[list[str] | None, typer.Argument(help="As `devices list` shows them.")] = None,
    let_in_by: Annotated[
        str | None, typer.Option("--enrolment-token", help="All that it let in, and itself, so that no others come.")
    ] = None,
) -> Answer:
    """Refuse everything that devices send from now on. What they were counted for stays counted."""
    chosen = list(device_ids or [])
    if let_in_by is not None:
        client.revoke_enrolment_token(let_in_by)
        known = (entry for entry in client.devices() if entry.enrolment_token == let_in_by)
        chosen += [entry.device_id for entry in known if entry.revoked_at is None]
    elif not chosen:
        raise typer.BadParameter("name devices, or the token that let them in", param_hint="DEVICE_IDS")
    for device_id in chosen:
        client.revoke_device(device_id)
    return {"revoked": chosen}, line(f"{len(chosen)} devices are revoked")


def _tell(token: str, what: str) -> None:
    """The secret alone on standard output, so that it can be piped; what it is beside."""
    typer.echo(f"{what}, shown this once:", err=True)
    typer.echo(token)


def _plain(entries: Sequence[BaseModel]) -> list[dict[str, Any]]:
    return [entry.model_dump(mode="json") for entry in entries]
