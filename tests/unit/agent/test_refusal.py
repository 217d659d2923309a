"""What an agent says of a channel that it does not get: what a person has to mend, and nothing else."""

import msgspec
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response

from poise.agent.__main__ import refusal
from poise.errors import Conflict, Denied, NotLeading, PoiseError


def answered(error: PoiseError) -> InvalidStatus:
    body = msgspec.json.encode({"error": error.record})
    return InvalidStatus(Response(error.status, "", Headers(), body))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError("refused"), ""),
        (EOFError(), ""),
        (ConnectionClosedError(Close(1012, "restarts"), None), ""),
        (ConnectionClosedError(None, None), ""),
        (NotLeading("stands by"), ""),
        (answered(NotLeading("stands by")), ""),
        (InvalidStatus(Response(502, "", Headers(), b"<html>")), ""),
        (Denied("another authority speaks", hint="`poise status`"), "E130: another authority speaks; `poise status`"),
        (answered(Denied("a wrong token", hint="make one")), "E130: a wrong token; make one"),
        (ConnectionClosedError(Close(4409, "the name is taken"), None), "the name is taken"),
        (answered(Conflict("taken", have="n1")), "E121: taken; n1"),
    ],
)
def test_what_is_said_of_it(error: Exception, said: str) -> None:
    assert refusal(error) == said


def test_who_is_of_another_version_is_told_apart() -> None:
    assert "of another version: Invalid value" in refusal(msgspec.ValidationError("Invalid value"))
