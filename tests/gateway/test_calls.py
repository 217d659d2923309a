"""Requests that a replica serves one by one."""

import socket
import threading
from collections.abc import AsyncIterator

from poise_serve import replica
from poise_serve.calls import Calls
from poise_serve.shared import Reader, Writer
from poise_serve.wire import Answers, Broken, Drop, Part, Work, decode_from_replica, framed


class Counts:
    async def predict(self, count: int) -> AsyncIterator[int]:
        for number in range(count or 10**12):  # it never waits
            yield number


def test_a_generator_that_never_waits_leaves_turns_to_others_and_ends_with_its_client() -> None:
    near, far = socket.socketpair()
    near.settimeout(10)
    line = replica.Line(far, Reader(None), Writer(None))
    worker = replica.Worker(line, is_alone=False)
    calls = Calls(worker, replica.Model(Counts()), 2)
    answering = threading.Thread(target=calls.answer, args=(line,), daemon=True)
    answering.start()

    def until(kind: type[Part | Answers | Broken], number: int) -> None:
        for _ in range(100_000):
            frame = replica.read_frame(near)
            assert frame is not None
            message = decode_from_replica.decode(frame)
            if isinstance(message, kind) and message.number == number:
                return
        raise AssertionError(f"{kind.__name__} of {number} does not come")

    near.sendall(framed(Work(1, 1, [b"0"])))
    until(Part, 1)
    near.sendall(framed(Work(2, 1, [b"3"])))
    until(Answers, 2)
    near.sendall(framed(Drop(1)))
    until(Broken, 1)
    near.shutdown(socket.SHUT_WR)
    answering.join(10)
    calls.close()
    near.close()
    line.close()
