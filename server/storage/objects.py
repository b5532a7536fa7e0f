"""Blobs in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from device_sdk.errors import MissingExtraError, StateError
from server.storage.blobs import BlobStore, FolderBlobs, check_content, check_name

HELD = 8
"""Files that are fetched and kept for downloads: models, teachers, those of a rollout, ways between them."""


def open_blobs(place: Path | str, *, tidy: bool = True, create: bool = True) -> BlobStore:
    """A folder, or an object store by its URL (``s3://bucket/prefix``). tidy, create: see :class:`FolderBlobs`. Raises
    StateError or MissingExtraError where it cannot be opened."""
    if "://" in str(place):
        return ObjectBlobs(str(place))
    return FolderBlobs(Path(place), tidy=tidy, create=create)


class ObjectBlobs:
    """Objects under a bucket's prefix: a :class:`server.storage.blobs.BlobStore`. A put is durable when the store
    answers, so nothing is half-written. Keys, region and endpoint come from the environment that the store's own tools
    use (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...)."""

    def __init__(self, url: str) -> None:
        """url: ``s3://bucket/prefix``, ``gs://...``, ``az://...``. Raises MissingExtraError or StateError."""
        try:
            import obstore.store
        except ImportError as error:
            raise MissingExtraError(f"blobs {url}: {error}; run: pip install 'idiolect-server[objects]'") from error
        self.url = url
        self._folder = tempfile.TemporaryDirectory(prefix="idiolect-models-")
        self._held: list[Path] = []
        self._fetching = threading.Lock()
        try:
            self._store: Any = obstore.store.from_url(url, client_options={"allow_http": True})
        except Exception as error:
            raise StateError(f"blobs {url}: {_told(error)}; expected one like s3://bucket/prefix") from error

    def put(self, name: str, content: bytes) -> None:
        self._call("written", check_name(name), lambda key: self._store.put(key, content))

    def get(self, name: str) -> bytes:
        return check_content(
            name, bytes(self._call("read", check_name(name), lambda key: self._store.get(key).bytes()))
        )

    def has(self, name: str) -> bool:
        return self._call("looked for", check_name(name), self._store.head, needed=False) is not None

    def delete(self, name: str) -> None:
        self._call("deleted", check_name(name), self._store.delete, needed=False)

    def names(self, prefix: str) -> Iterator[str]:
        pages = self._call("listed", prefix, lambda key: list(self._store.list(key)))
        yield from sorted(entry["path"] for page in pages for entry in page)

    def file(self, name: str) -> Path:
        """Fetched once, and again only after ``HELD`` others have been: few files are what most devices ask for."""
        place = Path(self._folder.name) / check_name(name).replace("/", "-")
        with self._fetching:
            if not place.exists():
                while len(self._held) >= HELD:
                    self._held.pop(0).unlink(missing_ok=True)  # whoever is reading it goes on
                partial = place.with_suffix(".partial")
                partial.write_bytes(self.get(name))
                partial.replace(place)
            elif place in self._held:
                self._held.remove(place)
            self._held.append(place)  # the last to go
        return place

    def hold(self, name: str, place: Path) -> None:
        place.write_bytes(self.get(name))

    def _call(self, what: str, key: str, call: Callable[[str], Any], *, needed: bool = True) -> Any:
        """None for an object that is not there and not ``needed``."""
        try:
            return call(key)
        except Exception as error:  # the library's errors have no common class of their own
            if isinstance(error, FileNotFoundError) and not needed:
                return None
            told = f"{self.url}/{key}: cannot be {what} ({_told(error)}); is the store there and open to us?"
            raise StateError(told) from error


def _told(error: Exception) -> str:
    """The first line: the rest is the library's own account."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
