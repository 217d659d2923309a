"""How a gateway refuses what is asked of its services, in the one form of all errors."""

from collections.abc import Mapping

from poise.gateway.wire import MOST_BODIES
from poise.kernel.batcher import Refuse
from poise.units import SECOND

STATUS = {
    "full": 503, "late": 503, "ending": 503, "expired": 504, "broken": 500, "lost": 502, "quarantined": 422,
}  # fmt: skip
"""What a refusal is in HTTP."""

NOT_AGAIN = ("x-should-retry", "false")
"""OpenAI's clients retry by themselves what fails, unless the answer says this."""

DEADLY = frozenset({"lost", "quarantined"})
"""Refusals of requests that servers died of: a client that retries them kills more."""

MAX_BODY = 64 << 20
"""Bytes of a request's body."""


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def too_large() -> Refused:
    return Refused(413, f"a body has {MAX_BODY >> 20} MiB at most")


def no_room() -> Refused:
    message = f"the bodies of those who wait have {MOST_BODIES >> 20} MiB together already"
    return Refused(503, message, headers={"retry-after": "1"})


def refusal(refuse: Refuse) -> Refused:
    """What whoever asked is told of a question that a service refuses."""
    status = STATUS[refuse.why]
    headers = dict([NOT_AGAIN]) if refuse.why in DEADLY else {}
    if status == 503 or refuse.why == "quarantined":
        headers["retry-after"] = str(-(-max(refuse.after, 1) // SECOND))
    return Refused(status, refuse.message, headers=headers)


__all__ = ["MAX_BODY", "NOT_AGAIN", "Refused", "no_room", "refusal", "too_large"]
