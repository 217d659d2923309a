"""How a gateway refuses what is asked of its services, in the one form of all errors."""

from collections.abc import Mapping

from poise.units import SECOND, format_bytes
from poise_serve import openai
from poise_serve.kernel.batcher import Refuse
from poise_serve.wire import error_body

STATUS = {
    "full": 503, "late": 503, "ending": 503, "expired": 504, "broken": 500, "lost": 502, "quarantined": 422,
}  # fmt: skip
"""What a refusal is in HTTP."""

DEADLY = frozenset({"lost", "quarantined"})
"""Refusals of requests that servers died of: a client that retries them kills more."""


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def problem(path: str, status: int, message: str) -> bytes:
    """The body of an error, in the form that clients of this path expect."""
    return openai.error_body(status, message, "refused") if path.startswith("/v1/") else error_body(status, message)


def too_large(most: int) -> Refused:
    """For a body of more bytes than the service takes."""
    return Refused(413, f"a body has {format_bytes(most)} at most here; `body:` of the service says how many")


def no_room() -> Refused:
    message = "the bodies of those who wait, or those of this client, are as large together as they may"
    return Refused(503, message, headers={"retry-after": "1"})


def refusal(refuse: Refuse) -> Refused:
    """What whoever asked is told of a question that a service refuses."""
    status = STATUS[refuse.why]
    headers = dict([openai.NOT_AGAIN]) if refuse.why in DEADLY else {}
    if status == 503 or refuse.why == "quarantined":
        headers["retry-after"] = str(-(-max(refuse.after, 1) // SECOND))
    return Refused(status, refuse.message, headers=headers)


__all__ = ["Refused", "no_room", "problem", "refusal", "too_large"]
