"""Builds the OpenAPI document of a gateway: its current services, and every possible status.

The latest replica of a service describes the inputs and outputs of its model; before the first replica, anything is
allowed. Requests below `/v1/` are passed on unchanged, so the document describes only what the gateway itself reads.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from poise import __version__
from poise.model.fields import NAME
from poise_serve.openai import (
    DEADLINES,
    LANE,
    MODELS,
    MOST_SECONDS,
    PATIENCE,
    UNNAMED,
    FrontErrorBody,
    MessageErrorBody,
    is_of_messages,
)
from poise_serve.wire import ErrorBody, Forms, Schema

ABOUT = (
    "Every error has the form `ErrorBody`, those below /v1/ that of OpenAI, or of Anthropic below /v1/messages; 404, "
    "405 and 431 as well, wherever asked."
)

REFUSALS = {
    "400": "The body cannot be read, or a header says what it may not",
    "401": "The gateway has keys, and the request carries none of them",
    "403": "The key may not do this, or a page of another site asks",
    "404": "There is no such model",
    "408": "The body was not there in time",
    "413": "The body is too large",
    "415": "The body has a Content-Encoding other than gzip or deflate",
    "422": "The body can be read, and is not what the model takes, or servers died of it: the message says",
    "429": "As many as may wait already, their bodies are as large together as they may, or the key is over its limits",
    "431": "The headers are too many, or too large",
    "500": "The model failed at this request, or what it gave cannot be told",
    "501": "The body has a Transfer-Encoding other than chunked",
    "502": "The server that was to answer died, and so did another that was asked after it",
    "503": "It would be late, too much waits, or the gateway is ending: try again",
    "504": "The time that the request, or the service, has was over",
}
"""Descriptions of all error statuses; each route lists its own."""

EVERYWHERE = ("400", "401", "403", "413", "415", "429", "431", "501", "502", "503", "504")
PREDICT = (*EVERYWHERE, "422", "500")
FRONT = (*EVERYWHERE, "404", "408", "422")

AGAIN = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
"""The header with the delay before a retry."""

SECONDS = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": MOST_SECONDS}

LANES = {"enum": ["deferred"]}
DEFERRED = "It may wait until there is nothing else to do"

EVENT = {"type": "object", "properties": {"data": {"type": "string"}}}
"""One event of a stream. Its data is JSON, except that of the last, `[DONE]`."""

READINESS = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}, "without_replica": {"type": "array", "items": {"type": "string"}}},
    "required": ["ready", "without_replica"],
}


def document(
    services: Mapping[str, Forms], cached: Collection[str], models: Mapping[str, Collection[str]] | None
) -> dict[str, Any]:
    """Build the document. `cached`: services with a cache. `models`: known models by route of OpenAI's API, or None
    without such routes.
    """
    _, schemas = msgspec.json.schema_components([ErrorBody, FrontErrorBody, MessageErrorBody], ref_template=_AT)
    paths: dict[str, Any] = {}
    for name, forms in services.items():
        paths[f"/predict/{name}"] = {"post": _predict(f"predict_{name}", f"Ask {name}", forms)}
        schemas |= forms.parts
    if len(services) == 1:
        name, forms = next(iter(services.items()))
        paths["/predict"] = {"post": _predict("predict", f"Ask {name}, the only service", forms)}
    ready = "Whether every service has a replica, and which have none"
    paths |= {
        "/healthz": _read("health", "Whether the gateway lives", _json({"type": "object"})),
        "/readyz": _read(
            "readiness", ready, _json(READINESS), {"503": {"description": ready, "content": _json(READINESS)}}
        ),
        "/metrics": _read("metrics", "What is counted, for Prometheus", {"text/plain": {"schema": {"type": "string"}}}),
        "/canaries": _read("canaries", "How versions on trial do, by service", _json({"type": "object"})),
        "/openapi.json": _read("document", "This document", _json({"type": "object"})),
    }
    paths |= {f"/cache/{name}": {"delete": _forget(name)} for name in cached}
    if models is not None:
        paths |= _front(models)
    return {
        "openapi": "3.1.0",
        "info": {"title": "A gateway of Poise", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _header(name: str, about: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": about, "required": False, "schema": schema}


ASKERS = (
    _header(LANE, DEFERRED, LANES),
    _header("X-Poise-Tenant", "Whose answers may be told, where they are kept", {"pattern": f"^{NAME}$"}),
    _header("Cache-Control", "`no-cache`: a new answer, `no-store`: and one that is not kept", {"type": "string"}),
)
"""Headers of a request with its lane, its tenant and its cache settings."""

_AT = "#/components/schemas/{name}"


def _predict(operation: str, summary: str, forms: Forms) -> dict[str, Any]:
    return {
        "operationId": operation,
        "summary": summary,
        "parameters": [
            _header("X-Request-Timeout-Seconds", "After so long nobody waits for the answer any more", SECONDS),
            *ASKERS,
        ],
        "requestBody": {"required": True, "content": _content(forms.takes)},
        "responses": {
            "200": {"description": "The result", "content": _content(forms.gives)},
            **_refusals(PREDICT, "ErrorBody"),
        },
    }


def _forget(name: str) -> dict[str, Any]:
    later = "Forgotten here; other gateways are told once the Redis that they share is back"
    return {
        "operationId": f"forget_{name}",
        "summary": f"Forget what is kept of the answers of {name}, on all gateways",
        "responses": {
            "204": {"description": "Forgotten"},
            "202": {"description": later, "content": _json({"type": "object"})},
        },
    }


def _front(models: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Describe the routes of model servers, limited to the fields that a front reads."""
    whole = "Whatever the upstream answers, its errors as well; `x-poise-upstream` says which it was"
    answered = {"description": whole, "content": {**_json({}), "text/event-stream": {"schema": EVENT}}}
    headers = [_header(name, "How long the whole answer may take", SECONDS) for name in DEADLINES]
    headers += [_header(PATIENCE, "How many seconds its first byte may take", SECONDS), *ASKERS]
    paths: dict[str, Any] = {
        path: {
            "post": {
                "operationId": _operation(path),
                "summary": "Ask the upstream that is foreseen to answer first",
                "parameters": headers,
                "requestBody": {"required": True, "content": _json(_asked(path, models[path]))},
                "responses": {"200": answered, **_refusals(FRONT, _error_of(path)), "default": answered},
            }
        }
        for path in models
    }
    paths[MODELS] = _read("models", "All models that are known", _json({"type": "object"}))
    paths[f"{MODELS}/{{model}}"] = _read(
        "model", "One of them", _json({"type": "object"}), _refusals(("404",), "FrontErrorBody")
    )
    paths[f"{MODELS}/{{model}}"]["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    ]
    return paths


def _operation(path: str) -> str:
    """Return the name of a route for clients that are generated."""
    short = path.removeprefix("/v1/") if path.startswith("/v1/") else f"plain{path}"
    return short.replace("/", "_")


def _error_of(path: str) -> str:
    return "MessageErrorBody" if is_of_messages(path) else "FrontErrorBody"


def _asked(path: str, models: Collection[str]) -> Schema:
    model = {"type": "string", "minLength": 1} | ({"enum": sorted(models)} if models else {})
    stream = {"type": ["boolean", "null"], "description": "Whether the answer comes in server-sent events"}
    return {"type": "object", "properties": {"model": model, "stream": stream}} | (
        {} if path in UNNAMED else {"required": ["model"]}
    )


def _read(operation: str, summary: str, content: dict[str, Any], other: dict[str, Any] | None = None) -> dict[str, Any]:
    answered = {"200": {"description": summary, "content": content}}
    return {"get": {"operationId": operation, "summary": summary, "responses": answered | (other or {})}}


def _refusals(statuses: Collection[str], form: str) -> dict[str, Any]:
    content = _json({"$ref": _AT.format(name=form)})
    return {
        status: {"description": REFUSALS[status], "content": content, **({"headers": AGAIN} if status == "503" else {})}
        for status in statuses
    }


def _content(forms: Mapping[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in forms.items()}


def _json(schema: Schema) -> dict[str, Any]:
    return _content({"application/json": schema})


__all__ = ["document"]
