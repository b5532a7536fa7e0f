"""What an install compiles, and whether what it compiled is what stands here.

mypyc makes native modules of the beam search's own typed sources, a C compiler makes one of the kernels of small
networks. They lie in a folder beside their sources, with a digest of these, so that a source which changed, another
Python or ``IDIOLECT_COMPILED=0`` means what runs without them, and never something in between. A build runs this file
alone, before anything is installed."""

import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDER, STAMP, SWITCH = "compiled", "sources.sha256", "IDIOLECT_COMPILED"


class Compiled(NamedTuple):
    """A package, and those of its files that native modules are made of."""

    package: str
    sources: tuple[str, ...]


_LOOPS = ("block", "contextual_biasing", "nbest", "prefixes")
SEARCH = Compiled("device_sdk.decoding", tuple([f"{name}.py" for name in _LOOPS]))
KERNELS = Compiled("device_sdk.runtimes.native_kernels", ("native.c", "kernels.h"))


def digest(folder: Path, what: Compiled) -> str:
    """Of the sources, which lie in ``folder``."""
    sources = sha256()
    for name in what.sources:
        sources.update((folder / name).read_bytes())
    return sources.hexdigest()


def compiled_folder(folder: Path, what: Compiled) -> Path | None:
    """Where the native modules of the sources in ``folder`` lie; None where there are none of exactly these."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        stamp = (folder / FOLDER / STAMP).read_text("ascii").strip()
        return folder / FOLDER if stamp == digest(folder, what) else None
    except (OSError, UnicodeDecodeError):
        return None
