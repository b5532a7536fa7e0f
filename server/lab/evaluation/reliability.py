"""Whether confidences agree with how often one is right: calibration error, normalized cross entropy, bins to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.plots import Line, lines, standalone

BINS = 10
COLOURS = ("#888888", "#2c6fbb", "#c2571a", "#3a8f4d", "#8a4fb0", "#a8841a", "#b03060", "#3f8f8f")
_LEAST = 1e-6  # one wrong word of which a system was quite sure is bad, not infinitely so


@dataclass(frozen=True, slots=True)
class Bin:
    """Confidences from ``low`` to ``high``: how many, their mean, and the share of them that was right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """confidences: [N] in [0, 1]; right: [N] of 0 and 1. N is at least 1."""

    confidences: NDArray[np.float64]
    right: NDArray[np.float64]

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, bool]]) -> Reliability | None:
        """From (confidence, right); None where there are none."""
        table = np.array(list(pairs), np.float64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1]) if len(table) else None

    @property
    def ece(self) -> float:
        """Expected calibration error: mean distance of confidence and accuracy over 10 bins of equal width [1]. [1]
        Naeini, Cooper, Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015."""
        return self._error(self.bins())

    @property
    def ece_equal_mass(self) -> float:
        """The same over 10 bins that hold equally many confidences, as far as ties allow."""
        return self._error(self.equal_bins())

    @property
    def nce(self) -> float | None:
        """Normalized cross entropy (NIST): 1 - H(right | confidence) / H(right). 1 is best, 0 is the overall accuracy
        given as every confidence, below 0 is worse than that. None where all or none are right."""
        rate = float(self.right.mean())
        if rate in (0.0, 1.0):
            return None
        held = np.clip(self.confidences, _LEAST, 1 - _LEAST)
        found = -(self.right * np.log(held) + (1 - self.right) * np.log(1 - held)).mean()
        return float(1 + found / (rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))

    def bins(self) -> tuple[Bin, ...]:
        """10 bins of equal width; empty ones are left out."""
        places = np.minimum((self.confidences * BINS).astype(np.int64), BINS - 1)
        return tuple(
            self._bin(np.flatnonzero(places == place), place / BINS, (place + 1) / BINS)
            for place in range(BINS)
            if (places == place).any()
        )

    def equal_bins(self) -> tuple[Bin, ...]:
        """At most 10 bins of equally many confidences, rising; equal confidences are never parted."""
        order = np.argsort(self.confidences, kind="stable")
        ranked = self.confidences[order]
        cuts = sorted({0, *np.searchsorted(ranked, [part[0] for part in np.array_split(ranked, BINS) if part.size])})
        parts = [order[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(order)], strict=True)]
        return tuple(self._bin(part, *self.confidences[part[[0, -1]]].tolist()) for part in parts)

    def as_json(self) -> dict[str, Any]:
        """Figures, and the equal-width bins of the reliability plot."""
        return {
            "count": len(self.right),
            "accuracy": float(self.right.mean()),
            "mean_confidence": float(self.confidences.mean()),
            "ece": self.ece,
            "ece_equal_mass": self.ece_equal_mass,
            "nce": self.nce,
            "bins": [asdict(each) for each in self.bins()],
        }

    def _bin(self, places: NDArray[np.int64], low: float, high: float) -> Bin:
        given, right = self.confidences[places], self.right[places]
        return Bin(low, high, len(places), float(given.mean()), float(right.mean()))

    def _error(self, bins: tuple[Bin, ...]) -> float:
        return sum(each.count * abs(each.confidence - each.accuracy) for each in bins) / len(self.right)


def reliability_chart(curves: Mapping[str, Reliability], title: str) -> str:
    """Accuracy over confidence in 10 bins of equal width, a line a data set, as an SVG file of its own. curves: by
    name, KIND:PATH. The first line is that of confidences which say how often one is right."""
    series = [Line("calibrated", "c0", [(place + 0.5) / BINS for place in range(BINS)])]
    for number, (name, curve) in enumerate(curves.items()):
        found = {round(each.low * BINS): each.accuracy for each in curve.bins()}
        legend = f"{name.replace(':', '/').rstrip('/').rpartition('/')[2]}, ECE {100 * curve.ece:.1f} %"
        series.append(Line(legend, f"c{1 + number % (len(COLOURS) - 1)}", [found.get(place) for place in range(BINS)]))
    drawn = lines(series, [f"{place / BINS:g}–" for place in range(BINS)], f"{title}: share right", percent=True)
    return standalone(drawn, {f"c{number}": colour for number, colour in enumerate(COLOURS)})
