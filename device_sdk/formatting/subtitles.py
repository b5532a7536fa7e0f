"""Subtitles from word times: SubRip and WebVTT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from device_sdk.hypothesis import Word

__all__ = ["Cue", "cues", "srt", "webvtt"]

LONGEST = 6.0  # s
WIDEST = 42  # characters, one line on a television
PAUSE = 0.8  # s
SHORTEST = 0.7  # s; word times say when a word was recognized, not how long to read it


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle. start, end: seconds."""

    text: str
    start: float
    end: float


def cues(words: Sequence[Word]) -> tuple[Cue, ...]:
    """Words as subtitles: a new one after a pause, or where a line would become too long to read."""
    groups: list[list[Word]] = []
    for word in words:
        last = groups[-1] if groups else []
        width = sum(len(other.text) + 1 for other in last) + len(word.text)
        if last and width <= WIDEST and word.start - last[-1].end < PAUSE and word.end - last[0].start <= LONGEST:
            last.append(word)
        else:
            groups.append([word])
    found: list[Cue] = []
    for index, group in enumerate(groups):
        latest = groups[index + 1][0].start if index + 1 < len(groups) else float("inf")
        end = max(group[-1].end, min(group[0].start + SHORTEST, latest))
        found.append(Cue(" ".join(word.text for word in group), group[0].start, end))
    return tuple(found)


def srt(subtitles: Iterable[Cue]) -> str:
    """SubRip."""
    return "\n".join(
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{cue.text}\n"
        for number, cue in enumerate(subtitles, 1)
    )


def webvtt(subtitles: Iterable[Cue]) -> str:
    """WebVTT."""
    return "WEBVTT\n" + "".join(
        f"\n{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{cue.text}\n" for cue in subtitles
    )


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1_000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1_000:02d}{point}{rest % 1_000:03d}"
