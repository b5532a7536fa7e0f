"""Speech to train, simulate and measure on: readers of real recordings, made voices, rooms, and a command grammar.

Nothing here loads torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from device_sdk.errors import DataError, MissingExtraError
from server.lab.corpora.made import made_corpus
from server.lab.corpora.readers import read_barista, read_folder, read_fsdd
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform
from server.lab.corpora.voices import VARIANTS, VoiceSet

__all__ = ["KINDS", "PUBLIC", "SAMPLE_RATE", "Corpus", "Utterance", "Waveform", "open_corpus", "public_cuts"]

PUBLIC = ("librispeech", "librilight", "mls", "commonvoice")
"""Public corpora, which lhotse reads (the server's ``train`` extra)."""

KINDS = (
    *("barista:PATH", "fsdd:PATH", "folder:PATH"),
    *(f"made:{voice_set}" for voice_set in VARIANTS),
    *(f"{kind}:PATH@PART[/LANGUAGE]" for kind in PUBLIC),
)


def open_corpus(source: str | Path, seed: int = 0) -> Corpus:
    """The corpus that KIND:PATH names; audio is read later, utterance by utterance.

    source: ``barista:PATH``, ``fsdd:PATH``, ``folder:PATH``, or ``made:base``, ``made:devices``, ``made:heldout``: 200
        commands by 10 made voices of that set. Public corpora as ``librispeech:PATH@train-clean-100`` or
        ``commonvoice:PATH@train/fr``.
    seed: decides fsdd's strings and made speech.
    Raises DataError naming the kind, file or field that is wrong.
    """
    kind, separator, rest = str(source).partition(":")
    if kind in PUBLIC and rest:
        cuts = public_cuts(str(source))
        from server.lab.corpora import recipes

        return recipes.as_corpus(str(source), cuts)
    path = Path(rest).expanduser()
    readers: dict[str, Any] = {
        "barista": lambda: read_barista(path),
        "fsdd": lambda: read_fsdd(path, seed),
        "folder": lambda: read_folder(path),
        "made": lambda: _made(rest, seed),
    }
    if not separator or kind not in readers or not rest:
        raise DataError(f"data source {str(source)!r}: expected one of {', '.join(KINDS)}")
    corpus: Corpus = readers[kind]()
    return corpus


def public_cuts(source: str) -> Any:
    """lhotse's cuts of KIND:PATH@PART[/LANGUAGE]. Raises DataError, and MissingExtraError without lhotse."""
    kind, _, rest = source.partition(":")
    folder, separator, part = rest.rpartition("@")
    if not separator or not folder:
        raise DataError(f"data source {source!r}: expected {kind}:PATH@PART, such as {kind}:PATH@train")
    try:
        from server.lab.corpora import recipes
    except ImportError as error:
        raise MissingExtraError(
            f"{kind} is read by lhotse, which is not installed; run: pip install 'idiolect-server[train]'"
        ) from error
    name, _, language = part.partition("/")
    return recipes.manifest(cast(recipes.Kind, kind), Path(folder).expanduser(), name, language or "en")


def _made(name: str, seed: int) -> Corpus:
    if name not in VARIANTS:
        raise DataError(
            f"data source 'made:{name}': expected one of {', '.join(f'made:{known}' for known in VARIANTS)}"
        )
    return made_corpus(cast(VoiceSet, name), people=10, each=20, seed=seed)
