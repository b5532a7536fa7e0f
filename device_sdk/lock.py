"""Long work on a device takes turns: one learn, agreement, erasure or change by a check-in at a time."""

from __future__ import annotations

import threading

from device_sdk.errors import LearningError

__all__ = ["Lock"]


class Lock:
    """Owns a lock that is waited for by other threads, and never by the thread that holds it."""

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
