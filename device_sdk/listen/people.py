"""Who may speak to the server, the device of each, and the thread in which all of them learn."""

from __future__ import annotations

import hmac
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Self

from device_sdk.device import Device
from device_sdk.enrolment import Enrolment
from device_sdk.errors import ConfigurationError, IdiolectError
from device_sdk.profiles import Profiles

log = logging.getLogger(__name__)

EVERYBODY = "me"
"""Whose device answers where nobody is named."""
LEARN_SECONDS = 20.0
"""Of learning at a time, so that nobody waits for another for long."""
PAUSE = 10.0
"""Seconds after which what has no feedback yet, or was only edited, is looked at again."""
MOST = 100
"""People of one server: each has a device in memory."""
_NAME = re.compile(r"[\w .'-]{1,60}")


class UnknownPerson(IdiolectError):
    """No such person may speak to this server."""


class People:
    """Owns the devices and the thread. A person is chosen by token, where there are tokens, else by name."""

    def __init__(
        self,
        profiles: Profiles,
        tokens: Mapping[str, str] | None = None,
        learn: bool = True,
        expected: Sequence[str] = (),
    ) -> None:
        """tokens: token -> person; empty: whoever reaches the server may name anybody. learn: in the background.
        expected: names that are in everybody's vocabulary."""
        self._profiles, self._tokens, self._expected = profiles, dict(tokens or {}), tuple(expected)
        for name in {EVERYBODY, *self._tokens.values()}:
            _checked(name)
        self._opening, self._ready = threading.Lock(), set[str]()
        self.readings: dict[str, Enrolment] = {}
        self._wake, self._stop = threading.Event(), threading.Event()
        self._names = dict.fromkeys((*self._tokens.values(), *profiles.names()))
        self._thread = threading.Thread(target=self._learn_on, name="idiolect-listen-learns", daemon=True)
        if learn:
            self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether only those who have a token are heard."""
        return bool(self._tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """Of everybody who has been here, or has a token."""
        return tuple(self._names) or (EVERYBODY,)

    def who(self, token: str | None, name: str | None = None) -> str:
        """The person of a token; where there are no tokens, the one who is named, else :data:`EVERYBODY`. Raises
        :class:`UnknownPerson`."""
        if not self._tokens:
            return _checked(name or EVERYBODY)
        for known, person in self._tokens.items():
            if token is not None and hmac.compare_digest(token.encode(), known.encode()):
                if name not in (None, "", person):
                    raise UnknownPerson(f"person: found {name[:60]!r}, the token is of somebody else")
                return person
        raise UnknownPerson("token: found none that this server knows; give one as 'Authorization: Bearer TOKEN'")

    def device(self, person: str) -> Device:
        """Of a person, as new where there was none. Raises ConfigurationError beyond :data:`MOST` people."""
        with self._opening:
            if person not in self._names and len(self._names) >= MOST:
                raise ConfigurationError(f"person: found {MOST} people already, expected one of them")
            device = self._profiles[person]
            if person not in self._ready:
                device.vocabulary.add_all(self._expected, "home")
                self._ready.add(person)
            self._names.setdefault(person)
            return device

    def forget(self, person: str) -> None:
        """Everything of a person."""
        device = self.device(person)
        self.readings.pop(person, None)
        device.forget()
        device.vocabulary.add_all(self._expected, "home")

    def wake(self) -> None:
        """There may be something to learn."""
        self._wake.set()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._profiles.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _learn_on(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(PAUSE)
            self._wake.clear()
            for person in self.names:
                if self._stop.is_set():
                    return
                try:
                    device = self.device(person)
                    if device.settings.learn and device.consent.learning and device.remembered():
                        device.learn(LEARN_SECONDS, stop=self._stop)
                except IdiolectError as error:  # of one person: the others go on
                    log.warning("learning of one person: %s", error)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"person: found {name[:60]!r}, expected a name of at most 60 letters, digits and .'-")
    return name
