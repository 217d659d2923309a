"""What an agent says of a channel that it does not get: what a person may have to mend, and nothing else."""

import ssl
from pathlib import Path

import msgspec
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.frames import Close
from websockets.http11 import Response

from poise.agent.__main__ import LONGEST_WAIT, lack, patience_after, retry_after
from poise.config import Address
from poise.errors import Conflict, Denied, NotLeading, PoiseError

HERE, BEYOND = Path("/home/poise.sock"), Address("head", 7718, 64 * "a")
REFUSED = "this node is refused: "
OLD = ssl.SSLCertVerificationError()
OLD.verify_message = "certificate has expired"


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
        (
            Denied("another authority", hint="`poise status`"),
            REFUSED + "E130: another authority; `poise status`",
        ),
        (answered(Denied("a wrong token", hint="make one")), REFUSED + "E130: a wrong token; make one"),
        (ConnectionClosedError(Close(4409, "the name is taken"), None), REFUSED + "the name is taken"),
        (answered(Conflict("taken", have="n1")), REFUSED + "E121: taken; n1"),
    ],
)
def test_a_refusal_is_told_and_what_passes_by_itself_is_not(error: Exception, said: str) -> None:
    assert lack(error, HERE) == said


def test_what_is_between_two_machines_or_versions_is_told() -> None:
    assert lack(msgspec.ValidationError("Invalid value"), HERE).endswith("of another version: Invalid value")
    assert lack(ConnectionRefusedError("refused"), BEYOND) == "no control plane answers at head:7718: refused"
    assert "does not hold here: certificate has expired; `date`" in lack(OLD, BEYOND)


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0", 0.0), ("100000", LONGEST_WAIT), ("soon", 0.0), ("-1", 0.0), ("", 0.0)]
)
def test_a_control_plane_that_is_crowded_says_when_to_come_back(header: str, seconds: float) -> None:
    assert retry_after(InvalidStatus(Response(503, "", Headers({"Retry-After": header}), b""))) == seconds
    assert retry_after(InvalidStatus(Response(503, "", Headers(), b""))) == 0.0
    assert retry_after(ConnectionRefusedError()) == 0.0


def test_a_control_plane_that_is_late_gets_longer_and_one_that_answers_does_not() -> None:
    """Ten thousand agents that gave up after ten seconds, each time, were never let in."""
    patience, had = 10.0, list[float]()
    for _ in range(5):
        had.append(patience := patience_after(TimeoutError("timed out"), patience, 10.0, 60.0))
    assert had == [20.0, 40.0, 60.0, 60.0, 60.0]
    assert patience_after(answered(NotLeading("stands by")), patience, 10.0, 60.0) == 10.0
    assert patience_after(ConnectionRefusedError(), patience, 10.0, 60.0) == 10.0
