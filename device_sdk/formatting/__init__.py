"""Recognized text as people write it: digits for spoken numbers, capitals, subtitles."""

from __future__ import annotations

from device_sdk.formatting.subtitles import Cue, cues, srt, webvtt
from device_sdk.formatting.text import Span, formatted, spans

__all__ = ["Cue", "Span", "cues", "formatted", "spans", "srt", "webvtt"]
