"""Calls as they travel: whatever there is to be said fits into frames that the other side takes."""

import msgspec

from poise.model.calls import (
    INLINE,
    MAX_FRAME,
    MAX_NEEDS,
    MAX_TOGETHER,
    Call,
    Calling,
    FromCaller,
    FromWorker,
    Function,
    Result,
    Returning,
    Value,
    calling,
    returning,
)

FULL = Value("p", bytes(INLINE))
encode = msgspec.msgpack.encode
from_caller, from_worker = msgspec.msgpack.Decoder(FromCaller), msgspec.msgpack.Decoder(FromWorker)


def test_many_calls_and_functions_travel_in_frames_that_are_taken_in_order() -> None:
    functions = [Function(f"f{number}" * 50, "m" * 200, "s" * 200, code=FULL) for number in range(1000)]
    needs = tuple(range(1, MAX_NEEDS + 1))
    calls = [Call(number, 0, FULL, needs, 3) for number in range(10_000, 10_300)]
    calls += [Call(number, 0, Value("m", b"")) for number in range(20_000, 22_000)]
    told, called = list[Function](), list[Call]()
    for message in calling(functions, 7, calls):
        frame = encode(message)
        assert len(frame) <= MAX_FRAME
        heard = from_caller.decode(frame)
        assert isinstance(heard, Calling)
        assert len(heard.calls) <= MAX_TOGETHER
        assert not heard.functions or heard.first_function == 7 + len(told)
        told += heard.functions
        called += heard.calls
    assert (told, called) == (functions, calls)


def test_many_results_travel_in_frames_that_are_taken() -> None:
    results = [Result(number, "raised", FULL, 1, "é💥" * 250) for number in range(2000)]
    heard = list[Result]()
    for message in returning(results):
        frame = encode(message)
        assert len(frame) <= MAX_FRAME
        said = from_worker.decode(frame)
        assert isinstance(said, Returning)
        heard += said.results
    assert heard == results
    assert list(returning([])) == []
