"""What a device knows of its user, for the user to read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Learned"]


@dataclass(frozen=True, slots=True)
class Learned:
    """What the device has learned, for its user to read. words: the user's most frequent words with their counts;
    unlisted: how many distinct words it counts that never leave the device; reports: sent so far, by stream."""

    utterances: int
    words: tuple[tuple[str, float], ...]
    unlisted: int
    steps: int
    model_version: str
    marginals_version: int
    marginal_reports: int
    delta_reports: int

    def __str__(self) -> str:
        often = ", ".join(f"{word} ({count:.0f})" for word, count in self.words) or "none yet"
        return (
            f"This device has counted the words of {self.utterances} utterances; it hears most often: {often}. "
            f"{self.unlisted} further words are counted on this device only. It has taken {self.steps} learning steps "
            f"from model {self.model_version} since that model came. It has sent {self.marginal_reports} bounded word "
            f"counts and {self.delta_reports} bounded model changes, never audio or text. forget() erases all of this."
        )
