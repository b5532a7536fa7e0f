"""What a route takes, answers and refuses, said beside its function: the OpenAPI document is made of it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastapi.responses import Response
from pydantic import BaseModel

SCHEMAS = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content that is no JSON message of ours."""

    description: str
    media_type: str = "application/octet-stream"


Content: TypeAlias = type[BaseModel] | Bytes

WEIGHTS: Final = Bytes("Weights: safetensors bytes, float32, in ONNX layout.")
# Refusals: each a status and its codes.
BODY = ("400 disconnected", "408 too_slow", "413 too_large", "415 encoding", "422 bad_message")
_SIGNED = "401 unsigned stale_time unknown_device bad_signature"
SIGNED = (_SIGNED, "403 device_revoked other_device", "409 replayed", *BODY)
REPORT = (*SIGNED, "404 unknown_round", "409 not_collected round_closed not_sampled", "422 other_round", "503 no_room")
FILE = ("400 bad_range", "404 unknown_model", "410 model_removed", "416 bad_range")
_ALWAYS = ("422 bad_request unstorable", "429 too_many_requests", "500 internal")
_OPERATOR = ("401 bad_token token_revoked", "403 role")


def operation(
    answer: Content | None,
    *refusals: str,
    takes: Content | tuple[type[BaseModel], ...] = (),
    status: int = 200,
    also: Mapping[int, Content | None] | None = None,
) -> dict[str, Any]:
    """Keyword arguments of a route's decorator. refusals: each ``status code...``. takes: the body, or messages of
    which it is one. also: other answers by status."""
    responses: dict[int | str, dict[str, Any]] = {status: _response(answer)}
    responses |= {other: _response(content) for other, content in (also or {}).items()}
    codes: defaultdict[int, list[str]] = defaultdict(list)
    for refusal in (*refusals, *_ALWAYS):
        number, *names = refusal.split()
        codes[int(number)] += names
    for code, names in sorted(codes.items()):
        content = {"application/json": {"schema": {"$ref": f"{SCHEMAS}Problem"}}}
        description = ", ".join(f"`{name}`" for name in sorted(set(names)))
        responses[code] = {"description": f"A Problem: {description}.", "content": content}
    extra = {"requestBody": {"required": True, "content": _body(takes)}} if takes else None
    return {"response_class": Response, "status_code": status, "responses": responses, "openapi_extra": extra}


def for_operators(
    answer: Content, *refusals: str, takes: Content | tuple[type[BaseModel], ...] = (), status: int = 200
) -> dict[str, Any]:
    """As :func:`operation`, of a route behind an operator's token."""
    return operation(answer, *_OPERATOR, *(BODY if takes else ()), *refusals, takes=takes, status=status)


def _response(content: Content | None) -> dict[str, Any]:
    if isinstance(content, Bytes):
        return {"description": content.description, "content": {content.media_type: {"schema": {}}}}
    if content is None:
        return {}
    return {"model": content, "description": (content.__doc__ or content.__name__).partition("\n")[0]}


def _body(takes: Content | tuple[type[BaseModel], ...]) -> dict[str, Any]:
    if isinstance(takes, Bytes):
        return {takes.media_type: {"schema": {"description": takes.description}}}
    messages = takes if isinstance(takes, tuple) else (takes,)
    schemas = [{"$ref": SCHEMAS + message.__name__} for message in messages]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
