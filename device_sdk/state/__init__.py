"""What a device keeps between runs: one SQLite file, every value encrypted under the app's key."""

from device_sdk.state.cipher import Cipher
from device_sdk.state.store import SCHEMA_VERSION, TABLES, Store

__all__ = ["SCHEMA_VERSION", "TABLES", "Cipher", "Store"]
