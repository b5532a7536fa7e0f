"""The HTTP interface as an OpenAPI document: what every route takes and answers, with examples, and what it refuses."""

from server.web.openapi.document import document

__all__ = ["document"]
