"""A person's reading aloud: ``/v1/me/enrolment``. POST begins one, GET says where it is, PUT reads the next phrase,
DELETE ends it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from device_sdk.enrolment import Enrolment
from device_sdk.errors import AudioError
from device_sdk.listen.gate import Refused, gate, people, person, rate, received

_SECONDS = 30


async def enrolment(request: Request) -> Response:
    who, readings = person(request), people(request).readings
    if request.method == "POST":
        device = await run_in_threadpool(people(request).device, who)
        readings[who] = await run_in_threadpool(device.enrolment)
    reading = readings.get(who)
    if reading is None:
        raise Refused(404, "no_reading", "enrolment: none was begun; POST begins one")
    if request.method == "DELETE":
        del readings[who]
        return JSONResponse(asdict(await run_in_threadpool(reading.finish)))
    step: dict[str, Any] | None = None
    if request.method == "PUT":
        hertz = rate(request)
        step = asdict(await run_in_threadpool(reading.read, await _samples(request, hertz), hertz))
    return JSONResponse(_place(reading) | {"step": step})


def _place(reading: Enrolment) -> dict[str, Any]:
    return {"phrase": reading.phrase, "read": reading.count, "most": reading.most, "stopped": reading.stopped}


async def _samples(request: Request, hertz: int) -> Any:
    most = min(gate(request).limits.upload_bytes, 2 * hertz * _SECONDS)
    content = await received(request, most, f"found more than {_SECONDS} s, expected one phrase")
    if len(content) % 2 or not content:
        raise AudioError(f"body: found {len(content)} bytes, expected samples of 16 bits")
    return np.frombuffer(content, "<i2").astype(np.int16)
