"""The folder that the rescoring part needs and nothing more: scored n-best lists, the word list, its background.

``development/`` and ``test/`` hold the meetings' lists; ``words.txt``, ``background.safetensors`` are the bundle's;
``about.json`` says how the lists came about.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from examples.liu_2020.lists import Client, read_clients, write_whole
from examples.liu_2020.personal import Shipped
from examples.liu_2020.scores import Listener, listeners
from rescoring.marginals import unigram
from rescoring.words import WordList

__all__ = ["Cached", "describe", "open_cache", "ship"]


@dataclass(frozen=True, slots=True)
class Cached:
    """What a cache folder holds. clients: as they were read; development, test: ready to be rescored."""

    shipped: Shipped
    clients: Mapping[str, tuple[Client, ...]]
    development: tuple[Listener, ...]
    test: tuple[Listener, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


def open_cache(folder: Path) -> Cached:
    """Read a cache. Raises DataError naming what is missing or damaged, and where a meeting is in both sets."""
    words_file, background_file = folder / "words.txt", folder / "background.safetensors"
    for path in (words_file, background_file):
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a folder of cached n-best lists")
    try:
        words = WordList.parse(words_file.read_text(encoding="utf-8"))
        background = unigram(load_file(background_file)["unigram"])
        if background.shape != (len(words),):
            raise ValueError(f"found {background.shape[0]} probabilities for {len(words)} words, expected one each")
        described = folder / "about.json"
        about = json.loads(described.read_text("utf-8")) if described.exists() else {}
    except Exception as error:  # safetensors has no common error type
        raise DataError(f"{folder}: not a cache of n-best lists ({error}); delete it to have it made again") from error
    clients = {stage: tuple(read_clients(folder / stage)) for stage in ("development", "test")}
    both = {client.name for client in clients["development"]} & {client.name for client in clients["test"]}
    if both:
        raise DataError(f"{folder}: {sorted(both)} in development and test; expected meetings of one set only")
    ready = {stage: tuple(listeners(held, words)) for stage, held in clients.items()}
    shipped = Shipped(background)
    return Cached(shipped, clients, ready["development"], ready["test"], about)


def ship(bundle: Bundle, folder: Path) -> None:
    """Put the bundle's word list and background in a cache folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("words.txt", "background.safetensors"):
        shutil.copyfile(bundle.file(name), folder / name)


def describe(folder: Path, about: Mapping[str, Any]) -> None:
    """Write how the lists came about."""
    write_whole(folder / "about.json", (json.dumps(about, indent=2) + "\n").encode())
