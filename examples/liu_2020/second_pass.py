"""The second pass' language models ask every hypothesis once; all that follows is arithmetic on their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from device_sdk.personalization.rescorer import Rescorer
from examples.liu_2020.lists import Client, read_clients, write_client
from rescoring.combination import CombinationWeights

__all__ = ["score"]


def score(
    bundle: Bundle, lists: Path, scored: Path, names: list[str], tell: Callable[[int, int], None] = lambda *_: None
) -> list[Client]:
    """The clients' lists with the scores of the bundle's language models, kept in ``scored``.

    Raises DataError where the bundle lacks a model, or kenlm is not installed.
    """
    rescorer = Rescorer(bundle, CombinationWeights())  # in which both have a share
    found = []
    for number, name in enumerate(names):
        if not (scored / f"{name}.jsonl.gz").exists():
            neural, ngram = rescorer.neural, rescorer.ngram
            if neural is None or ngram is None:
                raise DataError(f"{bundle.path}: expected a neural language model and an n-gram, with kenlm installed")
            (client,) = read_clients(lists, [name])
            utterances = []
            for nbest in client.utterances:
                ids = [bundle.words.ids(text) for text in nbest.texts]
                parts = [[float(values.sum()) for values in model(ids)] for model in (neural, ngram)]
                utterances.append(nbest.scored(*parts))
            write_client(scored, replace(client, utterances=tuple(utterances)))
        found += read_clients(scored, [name])
        tell(number + 1, len(names))
    return found
