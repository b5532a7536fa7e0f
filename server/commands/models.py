"""``idiolect models``: push, list and roll back the models that devices fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from device_sdk.errors import ConfigurationError
from server.commands.operators import Answer, command, moment, show
from server.operator_client import OperatorClient

__all__ = ["app"]

app = typer.Typer(help="Push, list and roll back models.", no_args_is_help=True)


@command(app, "push")
def push(
    client: OperatorClient,
    source: Annotated[Path, typer.Argument(help="A weights.safetensors file, a bundle folder or a bundle zip.")],
    version: Annotated[
        str | None, typer.Option(help="Name of the new version.  [default: a bundle's own version]")
    ] = None,
    note: Annotated[str, typer.Option(help="Kept with the version.")] = "",
    publish: Annotated[bool, typer.Option(help="Make it current at once.")] = True,
) -> Answer:
    """Register weights made elsewhere and publish them."""
    content, name = _read_weights(source, version)
    parameters = {"note": note, "published": publish}
    found = client.post(f"models/{name}", content=content, params=parameters)
    text = f"model {found['version']} registered" + (" and published" if publish else "")
    return found, lambda: typer.echo(text)


@command(app, "list")
def list_models(client: OperatorClient) -> Answer:
    """List versions with their lineage, the newest first."""
    found = client.get("models")

    def present() -> None:
        rows = [
            (
                "*" if entry["version"] == found["current"] else "",
                entry["version"],
                entry["parent"],
                entry["teacher"],
                entry["sha256"][:12],
                f"{entry['size'] / 1e6:.2f}",
                moment(entry["created_at"]),
                entry["note"],
            )
            for entry in found["models"]
        ]
        show("Models (* is current)", ("", "version", "parent", "teacher", "sha256", "MB", "created", "note"), rows)

    return found, present


@command(app, "rollback")
def rollback(
    client: OperatorClient,
    version: Annotated[
        str | None, typer.Argument(help="Version to go back to.  [default: the one published before the current]")
    ] = None,
    note: Annotated[str, typer.Option(help="Why.")] = "rolled back",
) -> Answer:
    """Publish an older version again."""
    if version is None:
        state = client.get("models")
        earlier = [entry["version"] for entry in state["history"] if entry["version"] != state["current"]]
        if not earlier:
            raise ConfigurationError("models: no other version was ever published; nothing to go back to")
        version = earlier[0]
    found = client.post(f"models/{version}/publish", params={"note": note})
    return found, lambda: typer.echo(f"model {found['version']} is current")


def _read_weights(source: Path, version: str | None) -> tuple[bytes, str]:
    """The bytes to push and the version's name."""
    if source.is_file() and source.suffix == ".safetensors":
        if version is None:
            raise typer.BadParameter("a weights file does not name its version; give one", param_hint="--version")
        return source.read_bytes(), version
    from server.aggregation.weights_file import dump_weights
    from server.registry.initial import initial_from_bundle

    bundle = initial_from_bundle(source)
    return dump_weights(bundle.weights), version or bundle.version
