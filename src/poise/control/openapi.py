"""The OpenAPI document, completed: what the framework cannot know about the routes is added to what it found out.

That is the one error body of every route, the forms that are streams of lines, the grammar of a job, and which route
needs no token.
"""

from typing import Any

import msgspec
from litestar import Response, Router
from litestar.connection import Request
from litestar.exceptions import NotFoundException
from litestar.openapi.plugins import JsonRenderPlugin

from poise.control.guard import PUBLIC, ErrorBody
from poise.control.hot import Accepted, Submission
from poise.model.events import Event
from poise.model.reports import AuditReport, LogLine
from poise.model.spec import JobSpec, QuotaSpec

LINES = "application/x-ndjson"

REFUSALS = {
    "400": "What was asked cannot be done as asked",
    "401": "The request carries no token, or a wrong one",
    "403": "The Host or the Origin is not allowed",
    "404": "There is no such job, task, node or user",
    "409": "The state does not allow it, the name is taken, or the world has moved on from the revision that was named",
    "413": "The request is too large",
    "422": "A parameter, or a field of what was sent, is wrong: `field` names it",
    "500": "An internal error",
    "503": "The control plane is leaving, or a queue is full: try again",
    "507": "The disk of the log is full: nothing new is accepted, reading goes on",
}
"""Every status that an error may have; which of them a route may answer, `_refusals` tells."""


MISSING = frozenset({"/v1/profiles", "/v1/authority"})
"""Routes without a name in their path that may be asked for what is not there."""


class LoggedEvent(msgspec.Struct, frozen=True):
    """One record of the log and its revision."""

    revision: int
    event: Event


class CompleteDocument(JsonRenderPlugin):
    """Serves the document as `openapi.json`, and no pages that would load scripts from elsewhere."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return super().render(request, complete(openapi_schema))


def no_page(response: Response[Any]) -> Response[Any]:
    """In place of the framework's page for a document that is not there, the error that every route gives."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return response


def schema_router(path: str, opt: dict[str, Any]) -> Router:
    """Where the document is; `opt` says which role its routes need."""
    return Router(path, route_handlers=[], opt=opt, include_in_schema=False, after_request=no_page)


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """The same document with everything in it; doing it twice changes nothing."""
    (errors, accepted, logged, audited, line, job, *_), schemas = msgspec.json.schema_components(
        [ErrorBody, Accepted, LoggedEvent, AuditReport, LogLine, JobSpec, Submission, QuotaSpec],
        ref_template="#/components/schemas/{name}",
    )
    document["components"]["schemas"] |= schemas
    document["components"]["schemas"]["Submission"]["properties"]["spec"] = job
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"].pop("400", None)
            operation["responses"] |= {
                status: _answer(REFUSALS[status], errors) for status in _refusals(method, path, operation)
            }
            if path in PUBLIC:
                operation["security"] = []
    submit = document["paths"]["/v1/jobs"]["post"]
    submission = submit["requestBody"]["content"]["application/json"]
    submit["requestBody"]["content"][LINES] = submission
    submit["responses"]["200"] = _answer(
        "To a stream of lines, each a submission: one line for each, in their order, as soon as it is durable",
        accepted,
        LINES,
    )
    document["paths"]["/v1/jobs/{name}/logs"]["get"]["responses"]["200"] = _answer(
        "Lines, the last of kind `end`; empty ones say that nothing has happened for a while", line, LINES
    )
    document["paths"]["/v1/events"]["get"]["responses"]["200"] = _answer(
        "Server-sent events: `id` is the revision, `data` the record",
        _sent(logged),
        "text/event-stream",
    )
    document["paths"]["/v1/audit"]["get"]["responses"]["200"] = _answer(
        "Server-sent events: `id` is the revision, `data` who did what", _sent(audited), "text/event-stream"
    )
    return document


def _refusals(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    """The statuses of the errors that a route may answer with, by what it takes and does."""
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
    """One server-sent event whose data is a record."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": record}
    return {"type": "object", "properties": {"id": {"type": "string"}, "data": data}}


def _answer(description: str, schema: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}
