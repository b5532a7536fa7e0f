"""What the server says, as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from device_sdk.errors import FeedbackError
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, SlotLexicon
from device_sdk.feedback.signals import Signal
from device_sdk.formatting import written_form
from device_sdk.hypothesis import Hypothesis, Partial, Result, Word

Json = dict[str, Any]
KINDS = ("text", "accepted", "cancelled", "slots")


def partial(found: Partial) -> Json:
    return {"type": "partial", "text": found.text, "stable": found.stable, "seconds": found.seconds}


def result(found: Result) -> Json:
    """With its n-best list; the scores in parts are in nats."""
    nbest = [_hypothesis(each) for each in found.nbest]
    own = {"id": found.utterance_id, "text": found.text, "written": written_form(found.text)}
    return {"type": "result", **own, "offset": found.offset, "seconds": found.seconds, "nbest": nbest}


def _hypothesis(found: Hypothesis) -> Json:
    words = [asdict(word) for word in found.words]
    plain = {"text": found.text, "score": found.score, "confidence": found.confidence}
    return {**plain, "parts": asdict(found.scores), "words": words}


def timed(words: Sequence[Word]) -> list[Json]:
    """As OpenAI names them."""
    return [{"word": word.text, "start": word.start, "end": word.end} for word in words]


def log_probability(confidence: float) -> float:
    return math.log(max(confidence, 1e-6))


def signal(given: Mapping[str, Any]) -> Signal:
    """What a client says of a result: one of text, accepted, cancelled and slots. Raises :class:`FeedbackError`."""
    found = [name for name in KINDS if given.get(name) not in (None, False)]
    if len(found) != 1:
        raise FeedbackError(f"feedback: found {', '.join(found) or 'nothing'}, expected one of {', '.join(KINDS)}")
    value = given[found[0]]
    match found[0]:
        case "text":
            if not isinstance(value, str):
                raise FeedbackError(f"text: found {type(value).__name__}, expected what was really said")
            return Corrected(value)
        case "slots":
            if not isinstance(value, dict) or not value or not all(isinstance(each, str) for each in value.values()):
                raise FeedbackError("slots: expected an object of slot to value")
            values = given.get("lexicon") or {name: [each] for name, each in value.items()}
            if not isinstance(values, dict):
                raise FeedbackError("lexicon: expected an object of slot to its possible values")
            return Semantics(value, SlotLexicon(values))
    if value is not True:
        raise FeedbackError(f"{found[0]}: found {value!r}, expected true")
    return Accepted() if found[0] == "accepted" else Cancelled()
