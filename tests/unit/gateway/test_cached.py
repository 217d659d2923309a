"""Many who ask the same are answered by asking once."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from poise.gateway.cached import Cached
from poise.gateway.service import Service
from poise.gateway.service_metrics import Registry, ServiceMetrics
from poise.gateway.wire import Answer
from poise.kernel.batcher import Refuse
from poise.kernel.cache import Cache
from poise.units import MINUTE

TOLD = Answer(200, "application/json", b"42")


class Asked:
    """Stands for a service: keeps what it is asked until the test answers."""

    def __init__(self) -> None:
        self.open: dict[int, Callable[[Any], None]] = {}
        self.count = 0

    def ask(self, body: bytes, tell: Callable[[Any], None], timeout: int = 0, deferred: bool = False) -> int:
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
    cached.ask(b"21", told.append)
    asked.answer()
    cached.ask(b"21", told.append)
    assert told == [TOLD, TOLD]
    assert asked.count == 1
    text = generate_latest(registry).decode()
    assert 'nv_cache_num_hits_per_model_total{deployment="digits"} 1.0' in text
    assert 'nv_cache_num_misses_per_model_total{deployment="digits"} 1.0' in text


def test_many_at_once_are_one_question(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    for _ in range(5):
        cached.ask(b"21", told.append)
    cached.ask(b"22", told.append)
    assert asked.count == 2
    asked.answer()
    asked.answer()
    assert told == [TOLD] * 6


def test_who_leaves_takes_nothing_from_the_others(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    first, second = cached.ask(b"21", told.append), cached.ask(b"21", told.append)
    cached.cancel(first)
    assert asked.open, "somebody still waits"
    asked.answer()
    assert told == [TOLD]
    cached.cancel(second)
    third = cached.ask(b"23", told.append)
    cached.cancel(third)
    assert not asked.open
    cached.ask(b"23", told.append)
    assert asked.open, "what was given up is asked anew"


def test_errors_and_refusals_are_told_to_all_who_wait_and_not_kept(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    for failed in (Answer(422, "application/json", b"no"), Refuse(1, "late")):
        cached.ask(b"21", told.append)
        cached.ask(b"21", told.append)
        asked.answer(failed)
        assert told[-2:] == [failed, failed]
    cached.ask(b"21", told.append)
    assert asked.count == 3


def test_a_question_with_a_time_of_its_own_is_asked_by_itself(cached: Cached, asked: Asked) -> None:
    told: list[Any] = []
    cached.ask(b"21", told.append)
    cached.ask(b"21", told.append, timeout=1)
    cached.ask(b"21", told.append, deferred=True)
    assert asked.count == 3
    asked.answer()
    cached.ask(b"21", told.append, timeout=1)
    assert len(told) == 2, "but finds what is kept"
