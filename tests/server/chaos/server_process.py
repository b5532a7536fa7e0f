"""A real server process whose model and words are buckets."""

from pathlib import Path

import numpy as np

from server.registry.initial import InitialModel
from tests.forks import ServerProcess
from tests.server import parties
from tests.server.parties import DIGEST


def buckets(words: int, values: int) -> InitialModel:
    """One word for every report of counts, one value for every delta."""
    return InitialModel({"w": np.zeros(values, np.float32)}, "base-1", DIGEST, np.full(words, 1 / words))


def serve(folder: str, database: str, words: str, values: str) -> None:
    """What the process runs."""
    parties.serve(folder, buckets(int(words), int(values)), database=database)


class BucketServer(ServerProcess):
    """A server of so many buckets."""

    def __init__(self, folder: Path, database: str, words: int, values: int) -> None:
        super().__init__(folder, f"{__name__}:serve", database, str(words), str(values))
