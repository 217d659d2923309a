"""Builds the error answers to refused requests, in the common form of all errors."""

from collections.abc import Mapping

import msgspec

from poise.units import SECOND, format_bytes
from poise_serve import openai
from poise_serve.kernel.batcher import Refuse
from poise_serve.wire import error_body

STATUS = {
    "full": 503, "late": 503, "ending": 503, "unavailable": 503, "expired": 504, "broken": 500, "lost": 502,
    "quarantined": 422,
}  # fmt: skip
"""The HTTP status of each reason for a refusal."""

DEADLY = frozenset({"lost", "quarantined"})
"""Reasons for refusing requests that crashed servers: retries would crash more servers."""


class Refused(Exception):
    """The request is refused, and gets an error as its answer."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def problem(path: str, status: int, message: str) -> bytes:
    """Return the body of an error, in the form that clients of this path expect."""
    if path.startswith("/v2"):
        return msgspec.json.encode({"error": message})
    return (
        openai.error_body(status, message, "refused", path=path) if openai.is_api(path) else error_body(status, message)
    )


def too_large(most: int) -> Refused:
    """Return the error for a body above the size limit, in bytes."""
    return Refused(413, f"a body has {format_bytes(most)} at most here; `body:` of the service says how many")


def no_room() -> Refused:
    message = "the bodies of those who wait, or those of this client, are as large together as they may"
    return Refused(503, message, headers={"retry-after": "1"})


def refusal(refuse: Refuse) -> Refused:
    """Return the error for a request that a service refuses."""
    status = STATUS[refuse.why]
    headers = dict([openai.NOT_AGAIN]) if refuse.why in DEADLY else {}
    if status == 503 or refuse.why == "quarantined":
        headers["retry-after"] = str(-(-max(refuse.after, 1) // SECOND))
    return Refused(status, refuse.message, headers=headers)


__all__ = ["Refused", "no_room", "problem", "refusal", "too_large"]
