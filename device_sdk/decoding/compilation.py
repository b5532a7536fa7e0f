"""Which modules of the search an install compiles, and whether what it compiled is what stands here.

mypyc makes native modules of the same typed sources. They lie in a folder of their own, so that a source which changed,
another Python or ``IDIOLECT_COMPILED=0`` means the source itself, and never something in between.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

__all__ = ["FOLDER", "GROUP", "MODULES", "STAMP", "SWITCH", "compiled_folder", "digest"]

MODULES = ("alignments", "block", "confidence", "guides", "nbest", "prefixes", "stability", "tracker")
GROUP = "search"
FOLDER, STAMP, SWITCH = "compiled", "sources.sha256", "IDIOLECT_COMPILED"


def digest(package: Path) -> str:
    """Of the modules' sources in a folder."""
    sources = sha256()
    for name in MODULES:
        sources.update((package / f"{name}.py").read_bytes())
    return sources.hexdigest()


def compiled_folder(package: Path) -> Path | None:
    """Where the compiled modules of a package's folder lie; None where there are none of exactly these sources."""
    folder = package / FOLDER
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        stamp = (folder / STAMP).read_text("ascii").strip()
        return folder if stamp == digest(package) else None
    except (OSError, UnicodeDecodeError):
        return None
