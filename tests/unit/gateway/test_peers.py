"""Gateways of one group: what one sends and hears, the others know, whatever is lost on the way."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from poise.model.serving_upstreams import Following, compile_upstreams
from poise.units import MILLISECOND, SECOND
from poise_serve import peers as module
from poise_serve.kernel.resilience import Breaker, RetryBudget
from poise_serve.keys import Keys
from poise_serve.metrics import Metrics
from poise_serve.model.news import Sent
from poise_serve.model.routing import Asked, Prompt
from poise_serve.openai import Question
from poise_serve.peers import Peers, together
from poise_serve.policy.route import router_named
from poise_serve.pool import Place, Pool
from unit.gateway.test_service import until

FRONT = compile_upstreams(
    {
        "kind": "upstreams",
        "upstreams": [{"name": name, "url": "gpu:1", "models": ["m"], "limit": 2} for name in "ab"],
        "ejection": {"slower": 0},
    }
)


class Gateway:
    """A pool, and what it hears."""

    def __init__(self, folder: Path, number: int) -> None:
        self.now = SECOND
        self.peers = Peers(folder, "g", number)
        router = router_named("expected-delay")
        self.pool = Pool(
            FRONT,
            lambda view: router.decide(view).replica,
            Metrics(CollectorRegistry()),
            lambda: self.now,
            peers=self.peers,
        )
        for member in self.pool.members:
            member.health.on_probe(self.now, True)

    async def send(self, *blocks: int) -> Place:
        prompt = Prompt(100.0 * len(blocks), 10.0, blocks, 100.0, streams=True)
        return await self.pool.admit(Question("m", True, prompt.tokens, "", prompt), 0)

    async def ask(self, server: str) -> Place:
        """A request that goes to this upstream, unless it gets none."""
        return await self.pool.admit(Question("m", False, 1.0, ""), 0, {"a", "b"} - {server})

    @property
    def ejected(self) -> list[bool]:
        return [member.breaker.is_ejected for member in self.pool.members]

    @property
    def others(self) -> list[int]:
        return [member.others for member in self.pool.members]


def group(folder: Path, use: Callable[[Gateway, Gateway], Awaitable[None]]) -> None:
    async def run() -> None:
        gateways = Gateway(folder, 0), Gateway(folder, 1)
        for one in gateways:
            await one.peers.start(lambda: b"")
        await asyncio.sleep(1.2 * module.ALIVE_EVERY)
        try:
            await use(*gateways)
        finally:
            for one in gateways:
                await one.peers.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_EVERY", 0.05)
    monkeypatch.setattr(module, "GONE_AFTER", 0.5)


def test_a_limit_is_that_of_all_gateways_together(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        places = [await one.send(1), await other.send(2), await one.send(3)]
        await until(lambda: sum(one.others) == 1 and sum(other.others) == 2)
        places.append(await other.send(4))
        await until(lambda: sum(one.others) == 2)
        waiting = asyncio.ensure_future(one.send(5))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "both upstreams have as many as they may"
        other.pool.give_back(places[1], "answered", 0)
        await until(waiting.done)
        for place in (places[0], places[2], waiting.result()):
            one.pool.give_back(place, "answered", 0)
        other.pool.give_back(places[3], "neither", 0)
        await until(lambda: sum(one.others) == sum(other.others) == 0)

    group(tmp_path, use)


def test_a_conversation_stays_where_it_was_at_whichever_gateway_it_goes_on(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        for turn in range(12):
            place = await one.send(*range(100 * turn, 100 * turn + 5))
            for gateway in (one, other):
                gateway.now += 500 * MILLISECOND
            one.pool.began(place)
            for gateway in (one, other):
                gateway.now += 100 * MILLISECOND
            one.pool.give_back(place, "answered", 0, wrote=10.0)
            heard = place.turn
            await until(lambda: not any(other.others))
            there = await other.send(*range(100 * turn, 100 * turn + 6))
            assert there.member.name == place.member.name, f"turn {heard}"
            other.pool.give_back(there, "answered", 0, wrote=10.0)
            await until(lambda: not any(one.others))

    group(tmp_path, use)


def test_what_a_killed_gateway_had_in_flight_is_dropped(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        await one.send(1)
        await until(lambda: sum(other.others) == 1)
        await one.peers.stop()
        await until(lambda: sum(other.others) == 0)

    group(tmp_path, use)


def test_a_gateway_that_has_just_started_hears_at_once_what_the_others_have_in_flight(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        for number in range(2):
            await one.send(number)
        await other.send(2)
        joins = Gateway(tmp_path, 2)
        await joins.peers.start(lambda: b"")
        await until(lambda: sum(joins.others) == 3)
        place = await joins.send(3)
        await until(lambda: sum(one.others) == 2 and sum(other.others) == 3)
        waiting = asyncio.ensure_future(joins.send(4))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "both upstreams have as many as they may"
        joins.pool.give_back(place, "answered", 0)
        await waiting
        await joins.peers.stop()

    group(tmp_path, use)


async def failing(one: Gateway, other: Gateway) -> None:
    """`a` fails at both, as often as it may."""
    for number in range(FRONT.ejection.failures):
        gateway = (one, other)[number % 2]
        gateway.pool.give_back(await gateway.ask("a"), "failed", 0)
        await until(lambda: not any(one.others + other.others))
    await until(lambda: one.ejected == other.ejected == [True, False])


def test_failures_at_all_gateways_eject_an_upstream_and_one_trial_brings_it_back(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        await failing(one, other)
        for gateway in (one, other):
            gateway.now += FRONT.ejection.pause
        trial = await one.ask("a")
        assert trial.member.name == "a"
        await until(lambda: sum(other.others) == 1)
        assert (await other.ask("a")).member.name == "b", "one trial is enough"
        one.pool.give_back(trial, "answered", 0)
        await until(lambda: other.ejected == [False, False])

    group(tmp_path, use)


def test_a_trial_of_a_killed_gateway_is_made_by_another(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        await failing(one, other)
        for gateway in (one, other):
            gateway.now += FRONT.ejection.pause
        await one.ask("a")
        await until(lambda: sum(other.others) == 1)
        await one.peers.stop()
        await until(lambda: sum(other.others) == 0)
        assert (await other.ask("a")).member.name == "a"

    group(tmp_path, use)


def test_a_gateway_that_has_just_started_knows_which_upstreams_get_nothing(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        await failing(one, other)
        other.pool.rest(other.pool.members[1], 20.0)
        await until(lambda: one.pool.members[1].resting > one.now)
        joins = Gateway(tmp_path, 2)
        await joins.peers.start(lambda: b"")
        await until(lambda: joins.ejected == [True, False] and joins.pool.members[1].resting > joins.now)
        await joins.peers.stop()

    group(tmp_path, use)


def test_a_gateway_that_cannot_reach_an_upstream_ejects_it_whatever_others_say() -> None:
    breaker = Breaker(FRONT.ejection)
    for _ in range(FRONT.ejection.failures):
        assert not breaker.is_ejected
        breaker.on_success(SECOND, own=False)
        breaker.on_failure(SECOND, may_eject=True)
    assert breaker.is_ejected


def test_a_limit_that_follows_latency_follows_the_answers_of_all_gateways(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        front = msgspec.structs.replace(FRONT, upstreams=tuple(
            msgspec.structs.replace(told, limit=64, concurrency=Following(target=SECOND)) for told in FRONT.upstreams
        ))  # fmt: skip
        for gateway in (one, other):
            gateway.pool.change(front, front.upstreams)
        for _ in range(30):
            place = await one.ask("a")
            await until(lambda: sum(other.others) == 1)
            for gateway in (one, other):
                gateway.now += 200 * MILLISECOND
            one.pool.give_back(place, "answered", 0)
            await until(lambda: sum(other.others) == 0)
        limits = [gateway.pool.members[0].limit for gateway in (one, other)]
        assert limits[0] == limits[1] > 1

    group(tmp_path, use)


def test_a_message_that_was_lost_leaves_nothing_in_flight(tmp_path: Path) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        prompt = Prompt(1.0)
        one.peers.tell(Sent(99, "a", "m", Asked(prompt=prompt)))
        await until(lambda: True)
        await until(lambda: sum(other.others) == 0)

    group(tmp_path, use)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x92\x01\x95\x00\x01\xa1a\xa1m\xc0", b"x" * 1000])
def test_what_is_no_message_changes_nothing(tmp_path: Path, data: bytes) -> None:
    async def use(one: Gateway, other: Gateway) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(data, str(tmp_path / "g.1.peer"))
        await one.send(1)
        await until(lambda: sum(other.others) == 1)

    group(tmp_path, use)


def test_what_a_key_spends_at_one_gateway_it_has_not_at_the_other(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("kind: keys\nkeys: [{name: app, sha256: " + "a" * 64 + ", rate: 3/d, tokens: 100/d}]\n")

    async def use(one: Gateway, other: Gateway) -> None:
        holders = [next(iter(Keys(file, None, peers=gateway.peers)._by_digest.values())) for gateway in (one, other)]
        for _ in range(3):
            holders[0].take(0)
        holders[0].spend(100, 0)
        await until(lambda: bool(holders[1]._rate and holders[1]._rate.wait(0)))
        await until(lambda: bool(holders[1]._tokens and holders[1]._tokens.wait(0)))

    group(tmp_path, use)


def test_a_budget_counts_the_retries_of_others() -> None:
    budget = RetryBudget(FRONT.retries)
    for _ in range(10):
        budget.on_retry(SECOND)
    assert not budget.take(SECOND)


def test_metrics_of_all_have_the_label_of_their_gateway() -> None:
    one = b'# HELP a About\n# TYPE a counter\na_total{x="{ }"} 1.0\na_created 2.0\n# HELP b B\n# TYPE b gauge\nb 3.0\n'
    shown = together({0: one, 1: one.replace(b"1.0", b"5.0"), 2: b""}).decode()
    assert shown.count("# TYPE a counter") == 1
    assert 'a_total{gateway="0",x="{ }"} 1.0' in shown and 'a_total{gateway="1",x="{ }"} 5.0' in shown
    assert 'a_created{gateway="1"} 2.0' in shown
    lines = shown.splitlines()
    families = [line.split("{")[0][:1] for line in lines if not line.startswith("#")]
    assert families == sorted(families), "the samples of a family stand together"
