"""The state folder of the user at the command line: the key it is sealed with, and the device that lives in it."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from device_sdk.errors import StateError

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from device_sdk.commands.workers import Options
    from device_sdk.device import Device

KEY_VARIABLE = "IDIOLECT_STATE_KEY"
KEY_HELP = (
    f"File with the state's key in hexadecimal digits; else {KEY_VARIABLE} holds them; else the key is in your "
    "configuration folder, where the first use makes one."
)

State: TypeAlias = Annotated[
    Path, typer.Option("--state", envvar="IDIOLECT_STATE", help="Folder of the device's state.", show_default=False)
]
KeyFile: TypeAlias = Annotated[Path | None, typer.Option("--key-file", help=KEY_HELP)]
BundlePath: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        help="The bundle that the state was made with, the packaged one if none; another one that is given takes the "
        "place of what was learned.",
    ),
]


def open_device(
    state: Path,
    key_file: Path | None,
    bundle: Path | None,
    *,
    new: bool = False,
    options: Options | None = None,
    plain_http: bool = False,
) -> Device:
    """The device of a state folder. new: one is made where there is none. options: how it decodes. What it hears waits
    there for corrections by other processes, if its user agrees ("keeping"). StateError: no state, or no key."""
    from device_sdk.bundle import Bundle
    from device_sdk.device import Device
    from device_sdk.settings import DeviceSettings

    exists = (state / "state.sqlite").is_file()
    if not exists and not new:
        makes = f"idiolect transcribe FILE --state {state} makes one, and so does idiolect device agree --state {state}"
        raise StateError(f"--state: {state} holds no device's state; {makes}")
    settings = DeviceSettings(keep_corrected=True, keep_heard=True, plain_http=plain_http)
    if options is not None:
        settings = replace(settings, decoding=options.decoding(), precision=options.precision)  # type: ignore[arg-type]
    key, used = state_key(key_file, exists=exists), Bundle.open(bundle)
    if exists and bundle is None:
        _check_made_with(state, key, used)
    return Device.open(state, key, used, settings)


def _check_made_with(state: Path, key: bytes, packaged: Bundle) -> None:
    """Whoever forgets --bundle loses nothing. StateError: the state was made with a bundle of another name."""
    from device_sdk.state.records import read_text
    from device_sdk.state.store import Store

    store = Store(state, key)
    try:
        made = read_text(store, "bundle")
    finally:
        store.close()
    if made is not None and not made.startswith(f"{packaged.manifest.name} "):
        expected = f"expected that by --bundle; the packaged {packaged.manifest.name} would end what was learned on it"
        raise StateError(f"--state: {state} was made with another bundle, {made}, {expected}")


def state_key(key_file: Path | None, *, exists: bool) -> bytes:
    """The key that a state is, or is to be, sealed with. exists: whether there is something that it seals. Where there
    is nothing yet, a key file that is not there is made, readable by its user alone, and standard error says so. Raises
    StateError: no key where one is needed, or no hexadecimal digits."""
    given = os.environ.get(KEY_VARIABLE)
    if key_file is None and given is not None:
        return _read_key(given, KEY_VARIABLE)
    path = key_file or Path(typer.get_app_dir("idiolect")) / "state.key"
    if path.exists():
        return _read_key(path.read_text("utf-8", errors="replace"), str(path))
    if exists:
        expected = f"expected the key that this state was made with; give it by --key-file or {KEY_VARIABLE}"
        raise StateError(f"{path}: no such key file, {expected}")
    key = secrets.token_bytes(32)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    print(f"idiolect: made a key, {path}: without it nobody can read the state, you neither", file=sys.stderr)
    return key


def _read_key(digits: str, source: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        expected = "expected 32 of them or more; make one with: openssl rand -hex 32"
        raise StateError(f"{source}: found a key that is not in hexadecimal digits, {expected}") from None
