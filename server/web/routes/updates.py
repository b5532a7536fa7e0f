"""Signed metadata of updates, for devices that trust a root. Whoever asks gets it: it is public."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.problems import Refusal
from server.web.bodies import service
from server.web.operations import Bytes, operation

__all__ = ["router"]

METADATA = Bytes("Signed metadata of The Update Framework, exact bytes.", "application/json")

router = APIRouter(prefix="/v1/updates")


@router.get("/{name}", **operation(METADATA, "404 unknown_metadata"))
def get_update_metadata(request: Request, name: str) -> Response:
    """``timestamp.json``, ``{version}.root.json``, ``{version}.snapshot.json`` or ``{version}.targets.json``."""
    own = service(request)
    found = own.updates.document(name) if own.updates is not None else None
    if found is None:
        raise Refusal(404, "unknown_metadata", f"updates: no {name[:64]!r} here", "name")
    caching = "no-cache" if name == "timestamp.json" else "public, max-age=31536000, immutable"
    return Response(found, headers={"Cache-Control": caching}, media_type="application/json")
