"""What a person sees and changes of their own device: ``/v1/me``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from device_sdk.consent import Consent
from device_sdk.device import Device
from device_sdk.errors import ConfigurationError
from device_sdk.listen.gate import Refused, body, people, person

Json = dict[str, Any]


def overview(device: Device) -> Json:
    """What it has learned, in numbers and in sentences, and what its user agrees to."""
    summary = device.learned()
    counted = {field.name: getattr(summary, field.name) for field in fields(summary)}
    return counted | {
        "consent": asdict(device.consent),
        "sentences": list(summary.describe()),
        "spent": device.spent(),
    }


async def get_me(request: Request) -> Response:
    who = person(request)
    found = await run_in_threadpool(lambda: overview(people(request).device(who)))
    return JSONResponse({"person": who, **found})


async def put_consent(request: Request) -> Response:
    """Any of the streams to true or false; those that are not named stay."""
    given, who = await body(request), person(request)
    known = {field.name for field in fields(Consent)}
    if not given or not set(given) <= known or not all(isinstance(value, bool) for value in given.values()):
        raise Refused(422, "no_consent", f"consent: expected true or false for some of {', '.join(sorted(known))}")

    def change() -> Json:
        device = people(request).device(who)
        device.agree(*(stream for stream, agreed in given.items() if agreed))  # type: ignore[arg-type]
        device.withdraw(*(stream for stream, agreed in given.items() if not agreed))  # type: ignore[arg-type]
        return asdict(device.consent)

    return JSONResponse(await run_in_threadpool(change))


async def vocabulary(request: Request) -> Response:
    """GET: all phrases; POST {"phrase", "spellings", "kind"}: one more; DELETE ?phrase=: one less."""
    who = person(request)
    given = await body(request) if request.method == "POST" else {}
    phrase = given.get("phrase", request.query_params.get("phrase", ""))

    def change(device: Device) -> None:
        if request.method == "POST":
            spellings, kind = given.get("spellings", []), given.get("kind", "")
            if not isinstance(phrase, str) or not isinstance(spellings, list) or not isinstance(kind, str):
                raise ConfigurationError("vocabulary: expected a phrase, a list of spellings and a kind")
            device.vocabulary.add(phrase, spellings, kind)
        elif request.method == "DELETE" and not device.vocabulary.remove(phrase):
            raise Refused(404, "unknown_phrase", f"phrase: found {phrase[:60]!r}, which is not there", "phrase")

    return JSONResponse({"phrases": await run_in_threadpool(_phrases, request, who, change)})


async def undo(request: Request) -> Response:
    """Takes back what the last correction made of the vocabulary."""
    who, taken = person(request), list[str]()

    def change(device: Device) -> None:
        taken.extend(device.vocabulary.undo())

    phrases = await run_in_threadpool(_phrases, request, who, change)
    return JSONResponse({"taken_back": taken, "phrases": phrases})


def _phrases(request: Request, who: str, change: Callable[[Device], None]) -> list[Json]:
    device = people(request).device(who)
    change(device)
    return [asdict(each) for each in device.vocabulary.list()]


async def forget(request: Request) -> Response:
    """Erases everything of the person, once it is meant: {"forget": true}."""
    given, who = await body(request), person(request)
    if given != {"forget": True}:
        raise Refused(422, "not_meant", 'body: expected {"forget": true}, which erases everything')
    await run_in_threadpool(people(request).forget, who)
    return JSONResponse({"forgotten": who})
