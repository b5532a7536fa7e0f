"""Several users of one device: each has words, weights, memory, consent, outbox and identities of their own."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Self, Unpack

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from device_sdk.bundle import Bundle
from device_sdk.checks import check_type
from device_sdk.device import Device
from device_sdk.errors import ConfigurationError
from device_sdk.personalization.rescorer import Rescorer
from device_sdk.settings import DeviceSettings, Host, check_host
from device_sdk.state import Store, records
from device_sdk.state.files import checked_key
from device_sdk.state.store import checked_folder

_FOLDER = "profiles"
_LONGEST_NAME = 200


class Profiles:
    """Owns the devices of several users over one state folder, one bundle and one language model. ``profiles["ana"]``
    is Ana's device, opened when it is first asked for and kept open, so that changing users costs nothing and what
    waits for feedback is not lost. Each is sealed with a key of its own, derived from the app's and the name (HKDF, RFC
    5869); the names of folders tell nothing. Threads may share the devices; open and forget from one."""

    def __init__(
        self,
        state_folder: str | Path,
        key: bytes,
        bundle: Bundle | str | Path | None = None,
        settings: DeviceSettings | None = None,
        **host: Unpack[Host],
    ) -> None:
        """The arguments are those of :meth:`Device.open`. Raises StateError (no usable key) and BundleError."""
        check_host(host)  # before the first user, not with it
        self._folder = checked_folder(state_folder) / _FOLDER
        self._key = checked_key(key)
        self._bundle = Bundle.open() if bundle is None else Bundle.given(bundle)
        self._settings = DeviceSettings() if settings is None else settings
        check_type("settings", self._settings, DeviceSettings, "DeviceSettings")
        self._rescorer = Rescorer(self._bundle, threads=self._settings.threads)
        self._host = host
        self._devices: dict[str, Device] = {}

    def __getitem__(self, name: str) -> Device:
        """The device of this user, as new where there was none. StateError: in use elsewhere, or damaged."""
        if name not in self._devices:
            store = Store(*self._place(name))
            try:
                if records.read_text(store, "profile") != name:
                    records.write_text(store, "profile", name)
                device = Device(store, self._bundle, self._settings, rescorer=self._rescorer, **self._host)
            except BaseException:
                store.close()
                raise
            self._devices[name] = device
        return self._devices[name]

    def names(self) -> tuple[str, ...]:
        """The users that have a profile, sorted. StateError: one cannot be read, since another process uses it, say."""
        found = set(self._devices)
        taken = {self._place(name)[0].name for name in found}
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.name not in taken and (name := self._name_in(folder)) is not None:
                found.add(name)
        return tuple(sorted(found))

    def forget(self, name: str) -> None:
        """Erases everything of this user, the profile itself too; the others stay as they are."""
        folder, key = self._place(name)
        if (device := self._devices.pop(name, None)) is not None:
            device.forget()
            device.close()
        elif folder.is_dir():
            with closing(Store(folder, key)) as store:
                store.erase()
        shutil.rmtree(folder, ignore_errors=True)

    def close(self, learn_seconds: float | None = None) -> None:
        """Closes every device. learn_seconds: they learn first, for so long in all at most."""
        begun = time.monotonic()
        while self._devices:
            left = None if learn_seconds is None else max(0.0, begun + learn_seconds - time.monotonic())
            self._devices.popitem()[1].close(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _place(self, name: str) -> tuple[Path, bytes]:
        """Where a profile lies and what opens it. Neither tells the name without the app's key."""
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
            raise ConfigurationError(f"profile: expected a name of 1 to {_LONGEST_NAME} characters")
        folder = hmac.new(self._derived(b"idiolect profile folder"), name.encode(), hashlib.sha256).hexdigest()[:32]
        return self._folder / folder, self._key_of(folder)

    def _key_of(self, folder: str) -> bytes:
        return self._derived(b"idiolect profile key\0" + folder.encode())

    def _derived(self, info: bytes) -> bytes:
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._key)

    def _name_in(self, folder: Path) -> str | None:
        """The name kept in a folder; None for one that an erasure left, which is taken away."""
        with closing(Store(folder, self._key_of(folder.name))) as store:
            name = records.read_text(store, "profile")
        if name is None:
            shutil.rmtree(folder, ignore_errors=True)
        return name
