"""Home commands by made voices that no training heard."""

from collections.abc import Iterator
from itertools import groupby

from server.lab.corpora import Utterance
from server.lab.corpora.made import made_corpus


def spoken(people: int = 5, each: int = 8) -> Iterator[list[Utterance]]:
    """What each of them says."""
    for _, said in groupby(made_corpus("devices", people, each, 3).utterances, key=lambda one: one.speaker):
        yield list(said)
