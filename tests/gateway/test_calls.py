"""Requests that a replica serves one by one."""

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from poise_serve import replica
from poise_serve.calls import Calls
from poise_serve.shared import Reader, Writer
from poise_serve.wire import Answers, Broken, Drop, Part, Work, decode_from_replica, framed

T = TypeVar("T", Part, Answers, Broken)


class Counts:
    async def predict(self, count: int) -> AsyncIterator[int]:
        for number in range(count or 10**12):  # it never waits
            yield number


class Odd:
    async def predict(self, which: int) -> AsyncIterator[float]:
        if which == 1:
            raise asyncio.CancelledError
        yield math.nan


@contextlib.contextmanager
def replica_of(model: object) -> Iterator[socket.socket]:
    """A replica that serves this model, at the other end of the socket."""
    near, far = socket.socketpair()
    near.settimeout(10)
    line = replica.Line(far, Reader(None), Writer(None))
    calls = Calls(replica.Worker(line, is_alone=False), replica.Model(model), 2)
    answering = threading.Thread(target=calls.answer, args=(line,), daemon=True)
    answering.start()
    yield near
    near.shutdown(socket.SHUT_WR)
    answering.join(10)
    calls.close()
    near.close()
    line.close()


def until(near: socket.socket, kind: type[T], number: int) -> T:
    for _ in range(100_000):
        frame = replica.read_frame(near)
        assert frame is not None
        message = decode_from_replica.decode(frame)
        if isinstance(message, kind) and message.number == number:
            return message
    raise AssertionError(f"{kind.__name__} of {number} does not come")


def test_a_generator_that_never_waits_leaves_turns_to_others_and_ends_with_its_client() -> None:
    with replica_of(Counts()) as near:
        near.sendall(framed(Work(1, 1, [b"0"])))
        until(near, Part, 1)
        near.sendall(framed(Work(2, 1, [b"3"])))
        until(near, Answers, 2)
        near.sendall(framed(Drop(1)))
        assert "its client has gone" in until(near, Broken, 1).message


def test_an_error_of_the_model_is_told_as_it_is() -> None:
    with replica_of(Odd()) as near:
        near.sendall(framed(Work(1, 1, [b"1"])))
        assert until(near, Broken, 1).message == "CancelledError: "
        near.sendall(framed(Work(2, 1, [b"2"])))
        message = "ValueError: the result cannot be told: `$` is nan, and JSON has no such number"
        assert until(near, Broken, 2).message == message
