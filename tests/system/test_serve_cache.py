"""Two real gateways and a real Redis: what is shared, for whom, for how long, and what a kill of it costs."""

import itertools
from collections.abc import Iterator

import pytest
from gateway.redis_server import RedisServer, running

from system.living import Living, until
from system.serving import Serving, Told

APP = """
class Stage:
    '''Counts how often it was asked, in a file; says what it was told and the name of the stage.'''
    name = "stage"

    def predict(self, batch: list[str]) -> list[str]:
        with open(f"{self.name}.asked", "a") as asked:
            asked.write("x" * len(batch))
        return [f"{one} {self.name}" for one in batch]

class Perceive(Stage):
    name = "perceived"

class Parse(Stage):
    name = "parsed"

class Count(Stage):
    name = "counted"
"""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as started:
        yield started


class Stages:
    """Three services of one file each, at a gateway."""

    def __init__(self, home: Living, redis: RedisServer) -> None:
        (home.work / "stages.py").write_text(APP)
        for name in ("perceive", "parse", "count"):
            (home.work / f"{name}.yaml").write_text(
                f"kind: service\nname: {name}\nmodel: stages.py:{name.title()}\nresources: {{cpu: 50m}}\n"
                f"cache: {{ttl: 1m, same: json, redis: '{redis.url}'}}\n"
            )
        self._serving = Serving(home, "perceive.yaml", "parse.yaml", "count.yaml", ready=False)
        for name in ("perceive", "parse", "count"):
            self._serving.until_said(f"{name}: 1 of 1 ready")

    def ask(self, stage: str, value: object, **headers: str) -> Told:
        told = self._serving.ask(value, f"/predict/{stage}", **headers)
        assert told.status == 200, told.body
        return told

    def run(self, value: str, *stages: str) -> list[bool]:
        """A graph of stages, one after the other; of each whether it was a hit."""
        hits = []
        for stage in stages:
            told = self.ask(stage, value)
            value = told.value
            hits.append("hit" in told.headers["cache-status"])
        return hits

    def forget(self, service: str) -> int:
        return self._serving.ask(b"", f"/cache/{service}", "DELETE").status

    def metric(self, name: str, **labels: str) -> float:
        return self._serving.metric(name, **labels)

    def end(self) -> int:
        return self._serving.end()


@pytest.fixture(scope="module")
def gateways(home: Living, redis: RedisServer) -> Iterator[tuple[Stages, Stages]]:
    both = Stages(home, redis), Stages(home, redis)
    they_share(*both)
    yield both
    assert [one.end() for one in both] == [0, 0]


def they_share(one: Stages, other: Stages) -> None:
    """Wait until the second gateway has what the first was answered: a gateway looks for Redis once a second."""
    values = (f"shared {number}" for number in itertools.count())

    def shared() -> bool:
        value = next(values)
        one.run(value, "perceive")
        return other.run(value, "perceive") == [True]

    until(shared, "they share")


def written(redis: RedisServer) -> int:
    return len(redis.keys("poise:*:*:" + "[0-9a-f]" * 64))


def asked(home: Living, stage: str) -> int:
    path = home.work / f"{stage}.asked"
    return path.stat().st_size if path.exists() else 0


class Count:
    """Counts of both gateways and of the models, since this was made."""

    def __init__(self, home: Living, gateways: tuple[Stages, Stages]) -> None:
        self._home, (self._one, self._other) = home, gateways
        self._before = self._now()

    def failures(self) -> float:
        """Calls to Redis that failed or took longer than 50 ms: then a gateway asks the model instead."""
        return self._now()[0] - self._before[0]

    def asked(self) -> list[float]:
        """How often each model was asked; hits of the second gateway in Redis, in its process, of all; its entries."""
        return [now - before for now, before in zip(self._now()[1:], self._before[1:], strict=True)]

    def _now(self) -> list[float]:
        hits = [{"tier": "redis", "result": "hit"}, {"tier": "process", "result": "hit"}]
        return [
            sum(of.metric("cache_failures_total", tier="redis") for of in (self._one, self._other)),
            *(asked(self._home, stage) for stage in ("perceived", "parsed", "counted")),
            *(self._other.metric("cache_gets_total", deployment="perceive", **labels) for labels in hits),
            self._other.metric("nv_cache_num_hits_per_model_total", deployment="perceive"),
            self._other.metric("cache_size{", deployment="perceive", tier="process"),
        ]


