"""Many who ask the same are answered by asking once."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from poise.units import MINUTE
from poise_serve.cached import Cached, Noted, canonical
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.cache import Cache
from poise_serve.service import Asker, Service
from poise_serve.service_metrics import Registry, ServiceMetrics
from poise_serve.wire import Answer

TOLD = Answer(200, "application/json", b"42")


def hear(told: list[Any]) -> Callable[[Any], None]:
    """Listens for answers, and lets what is noted about them go."""
    return lambda one: told.append(Answer(one.status, one.kind, one.body) if isinstance(one, Noted) else one)


class Asked:
    """Stands for a service: keeps what it is asked until the test answers."""

    def __init__(self) -> None:
        self.open: dict[int, Callable[[Any], None]] = {}
        self.count = 0

    def ask(self, body: bytes, tell: Callable[[Any], None], timeout: int, deferred: bool, asker: Asker) -> int:
        self.count += 1
        self.open[self.count] = tell
        return self.count

    def cancel(self, number: int) -> None:
        del self.open[number]

    def answer(self, told: Any = TOLD) -> None:
        self.open.popitem()[1](told)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def cached(asked: Asked, registry: CollectorRegistry) -> Cached:
    metrics = ServiceMetrics(Registry(registry), "digits")
    return Cached(cast(Service, asked), Cache(10_000, MINUTE), metrics)


def test_what_was_answered_is_not_asked_again(cached: Cached, asked: Asked, registry: CollectorRegistry) -> None:
    told: list[Any] = []
    cached.ask(b"21", hear(told))
    asked.answer()
    cached.ask(b"21", hear(told))
    assert told == [TOLD, TOLD]
    assert asked.count == 1
    text = generate_latest(registry).decode()
    assert 'nv_cache_num_hits_per_model_total{deployment="digits"} 1.0' in text
    assert 'nv_cache_num_misses_per_model_total{deployment="digits"} 1.0' in text


def test_many_at_once_are_one_question(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    for _ in range(5):
        cached.ask(b"21", hear(told))
    cached.ask(b"22", hear(told))
    assert asked.count == 2
    asked.answer()
    asked.answer()
    assert told == [TOLD] * 6


def test_who_leaves_takes_nothing_from_the_others(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    first, second = cached.ask(b"21", hear(told)), cached.ask(b"21", hear(told))
    cached.cancel(first)
    assert asked.open, "somebody still waits"
    asked.answer()
    assert told == [TOLD]
    cached.cancel(second)
    third = cached.ask(b"23", hear(told))
    cached.cancel(third)
    assert not asked.open
    cached.ask(b"23", hear(told))
    assert asked.open, "what was given up is asked anew"


def test_errors_and_refusals_are_told_to_all_who_wait_and_not_kept(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    for failed in (Answer(422, "application/json", b"no"), Refuse(1, "late")):
        cached.ask(b"21", hear(told))
        cached.ask(b"21", hear(told))
        asked.answer(failed)
        assert told[-2:] == [failed, failed]
    cached.ask(b"21", hear(told))
    assert asked.count == 3


def test_a_question_with_a_time_of_its_own_is_asked_by_itself(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    cached.ask(b"21", hear(told))
    cached.ask(b"21", hear(told), timeout=1)
    cached.ask(b"21", hear(told), deferred=True)
    assert asked.count == 3
    asked.answer()
    cached.ask(b"21", hear(told), timeout=1)
    assert len(told) == 2, "but finds what is kept"


def test_where_an_answer_came_from_is_noted(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    for _ in range(2):
        cached.ask(b"21", told.append)
    asked.answer()
    cached.ask(b"21", told.append)
    assert [one.note for one in told] == [
        "cache-status: poise; fwd=miss; stored",
        "cache-status: poise; fwd=miss; stored; collapsed",
        "age: 0\r\ncache-status: poise; hit; ttl=59",
    ]
    cached.ask(b"bad", told.append)
    asked.answer(Answer(422, "application/json", b"no"))
    assert told[-1].note == "cache-status: poise; fwd=miss"


def test_what_one_tenant_was_told_is_not_there_for_another(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    cached.ask(b"21", hear(told), asker=Asker("ann"))
    cached.ask(b"21", hear(told), asker=Asker("bob"))
    assert asked.count == 2, "nor does one wait for what the other asked"
    asked.answer()
    asked.answer()
    cached.ask(b"21", hear(told))
    assert asked.count == 3
    cached.ask(b"21", hear(told), asker=Asker("ann"))
    assert asked.count == 3


def test_who_wants_a_new_answer_is_asked_by_itself(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    cached.ask(b"21", hear(told))
    asked.answer()
    newer = Answer(200, "application/json", b"43")
    cached.ask(b"21", hear(told), asker=Asker(use=False))
    cached.ask(b"21", hear(told), asker=Asker(use=False, keep=False))
    assert asked.count == 3
    asked.answer(Answer(200, "application/json", b"not for others"))
    asked.answer(newer)
    cached.ask(b"21", hear(told))
    assert told[-1] == newer and asked.count == 3, "and is kept, unless that was not wanted"


def test_what_is_forgotten_is_asked_anew_and_what_was_asked_before_is_not_kept(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    cached.ask(b"21", hear(told))
    asked.answer()
    cached.ask(b"22", hear(told))
    assert asyncio.run(cached.forget())
    cached.ask(b"22", hear(told))
    assert asked.count == 3, "nobody joins what was asked before"
    first = min(asked.open)
    asked.open.pop(first)(TOLD)
    cached.ask(b"21", hear(told))
    cached.ask(b"22", hear(told))
    assert asked.count == 4 and told == [TOLD, TOLD]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"a": 1, "b": [1, 2.50]}', b'{"b":[1,2.5],"a":1}', True),
        (b'{"a":1}', b'{"a":1.0}', False),
        (b'{"a":"\\u0041"}', b'{"a":"A"}', True),
        (b"[1, 2]", b"[2, 1]", False),
        (b"no json ", b"no json", False),
        (b"18446744073709551616", b"18446744073709551617", False),
        (b"[" * 100_000, b"[" * 99_999, False),
    ],
)
def test_the_same_in_json(one: bytes, other: bytes, same: bool) -> None:
    assert (canonical(one) == canonical(other)) is same


def test_the_same_in_json_asks_the_same_where_that_is_said(asked: Asked, registry: CollectorRegistry) -> None:
    metrics = ServiceMetrics(Registry(registry), "digits")
    cached = Cached(cast(Service, asked), Cache(10_000, MINUTE), metrics, canonical=True)
    told: list[Any] = []
    cached.ask(b"[1, 2]", hear(told))
    cached.ask(b"[1,2]", hear(told))
    assert asked.count == 1


def test_what_is_measured_of_it(cached: Cached, asked: Asked, registry: CollectorRegistry) -> None:
    told: list[Any] = []
    for number in range(60):
        cached.ask(b"%d" % number, hear(told))
        asked.answer()
    cached.ask(b"59", hear(told))
    cached.measure()
    cached.measure()

    def told_of(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, {"deployment": "digits", "tier": "process", **more})

    assert told_of("cache_gets_total", result="hit") == 1
    assert told_of("cache_gets_total", result="miss") == 60
    assert told_of("cache_puts_total") == 60
    entries, evicted = told_of("cache_size"), told_of("cache_evictions_total")
    assert entries is not None and evicted is not None and entries + evicted == 60 and evicted > 0
    assert told_of("cache_size_bytes") == entries * (2 + 200)
