"""Speech to train, simulate and measure on: readers of real recordings, made voices, rooms, and a command grammar.

Nothing here loads torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from device_sdk.errors import DataError, MissingExtraError
from server.lab.corpora.made import made_corpus
from server.lab.corpora.readers import read_barista, read_folder, read_fsdd
from server.lab.corpora.roles import ROLES, SPLIT, Role, RoleOf, role_of
from server.lab.corpora.utterance import SAMPLE_RATE, Corpus, Utterance, Waveform

__all__ = ["SAMPLE_RATE", "Corpus", "Utterance", "Waveform", "kind_of", "open_corpus"]

PUBLIC = ("librispeech", "librilight", "mls", "commonvoice")
"""Public corpora, which lhotse reads (the server's ``train`` extra)."""

KINDS = (
    *(f"{kind}:PATH" for kind in (*SPLIT, "folder")),
    *(f"made:{role}" for role in ROLES),
    *(f"{kind}:PATH@PART[/LANGUAGE]" for kind in PUBLIC),
)


def kind_of(source: str | Path) -> str:
    """KIND of KIND:PATH."""
    return str(source).partition(":")[0]


def open_corpus(source: str | Path, roles: Sequence[Role], *, role: RoleOf = role_of, seed: int | None = 0) -> Corpus:
    """The voices of some roles in the corpus that KIND:PATH names; audio is read later, utterance by utterance.

    source: ``barista:PATH``, ``fsdd:PATH``, ``librispeech:PATH``, ``common_voice:PATH``, ``speech_commands:PATH``,
        ``phone_numbers:PATH``, ``folder:PATH``, or ``made:base``, ``made:development``, ``made:devices``,
        ``made:heldout``: 200 commands by 10 made voices of that set. Public corpora as their publishers lay them out as
        ``librispeech:PATH@train-clean-100`` or ``commonvoice:PATH@train/fr``.
    role: which role a voice has.
    seed: decides fsdd's strings and made speech; None leaves fsdd's digits one by one.
    Raises DataError naming the kind, file or field that is wrong, MissingExtraError without lhotse or espeak-ng."""
    kind = kind_of(source)
    return _read(str(source), kind, seed).only(lambda utterance: role(kind, utterance.speaker) in roles)


def _read(source: str, kind: str, seed: int | None) -> Corpus:
    rest = source.partition(":")[2]
    path = Path(rest).expanduser()
    if kind == "made" and rest in ROLES:
        return made_corpus(rest, people=10, each=20, seed=seed or 0)
    if rest and (kind == "folder" or (kind in SPLIT and (path / "manifest.jsonl").is_file())):
        return read_folder(path, kind)
    if rest and kind in PUBLIC:
        return _public(source, kind, rest)
    if rest and kind in {"barista", "fsdd"}:
        return read_barista(path) if kind == "barista" else read_fsdd(path, seed)
    if rest and kind in SPLIT:
        raise DataError(f"{path / 'manifest.jsonl'}: no such file; expected one recording a line")
    raise DataError(f"data source {source!r}: expected one of {', '.join(KINDS)}")


def _public(source: str, kind: str, rest: str) -> Corpus:
    folder, separator, part = rest.rpartition("@")
    if not separator or not folder:
        raise DataError(f"data source {source!r}: expected a folder with a manifest.jsonl, or {kind}:PATH@PART")
    try:
        from server.lab.corpora import recipes
    except ImportError as error:
        raise MissingExtraError(
            f"{kind} is read by lhotse, which is not installed; run: pip install 'idiolect-server[train]'"
        ) from error
    name, _, language = part.partition("/")
    cuts = recipes.manifest(cast(recipes.Kind, kind), Path(folder).expanduser(), name, language or "en")
    return recipes.as_corpus(source, cuts)
