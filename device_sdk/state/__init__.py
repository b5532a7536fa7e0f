"""What a device keeps between runs: one SQLite file and its large values beside it, all under the app's key."""

from device_sdk.state.files import Cipher
from device_sdk.state.schema import TABLES
from device_sdk.state.store import SCHEMA_VERSION, Store

__all__ = ["SCHEMA_VERSION", "TABLES", "Cipher", "Store"]
