"""The gateway and the twin are asked the same: the same batches go to the same replicas at the same nanoseconds, the
same requests are refused, and each goes to the same upstream.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from poise.model.servers import Server, Serving, Speed
from poise.model.serving import Limits
from poise.model.serving_upstreams import compile_upstreams
from poise.model.worldfile import Change
from poise.units import MILLISECOND, SECOND
from poise_lab.engine.serving import FrontTwin, Open, Outcome, Request, SentTo, ServiceTwin
from poise_serve import service as live
from poise_serve.kernel.batcher import Batch, Refuse
from poise_serve.metrics import Metrics
from poise_serve.openai import Question
from poise_serve.policy.route import ROUTERS, router_named
from poise_serve.pool import Place, Pool
from poise_serve.service_metrics import Registry, ServiceMetrics
from poise_serve.wire import Answer, Answers, Hello

SPEEDS = {
    "a": Speed(
        step=((1, 4.0 * MILLISECOND), (3, 11.0 * MILLISECOND), (4, 7.0 * MILLISECOND), (32, 20.0 * MILLISECOND))
    ),
    "b": Speed(step=((1, 9.0 * MILLISECOND), (32, 90.0 * MILLISECOND))),
}
LIMITS = Limits(objective=80 * MILLISECOND, timeout=SECOND, batch=32)
LOST = 900 * MILLISECOND
"""When `b` is."""

Sent = tuple[int, str, tuple[int, ...], int]


class Clock:
    """Stands in for the module `time` and for the running loop."""

    def __init__(self) -> None:
        self.now = 0
        self._next: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def monotonic_ns(self) -> int:
        return self.now

    def at(self, instant: int, happens: Callable[[], None]) -> list[Callable[[], None]]:
        self._count += 1
        held = [happens]
        heappush(self._next, (instant, self._count, lambda: held[0]()))
        return held

    def call_later(self, delay: float, happens: Callable[[], None]) -> Any:
        held = self.at(self.now + round(delay * SECOND), happens)

        class Handle:
            def cancel(self) -> None:
                held[0] = lambda: None

        return Handle()

    def call_soon(self, happens: Callable[[], None]) -> Any:
        return self.call_later(0, happens)

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, happens = heappop(self._next)
            happens()


def arrivals() -> list[Request]:
    """Calm, a burst that is too much, and calm again."""
    random, now, made = Random(9), 0.0, []  # noqa: S311 drawn anew each time
    for rate, count in ((150, 60), (6000, 500), (200, 120)):
        for _ in range(count):
            now += random.expovariate(rate)
            made.append(Request(round(now * SECOND)))
    return made


def by_the_gateway(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Sent], dict[int, str]]:
    clock, sent, over = Clock(), list[Sent](), dict[int, str]()
    monkeypatch.setattr(live, "time", clock)
    monkeypatch.setattr(live, "AHEAD", 0)  # in the twin, answers are read at once
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    metrics = ServiceMetrics(Registry(CollectorRegistry()), "s")
    service = live.Service("s", LIMITS, Path("unused"), metrics)
    asked = arrivals()

    class Channel:
        def __init__(self, name: str) -> None:
            self.name, self.lost = name, False

        def send(self, batch: Batch, bodies: Sequence[bytes], traceparent: str) -> None:
            sent.append((clock.now, self.name, tuple(map(int, bodies)), batch.padded))
            took = round(SPEEDS[self.name].batch_takes([(1.0, 0, 0)] * len(bodies), batch.padded))
            answers = Answers(batch.number, took, batch.padded, [Answer(200, "json", b"")] * len(bodies))
            clock.at(clock.now + took, lambda: None if self.lost else service.heard(self.name, answers))

        def close(self) -> None: ...

    def tell(number: int, answer: Answer | Refuse) -> None:
        over[number] = answer.why if isinstance(answer, Refuse) else ""

    def ask(number: int) -> None:
        service.ask(b"%d" % number, partial(tell, number))

    def lose(channel: Any) -> None:
        channel.lost = True
        service.left(channel, "b")

    channels: dict[str, Any] = {name: Channel(name) for name in SPEEDS}
    clock.at(LOST, partial(lose, channels["b"]))
    for name in SPEEDS:
        service.joined(channels[name], Hello(name, []))
    for number, request in enumerate(asked, start=1):
        clock.at(request.at, partial(ask, number))
    clock.run(lambda: len(over) == len(asked))
    return sent, over


def by_the_twin() -> tuple[list[Sent], dict[int, str]]:
    sent, over = list[Sent](), dict[int, str]()

    class Watched(ServiceTwin):
        def _send(self, batch: Batch) -> None:
            sent.append((self.now, batch.replica.partition(".")[0], batch.requests, batch.padded))
            super()._send(batch)

        def _over(self, number: int, why: str = "") -> None:
            over[number] = why
            super()._over(number, why)

    serving = Serving(servers=tuple(Server(name=name, speed=speed) for name, speed in SPEEDS.items()))
    changes = [Change(at=LOST, node="b", there=False)]
    Watched(LIMITS, serving, Open(arrivals()), replicas=2, changes=changes).run()
    return sent, over


def test_the_twin_sends_what_the_gateway_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, over = by_the_twin()
    assert {"", "late"} <= set(over.values())
    assert max(len(requests) for _, _, requests, _ in sent) > 8
    assert {name for _, name, _, _ in sent} == {"a", "b"}
    assert by_the_gateway(monkeypatch) == (sent, over)


FRONT = compile_upstreams(
    {
        "kind": "upstreams",
        "upstreams": [
            {"name": name, "url": f"{name}:1", "limit": 3, "weight": 4 - at} for at, name in enumerate("abc")
        ],
        "queue": 1000,
        "objective": {"latency_p99": "120ms"},
    }
)


class Routed(FrontTwin):
    """Which upstream each request went to, in the order in which they went, and what happened when."""

    def __init__(self, router: str) -> None:
        random, now, asked = Random(4), 0.0, []  # noqa: S311 drawn anew each time
        for number in range(400):
            now += random.expovariate(120)
            size = random.expovariate(1.0)
            asked.append(Request(round(now * SECOND), size, guess=size * 2, key=f"k{number % 9}"))
        speeds = (Speed(step=((1, takes * MILLISECOND), (3, 2 * takes * MILLISECOND))) for takes in (10.0, 20.0, 45.0))
        servers = [Server(name=name, speed=speed) for name, speed in zip("abc", speeds, strict=True)]
        self.went: dict[int, str] = {}
        self.happened: list[tuple[int, int, Request | None]] = []
        super().__init__(FRONT, Serving(servers=tuple(servers)), Open(asked), router_named(router))
        self.run()

    def _ask(self, number: int, request: Request) -> None:
        self.happened.append((self.now, number, request))
        super()._ask(number, request)

    def _give_back(self, number: int, outcome: Outcome) -> SentTo:
        self.happened.append((self.now, number, None))
        self.went[number] = self._sent[number].member.name
        return super()._give_back(number, outcome)


async def by_the_pool(router: str, happened: list[tuple[int, int, Request | None]]) -> dict[int, str]:
    now = 0
    pool = Pool(
        FRONT, lambda view: router_named(router).decide(view).replica, Metrics(CollectorRegistry()), lambda: now
    )
    for member in pool.members:
        member.models = {"m": {}}
        member.health.on_probe(0, went_well=True)
    places: dict[int, asyncio.Task[Place]] = {}
    went: dict[int, str] = {}
    for now, number, request in happened:
        if request is not None:
            question = Question("m", False, request.guess, request.key)
            places[number] = asyncio.ensure_future(pool.admit(question, now + FRONT.objective))
        else:
            place = places[number].result()
            went[number] = place.member.name
            pool.give_back(place, "answered", 0)
        for _ in range(3):
            await asyncio.sleep(0)
    return went


@pytest.mark.parametrize("router", ROUTERS)
def test_each_request_goes_where_the_pool_sends_it(router: str) -> None:
    twin = Routed(router)
    assert len(twin.went) == 400
    assert set(twin.went.values()) == {"a", "b", "c"}
    assert asyncio.run(by_the_pool(router, twin.happened)) == twin.went
