"""The HTTP interface as an OpenAPI document, made of the routes (:mod:`server.web.operations`). It needs no server."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from device_sdk.wire import messages as wire
from device_sdk.wire.signing import BODY_DIGEST, DEVICE, NONCE, SIGNATURE, TIMESTAMP
from server.operators import messages
from server.web.operations import SCHEMAS
from server.web.routes import devices, health, operators
from server.web.routes.authorization import TABLE, Caller, Rule

ROUTERS = [module.router for module in (devices, operators, health)]
_BODIES = (
    *(wire.Enrol, wire.CheckIn, wire.MarginalReport, wire.WordReport, wire.Problem),
    *(messages.RoundRequest, messages.MarginalPush, messages.RolloutRequest),
    *(messages.OperatorRequest, messages.EnrolmentTokenRequest),
)
"""Messages that FastAPI does not see, since the routes read them themselves."""
_SIGNED = {
    DEVICE: "The device's id.",
    NONCE: "8 to 128 characters that it never used before.",
    TIMESTAMP: "Seconds since the epoch.",
    SIGNATURE: "Ed25519, base64, over method, path, round, the body's SHA-256, nonce and time.",
}
_DIGEST: dict[str, Any] = {"name": BODY_DIGEST, "in": "header", "required": True}
_DIGEST |= {"description": "SHA-256 of the body: who sends is checked before it is read."}
_DIGEST |= {"schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
_SCHEMES: dict[str, Any] = {"operator": {"type": "http", "scheme": "bearer", "description": "An operator's token."}} | {
    name: {"type": "apiKey", "in": "header", "name": name, "description": text} for name, text in _SIGNED.items()
}


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1. Raises KeyError for a route without an authorization."""
    content: dict[str, Any] = get_openapi(
        title="idiolect server",
        version=_version(),
        description="Devices check in, send bounded and noised contributions, and fetch models and marginals. "
        "Operators run rounds, publish, and watch. What goes wrong is answered with a Problem, whose code is stable.",
        routes=[route for router in ROUTERS for route in router.routes],
        separate_input_output_schemas=False,  # what is written can be read
    )
    for path, methods in content["paths"].items():
        for method, operation in methods.items():
            _add_caller(operation, TABLE[method.upper(), path])
    _, definitions = models_json_schema([(body, "validation") for body in _BODIES], ref_template=SCHEMAS + "{model}")
    schemas = content["components"]["schemas"] | definitions["$defs"]
    _as_base64(schemas)
    content["components"] = {"schemas": schemas, "securitySchemes": _SCHEMES}
    return content


def _add_caller(operation: dict[str, Any], rule: Rule) -> None:
    who = f"Who may call it: {rule.who}" + (f" ({rule.why})" if rule.why else "") + "."
    operation["description"] = "\n\n".join(part for part in (operation.get("description", ""), who) if part)
    match rule.who:
        case Caller.DEVICE:
            operation["security"] = [{name: [] for name in _SIGNED}]
            operation["parameters"] = [*operation.get("parameters", ()), _DIGEST]
        case Caller.VIEWER | Caller.OPERATOR | Caller.ADMINISTRATOR:
            operation["security"] = [{"operator": []}]


def _as_base64(schema: Any) -> None:
    """Bytes travel as base64: four characters for three of them."""
    if isinstance(schema, dict) and (schema.pop("contentMediaType", None) or schema.get("format") == "binary"):
        schema.pop("format", None)
        schema["contentEncoding"] = "base64"
        for bound in schema.keys() & {"minLength", "maxLength"}:
            schema[bound] = -(-schema[bound] // 3) * 4
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _as_base64(inner)


def _version() -> str:
    try:
        return version("idiolect-server")
    except PackageNotFoundError:  # run from its sources
        return "0"
