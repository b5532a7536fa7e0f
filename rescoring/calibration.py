"""How sure to be: from the scores of an n-best list to probabilities that agree with how often it is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "Calibration", "Curve", "confidence", "is_number", "posteriors"]

Array: TypeAlias = NDArray[np.float64]

CURVES = ("word", "text", "greedy_word", "greedy_text")
LEAST = 1e-4
"""Posteriors are kept this far from 0 and 1: a short list cannot tell more."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A logistic map (Platt scaling) of a posterior p and of the coverage c, what of all probability the list holds:

        log-odds of being right = slope * logit(p) + offset + coverage * c + coverage_per_word * c / words

    c = log of the summed p(tokens | audio) of the list, 0 or less. A posterior only compares entries of a list with
    each other; where all of them are poor, the transducer has spread its probability over what is not in the list.
    """

    slope: float = 1.0
    offset: float = 0.0
    coverage: float = 0.0
    coverage_per_word: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not is_number(value):
                raise ValueError(f"confidence.{item.name}: found {value!r}, expected a finite number")
        if self.slope < 0:
            raise ValueError(f"confidence.slope: found {self.slope!r}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted on development data by ``idiolect tune confidence``; the defaults are the plain posteriors.

    scale: what scores (nats) are multiplied with before the softmax over the list. word: for words of a hypothesis;
    text: for the whole of it. greedy_word, greedy_text: the same for a hypothesis alone in its list, as greedy decoding
    gives it: no posterior tells anything then, and its probability is that of one alignment only.
    Raises ValueError, naming the field, for a value outside its domain.
    """

    scale: float = 1.0
    word: Curve = field(default_factory=Curve)
    text: Curve = field(default_factory=Curve)
    greedy_word: Curve = field(default_factory=Curve)
    greedy_text: Curve = field(default_factory=Curve)

    def __post_init__(self) -> None:
        if not is_number(self.scale) or self.scale <= 0:
            raise ValueError(f"confidence.scale: found {self.scale!r}, expected a positive number")

    @classmethod
    def from_mapping(cls, values: Any) -> Calibration:
        """Read the object ``confidence`` of a ``rescoring.json``; absent fields keep their defaults."""
        given = dict(_object(values, cls, "confidence"))
        for name in CURVES:
            if name in given:
                given[name] = Curve(**_object(given[name], Curve, f"confidence.{name}"))
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a number that a float holds."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # JSON has integers of any size
        return False


def posteriors(scores: Array, scale: float) -> Array:
    """Softmax of ``scale * scores`` [N]: the share of each entry of a list."""
    powers = np.exp(scale * (scores - scores.max()))
    shares: Array = powers / powers.sum()
    return shares


def confidence(curve: Curve, posterior: Array, coverage: float, words: Array | float) -> Array:
    """Calibrated probabilities of being right, of the shape of ``posterior`` (any; in [0, 1]).

    coverage: log of the list's summed probability. words: of the hypothesis that each posterior belongs to.
    """
    held = np.minimum(np.maximum(posterior, LEAST), 1 - LEAST)
    odds = curve.slope * np.log(held / (1 - held)) + curve.offset
    odds = odds + min(coverage, 0.0) * (curve.coverage + curve.coverage_per_word / np.maximum(words, 1))
    return np.asarray(1 / (1 + np.exp(np.minimum(np.maximum(-odds, -700), 700))), np.float64)


def _object(values: Any, of: type, name: str) -> Mapping[str, Any]:
    known = {item.name for item in fields(of)}
    if not isinstance(values, Mapping):
        raise ValueError(f"{name}: found {values!r}, expected an object with {', '.join(sorted(known))}")
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{name}.{unknown[0]}: unknown field, expected one of {', '.join(sorted(known))}")
    return values
