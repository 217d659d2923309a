"""The OpenAPI document, generated from the routes and their types, plus what types cannot express: the error body of
every route, streams of JSON lines, the grammar of a job, and the routes without a token.
"""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from poise import __version__
from poise.control.guard import KEYED, PUBLIC, ErrorBody
from poise.control.hot import Accepted
from poise.control.routes import Content, Redirect, Route, Stream
from poise.model.captures import CaptureLine
from poise.model.events import Event
from poise.model.job_fields import JobSpec
from poise.model.reports.access import AuditReport
from poise.model.reports.jobs import PartReport
from poise.model.reports.streams import ExecLine, LogLine

SCHEMA = "/v1/schema/openapi.json"
"""The path of the document."""

LINES = "application/x-ndjson"

REFUSALS = {
    "400": "What was asked cannot be done as asked",
    "401": "The request carries no token, or a wrong one",
    "403": "The Host or the Origin is not allowed",
    "404": "There is no such job, task, node or user",
    "409": "The state does not allow it, the name is taken, or the state has changed since the named revision",
    "413": "The request is too large",
    "422": "A parameter, or a field of what was sent, is wrong: `field` names it",
    "500": "An internal error",
    "503": "The control plane is leaving, or a queue is full: try again",
    "507": "The disk of the log is full: nothing new is accepted, reading goes on",
}
"""Every status of an error response; `_refusals` selects those of a route."""


MISSING = frozenset({"/", "/v1/profiles", "/v1/authority"})
"""Routes without a path parameter that may still answer 404."""


class LoggedEvent(msgspec.Struct, frozen=True):
    """One record of the log and its revision."""

    revision: int
    event: Event


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document for all routes but its own."""
    told = [route for route in routes if route.path != SCHEMA]
    known = [ErrorBody, Accepted, LoggedEvent, AuditReport, LogLine, ExecLine, CaptureLine, PartReport, JobSpec]
    kinds = [*known, *dict.fromkeys(kind for route in told for kind in _kinds(route))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    components["Submission"]["properties"]["spec"] = schema_of[JobSpec]
    paths: dict[str, dict[str, Any]] = {}
    for route in told:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Poise", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(route: Route) -> Iterator[Any]:
    """Return the JSON types of a route's parameters, body and result."""
    yield from (one.kind for one in route.parameters.values())
    if route.body not in (None, bytes):
        yield route.body
    if route.returns not in (Content, Redirect, Stream):
        yield route.returns


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    words = [*route.path.replace("{", "").replace("}", "").replace("-", "/").split("/"), route.handler.__name__]
    made: dict[str, Any] = {
        "operationId": "".join(word.title().replace("_", "") for word in words),
        "summary": route.summary,
        "responses": {str(route.status): _good(route, schema_of)},
    }
    if route.parameters:
        made["parameters"] = [
            {"name": one.name, "in": one.place, "required": one.is_required, "schema": dict(schema_of[one.kind])}
            for one in route.parameters.values()
        ]
        for told, one in zip(made["parameters"], route.parameters.values(), strict=True):
            if not one.is_required and one.default is not None:
                told["schema"]["default"] = one.default
    if route.body is not None:
        is_raw = route.body is bytes
        body = {"schema": {"type": "string", "format": "binary"} if is_raw else schema_of[route.body]}
        media_type = "application/octet-stream" if is_raw else "application/json"
        made["requestBody"] = {"required": True, "content": {media_type: body}}
    if (route.method, route.path) == ("POST", "/v1/jobs"):
        made["requestBody"]["content"][LINES] = body
        made["responses"]["200"] = _answer(
            "To a stream of lines, each a submission: one line for each, in their order, as soon as it is durable",
            schema_of[Accepted],
            LINES,
        )
    if route.path in PUBLIC | KEYED:
        made["security"] = []
    refusals = _refusals(route.method.lower(), route.path, made)
    made["responses"] |= {status: _answer(REFUSALS[status], schema_of[ErrorBody]) for status in refusals}
    return made


def _good(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    """Return the successful response of a route."""
    match route.path:
        case "/":
            location = {"Location": {"schema": {"type": "string"}}}
            return {"description": "The address of the dashboard", "headers": location}
        case path if route.returns is Content and path.startswith(("/v1/files", "/v1/trees", "/v1/attempts")):
            return _answer("Bytes", {"type": "string", "format": "binary"}, "application/octet-stream")
        case "/metrics":
            return _answer("Metrics, in the text format of Prometheus", {"type": "string"}, "text/plain")
        case "/v1/authority":
            return _answer("A certificate", {"type": "string"}, "application/x-pem-file")
        case "/v1/jobs/{name}/logs":
            about = "Lines, the last of kind `end`; empty ones say that nothing has happened for a while"
            return _answer(about, schema_of[LogLine], LINES)
        case "/v1/jobs/{name}/exec":
            about = "Lines: `started`, with a name for its input, what it writes, and its `end`; some are empty"
            return _answer(about, schema_of[ExecLine], LINES)
        case "/v1/jobs/{name}/files":
            about = "Lines: `started`, the archive piece by piece, and its `end`; some are empty"
            return _answer(about, schema_of[ExecLine], LINES)
        case "/v1/jobs/{name}/connect":
            about = "Lines: `started`, with the id that its input is sent to, what comes, and the `end`; some are empty"
            return _answer(about, schema_of[ExecLine], LINES)
        case "/v1/jobs/{name}/results":
            return _answer("Lines: one for each task that is over; some are empty", schema_of[PartReport], LINES)
        case "/v1/jobs/{name}/capture":
            about = "Lines: `started`, with the node, and `ended`, with the capture or an error; some are empty"
            return _answer(about, schema_of[CaptureLine], LINES)
        case "/v1/jobs/{name}/captures/{capture}":
            return _answer("The file", {"type": "string", "format": "binary"}, "application/octet-stream")
        case "/v1/events":
            about = "Server-sent events: `id` is the revision, `data` the record"
            return _answer(about, _sent(schema_of[LoggedEvent]), "text/event-stream")
        case "/v1/audit":
            about = "Server-sent events: `id` is the revision, `data` who did what"
            return _answer(about, _sent(schema_of[AuditReport]), "text/event-stream")
        case _:
            return _answer(HTTPStatus(route.status).description, schema_of[route.returns])


def _refusals(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    """Return the error statuses that a route may answer with, by its parameters and method."""
    found = ["403", "500", "503"]
    if path not in PUBLIC:
        found.append("401")
    if "{" in path or path in MISSING:
        found.append("404")
    if operation.get("parameters") or "requestBody" in operation:
        found += ["400", "422"]
    if "requestBody" in operation:
        found.append("413")
    if method != "get":
        found += ["409", "507"]
    return sorted(found)


def _sent(record: Any) -> dict[str, Any]:
    """Return the schema of a server-sent event whose data is a record."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": record}
    return {"type": "object", "properties": {"id": {"type": "string"}, "data": data}}


def _answer(description: str, schema: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}
