"""The channel between a user and the recognizer: microphone, room, line and voice, as a running mean of features.

A filter in front of a microphone adds the same to every log-mel frame, and loudness the same to every bin. A device
takes from its frames the difference between the mean of what it heard before and the mean that the model was trained
on, shrunk by a prior that expects none. With x_t the frames heard, mu the model's mean, n their count, n_0 the prior's,

    offset = sum_t (x_t - mu) / (n + n_0)

which is the posterior mean of the difference where both are Gaussian."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import check_intervals, reading

Float = NDArray[np.float32]

LEAST_SECONDS = 10.0
"""A mean over less is kept in memory only: it would say much of one utterance."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """prior_seconds: of speech like the training's that the device sets out with.
    memory_seconds: of speech that the mean remembers; a user who changes the microphone is followed that fast."""

    prior_seconds: float = 10.0
    memory_seconds: float = 120.0

    def __post_init__(self) -> None:
        check_intervals("channel", self, "(0, inf)", "prior_seconds", "memory_seconds")


@dataclass(frozen=True, slots=True)
class Channel:
    """mean: of the log-mel frames heard, [M] float64, empty before the first. seconds: that it counts for."""

    mean: tuple[float, ...] = ()
    seconds: float = 0.0


def update(channel: Channel, features: Float, seconds: float, settings: ChannelSettings) -> Channel:
    """The channel after an utterance more. T: frames; M: mel bins. features: [T, M] as the microphone gave them, before
    any offset; seconds: their length. Frames of another number of bins than before begin anew."""
    if not len(features) or not seconds > 0:
        return channel
    new = features.mean(axis=0, dtype=np.float64)
    if not np.isfinite(new).all():
        return channel
    before = min(channel.seconds, max(0.0, settings.memory_seconds - seconds)) if len(channel.mean) == len(new) else 0.0
    mean = (before * np.array(channel.mean) + seconds * new) / (before + seconds) if before else new
    return Channel(tuple(mean.tolist()), min(before + seconds, settings.memory_seconds))


def offset(channel: Channel, mean: Float, settings: ChannelSettings) -> Float | None:
    """What to take from every frame: [M] float32; None for nothing. mean: [M] float32, the model's."""
    if len(channel.mean) != len(mean):
        return None
    share = channel.seconds / (channel.seconds + settings.prior_seconds)
    return (share * (np.array(channel.mean) - mean)).astype(np.float32)


def to_bytes(channel: Channel) -> bytes:
    """JSON for encrypted storage."""
    return json.dumps({"mean": [round(value, 4) for value in channel.mean], "seconds": channel.seconds}).encode()


def from_bytes(content: bytes | None) -> Channel:
    """What was stored; nothing heard where nothing was. StateError: unreadable."""
    if content is None:
        return Channel()
    with reading("counts/channel"):
        held = json.loads(content)
        found = Channel(tuple(float(value) for value in held["mean"]), float(held["seconds"]))
        if not all(math.isfinite(value) for value in (*found.mean, found.seconds)) or found.seconds < 0:
            raise ValueError
    return found
