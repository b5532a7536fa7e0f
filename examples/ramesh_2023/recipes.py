"""Sizes of the experiment, and the rows of tables 2 and 3 of Ramesh et al. 2023, a file of ``recipes/`` each."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated

from device_sdk.errors import ConfigurationError
from export.networks.cpc import CPCS, ContextShape, Contrast


@validated(frozen=True, slots=True, config={"extra": "forbid"})
class Row:
    """One row of a table. way: how the encoder was pre-trained; cohort: clients of a round; whole: on all silos or a
    part of them, in which a cohort that is larger than it shrinks with it. passes: how often silos may be gone through,
    the size's own by default. continued: whether pre-training goes on in French before teaching (table 3). published:
    the paper's word errors by test set, percent; none for a row of one's own."""

    table: Literal["2", "3"]
    name: str
    way: Literal["none", "central", "federated"]
    cohort: int = 0
    whole: bool = True
    passes: int | None = None
    continued: bool = False
    published: Mapping[str, float] = field(default_factory=dict)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.way == "federated") != (self.cohort > 0):
            raise ValueError(f"cohort: found {self.cohort} with way {self.way!r}; only a federation has a cohort")
        if self.passes is not None and (self.passes < 1 or self.way != "federated"):
            raise ValueError(f"passes: found {self.passes} with way {self.way!r}; expected 1 or more, of a federation")
        return self


def read_row(path: Path) -> Row:
    """A row from its TOML file. Raises ConfigurationError naming the file."""
    try:
        return Row(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{path}: not a row of this experiment ({error})") from error


def read_rows() -> list[Row]:
    """The paper's rows in its order."""
    return [read_row(path) for path in sorted((Path(__file__).parent / "recipes").glob("*.toml"))]


@dataclass(frozen=True, slots=True)
class Teaching:
    """Recognition from transcribed speech. rate: peak of the learning rate; batch: utterances; pieces: subwords.
    pretrained_share, scratch_share: of the learning rate for encoders that were pre-trained, and for others. ctc:
    whether CTC comes before RNN-T; the paper has RNN-T alone, which little speech and few steps do not get off the
    ground."""

    steps: int
    rate: float
    batch: int
    pieces: int
    predictor_layers: int
    predictor_size: int
    embedding_size: int
    joiner_size: int
    dropout: float = 0.1
    pretrained_share: float = 1.0
    scratch_share: float = 1.0
    ctc: bool = True


@dataclass(frozen=True, slots=True)
class Federation:
    """Federated pre-training. rounds: at most; batch: utterances of a client in a round; rate: of the server's Adam.
    passes: how often the silos may be gone through; the paper's devices keep nothing, so theirs is 1."""

    rounds: int
    batch: int
    rate: float
    passes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """One scale of the experiment. speakers, each: silos of speech without text, and utterances of each. part: share of
    the silos in rows that pre-train on little. taught: transcribed utterances; tested: utterances of each test set.
    central_steps, central_batch, central_rate: of central pre-training; continued: share of its steps in continued
    pre-training."""

    name: str
    shape: ContextShape
    contrast: Contrast
    speakers: int
    each: int
    part: float
    taught: int
    tested: int
    central_steps: int
    central_batch: int
    central_rate: float
    federation: Federation
    teaching: Teaching
    continued: float = 0.5
    seconds: float = 160.0


SMALL = Sizes(
    name="small",
    shape=ContextShape(256, 3, 1, 96, 1, 128),
    contrast=Contrast(steps=8, candidates=24),
    speakers=100,
    each=20,
    part=0.1,
    taught=200,
    tested=200,
    central_steps=250,
    central_batch=64,
    central_rate=3e-3,
    federation=Federation(rounds=250, batch=1, rate=3e-3, passes=15),
    teaching=Teaching(500, 5e-3, 16, 26, 1, 64, 32, 96, pretrained_share=0.1, scratch_share=0.3),
)
"""Minutes on a processor: strings of digits by made voices. Encoders learn at the share of the rate that was best for
each kind of 0.1, 0.3 and 1, and of 0.3 and 1 from scratch, in a trial on speech of other draws."""

FULL = Sizes(
    name="full",
    shape=CPCS["paper"],
    contrast=Contrast(steps=12, candidates=128),
    speakers=6845,
    each=0,
    part=0.1,
    taught=0,
    tested=0,
    central_steps=130_000,
    central_batch=64,
    central_rate=1e-4,
    federation=Federation(rounds=22_000, batch=8, rate=1e-5, passes=1),
    teaching=Teaching(100_000, 5e-4, 64, 2500, 2, 1024, 512, 512, ctc=False),
    seconds=1200.0,
)
"""The paper's, on Libri-Light, LibriSpeech and MLS French. 0 stands for all that there is; the rates of central
pre-training and of teaching are not in the paper."""
