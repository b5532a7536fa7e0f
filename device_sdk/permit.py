"""Who may work on a device just now: one long work at a time, and one check-in, until it is ended.

The thread that checks in holds a permit. Its requests wait no longer than the permit lasts, and nothing is written once
it was ended: whoever erases or closes the state ends the permit first, and need not wait for a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from device_sdk.errors import CheckInError, LearningError

_HELD: ContextVar[Permit | None] = ContextVar("idiolect_permit", default=None)


def current() -> Permit | None:
    """The permit that this thread holds, if any."""
    return _HELD.get()


class Permit:
    """Lasts for so many seconds, or until it is ended by any thread. Once over it stays over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._why = ""
        self._sleepers: list[Callable[[], None]] = []

    @property
    def ended(self) -> bool:
        """Whether somebody ended it; its time running out is something else."""
        return self._ended.is_set()

    def remaining(self) -> float:
        """Seconds; 0 where it is over."""
        return 0.0 if self.ended else max(0.0, self._until - time.monotonic())

    def end(self, why: str) -> None:
        """From any thread. Whoever waits under the permit wakes up."""
        with self._lock:
            if not self._ended.is_set():
                self._why = why
                self._ended.set()
            sleepers = tuple(self._sleepers)
        for wake in sleepers:
            wake()

    def check(self) -> None:
        """CheckInError: it was ended. Writing is allowed until then, also after its time: what was answered counts."""
        if self.ended:
            raise CheckInError(f"check-in: ended: {self._why}; nothing of it was written since")

    def wait(self, seconds: float) -> None:
        """Sleeps. CheckInError: it was ended meanwhile, or does not last so long."""
        if seconds > self.remaining() and not self.ended:
            raise self.late()
        self._ended.wait(seconds)
        self.check()

    def late(self) -> CheckInError:
        """What to raise where its time is over."""
        kept = "everything is kept, and the next one goes on from here"
        return CheckInError(f"check-in: not done after {self.seconds:.3g} s; {kept}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """This thread holds the permit."""
        token = _HELD.set(self)
        try:
            yield
        finally:
            _HELD.reset(token)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """``wake`` is called, by another thread, when the permit is ended."""
        with self._lock:
            self._sleepers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._sleepers.remove(wake)


class Visits:
    """Owns the turn of check-ins: one at a time, for which nothing else waits, and which any thread may end."""

    def __init__(self) -> None:
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._permit: Permit | None = None

    @contextmanager
    def begin(self, seconds: float) -> Iterator[Permit]:
        """This thread holds a permit, once it is its turn."""
        with self._turn:
            permit = Permit(seconds)
            with self._guard:
                self._permit = permit
            try:
                with permit.held():
                    yield permit
            finally:
                with self._guard:
                    self._permit = None

    def end(self, why: str) -> None:
        """A check-in under way writes nothing from here on, and returns as soon as it notices."""
        with self._guard:
            if self._permit is not None:
                self._permit.end(why)


class Lock:
    """Owns a lock of long work (learn, agree, forget, a check-in's change): only threads that do not hold it wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def check(self) -> None:
        """LearningError: this thread has the turn already."""
        if self._owner == threading.get_ident():  # nobody else can make this true or false
            raise LearningError(
                "device: found learn, check_in, agree, forget or close called by what learning itself asks (stop, "
                "policy, conditions or cost_function), expected it once learn has returned: stop learning, then call it"
            )

    def __enter__(self) -> None:
        """LearningError: this thread has the turn already."""
        self.check()
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *raised: object) -> None:
        self._owner = None
        self._lock.release()
