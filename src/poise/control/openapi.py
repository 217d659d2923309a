"""The OpenAPI document, completed: what the framework cannot know about the routes is added to what it found out.

That is the one error body of every route, the forms that are streams of lines, the grammar of a job, and which route
needs no token.
"""

from typing import Any

import msgspec
from litestar.connection import Request
from litestar.openapi.plugins import JsonRenderPlugin

from poise.control.guard import PUBLIC, ErrorBody
from poise.control.hot import Accepted
from poise.model.events import Event
from poise.model.reports import AuditReport, LogLine
from poise.model.spec import JobSpec

LINES = "application/x-ndjson"


class LoggedEvent(msgspec.Struct, frozen=True):
    """One record of the log and its revision."""

    revision: int
    event: Event


class CompleteDocument(JsonRenderPlugin):
    """Serves the document as `openapi.json`, and no pages that would load scripts from elsewhere."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return super().render(request, complete(openapi_schema))


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """The same document with everything in it; doing it twice changes nothing."""
    (errors, accepted, logged, audited, line, job), schemas = msgspec.json.schema_components(
        [ErrorBody, Accepted, LoggedEvent, AuditReport, LogLine, JobSpec], ref_template="#/components/schemas/{name}"
    )
    document["components"]["schemas"] |= schemas
    document["components"]["schemas"]["Submission"]["properties"]["spec"] = job
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("400", None)
            operation["responses"]["default"] = _answer("What is wrong, where, and what to do about it", errors)
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
        "Server-sent events: `id` is the revision, `data` the record", logged, "text/event-stream"
    )
    document["paths"]["/v1/audit"]["get"]["responses"]["200"] = _answer(
        "Server-sent events: `id` is the revision, `data` who did what", audited, "text/event-stream"
    )
    return document


def _answer(description: str, schema: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}
