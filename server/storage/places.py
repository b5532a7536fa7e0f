"""Where blobs lie: a folder, or an object store."""

from __future__ import annotations

from pathlib import Path

from server.storage.blobs import BlobStore, FolderBlobs

__all__ = ["open_blobs"]


def open_blobs(place: Path | str, *, tidy: bool = True, create: bool = True) -> BlobStore:
    """A folder, or an object store by its URL (``s3://bucket/prefix``). tidy, create: see :class:`FolderBlobs`.

    Raises StateError or MissingExtraError where it cannot be opened.
    """
    if "://" in str(place):
        from server.storage.objects import ObjectBlobs

        return ObjectBlobs(str(place))
    return FolderBlobs(Path(place), tidy=tidy, create=create)
