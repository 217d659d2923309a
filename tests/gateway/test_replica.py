"""What a replica reads and says: bodies large and small, and answers that are too large."""

import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy
import pytest

from poise.errors import InputError
from poise_serve import replica
from poise_serve.shared import SHARED_FROM, Reader, Writer, make_buffer
from poise_serve.wire import LENGTH, Answers, Broken, Enter, FromReplica, Hello, Work, decode_from_replica, framed


class Worked(NamedTuple):
    """What a replica said to a batch, and what it read and wrote through the buffers."""

    message: FromReplica
    answers: list[bytes]


def worked(model: object, *bodies: bytes) -> Worked:
    ours, theirs = socket.socketpair()
    requests, results = make_buffer(), make_buffer()
    writer, reader = Writer(requests), Reader(results)
    with ours, theirs:
        line = replica.Line(ours, Reader(os.dup(requests)), Writer(os.dup(results)))
        small, places = writer.place(bodies)
        theirs.sendall(framed(Work(1, 0, small, places)))
        theirs.shutdown(socket.SHUT_WR)
        worker = replica.Worker(line)
        worker.model = replica.Model(model)
        worker.answer(line)
        data = theirs.recv(1 << 20)
    assert LENGTH.unpack(data[: LENGTH.size])[0] == len(data) - LENGTH.size
    message = decode_from_replica.decode(data[LENGTH.size :])
    if not isinstance(message, Answers):
        return Worked(message, [])
    answers = [one.body for one in message.answers]
    for place in message.places:
        assert answers[place.number] == b""
        answers[place.number] = bytes(reader.at(place))
    writer.close()
    reader.close()
    return Worked(message, answers)


def test_one_that_begins_while_another_gateway_takes_over_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is there, and nobody listens: its gateway was killed."""
    place = tmp_path / "socket"
    gateway = replica.Gateway(place, "", Enter(str(place), "j1.main", 1, ""))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(place))
    tries: list[float] = []

    def slept(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            place.unlink()
            taking_over.bind(str(place))
            taking_over.listen()
            monkeypatch.undo()
            threading.Thread(target=greet, daemon=True).start()

    def greet() -> None:
        connection, _ = taking_over.accept()
        socket.send_fds(connection, [b"!"], [make_buffer(), make_buffer()])

    monkeypatch.setattr(time, "sleep", slept)
    with socket.socket(socket.AF_UNIX) as taking_over:
        replica.dial_in_time(gateway)
    assert len(tries) == 3
    monkeypatch.setattr(replica, "TAKEN_OVER_WITHIN", 0.0)
    with pytest.raises(InputError, match="the gateway is gone"):
        replica.dial_in_time(gateway)


class Raw:
    """Bytes in and out; remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def decode(self, body: memoryview) -> memoryview:
        self.given.append(body)
        return body

    def predict(self, batch: list[memoryview]) -> list[memoryview]:
        return batch

    def encode(self, result: memoryview) -> memoryview:
        return result


def test_too_large_together_they_are_asked_for_in_halves_and_alone_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "MOST_BODIES", 100)
    small, large = b"x" * 60, b"x" * 101
    assert worked(Raw(), small).answers == [small]
    together = worked(Raw(), small, small).message
    assert isinstance(together, Broken) and together.why == "memory"
    alone = worked(Raw(), large)
    assert isinstance(alone.message, Answers) and alone.message.answers[0].status == 500
    assert b"101 bytes" in alone.answers[0]


def test_large_bodies_are_read_where_they_are_and_small_ones_beside_them() -> None:
    model = Raw()
    bodies = [b"small", os.urandom(SHARED_FROM), b"", os.urandom(3 * SHARED_FROM + 1), b"\0" * (SHARED_FROM - 1)]
    told = worked(model, *bodies)
    assert told.answers == bodies
    assert isinstance(told.message, Answers)
    assert [(place.number, place.size) for place in told.message.places] == [(1, SHARED_FROM), (3, 3 * SHARED_FROM + 1)]
    assert all(isinstance(given, memoryview) and given.readonly for given in model.given)


def test_a_model_that_does_not_say_view_is_given_bytes() -> None:
    class Plain(Raw):
        def decode(self, body):  # type: ignore[no-untyped-def]
            self.given.append(body)
            return body

    model = Plain()
    worked(model, b"x" * SHARED_FROM, b"y")
    assert model.given == [b"x" * SHARED_FROM, b"y"] and {type(one) for one in model.given} == {bytes}


def test_json_is_read_where_it_is() -> None:
    class Long:
        def predict(self, batch: list[list[int]]) -> list[int]:
            return [sum(one) for one in batch]

    asked = b"[" + b",".join(b"%d" % number for number in range(40_000)) + b"]"
    assert worked(Long(), asked).answers == [b"%d" % sum(range(40_000))]


class Diverging:
    """As given, but NaN and Infinity for some, in each shape that a result may have."""

    def predict(self, batch: list[str]) -> list[object]:
        nan, infinity = float("nan"), float("inf")
        results = {
            "number": nan,
            "list": [1.0, [0.5, -infinity]],
            "record": {"scores": [1.0, infinity], "none": None},
            "array": numpy.array([1.0, nan], "f4"),
            "tuple": (None, nan),
            "fine": {"nothing": None, "word": "null"},
        }
        return [results[one] for one in batch]


