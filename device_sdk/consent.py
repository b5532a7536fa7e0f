"""What a user has agreed to, stream by stream. Nothing is sent before the user agrees to it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from device_sdk.checks import check_choice, reading

Stream = Literal["counting", "learning", "keeping", "marginals", "deltas", "words"]

STREAMS: tuple[Stream, ...] = get_args(Stream)


@dataclass(frozen=True, slots=True)
class Consent:
    """The first three stay on the device, the others leave it.

    counting: the words that are heard are counted. learning: steps are taken on what was heard. keeping: what the user
    confirms from now on may wait for learning on the disk, encrypted, for a day at most: its text and features, never
    audio; and all that is heard, for an hour, where the app takes feedback in another process (``keep_heard``).
    marginals: bounded counts of words heard from now on are sent. deltas: bounded, noised changes of the weights from
    now on are sent. words: a few words outside the public list are sent, of those that the user gives from now on."""

    counting: bool = True
    learning: bool = True
    keeping: bool = False
    marginals: bool = False
    deltas: bool = False
    words: bool = False

    def agreed(self, *streams: Stream) -> Consent:
        """With these streams too. ConfigurationError: no such stream."""
        return replace(self, **dict.fromkeys(_checked(streams), True))

    def withdrawn(self, *streams: Stream) -> Consent:
        """Without these streams. ConfigurationError: no such stream."""
        return replace(self, **dict.fromkeys(_checked(streams), False))


def to_bytes(consent: Consent) -> bytes:
    """JSON, for the store."""
    return json.dumps({field.name: getattr(consent, field.name) for field in fields(consent)}).encode()


def from_bytes(content: bytes | None) -> Consent:
    """What was stored; what every user starts from where nothing was. StateError: unreadable."""
    if content is None:
        return Consent()
    with reading("settings/consent"):
        streams = json.loads(content)
        if set(streams) != set(STREAMS) or not all(isinstance(value, bool) for value in streams.values()):
            raise ValueError
        return Consent(**streams)


def _checked(streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
    for stream in streams:
        check_choice("consent", stream, STREAMS)
    return streams
