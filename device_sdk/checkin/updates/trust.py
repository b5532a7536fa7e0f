"""Whether a device can hold a server's updates against the root that its app gave it."""

from __future__ import annotations

import json
from importlib.util import find_spec

from device_sdk.errors import ConfigurationError, MissingExtraError

__all__ = ["check_trusted_root", "root_version"]


def check_trusted_root(trusted_root: bytes) -> None:
    """Cheap, so that opening a device stays quick; the signatures are checked with the first check-in.

    MissingExtraError: the library that checks them is not installed. ConfigurationError: no metadata of a root.
    """
    if find_spec("tuf") is None:
        raise MissingExtraError(
            "trusted_root: signed updates need tuf; install it with: pip install 'idiolect[secure-updates]'"
        )
    root_version(trusted_root)


def root_version(trusted_root: bytes) -> int:
    """ConfigurationError: no metadata of a root."""
    try:
        signed = json.loads(trusted_root)["signed"]
        kind, version = signed["_type"], signed["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"trusted_root: cannot be read ({type(error).__name__}); expected the bytes of a root.json"
        ) from None
    if kind != "root" or not isinstance(version, int):
        raise ConfigurationError(f"trusted_root: found metadata of role {kind!r}, expected root")
    return version
