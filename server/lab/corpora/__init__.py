"""Speech to train, simulate and measure on: readers of real recordings, made voices, rooms, and a command grammar.

Nothing here loads torch."""

from pathlib import Path
from typing import cast

from device_sdk.errors import DataError, MissingExtraError
from server.lab.corpora.made import made_corpus
from server.lab.corpora.readers import read_barista, read_folder, read_fsdd
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform
from server.lab.corpora.voices import VARIANTS, VoiceSet

__all__ = ["SAMPLE_RATE", "Corpus", "Utterance", "Waveform", "open_corpus"]

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
    Raises DataError naming the kind, file or field that is wrong, MissingExtraError without lhotse or espeak-ng.
    """
    kind, _, rest = str(source).partition(":")
    path = Path(rest).expanduser()
    if rest in VARIANTS and kind == "made":
        return made_corpus(cast(VoiceSet, rest), people=10, each=20, seed=seed)
    if rest and kind in PUBLIC:
        return _public(str(source), kind, rest)
    if rest and kind == "fsdd":
        return read_fsdd(path, seed)
    if rest and kind in {"barista", "folder"}:
        return (read_barista if kind == "barista" else read_folder)(path)
    raise DataError(f"data source {str(source)!r}: expected one of {', '.join(KINDS)}")


def _public(source: str, kind: str, rest: str) -> Corpus:
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
    cuts = recipes.manifest(cast(recipes.Kind, kind), Path(folder).expanduser(), name, language or "en")
    return recipes.as_corpus(source, cuts)