def test_a_result_that_json_has_no_number_for_is_an_error_for_the_request_that_it_answers() -> None:
    asked = ["number", "list", "record", "array", "tuple", "fine"]
    message, answers = worked(Diverging(), *(b'"%b"' % one.encode() for one in asked))
    assert isinstance(message, Answers)
    assert [one.status for one in message.answers] == [500] * 5 + [200]
    said = [msgspec.json.decode(answer)["error"]["message"] for answer in answers[:5]]
    assert said == [
        f"the result cannot be told: `{place}` is {value}, and JSON has no such number"
        for place, value in (
            ("$", "nan"), ("$[1][1]", "-inf"), ("$.scores[1]", "inf"), ("$[1]", "nan"), ("$[1]", "nan")
        )
    ]  # fmt: skip
    assert answers[5] == b'{"nothing":null,"word":"null"}'


class Awaited:
    async def predict(self, batch: list[float]) -> list[float]:
        return batch


class Drawn:
    def predict(self, batch: list[float]) -> Iterator[float]:
        yield from batch


class Streamed:
    async def predict(self, batch: list[float]) -> AsyncIterator[float]:
        for one in batch:
            yield one


class Called:
    class Predict:
        async def __call__(self, batch: list[float]) -> list[float]:
            return batch

    predict = Predict()


class Loaded(Raw):
    async def load(self) -> None: ...


class Decoded:
    def decode(self, body: bytes) -> Iterator[bytes]:
        yield body

    def predict(self, batch: list[bytes]) -> list[bytes]:
        return batch


@pytest.mark.parametrize(
    ("model", "what"), [(Loaded, "`load` is a coroutine function"), (Decoded, "`decode` is a generator")]
)
def test_a_method_that_gives_no_result_when_it_returns_is_refused_when_the_model_is_loaded(
    model: type, what: str
) -> None:
    with pytest.raises(InputError, match=what):
        replica.Model(model())


@pytest.mark.parametrize(("model", "streams"), [(Awaited, False), (Drawn, True), (Streamed, True), (Called, False)])
def test_a_model_that_is_no_plain_function_takes_requests_one_by_one(model: type, streams: bool) -> None:
    made = replica.Model(model())
    assert (made.is_called, made.streams) == (True, streams)
    items, refused = made.inputs([b"[1, 2]"])
    assert items == [[1.0, 2.0]] and not refused, "its input is all of the body"
    assert ("text/event-stream" in made.forms("m").gives) == streams


def test_sizes_beyond_the_largest_batch_are_not_tried() -> None:
    class Four:
        def predict(self, batch: list[int]) -> list[int]:
            assert len(batch) <= 4
            return batch

        def example(self) -> int:
            return 1

    assert [size for size, _ in replica.tried(replica.Model(Four()), 4)] == [1, 2, 3, 4]


class Wordless(Exception):
    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    ("error", "told"), [(SystemExit(3), "SystemExit: 3"), (Wordless(), "Wordless: it has no text")]
)
def test_whatever_decode_or_encode_raise_is_an_error_for_its_request(error: BaseException, told: str) -> None:
    class Odd:
        def decode(self, body: bytes) -> bytes:
            if body == b"in":
                raise error
            return body

        def predict(self, batch: list[bytes]) -> list[bytes]:
            return batch

        def encode(self, result: bytes) -> bytes:
            if result == b"out":
                raise error
            return result

    model = replica.Model(Odd())
    items, refused = model.inputs([b"in", b"out", b"fine"])
    assert items == [b"out", b"fine"] and refused[0].status == 500 and told.encode() in refused[0].body
    broken, fine = map(model.answer, items)
    assert broken.status == 500 and told.partition(": ")[2].encode() in broken.body
    assert fine.status == 200


def test_what_a_model_forks_can_be_ended() -> None:
    class Forks:
        def predict(self, batch: list[int]) -> list[int]:
            lives, alive = os.pipe()
            child = os.fork()
            if not child:
                os.write(alive, b"1")
                time.sleep(3)
                os._exit(1)
            os.read(lives, 1)
            os.kill(child, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # and the replica ends when this is answered
            return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]

    ours, theirs = socket.socketpair()
    before = signal.getsignal(signal.SIGTERM)
    with ours, theirs:
        worker = replica.Worker(replica.Line(ours, Reader(make_buffer()), Writer(make_buffer())))
        theirs.sendall(framed(Work(1, 0, [b"1"])))
        try:
            worker.run(replica.Model(Forks()), Hello("a"))
        finally:
            signal.signal(signal.SIGTERM, before)
        assert b"%d" % -signal.SIGTERM in theirs.recv(1 << 20)


class Adds:
    def predict(self, batch: list[list[int]]) -> list[int]:
        return [sum(one) for one in batch]


@pytest.mark.parametrize(
    ("body", "code"),
    [(b'{"a":', 400), (b"[" * 100_000, 400), (b'{"a": 1} x', 400), (b'{"a": 1}', 422), (b'["x"]', 422)],
)
def test_what_is_no_json_is_told_from_json_of_another_shape(body: bytes, code: int) -> None:
    """Although the first value in it already does not fit."""
    assert b'"code":%d,' % code in worked(Adds(), body).answers[0]
