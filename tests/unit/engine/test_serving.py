"""The serving twin: cases worked out by hand, what queueing theory says, and nothing lost whatever happens."""

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.model.scaling import ScaleRules, Signal
from poise.model.servers import HangUp, Server, Serving, Speed
from poise.model.serving import Limits
from poise.model.serving_upstreams import Front, compile_upstreams
from poise.model.worldfile import Change, Losses
from poise.policy.replicas import scaler_named
from poise.units import HOUR, MILLISECOND, MINUTE, SECOND
from poise_lab.engine.serving import CANCELLED, Clients, FrontTwin, Open, Request, ServiceTwin, Story, Trial
from poise_serve.policy.route import ROUTERS, router_named


def table(*rows: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((size, takes * MILLISECOND) for size, takes in rows)


def batches(*rows: tuple[int, float], slots: int = 0, price: float = 0.0, name: str = "a") -> Server:
    return Server(name=name, speed=Speed(step=table(*rows)), slots=slots, price=price)


def tokens(prompt: float, *rows: tuple[int, float]) -> Server:
    return Server(name="a", speed=Speed(step=table(*rows), prompt=table((100, prompt)) if prompt else (), tokens=True))


def at(*milliseconds: float) -> Open:
    return Open([Request(round(each * MILLISECOND)) for each in milliseconds])


def front(*names: str, router: str = "", queue: int = 256, limit: int = 64, timeout: str = "10m") -> Front:
    upstreams = [{"name": name, "url": f"{name}:1", "limit": limit} for name in names]
    document = {"kind": "upstreams", "upstreams": upstreams, "queue": queue, "timeout": timeout}
    return compile_upstreams(document | {"router": router, "ejection": {"slower": 0}})


def took(stories: Sequence[Story]) -> list[float]:
    """Milliseconds, in the order in which they came; negative if it was not answered."""
    return [
        (-1 if story.why else 1) * story.took / MILLISECOND for story in sorted(stories, key=lambda story: story.came)
    ]


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_one_after_the_other() -> None:
    twin = ServiceTwin(Limits(batch=1), Serving(servers=(batches((1, 10)),)), at(0, 4))
    assert took(twin.run()) == [10, 16]
    (place,) = twin.places
    assert (place.worked, place.ready, place.paid) == (20 * MILLISECOND,) * 3


def test_those_who_wait_are_sent_together_as_the_batcher_learns_that_it_pays() -> None:
    """At 10 ms one is answered and five wait: two are tried (10 ms each were expected, they take 12), so that three
    more are expected to take 14, and do.
    """
    twin = ServiceTwin(Limits(), Serving(servers=(batches((1, 10), (2, 12)),)), at(0, 1, 2, 3, 4, 5))
    assert took(twin.run()) == [10, 21, 20, 33, 32, 31]


def test_a_lost_replica_loses_no_request() -> None:
    servers = (batches((1, 10)), batches((1, 10), name="b"))
    changes = [Change(at=5 * MILLISECOND, node="a", there=False)]
    assert took(ServiceTwin(Limits(batch=1), Serving(servers=servers), at(0), replicas=2, changes=changes).run()) == [
        15
    ]


def test_a_replica_that_is_back_is_started_at_the_next_look_and_takes_its_time() -> None:
    changes = [Change(at=5 * MILLISECOND, node="a", there=False), Change(at=6 * MILLISECOND, node="a", there=True)]
    serving = Serving(servers=(batches((1, 10)),), start=100 * MILLISECOND)
    twin = ServiceTwin(Limits(batch=1), serving, at(0), changes=changes)
    assert took(twin.run()) == [610]
    (place,) = twin.places
    assert place.paid == (5 + 110) * MILLISECOND
    assert place.ready == (5 + 10) * MILLISECOND


def test_who_is_foreseen_to_be_late_is_refused_or_deferred() -> None:
    servers = (batches((1, 10)),)
    many = [0.0] + [200.0 + each / 100 for each in range(20)]
    refused = ServiceTwin(Limits(batch=1, objective=50 * MILLISECOND), Serving(servers=servers), at(*many)).run()
    assert {story.why for story in refused} == {"", "late"}
    assert max(took(refused)) <= 50
    limits = Limits(batch=1, objective=50 * MILLISECOND, defer=True)
    deferred = ServiceTwin(limits, Serving(servers=servers), at(*many)).run()
    assert {story.why for story in deferred} == {""}
    assert max(took(deferred)) == pytest.approx(200, abs=1)


def test_turns_over_unequal_servers() -> None:
    servers = (batches((1, 10), slots=1, name="fast"), batches((1, 40), slots=1, name="slow"))
    twin = FrontTwin(front("fast", "slow"), Serving(servers=servers), at(0, 1, 2, 3), router_named("round-robin"))
    assert took(twin.run()) == [40, 10, 78, 18]
    assert [place.worked / MILLISECOND for place in twin.places] == [20, 80]


def test_steps_are_done_together() -> None:
    """One writes three tokens; 10 ms later another comes, and both write one in 12 ms; the last is written alone."""
    asked = Open([Request(0, tokens=3), Request(10 * MILLISECOND, tokens=1)])
    twin = FrontTwin(front("a"), Serving(servers=(tokens(0, (1, 10), (2, 12)),)), asked, router_named("random"))
    assert took(twin.run()) == [32, 12]


def test_nothing_is_written_while_a_prompt_is_read() -> None:
    asked = Open([Request(0, prompt=100, tokens=2), Request(10 * MILLISECOND, prompt=100, tokens=1)])
    twin = FrontTwin(front("a"), Serving(servers=(tokens(5, (1, 10), (2, 12)),)), asked, router_named("random"))
    assert took(twin.run()) == [32, 17]


def test_a_batch_is_over_when_its_longest_answer_is_written() -> None:
    speed = Speed(step=table((1, 10), (2, 12)), prompt=table((100, 5), (200, 8)), tokens=True)
    assert speed.batch_takes([(1.0, 100, 3), (1.0, 50, 1)], 2) == (6.5 + 36) * MILLISECOND


def test_a_connection_that_is_lost_is_tried_elsewhere() -> None:
    servers = (batches((1, 10), slots=1), batches((1, 10), slots=1, name="b"))
    changes = [Change(at=5 * MILLISECOND, node="b", there=False)]
    twin = FrontTwin(front("a", "b"), Serving(servers=servers), at(0), router_named("round-robin"), changes=changes)
    assert took(twin.run()) == [15]


def test_what_finds_no_room_waits_or_is_refused() -> None:
    told = front("a", queue=1, limit=1)
    twin = FrontTwin(told, Serving(servers=(batches((1, 10)),)), at(0, 1, 2), router_named("random"))
    assert took(twin.run()) == [10, 19, -0.0]
    assert [story.why for story in twin.stories] == ["overloaded", "", ""]


# --- replicas that follow the load -----------------------------------------------------------------------------------


def test_replicas_come_when_there_is_more_and_are_paid_for_while_they_start() -> None:
    random = Random(3)  # noqa: S311 drawn anew each time
    arrivals, now = [], 0.0
    while now < 60:
        now += random.expovariate(30 if now < 20 else 300)
        arrivals.append(Request(round(now * SECOND)))
    serving = Serving(
        servers=tuple(batches((1, 10), price=3.6, name=f"r{each}") for each in range(6)), start=5 * SECOND
    )
    twin = ServiceTwin(
        Limits(batch=1),
        serving,
        Open(arrivals),
        rules=ScaleRules(least=1, most=6, fall=MINUTE),
        scaler=scaler_named("forecast"),
    )
    twin.run()
    assert len(twin.said) >= 1
    assert twin.said[0][1].startswith("service: from 1 to ")
    assert "requests/s" in twin.said[0][1]
    used = [place for place in twin.places if place.paid]
    assert len(used) >= 4
    assert used[-1].paid == used[-1].ready + 5 * SECOND
    assert twin.places[0].paid == twin.now


@pytest.mark.parametrize("signals", [("rate", "latency", "queue"), ("latency",)])
def test_after_scale_to_zero_few_requests_start_one_replica(signals: tuple[Signal, ...]) -> None:
    """A start takes 8 s, and the objective is 100 ms: what waits for the start misses no capacity. A busy past does not
    count either: the service has been at zero since.
    """
    busy = [at * 10 * MILLISECOND for at in range(3000)]
    wakes = 5 * MINUTE
    seldom = [wakes + at * 18 * SECOND for at in range(20)]
    together = [wakes + 8 * MINUTE + at * MILLISECOND for at in range(30)]
    servers = tuple(batches((1, 10), (8, 20), name=f"r{each}") for each in range(84))
    twin = ServiceTwin(
        Limits(batch=8, objective=100 * MILLISECOND),
        Serving(servers=servers, start=8 * SECOND),
        Open([Request(at) for at in [*busy, *seldom, *together, together[-1] + 30 * SECOND]]),
        rules=ScaleRules(
            signals=signals, least=0, most=84, idle=MINUTE, fall=30 * SECOND, latency_p99=100 * MILLISECOND
        ),
        scaler=scaler_named("forecast"),
    )
    stories = twin.run()
    after = [line.split(":")[1].strip() for at, line in twin.said if at >= wakes]
    assert after == ["from 0 to 1", "from 1 to 0", "from 0 to 1"]
    assert all(story.why == "" for story in stories)


def test_after_scale_to_zero_a_load_that_needs_more_replicas_gets_them() -> None:
    """500 requests/s, of which one replica takes 100."""
    later = [5 * MINUTE + at * 2 * MILLISECOND for at in range(500 * 25)]
    twin = ServiceTwin(
        Limits(batch=1, queue=100_000),
        Serving(servers=tuple(batches((1, 10), name=f"r{each}") for each in range(10)), start=8 * SECOND),
        Open([Request(at) for at in [0, *later]]),
        rules=ScaleRules(least=0, most=10, idle=MINUTE, fall=30 * SECOND, latency_p99=100 * MILLISECOND),
        scaler=scaler_named("forecast"),
    )
    twin.run()
    grown = [(at, line) for at, line in twin.said if at > 5 * MINUTE + SECOND]
    assert grown[0][0] < 5 * MINUTE + 20 * SECOND
    assert max(int(line.split()[4].rstrip(":")) for _, line in grown) >= 7


# --- theory ----------------------------------------------------------------------------------------------------------


def poisson(rate: float, count: int, size: Any = lambda random: 1.0) -> Iterator[Request]:
    random, now = Random(1), 0.0  # noqa: S311 drawn anew each time
    for _ in range(count):
        now += random.expovariate(rate)
        yield Request(round(now * SECOND), size(random))


def test_the_mean_wait_is_that_of_m_d_1() -> None:
    """One replica, batches of one, 10 ms each, a load of 0.5: rho / (2 (1 - rho)) of a service, 5 ms; and request by
    request that of Lindley's recursion.
    """
    arrivals = list(poisson(50, 8000))
    limits = Limits(batch=1, timeout=HOUR, queue=10**6)
    twin = ServiceTwin(limits, Serving(servers=(batches((1, 10)),)), Open(arrivals))
    stories = twin.run()
    free = 0
    for request, story in zip(arrivals, stories, strict=True):
        free = max(free, request.at) + 10 * MILLISECOND
        assert story == Story(request.at, free)
    assert fmean(took(stories)) - 10 == pytest.approx(5, rel=0.05)
    assert twin.places[0].worked / twin.now == pytest.approx(0.5, rel=0.03)


def test_the_mean_time_there_is_that_of_m_m_1() -> None:
    """1 / (1 - rho) of a service, at a load of 0.4: one after the other, or all at once."""
    for slots in (1, 0):
        server = batches((1, 10), (2, 20), slots=slots)
        load = Open(poisson(40, 8000, lambda random: random.expovariate(1.0)))
        twin = FrontTwin(front("a", limit=100_000), Serving(servers=(server,)), load, router_named("random"))
        assert fmean(took(twin.run())) == pytest.approx(10 / 0.6, rel=0.05)


def test_a_closed_loop_keeps_to_little_s_law() -> None:
    """Clients = throughput x (response + thought), and no more are there at once than there are clients."""
    random = Random(5)  # noqa: S311 drawn anew each time
    clients = Clients(
        8,
        6000,
        lambda: round(random.expovariate(1.0) * 20 * MILLISECOND),
        lambda now: Request(now, random.expovariate(1.0)),
    )
    servers = (batches((1, 10), slots=1), batches((1, 20), slots=1, name="b"))
    twin = FrontTwin(front("a", "b"), Serving(servers=servers), clients, router_named("least-outstanding"))
    stories = twin.run()
    throughput = len(stories) / (twin.now / MILLISECOND)
    assert throughput * (fmean(took(stories)) + 20) == pytest.approx(8, rel=0.03)


def test_learned_delays_hold_where_long_prompts_are_read_one_after_the_other() -> None:
    """Near full load, what one short request takes there says how long the prompts before it are, and not how fast the
    server is: a router that learns from it sends everything to one until that has answered.
    """
    random = Random(1)  # noqa: S311
    fast, slow = (
        Server(name=name, speed=Speed(step=table((1, 10), (16, 20)), prompt=table((1000, takes)), tokens=True))
        for name, takes in (("a", 1000), ("b", 1800))
    )
    ratios = []
    for _ in range(8):
        requests, now = [], 0.0
        for _ in range(600):
            now += random.expovariate(0.9 * (1 / 3.0 + 1 / 5.0))
            read = round(random.choice([50, 50, 500, 5000]) * random.lognormvariate(-0.5, 1))
            wrote = random.choice([10, 300])
            requests.append(Request(round(now * SECOND), prompt=read + 1, tokens=wrote, guess=read + 1))
        means = {}
        for name in ("expected-delay", "least-outstanding"):
            router, served = router_named(name), Serving(servers=(fast, slow))
            before = front("a", "b", limit=600, queue=600, timeout="1h")
            stories = FrontTwin(before, served, Open(requests), router).run()
            means[name] = fmean(story.took for story in stories)
        ratios.append(means["expected-delay"] / means["least-outstanding"])
    assert max(ratios) < 1.15


# --- whatever happens ------------------------------------------------------------------------------------------------


def trial(kind: str, seed: int, servers: int, gap: float, spread: float, share: float, lost: bool) -> Trial:
    random = Random(seed)  # noqa: S311 drawn anew each time
    now, arrivals = 0.0, []
    for _ in range(60):
        now += random.expovariate(1 / gap)
        length = random.randrange(1, 300)
        arrivals.append(Request(round(now * MILLISECOND), random.expovariate(1.0), length, length // 10, float(length)))
    kinds = (Speed(step=table((1, 10), (3, 9), (8, 30))), Speed(step=table((1, 3)), prompt=table((9, 2)), tokens=True))
    serving = Serving(
        servers=tuple(Server(name=f"r{each}", speed=kinds[each % 2], slots=each % 3) for each in range(servers)),
        start=40 * MILLISECOND,
        spread=spread,
        hang_up=HangUp(share=share, after=20 * MILLISECOND) if share else None,
    )
    world: dict[str, Any] = {"seed": seed}
    if lost:
        world["losses"] = Losses(mtbf=200 * MILLISECOND, mttr=50 * MILLISECOND, detected=10 * MILLISECOND)
        world["changes"] = [
            Change(at=100 * MILLISECOND, node="r0", there=False),
            Change(at=SECOND, node="r0", there=True),
        ]
    if kind != "service":
        told = front(*(f"r{each}" for each in range(servers)), queue=5, limit=4, timeout="300ms")
        return FrontTwin(told, serving, Open(arrivals), router_named(kind), **world)
    limits = Limits(objective=60 * MILLISECOND, timeout=300 * MILLISECOND, queue=20, batch=8, defer=bool(seed % 2))
    rules = ScaleRules(least=seed % 2, most=servers) if seed % 3 else None
    scaler = scaler_named("forecast") if rules is not None else None
    return ServiceTwin(limits, serving, Open(arrivals), replicas=servers, rules=rules, scaler=scaler, **world)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(
        st.sampled_from(["service", *ROUTERS]),
        st.integers(0, 10**6),
        st.integers(1, 4),
        st.sampled_from([0.5, 4.0, 30.0]),
        st.sampled_from([0.0, 0.5]),
        st.sampled_from([0.0, 0.3]),
        st.booleans(),
    )
)
def test_who_came_was_answered_refused_or_had_gone_and_the_same_again(case: Any) -> None:
    twin = trial(*case)
    stories = twin.run()
    assert len(stories) == 60
    whys = {story.why for story in stories}
    known = {"", CANCELLED, "full", "late", "expired", "lost", "overloaded", "unavailable", "connection", "timeout"}
    assert whys <= known
    assert all(story.took <= 300 * MILLISECOND + 100 * MILLISECOND for story in stories)
    for place in twin.places:
        assert 0 <= place.worked <= place.ready <= max(place.paid, place.ready) <= twin.now
    assert trial(*case).run() == stories


# --- a model that is quicker in batches ------------------------------------------------------------------------------

PERCEPTRON = batches((1, 3.5), (2, 7.5), (3, 10.9), (4, 6.8), (5, 7.8), (8, 8.1), (12, 9.8), (16, 11.1), (32, 17.3))
"""Measured on one core; 1,850 requests a second at most (`docs/numbers/serving.md`)."""

CAPACITY = 32 / 0.0173


def perceptron(rate: float, seconds: float, limits: Limits, twin: type[ServiceTwin] = ServiceTwin) -> ServiceTwin:
    chance, now, asked = Random(1), 0.0, []  # noqa: S311 drawn anew each time
    while (now := now + chance.expovariate(rate)) < seconds:
        asked.append(Request(round(now * SECOND)))
    serving = Serving(servers=(PERCEPTRON,), spread=0.15)
    return twin(limits, serving, Open(asked))


class Disturbed(ServiceTwin):
    """A machine whose batches take half as long again during 0.1 s of every 2 s."""

    def _varied(self, takes: float) -> int:
        return round(super()._varied(takes) * (1.5 if self.now % (2 * SECOND) > 1.9 * SECOND else 1))


def test_the_objective_holds_on_a_machine_that_is_disturbed_now_and_then() -> None:
    stories = perceptron(1.5 * CAPACITY, 16, Limits(batch=32, objective=100 * MILLISECOND), Disturbed).run()
    answered = sorted(story.took for story in stories if not story.why and story.came > 3 * SECOND)
    assert answered[int(0.99 * len(answered))] < 100 * MILLISECOND


def test_under_an_overload_no_more_is_refused_than_is_too_much() -> None:
    stories = perceptron(1.5 * CAPACITY, 9, Limits(batch=32, objective=100 * MILLISECOND)).run()
    later = [story for story in stories if story.came > 3 * SECOND]
    answered = sorted(story.took for story in later if not story.why)
    assert 1 - len(answered) / len(later) < 1 - 6 * CAPACITY / len(later) + 0.01
    assert answered[int(0.99 * len(answered))] < 100 * MILLISECOND


def test_waiting_for_fuller_batches_saves_time_of_the_replica() -> None:
    worked = []
    for wait in (0, 5 * MILLISECOND, 10 * MILLISECOND):
        twin = perceptron(400, 5, Limits(batch=32, wait=wait))
        took = sorted(story.took for story in twin.run())
        assert took[int(0.99 * len(took))] < 40 * MILLISECOND
        worked.append(twin.places[0].worked)
    assert worked[1] < 0.95 * worked[0] and worked[2] < 0.9 * worked[0]
