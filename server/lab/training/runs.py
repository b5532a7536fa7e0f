"""A whole RNN-T run from its inputs: pieces, word list, mixture, watched utterances, training, description."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from device_sdk.features.logmel import FeatureSettings, logmel
from export.bundles import trained
from server.lab.corpora import grammar, kind_of, open_corpus
from server.lab.corpora.made import made_corpus
from server.lab.corpora.readers import AUDIO_SUFFIXES, load_audio
from server.lab.corpora.roles import ROLES, SPLIT, Role, role_of, split_voices
from server.lab.corpora.utterance import Utterance, Waveform
from server.lab.training.ctc import train_ctc
from server.lab.training.data import Example
from server.lab.training.pieces import read_sentences, train_pieces, word_list
from server.lab.training.recordings import SPOKEN, Recording, record
from server.lab.training.rnnt import Recipe, train_rnnt
from server.lab.training.speech import Mixture, sentence
from server.lab.training.trainer import write_atomically

Prepared = tuple[Mixture, list[str], list[Example], dict[str, Any]]
"""What a shard is made of, all given sentences, the utterances to watch, and details for the card."""

_WATCHED_PER_SOURCE = 60
_WATCHED: tuple[Role, ...] = ("development", "devices", "heldout")


def run_rnnt(
    recipe: Recipe,
    out: Path,
    texts: Sequence[Path],
    data: Sequence[str],
    command: str,
    *,
    begin: Path | None = None,
    noise: Path | None = None,
    recorded: float = 0.3,
    made: Sequence[Path] = (),
    **how: Any,
) -> dict[str, Any]:
    """``idiolect train rnnt``. Returns the last line of the log. begin: a bundle, or the folder of a run, to go on
    from, with its pieces. noise: a folder of recordings of what homes sound like. recorded: share of utterances that
    are recordings, where there are some. made: folders of sentences that a machine spoke, each with a manifest; they
    count as recordings, and are heard through the rooms of made speech. how: see
    :func:`server.lab.training.rnnt.train_rnnt`."""
    mixture, sentences, watched, details = _prepared(texts, data, made, recipe.features, recorded, noise)
    out.mkdir(parents=True, exist_ok=True)
    if begin is None:
        start, pieces = None, _pieces(recipe, mixture, out)
    else:
        start, pieces = trained(begin)
        details |= {"begin": portable(str(begin))}
    words = word_list(grammar.vocabulary(), sentences)
    write_atomically(out / "words.txt", ("\n".join(words) + "\n").encode())
    details |= {
        "command": portable(command.replace(str(out), "RUN")),
        "words": len(words),
        "text": [portable(str(path)) for path in texts],
        "sentences": len(mixture.sentences),
    }
    return train_rnnt(recipe, mixture, pieces, out, watched, details, begin=start, **how)


def run_ctc(
    bundle: Bundle,
    recipe: Recipe,
    out: Path,
    texts: Sequence[Path],
    data: Sequence[str],
    command: str,
    *,
    noise: Path | None = None,
    recorded: float = 0.3,
    made: Sequence[Path] = (),
    show: bool = True,
) -> dict[str, Any]:
    """``idiolect train ctc``: what is heard is made as for :func:`run_rnnt`. Writes OUT/ctc.onnx and ctc.json, and
    returns what the latter holds."""
    mixture, _, _, details = _prepared(texts, data, made, recipe.features, recorded, noise)
    out.mkdir(parents=True, exist_ok=True)
    record = train_ctc(bundle, recipe, mixture, out, show=show)
    heard = f"{bundle.manifest.name} {bundle.version}"
    summary = {"command": portable(command.replace(str(out), "RUN")), "encoder": heard, **details, "result": record}
    write_atomically(out / "ctc.json", json.dumps(summary, indent=2).encode())
    return summary


def home_noises(folder: Path) -> tuple[Waveform, ...]:
    """The first two thirds of each recording in a folder: the rest is for checking that noise is heard as nothing."""
    files = sorted(path for path in folder.glob("*") if path.suffix in AUDIO_SUFFIXES)
    if not files:
        raise DataError(f"{folder}: found no recording of noise; expected files *{', *'.join(AUDIO_SUFFIXES)}")
    recorded = [load_audio(path) for path in files]
    return tuple(waveform[: 2 * waveform.size // 3] for waveform in recorded)


def _prepared(
    texts: Sequence[Path],
    data: Sequence[str],
    made: Sequence[Path],
    features: FeatureSettings,
    recorded: float,
    noise: Path | None,
) -> Prepared:
    """data: KIND:PATH each. Given sentences outside the grammar's base split are not spoken, since they may be said by
    simulated devices."""
    sentences = [line for path in texts for line in read_sentences(path)]
    watched = list[Example]()
    for role in _WATCHED[:2]:
        people = made_corpus(role, 10, max(1, _WATCHED_PER_SOURCE // 10), seed=11)
        watched += [_example(one, f"made.{role}", features) for one in people.utterances]
    recordings: list[Recording] = []
    speakers: dict[str, set[str]] = {}
    for given in data:
        kind = kind_of(given)
        if kind == "made":
            raise DataError(f"--data {given}: made voices speak anyway; expected recordings")
        corpus = open_corpus(given, ROLES)
        speakers.setdefault(kind, set()).update(corpus.speakers)
        recordings += real_recordings(given)
        for role in _WATCHED:
            known = [one for one in corpus.utterances if one.sure_text and role_of(kind, one.speaker) == role]
            chosen = np.random.default_rng(0).permutation(len(known))[:_WATCHED_PER_SOURCE]
            watched += [_example(known[index], f"{kind}.{role}", features) for index in sorted(chosen)]
    for folder in made:
        recordings += record(_base(f"folder:{folder}"), SPOKEN)
    base = {line: grammar.split_of(line) == "base" for line in (*sentences, *(r.text for r in recordings))}
    spoken = tuple(span for line in sentences if base[line] for span in spans(line) if grammar.split_of(span) == "base")
    share = recorded if recordings else 0.0
    mixture = Mixture(spoken, tuple(recordings), recorded=share, waiting=0.2, quiet=0.04, features=features)
    details = {
        "voices": {kind: split_voices(kind, found) for kind, found in speakers.items()},
        "licences": [SPLIT[kind]["licence"] for kind in speakers if kind in SPLIT],
        "data": [portable(given) for given in data],
        "made": [portable(str(folder)) for folder in made],
        "recordings": len(recordings),
        "recorded_sentences_outside_base_split": len(
            {r.text for r in recordings if " " in r.text and not base[r.text]}
        ),
    }
    if noise is not None:
        mixture = replace(mixture, noises=home_noises(noise))
        details |= {"noise": portable(str(noise))}
    return mixture, sentences, watched, details


def real_recordings(source: str) -> list[Recording]:
    """What may be trained on: base voices with sure words. Digits come one by one, to be joined afresh."""
    return record(_base(source), kind_of(source))


def _base(source: str) -> Sequence[Utterance]:
    return open_corpus(source, ("base",), seed=None).utterances


def spans(sentence: str, most: int = 14) -> list[str]:
    """A sentence in as few parts of at most ``most`` words as there can be, all about as long."""
    words = sentence.split()
    return [" ".join(part) for part in np.array_split(words, -(-len(words) // most))]


def portable(text: str) -> str:
    """A path or command as it may be published: ``$IDIOLECT_DATA`` stands for that folder."""
    folder = os.environ.get("IDIOLECT_DATA", "")
    return text.replace(folder.rstrip("/"), "$IDIOLECT_DATA") if folder.rstrip("/") else text


def _pieces(recipe: Recipe, mixture: Mixture, out: Path) -> bytes:
    existing = out / "tokenizer.model"
    if existing.exists():
        return existing.read_bytes()
    generator = np.random.default_rng([recipe.seed, 0x70])
    lines = [sentence(mixture, generator) for _ in range(30_000 if recipe.architecture.pieces > 100 else 2_000)]
    return train_pieces([*lines, *mixture.sentences, *(r.text for r in mixture.recordings)], recipe.architecture.pieces)


def _example(utterance: Utterance, source: str, features: FeatureSettings) -> Example:
    return Example(logmel(utterance.load(), features), utterance.text or "", source)
