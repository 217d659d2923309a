"""Places at upstreams, with a clock that stands still until it is told to go."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.front import EJECTS, least_outstanding
from poise.model.serving_upstreams import compile_upstreams
from poise.units import MILLISECOND, SECOND
from poise_serve.metrics import Metrics
from poise_serve.openai import Question, Refused
from poise_serve.policy.route import router_named
from poise_serve.pool import Choose, Place, Pool

ASKED = Question("m", False, 1.0, "")


class World:
    """Two upstreams that are well, `limit` requests at each, and the time."""

    def __init__(self, limit: int = 2, choose: Choose = least_outstanding, **said: Any) -> None:
        upstreams = [{"name": name, "url": "gpu1", "models": ["m", "n"], "limit": limit} for name in ("a", "b")]
        document = {"kind": "upstreams", "upstreams": upstreams, "ejection": EJECTS | {"slower": 5}} | said
        self.now = SECOND
        self.metrics = Metrics(CollectorRegistry())
        self.pool = Pool(compile_upstreams(document), choose, self.metrics, lambda: self.now)
        for member in self.pool.members:
            member.health.on_probe(self.now, True)

    async def take(self, model: str = "m") -> Place:
        return await self.pool.admit(ASKED._replace(model=model), 0)

    async def answers(self, takes: Callable[[str], int], held: int = 0, times: int = 8, model: str = "m") -> None:
        """One request after the other, each answered after what it takes at its upstream."""
        for _ in range(times):
            place = await self.take(model)
            self.now += takes(place.member.name) + held
            self.pool.give_back(place, "answered", held)

    def ejected(self) -> list[str]:
        return [member.name for member in self.pool.members if member.breaker.is_ejected]


def going(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs in a loop."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@going
async def test_an_upstream_that_slows_down_is_ejected() -> None:
    world = World()
    await world.answers(lambda name: 50 * MILLISECOND)
    await world.answers(lambda name: SECOND if name == "a" else 50 * MILLISECOND, times=4)
    assert world.ejected() == ["a"]


@going
async def test_clients_that_read_slowly_are_not_held_against_it() -> None:
    world = World()
    await world.answers(lambda name: 50 * MILLISECOND)
    await world.answers(lambda name: 50 * MILLISECOND, held=60 * SECOND)
    await world.answers(lambda name: 50 * MILLISECOND)
    assert world.ejected() == []


@going
async def test_what_nobody_waited_for_counts_once_it_has_taken_too_long() -> None:
    world = World()
    await world.answers(lambda name: 50 * MILLISECOND)
    for took in (100 * MILLISECOND, SECOND):
        for _ in range(4):
            place = await world.take()
            world.now += took if place.member.name == "a" else MILLISECOND
            world.pool.give_back(place, "neither", 0)
        assert world.ejected() == ([] if took < SECOND else ["a"])


@going
async def test_nobody_waits_for_those_that_are_away() -> None:
    """They will not be there in time, and that is known."""
    world = World(limit=1, hold="1s")
    first, second = await world.take(), await world.take()
    waiting = asyncio.ensure_future(world.take())
    await asyncio.sleep(0)
    world.pool.rest(first.member, 7)
    world.pool.rest(second.member, float("inf"))
    world.pool.give_back(first, "refused", 0)
    with pytest.raises(Refused, match="asked us to wait") as raised:
        await waiting
    assert (raised.value.status, raised.value.retry_after) == (503, 2)  # no longer than the longest ejection
    with pytest.raises(Refused, match="asked us to wait"):
        await world.take()
    world.pool.close()


@going
async def test_requests_wait_while_none_is_up_and_the_first_that_is_up_gets_few_at_first() -> None:
    world = World(limit=64)
    for member in world.pool.members:
        member.health.on_refused()
    waiting = [asyncio.create_task(world.take()) for _ in range(40)]
    await asyncio.sleep(0)
    assert [one.held for one in world.pool.states()] == [40, 40]
    assert [one.name for one in world.pool.awaited()] == ["a", "b"]
    first, _ = world.pool.members
    world.now += SECOND
    first.health.on_probe(world.now, True)
    for running in (8, 16, 32, 40):
        world.pool.wake()
        assert first.running == running
        world.now += SECOND
    places = [await one for one in waiting]
    assert [place.turn for place in places] == sorted(place.turn for place in places)
    assert [one.held for one in world.pool.states()] == [0, 0]
    assert world.metrics.held.labels("m")._value.get() == 40
    world.pool.close()


@going
async def test_requests_wait_no_longer_than_they_may_and_are_told_how_long_it_took_before() -> None:
    world = World(hold="20ms")
    for member in world.pool.members:
        member.health.on_refused()
    waiting = asyncio.create_task(world.take())
    await asyncio.sleep(0)
    world.now += 7 * SECOND
    world.pool.members[0].health.on_probe(world.now, True)
    world.pool.wake()
    assert (await waiting).member.name == "a"
    world.pool.members[0].health.on_refused()
    with pytest.raises(Refused, match="`a` is unhealthy, `b` is unhealthy") as raised:
        await world.pool.admit(ASKED, 0, may_hold=False)
    assert raised.value.retry_after == 7
    waiting = asyncio.create_task(world.take())
    await asyncio.sleep(0)
    world.now += 2 * SECOND
    with pytest.raises(Refused) as raised:
        await waiting
    assert (raised.value.status, raised.value.reason, raised.value.retry_after) == (503, "unavailable", 5)
    world.pool.close()


@going
async def test_in_a_full_queue_the_client_with_the_most_requests_gives_way() -> None:
    world = World(queue=4)
    for member in world.pool.members:
        member.health.on_refused()
    greedy = [asyncio.create_task(world.pool.admit(ASKED, 0, client="greedy")) for _ in range(5)]
    await asyncio.sleep(0)
    assert [one.done() for one in greedy] == [False] * 4 + [True], "nobody had more than it"
    others = [asyncio.create_task(world.pool.admit(ASKED, 0, client=client)) for client in ("b", "c", "d", "e")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [one.done() for one in greedy] == [False, True, True, True, True]
    assert [one.done() for one in others] == [False, False, False, True], "each of the others has one"
    refused = await asyncio.gather(*greedy[1:], others[3], return_exceptions=True)
    assert {one.status for one in refused if isinstance(one, Refused)} == {503} and len(refused) == 5
    greedy[0].cancel()
    await asyncio.sleep(0)
    assert [one.held for one in world.pool.states()] == [3, 3], "who leaves gives the place up"
    world.pool.close()


@going
async def test_a_route_that_only_a_server_has_that_is_down_delays_no_other() -> None:
    world = World()
    down, up = world.pool.members
    world.pool.lacks(up, "/v1/messages")
    down.health.on_refused()
    waiting = asyncio.create_task(world.pool.admit(ASKED._replace(path="/v1/messages"), 0))
    await asyncio.sleep(0)
    assert (await world.take()).member is up
    down.health.on_probe(world.now, True)
    world.pool.wake()
    assert (await waiting).member is down
    world.pool.close()


@going
async def test_who_is_cancelled_while_given_a_place_gives_it_back() -> None:
    world = World(limit=1)
    first, _ = await world.take(), await world.take()
    waiting = asyncio.ensure_future(world.take())
    await asyncio.sleep(0)
    world.pool.give_back(first, "answered", 0)  # the place is there, and nobody has taken it yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sum(member.running for member in world.pool.members) == 1


@going
async def test_requests_go_where_they_are_foreseen_to_be_answered_first() -> None:
    world = World(choose=lambda view: router_named("expected-delay").decide(view).replica)
    await world.answers(lambda name: 50 * MILLISECOND if name == "a" else SECOND)
    names = [(await world.take()).member.name for _ in range(2)]
    assert names == ["a", "a"]


@going
async def test_each_model_of_an_upstream_has_a_speed_of_its_own() -> None:
    world = World(choose=lambda view: router_named("expected-delay").decide(view).replica)
    for _ in range(4):
        await world.answers(lambda name: 50 * MILLISECOND if name == "a" else SECOND, times=2, model="m")
        await world.answers(lambda name: 2 * SECOND if name == "a" else 100 * MILLISECOND, times=2, model="n")
    for model, name in (("m", "a"), ("n", "b")):
        place = await world.take(model)
        assert place.member.name == name
        world.pool.give_back(place, "neither", 0)


@going
async def test_who_is_refused_is_told_when_it_could_have_been_answered() -> None:
    """One of 3 s is in flight at each, and this one would take as long."""
    world = World(limit=1, queue=0, ejection=EJECTS)
    await world.answers(lambda name: 3 * SECOND)
    await world.take()
    await world.take()
    with pytest.raises(Refused) as raised:
        await world.take()
    assert (raised.value.status, raised.value.retry_after) == (429, 6)


@going
async def test_who_cannot_be_answered_in_time_lets_others_go_first_and_does_not_starve() -> None:
    world = World(limit=1)
    await world.answers(lambda name: SECOND, times=4)
    held = [await world.take(), await world.take()]
    order: list[str] = []

    async def wait(name: str, due: int, deferred: bool = False) -> None:
        place = await world.pool.admit(ASKED, due, deferred=deferred)
        order.append(name)
        held.append(place)

    waiting = [asyncio.create_task(wait("no haste", 0, deferred=True))]
    waiting += [asyncio.create_task(wait("late", world.now + SECOND // 2))]
    waiting += [asyncio.create_task(wait(f"in time {number}", world.now + 100 * SECOND)) for number in range(8)]
    await asyncio.sleep(0)
    for _ in waiting:
        world.pool.give_back(held.pop(0), "answered", 0)
        for _ in range(3):
            await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order[:7] == [f"in time {number}" for number in range(7)]
    assert order[7:] == ["no haste", "in time 7", "late"], "one of eight turns is theirs"
    assert deferred(world) == 1


@going
async def test_who_leaves_either_lane_is_forgotten() -> None:
    world = World(limit=1)
    for place in [await world.take(), await world.take()]:
        first, later = (
            asyncio.create_task(world.pool.admit(ASKED, 0, deferred=deferred)) for deferred in (False, True)
        )
        await asyncio.sleep(0)
        for task in (later, first):
            task.cancel()
        await asyncio.gather(first, later, return_exceptions=True)
        world.pool.give_back(place, "answered", 0)
    assert await world.take()


def deferred(world: World) -> float:
    return float(world.metrics.deferred.labels("m")._value.get())


@going
async def test_how_many_an_upstream_may_have_follows_what_its_answers_take() -> None:
    """Those that share an upstream of one slot, 100 ms each: five of them take half a second."""
    upstream = {"name": "a", "url": "gpu1", "models": ["m"], "concurrency": {"target_p99": "500ms"}}
    world = World(upstreams=[upstream], queue=0)
    [member] = world.pool.members
    assert member.limit == 1
    for _ in range(200):
        places = [await world.take() for _ in range(member.limit)]
        world.now += len(places) * 100 * MILLISECOND
        for place in places:
            world.pool.give_back(place, "answered", 0)
    assert member.limit in (4, 5)
    places = [await world.take() for _ in range(member.limit)]
    with pytest.raises(
        Refused, match=rf"`a` may have {member.limit}, since its P99 was [0-9]+ ms and 500 ms is aimed at"
    ):
        await world.take()
    told = generate_latest(world.metrics.registry).decode()
    assert f'poise_upstream_limit{{server="a"}} {member.limit}.0' in told
    assert 'poise_upstream_p99_seconds{server="a"} 0.' in told
