"""``idiolect models``: push, list, try, promote and roll back the models that devices fetch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.bundle import weights as weight_files
from device_sdk.errors import ConfigurationError
from server.commands.shared import Answer, command, line, moment, table
from server.operators.client import OperatorClient
from server.operators.messages import Model
from server.plans.round import RolloutSettings

app = typer.Typer(help="Push, list, try, promote and roll back models.", no_args_is_help=True)


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
    found = client.push_model(name, content, note=note, published=publish)
    return found, line(f"model {found.version} registered" + (" and published" if publish else ""))


@command(app, "list")
def list_models(client: OperatorClient) -> Answer:
    """List versions with their lineage, the newest first."""
    found = client.models()
    rows = [
        (
            "*" if entry.version == found.current else "",
            *(entry.version, entry.parent, entry.teacher, entry.sha256[:12], f"{entry.size / 1e6:.2f}"),
            *(moment(entry.created_at), entry.note),
        )
        for entry in found.models
    ]
    columns = ("", "version", "parent", "teacher", "sha256", "MB", "created", "note")
    return found, table("Models (* is current)", columns, rows)


@command(app, "rollback")
def rollback(
    client: OperatorClient,
    version: Annotated[
        str | None, typer.Argument(help="Version to go back to.  [default: the one published before the current]")
    ] = None,
    note: Annotated[str, typer.Option(help="Why.")] = "rolled back",
) -> Answer:
    """Take back the model that some devices try; without one, publish an older version again."""
    if version is None and client.rollouts().running is not None:
        ended = client.roll_back_rollout(note=note)
        return ended, line(f"model {ended.version} is taken back; model {ended.base} stays")
    if version is None:
        state = client.models()
        earlier = [entry.version for entry in state.history if entry.version != state.current]
        if not earlier:
            raise ConfigurationError("models: no other version was ever published; nothing to go back to")
        version = earlier[0]
    found = client.publish_model(version, note=note)
    return found, line(f"model {found.version} is current")


@command(app, "rollout")
def rollout(
    client: OperatorClient,
    version: Annotated[
        str | None, typer.Argument(help="Version to try.  [default: none: show how the running one does]")
    ] = None,
    share: Annotated[float | None, typer.Option(help="Of the devices.  [default: the server's]", max=0.5)] = None,
    seconds: Annotated[float | None, typer.Option(help="How long they have it alone.")] = None,
    patience: Annotated[float | None, typer.Option(help="Seconds after which a device counts as lost.")] = None,
    minimum: Annotated[int | None, typer.Option(help="Devices of either arm before anything is decided.")] = None,
    doubt: Annotated[float | None, typer.Option(help="Of taking a harmless model back.")] = None,
    automatic: Annotated[
        bool | None, typer.Option("--automatic/--no-automatic", help="Promote it when its time is over.")
    ] = None,
    note: Annotated[str, typer.Option(help="Why.")] = "",
) -> Answer:
    """Give a model to a share of the devices first, or show how those that have it do."""
    if version is not None:
        given = {"share": share, "seconds": seconds, "patience": patience, "minimum": minimum, "doubt": doubt}
        asked = (given | {"automatic": automatic}).items()
        settings: dict[str, Any] = {name: value for name, value in asked if value is not None}
        # Unchecked here, so that what is wrong with them is said as the server says it.
        wanted = RolloutSettings.model_construct(**settings) if settings else None
        begun = client.begin_rollout(version, wanted, note=note)
        return begun, line(f"model {version} goes to {100 * begun.settings['share']:g} % of the devices")
    found = client.rollouts()
    rows = [
        (
            *(entry.version, entry.base, entry.state.replace("_", " "), f"{100 * entry.settings['share']:g}"),
            *("{0.failed}/{0.watched} of {0.seen}".format(entry.arms[arm]) for arm in ("rollout", "control")),
            *(moment(entry.started_at), entry.note),
        )
        for entry in found.rollouts
    ]
    columns = ("version", "instead of", "state", "%", "failed", "failed without", "started", "note")
    return found, table("Rollouts (failed/watched of seen)", columns, rows)


@command(app, "promote")
def promote(
    client: OperatorClient,
    force: Annotated[bool, typer.Option("--force", help="Also if it hears held-out speech worse.")] = False,
    note: Annotated[str, typer.Option(help="Why.")] = "",
) -> Answer:
    """Publish the model that some devices try to all of them."""
    found = client.promote_rollout(note=note, force=force)
    return found, line(f"model {found.version} is current")


@command(app, "lineage")
def lineage(
    client: OperatorClient,
    version: Annotated[str | None, typer.Argument(help="Whose.  [default: the current model's]")] = None,
) -> Answer:
    """Show what a model grew out of, the newest first, with the figures of each."""
    state = client.models()
    known = {entry.version: entry for entry in state.models}
    first = version or state.current
    if first not in known:
        raise ConfigurationError(f"model {first!r} is not in the registry; see: idiolect models list")
    ancestors: list[Model] = []
    name: str | None = first
    while name is not None:
        ancestors.append(known[name])
        name = known[name].parent
    published = [entry.version for entry in state.history]
    rows = [
        (
            *(entry.version, entry.round_id, "yes" if entry.version in published else ""),
            ", ".join(f"{key} {value:.4g}" for key, value in sorted(entry.figures.items())),
            *(entry.sha256[:12], moment(entry.created_at), entry.note),
        )
        for entry in ancestors
    ]
    columns = ("version", "round", "published", "figures", "sha256", "created", "note")
    found = {"version": first, "lineage": [entry.model_dump(mode="json") for entry in ancestors]}
    return found, table(f"Lineage of model {first}", columns, rows)


def _read_weights(source: Path, version: str | None) -> tuple[bytes, str]:
    """The bytes to push and the version's name."""
    if source.is_file() and source.suffix == ".safetensors":
        if version is None:
            raise typer.BadParameter("a weights file does not name its version; give one", param_hint="--version")
        return weight_files.serialize(weight_files.read(source.read_bytes(), str(source))), version
    from server.aggregation.weights_file import dump_weights
    from server.registry.initial import initial_from_bundle

    bundle = initial_from_bundle(source)
    return dump_weights(bundle.weights), version or bundle.version
