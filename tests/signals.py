"""Sounds for tests."""

import numpy as np
from numpy.typing import NDArray


def chirp(length: int, seed: int = 0) -> NDArray[np.float32]:
    """Sweeping tones and a little noise: [length] float32 in [-1, 1]. A prefix of it does not depend on the length."""
    rng = np.random.default_rng(seed)
    time = np.arange(length) / 16_000
    wave = np.zeros(length)
    for low, speed in rng.uniform([100, 0.5], [900, 3.0], (3, 2)):
        wave += 0.2 * np.sin(2 * np.pi * low * time + 300 * np.sin(speed * time))
    return (wave + 0.01 * rng.standard_normal(length)).astype(np.float32)


def hiss(seed: int = 0) -> NDArray[np.float32]:
    """0.6 s of quiet noise: [9600] float32."""
    return (np.random.default_rng(seed).normal(size=9600) * 0.05).astype(np.float32)


def noise(length: int, seed: int = 0) -> NDArray[np.float32]:
    """White noise: [length] float32."""
    return (0.1 * np.random.default_rng(seed).standard_normal(length)).astype(np.float32)


def tone(seconds: float, quiet: float = 0.0) -> NDArray[np.float32]:
    """A sine at 16 kHz, with so many seconds of silence before and after it."""
    return np.pad(0.3 * np.sin(np.arange(int(seconds * 16_000)) * 0.1), int(quiet * 16_000)).astype(np.float32)
