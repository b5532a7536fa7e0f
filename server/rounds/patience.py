"""How long what fails is tried again: a passing fault must lose no round, and a lasting one must hold nothing up.

After a failure the same thing is left alone for a second, then two, then four, up to a minute. What more tries cannot
mend (a row that the database refuses) is given up after ``LASTING``, any other failure (a disk that is full) after
``PASSING``. Tries of one kind do not count for the other, and a server that was started again counts anew."""

import math
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.exc import DataError, IntegrityError, NotSupportedError, ProgrammingError

from device_sdk.errors import IdiolectError, StateError


class Patience(NamedTuple):
    """Tries in a row, and seconds between the first and the last, that are made before something is given up."""

    tries: int
    seconds: float


LASTING = Patience(4, 5.0)
PASSING = Patience(60, 6 * 3600.0)
LONGEST_PAUSE = 60.0

_LASTING = (
    *(IntegrityError, DataError, ProgrammingError, NotSupportedError),
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError),
    IdiolectError,
)
_WORDS = 300


class _Setback(NamedTuple):
    """Failures of one kind in a row. since: of the first; again_at: before that it is not tried again."""

    lasting: bool
    failures: int
    since: float
    again_at: float


class Setbacks:
    """Owns what failed last, by name. clock: seconds, never set back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, _Setback] = {}

    def is_due(self, name: str) -> bool:
        held = self._held.get(name)
        return held is None or self._clock() >= held.again_at

    def failed(self, name: str, error: Exception) -> bool:
        """Whether it is to be given up."""
        now, lasting, held = self._clock(), is_lasting(error), self._held.get(name)
        failures, since = (held.failures + 1, held.since) if held and held.lasting == lasting else (1, now)
        self._held[name] = _Setback(lasting, failures, since, now + min(LONGEST_PAUSE, 2.0 ** min(failures - 1, 16)))
        patience = LASTING if lasting else PASSING
        return failures >= patience.tries and now - since >= patience.seconds

    @property
    def seconds_left(self) -> float:
        """Until the first of what failed is due again; infinite where nothing did."""
        now = self._clock()
        return min((max(0.0, held.again_at - now) for held in self._held.values()), default=math.inf)

    def holds(self, name: str) -> bool:
        """Whether it failed when it was last tried."""
        return name in self._held

    def passed(self, name: str) -> None:
        self._held.pop(name, None)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all others."""
        self._held = {name: self._held[name] for name in set(names) & self._held.keys()}


def is_lasting(error: BaseException) -> bool:
    """Whether more tries cannot mend an error: it, or every one of a group, is about what is stored and not about what
    stores it. A StateError is about a disk, a store or a worker."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_lasting(inner) for inner in error.exceptions)
    return isinstance(error, _LASTING) and not isinstance(error, StateError)


def describe_error(error: BaseException) -> str:
    """An error for operators: its kind, the project's own words, or else where it came from; never what it choked on,
    which may be what a device sent."""
    kind = type(error).__name__
    if isinstance(error, IdiolectError):
        return f"{kind}: {error}"[:_WORDS]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or list(frames)
    return f"{kind} in {Path(own[-1].filename).name}:{own[-1].lineno}" if own else kind
