"""Strings of digits: a language small enough to be learned from minutes of speech, in English and in French."""

from __future__ import annotations

from typing import Literal

import numpy as np

from server.lab.corpora.fsdd import DIGITS

__all__ = ["Language", "digit_string"]

Language = Literal["en", "fr"]

_WORDS: dict[Language, tuple[str, ...]] = {
    "en": DIGITS,
    "fr": ("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"),
}


def digit_string(generator: np.random.Generator, language: Language, shortest: int = 1, longest: int = 4) -> str:
    """Some digits one after the other, each drawn alike."""
    count = int(generator.integers(shortest, longest + 1))
    return " ".join(_WORDS[language][digit] for digit in generator.integers(0, 10, count))
