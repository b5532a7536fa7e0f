"""From routes, operations, problems and examples to one OpenAPI document. It needs no server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from device_sdk.wire.messages import Message, Problem
from device_sdk.wire.signing import BODY_DIGEST, DEVICE, NONCE, SIGNATURE, TIMESTAMP
from server.problems import Refusal
from server.web.bodies import finite
from server.web.openapi.examples import EXAMPLES
from server.web.openapi.operations import OPERATIONS, Bytes, Content, Operation
from server.web.openapi.problems import PROBLEMS
from server.web.routes import accounts, devices, health, operators, secure_aggregation, updates
from server.web.routes import rollouts as rollouts
from server.web.routes.authorization import TABLE, Caller, Rule

__all__ = ["document"]

_ROUTERS = (devices, secure_aggregation, updates, operators, accounts, rollouts, health)
_REFERENCE = "#/components/schemas/"
_ALWAYS = ("unstorable", "too_many_requests", "internal")
_SIGNED = {
    DEVICE: "The device's id.",
    NONCE: "8 to 128 characters that it never used before.",
    TIMESTAMP: "Seconds since the epoch.",
    SIGNATURE: "Ed25519, base64, over method, path, round, the body's SHA-256, nonce and time.",
}
_DIGEST: dict[str, Any] = {
    "name": BODY_DIGEST,
    "in": "header",
    "required": False,
    "description": "SHA-256 of the body. With it, who sends is checked before the body is read, and a large body finds "
    "room more easily.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
_SCHEMES: dict[str, Any] = {"operator": {"type": "http", "scheme": "bearer", "description": "An operator's token."}} | {
    name: {"type": "apiKey", "in": "header", "name": name, "description": told} for name, told in _SIGNED.items()
}


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1. Raises KeyError for a route without an operation or without an authorization."""
    found: dict[str, Any] = get_openapi(
        title="idiolect server",
        version=_version(),
        description="Devices check in, send bounded and noised contributions, and fetch models and marginals. "
        "Operators run rounds, publish, and watch. What goes wrong is answered with a Problem, whose code is stable.",
        routes=[route for module in _ROUTERS for route in module.router.routes],
    )
    for path, methods in found["paths"].items():
        for method, told in methods.items():
            row = (method.upper(), path)
            _describe(told, OPERATIONS[row], TABLE[row])
    found["components"] = {"schemas": _schemas(), "securitySchemes": _SCHEMES}
    return found


def _describe(told: dict[str, Any], operation: Operation, rule: Rule) -> None:
    """What FastAPI knows of a route are its parameters; the rest is said here."""
    who = f"Who may call it: {rule.who}" + (f" ({rule.why})" if rule.why else "") + "."
    told["description"] = "\n\n".join(part for part in (told.get("description", ""), who) if part)
    if operation.takes:
        told["requestBody"] = {"required": True, "content": _content(operation.takes)}
    told["responses"] = {str(status): _answer(status, content) for status, content in operation.answers.items()}
    told["responses"] |= _refusals((*operation.refuses, *_ALWAYS))
    match rule.who:
        case Caller.DEVICE:
            told["security"] = [{name: [] for name in _SIGNED}]
            told["parameters"] = [*told.get("parameters", ()), _DIGEST]
        case Caller.VIEWER | Caller.OPERATOR | Caller.ADMINISTRATOR:
            told["security"] = [{"operator": []}]


def _answer(status: int, content: Content | None) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if content is not None:
        described["content"] = _content((content,))
        if isinstance(content, type):
            described["description"] = (content.__doc__ or described["description"]).partition("\n")[0]
    return described


def _content(contents: Iterable[Content]) -> dict[str, Any]:
    """By media type; of several messages it is one."""
    found: dict[str, Any] = {}
    schemas: list[Any] = []
    examples: dict[str, Any] = {}
    for content in contents:
        if isinstance(content, Bytes):
            found[content.media_type] = {
                "schema": {"description": content.description},
                "examples": {"example": {"value": content.example, "summary": content.description}},
            }
        else:
            schemas.append({"$ref": _REFERENCE + content.__name__})
            examples[content.__name__] = {"value": _example(content)}
    if schemas:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        found["application/json"] = {"schema": schema, "examples": examples}
    return found


def _refusals(names: Iterable[str]) -> dict[str, Any]:
    """Responses by status, with an example for every code."""
    by_status: defaultdict[int, dict[str, Refusal]] = defaultdict(dict)
    for name in names:
        refusal = PROBLEMS[name]
        by_status[refusal.status][refusal.code] = refusal
    found = {}
    for status, refusals in sorted(by_status.items()):
        described: dict[str, Any] = {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in refusals)}.",
            "content": {
                "application/json": {
                    "schema": {"$ref": _REFERENCE + "Problem"},
                    "examples": {code: {"value": _problem(refusal)} for code, refusal in refusals.items()},
                }
            },
        }
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            described["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
            }
        found[str(status)] = described
    return found


def _problem(refusal: Refusal) -> Any:
    problem = Problem(code=refusal.code, detail=refusal.detail, field=refusal.field)
    return problem.model_dump(mode="json")


def _example(message: type[BaseModel]) -> Any:
    example = EXAMPLES[message]
    # JSON mode makes null of an infinite number; messages on the wire have none, and bytes that it makes base64.
    return finite(example.model_dump(mode="json" if isinstance(example, Message) else "python"))


def _schemas() -> dict[str, Any]:
    """Of every message that is taken or answered, as it is read: what is written can be read."""
    contents: list[type[BaseModel]] = [
        content
        for operation in OPERATIONS.values()
        for content in (*operation.takes, *operation.answers.values())
        if content is not None and not isinstance(content, Bytes)
    ]
    contents.append(Problem)
    read: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (message, "validation") for message in dict.fromkeys(contents)
    ]
    _, definitions = models_json_schema(read, ref_template=_REFERENCE + "{model}")
    found: dict[str, Any] = definitions["$defs"]
    _as_base64(found)
    return found


def _as_base64(schema: Any) -> None:
    """Bytes travel as base64: four characters for three of them."""
    if isinstance(schema, dict):
        if schema.get("type") == "string" and schema.get("format") == "binary":
            del schema["format"]
            schema["contentEncoding"] = "base64"
            for bound in ("minLength", "maxLength"):
                if bound in schema:
                    schema[bound] = -(-schema[bound] // 3) * 4
        for inner in schema.values():
            _as_base64(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _as_base64(inner)


def _version() -> str:
    try:
        return version("idiolect-server")
    except PackageNotFoundError:  # run from its sources
        return "0"
