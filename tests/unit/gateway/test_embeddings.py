"""One request for many embeddings is many questions that stand or fall together."""

import asyncio
import base64
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.units import SECOND
from poise_serve.embeddings import Embeddings
from poise_serve.kernel.batcher import Refuse
from poise_serve.openai import MOST_INPUTS, Refused, read_inputs
from poise_serve.service import ANYBODY, Asker, Service
from poise_serve.wire import Answer


def asked(**said: Any) -> bytes:
    return json.dumps({"model": "m"} | said).encode()


@pytest.mark.parametrize(
    ("given", "questions"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_each_input_is_a_question(given: Any, questions: list[Any]) -> None:
    assert [json.loads(one) for one in read_inputs(asked(input=given)).questions] == questions


@pytest.mark.parametrize("given", ["", [], [""], ["a", ""], [[]], ["a", 1], ["a", [1]], [1, [1]], [True], ["a"] * 2049])
def test_what_is_no_input_is_refused(given: Any) -> None:
    with pytest.raises(Refused) as raised:
        read_inputs(asked(input=given))
    assert raised.value.status == 400


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@settings(max_examples=20)
@given(values)
def test_whatever_comes_is_read_or_refused(given: Any) -> None:
    try:
        inputs = read_inputs(asked(input=given))
    except Refused as refused:
        assert refused.status == 400
    else:
        assert 1 <= len(inputs.questions) <= MOST_INPUTS


class Asked:
    """Stands for a service: keeps what it is asked until the test answers."""

    name = "m"

    def __init__(self) -> None:
        self.open: dict[int, tuple[bytes, Callable[[Any], None]]] = {}
        self.count = 0
        self.sent: list[int] = []
        self.refuse_at = 0
        self.askers: list[Asker] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        yield
        self.sent = sorted(self.open)

    def ask(
        self, body: bytes, tell: Callable[[Any], None], timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY
    ) -> int:
        self.askers.append(asker)
        self.count += 1
        if self.count == self.refuse_at:
            tell(Refuse(self.count, "full", "8 wait", SECOND * 3 // 2))
        else:
            self.open[self.count] = body, tell
        return self.count

    def cancel(self, number: int) -> None:
        self.open.pop(number, None)

    def answer(self, number: int, told: Any) -> None:
        self.open.pop(number)[1](told)


def numbers(*said: float, tokens: int = 1) -> Answer:
    return Answer(200, "application/json", json.dumps({"embedding": said, "tokens": tokens}).encode())


def embedding(service: Asked, then: Callable[[], None], **said: Any) -> Any:
    """What a request is answered with, while `then` is done after it has been asked."""

    async def answer() -> bytes:
        one = {"m": cast(Service, service)}
        own = Embeddings(["m"], 0, one, one)
        task = asyncio.create_task(own.embed(asked(**said)))
        await asyncio.sleep(0)
        then()
        return await task

    return json.loads(asyncio.run(answer()))


def test_answers_are_put_together_in_the_order_of_the_inputs() -> None:
    service = Asked()

    def then() -> None:
        assert service.sent == [1, 2, 3]
        for number in (2, 3, 1):
            service.answer(number, numbers(number, 0.5, tokens=number))

    told = embedding(service, then, input=["a", "b", "c"])
    assert [(one["index"], one["embedding"]) for one in told["data"]] == [(0, [1, 0.5]), (1, [2, 0.5]), (2, [3, 0.5])]
    assert (told["object"], told["model"]) == ("list", "m")
    assert told["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_base64_is_of_four_bytes_for_each_number() -> None:
    service = Asked()
    told = embedding(service, lambda: service.answer(1, numbers(0.1, -2)), input="a", encoding_format="base64")
    assert struct.unpack("<2f", base64.b64decode(told["data"][0]["embedding"])) == pytest.approx((0.1, -2))


def test_if_one_is_refused_nothing_of_the_request_is_sent() -> None:
    service = Asked()
    service.refuse_at = 3
    with pytest.raises(Refused, match="`m`: 8 wait") as raised:
        embedding(service, lambda: None, input=["a", "b", "c", "d"])
    assert (raised.value.status, raised.value.retry_after, raised.value.code) == (503, 2, "full")
    assert (service.count, service.sent, service.open) == (3, [], {})


@pytest.mark.parametrize(
    ("told", "status", "says"),
    [
        (Refuse(2, "expired", "not answered within 1 s"), 504, "not answered within 1 s"),
        (Refuse(2, "lost", "it died"), 502, "it died"),
        (Answer(422, "", b'{"error":{"code":422,"message":"too long"}}'), 400, r"input\[1\]: too long"),
        (Answer(500, "", b'{"error":{"code":500,"message":"a bug"}}'), 500, r"`m`, input\[1\]: a bug"),
        (Answer(200, "", b'{"embedding":[null],"tokens":1}'), 500, "did not answer with an embedding"),
        (Answer(200, "", b"[1.0]"), 500, "did not answer with an embedding"),
        (Answer(200, "", b"\xff"), 500, "did not answer with an embedding"),
    ],
)
def test_if_one_fails_the_others_are_taken_back(told: Any, status: int, says: str) -> None:
    service = Asked()
    with pytest.raises(Refused, match=says) as raised:
        embedding(service, lambda: service.answer(2, told), input=["a", "b", "c"])
    assert raised.value.status == status
    assert service.open == {}


def test_a_request_that_is_shared_between_two_versions_comes_to_both_at_one_instant() -> None:
    stable, canary = Asked(), Asked()
    services = {"m": cast(Service, stable), "m-canary": cast(Service, canary)}

    class Shared:
        """Every second question goes to the other version."""

        def __init__(self) -> None:
            self.asked: list[tuple[Asked, int]] = []

        def ask(
            self,
            body: bytes,
            tell: Callable[[Any], None],
            timeout: int = 0,
            deferred: bool = False,
            asker: Asker = ANYBODY,
        ) -> int:
            version = (stable, canary)[len(self.asked) % 2]
            self.asked.append((version, version.ask(body, tell, timeout, deferred, asker)))
            return len(self.asked)

        def cancel(self, number: int) -> None:
            version, its = self.asked[number - 1]
            version.cancel(its)

    async def answer() -> bytes:
        own = Embeddings(["m", "m-canary"], SECOND, {"m": Shared()}, services)
        task = asyncio.create_task(own.embed(asked(input=["a", "b", "c"])))
        await asyncio.sleep(0)
        assert (stable.sent, canary.sent) == ([1, 2], [1])
        canary.answer(1, Refuse(1, "lost", "it died"))
        return await task

    with pytest.raises(Refused, match="`m`: it died"):
        asyncio.run(answer())
    assert (stable.open, canary.open) == ({}, {})


def test_what_is_too_large_for_four_bytes_is_told() -> None:
    service = Asked()
    with pytest.raises(Refused, match="did not answer with an embedding"):
        embedding(service, lambda: service.answer(1, numbers(1e300)), input="a", encoding_format="base64")