def test_graphs_that_share_a_stage_share_what_it_made(
    home: Living, redis: RedisServer, gateways: tuple[Stages, Stages]
) -> None:
    """Again with another image where Redis failed a gateway, which happens on a machine that stands still for 50 ms."""
    one, other = gateways
    for number in range(10):
        image, count, kept = f"image {number}", Count(home, gateways), written(redis)
        first = one.run(image, "perceive", "parse")
        until(lambda: written(redis) >= kept + 2 or count.failures(), "it is written")  # noqa: B023
        second, third = other.run(image, "perceive", "count"), one.run(image, "perceive", "parse")
        told = other.ask("perceive", f'  "{image}" '.encode())
        if not count.failures():
            break
    assert (first, second, third) == ([False, False], [True, False], [True, True])
    assert count.asked() == [1, 1, 1, 1, 1, 2, 1]
    assert told.value == f"{image} perceived"
    assert told.headers["cache-status"].startswith("poise; hit; ttl=") and 0 <= int(told.headers["age"]) < 60


def test_what_a_request_may_say_of_it(home: Living, redis: RedisServer, gateways: tuple[Stages, Stages]) -> None:
    one, other = gateways
    before = asked(home, "perceived")
    assert one.ask("perceive", "said", Cache_Control="no-store").headers["cache-status"] == "poise; fwd=request"
    assert "fwd=miss; stored" in other.ask("perceive", "said", X_Poise_Tenant="ann").headers["cache-status"]
    assert "fwd=miss; stored" in one.ask("perceive", "said", X_Poise_Tenant="bob").headers["cache-status"]
    told = one.ask("perceive", "said", X_Poise_Tenant="bob", Cache_Control="max-age=0, no-cache")
    assert told.headers["cache-status"] == "poise; fwd=request; stored"
    assert "hit" in one.ask("perceive", "said", X_Poise_Tenant="bob").headers["cache-status"]
    assert asked(home, "perceived") == before + 4
    told = one._serving.ask("said", "/predict/perceive", X_Poise_Tenant="no name")
    assert told.status == 400 and "X-Poise-Tenant" in told.value["error"]["message"]


def test_what_is_forgotten_at_one_gateway_is_forgotten_at_the_other(
    redis: RedisServer, gateways: tuple[Stages, Stages]
) -> None:
    one, other = gateways
    for gateway in gateways:
        gateway.run("old", "perceive", "parse")
    assert one.forget("perceive") == 204
    until(lambda: other.run("old", "perceive") == [False], "within a second")
    assert other.run("old perceived", "parse") == [True], "only of that service"
    assert one.forget("nothing") == 404


def test_a_redis_that_is_killed_is_not_missed(redis: RedisServer, gateways: tuple[Stages, Stages]) -> None:
    one, other = gateways
    redis.kill()
    for number in range(20):
        assert one.run(f"gone {number}", "perceive") == [False]
        assert one.run(f"gone {number}", "perceive") == [True]
    assert one.metric("cache_failures_total", deployment="perceive", tier="redis") > 0
    assert one.forget("parse") == 202, "others are told once it is back"
    redis.start()
    they_share(one, other)


def test_what_is_missing_for_it_is_told(home: Living) -> None:
    (home.work / "stages.py").write_text(APP)
    head = "kind: service\nname: stage\nresources: {cpu: 50m}\n"
    for text, told in (
        ("model: stages.py:Stage\ncache: {redis: 'redis://:secret@here:6379/0'}\n", "password_from"),
        ("model: stages.py:Stage\ncache: {redis: 'redis://here', password_from: NOT_SET}\n", "export NOT_SET"),
        ("model: json:JSONDecoder\ncache: {redis: 'redis://here'}\n", "version: 1"),
    ):
        (home.work / "wrong.yaml").write_text(head + text)
        done = home.poise("serve", "wrong.yaml", "--port", "0")
        assert done.code == 1
        assert told in done.err and "secret" not in done.err
