"""``POST /v1/feedback``: what became of a result. The same words come over the socket and as Wyoming events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from device_sdk.listen import answers
from device_sdk.listen.gate import Refused, body, people, person
from device_sdk.listen.people import People


def tell(of: People, who: str, given: Mapping[str, Any]) -> None:
    """given: id, and one of text, accepted, cancelled, slots; or ``edited``, a text that may still change. Raises
    :class:`Refused` (404) for an id that the person's device does not hold, FeedbackError for what it cannot read."""
    device, utterance = of.device(who), given.get("id")
    if not isinstance(utterance, str):
        raise Refused(422, "no_id", f"id: found {utterance!r}, expected that of a result", "id")
    if all(each.utterance_id != utterance for each in device.remembered()):
        why = "none that waits for feedback: it has been learned from, is another person's, or more than an hour old"
        raise Refused(404, "unknown_utterance", f"id: found {utterance[:60]!r}, {why}", "id")
    if "edited" in given:
        device.edit(utterance, given["edited"])
    else:
        device.feedback(utterance, answers.signal(given))
    of.wake()


async def post_feedback(request: Request) -> Response:
    given = await body(request)
    await run_in_threadpool(tell, people(request), person(request), given)
    return JSONResponse({"id": given["id"]})
