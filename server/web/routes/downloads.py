"""Files that are sent whole or in part, so that a download can go on where it was cut off."""

from __future__ import annotations

from fastapi.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from server.problems import Refusal
from server.web.bodies import problem

__all__ = ["Download"]


class Download(FileResponse):
    """A file, or the ranges of it that were asked for. What cannot be had is refused by a Problem: 400 or 416
    ``bad_range``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Message | None = None

        async def watch(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, watch)
        if refused is not None:
            told = {name.decode(): value.decode() for name, value in refused["headers"]}
            kept = {name: told[name] for name in ("content-range",) if name in told}
            detail = (
                f"Range: found nothing to send for it, expected bytes=FIRST-LAST within {told.get('content-range')}"
            )
            if refused["status"] == 400:
                detail = "Range: cannot be read, expected bytes=FIRST-LAST"
            await problem(Refusal(refused["status"], "bad_range", detail, "Range"), kept)(scope, receive, send)
