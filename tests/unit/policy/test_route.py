"""Where requests go, worked out by hand, and what holds of every router whatever it is shown."""

from collections import Counter
from collections.abc import Mapping
from math import ceil
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.units import MILLISECOND, SECOND
from poise_serve.model.routing import Asked, ReplicaView, RouteView
from poise_serve.policy.route import (
    BOUND,
    DEFAULT_ROUTER,
    DEFERRED_TURN,
    ROUTERS,
    STALE,
    lane_of,
    next_lane,
    router_named,
)


def view(*replicas: ReplicaView, key: str = "", due: int = 0, turn: int = 0, seed: int = 0, now: int = 0) -> RouteView:
    return RouteView(now, Asked(key=key, due=due), replicas, turn, seed)


def busy(
    name: str, backlog: int = 0, cost: int = 0, told: int = -1, age: int = 0, *, outstanding: int = 0
) -> ReplicaView:
    """A replica by its delays in milliseconds."""
    return ReplicaView(
        name,
        outstanding=outstanding,
        backlog=backlog * MILLISECOND,
        cost=cost * MILLISECOND,
        told=told * MILLISECOND if told >= 0 else -1,
        age=age * MILLISECOND,
    )


def held(name: str, outstanding: int = 0, weight: float = 1.0, *, is_open: bool = True) -> ReplicaView:
    return ReplicaView(name, weight=weight, outstanding=outstanding, open=is_open)


def route(router: str, shown: RouteView) -> str:
    return router_named(router).decide(shown).replica


def test_a_request_goes_where_it_is_answered_first() -> None:
    """A slow replica that is free, 400 ms, or a fast one that is busy for 250 ms and then takes 100 ms."""
    assert DEFAULT_ROUTER == "expected-delay"
    assert route("expected-delay", view(busy("slow", 0, 400), busy("fast", 250, 100))) == "fast"
    assert route("expected-delay", view(busy("slow", 0, 400), busy("fast", 350, 100))) == "slow"


def test_a_small_request_takes_the_slow_replica_where_a_large_one_waits_for_the_fast() -> None:
    """The fast one is busy for 100 ms, the slow one is four times as slow: 3 x 33 ms is where it turns."""
    assert route("expected-delay", view(busy("slow", 0, 120), busy("fast", 100, 30))) == "slow"
    assert route("expected-delay", view(busy("slow", 0, 160), busy("fast", 100, 40))) == "fast"


def test_what_is_alike_takes_turns() -> None:
    alike = [busy("a", 5, 5), busy("b", 5, 5), busy("c", 5, 5)]
    assert [route("expected-delay", view(*alike, turn=turn)) for turn in range(4)] == ["a", "b", "c", "a"]
    assert [route("least-outstanding", view(*alike, turn=turn)) for turn in range(4)] == ["a", "b", "c", "a"]
    assert route("expected-delay", view(busy("a", 5, 5, outstanding=2), busy("b", 5, 5, outstanding=1))) == "b"


def test_the_work_of_others_counts_as_far_as_it_cannot_be_done_yet() -> None:
    """Others had 300 ms of work at `fast` when its metrics were read: 50 ms later 250 ms are left, and 100 ms of its
    own; at `slow` the request takes 400 ms. After 150 ms it is again `fast`.
    """
    assert route("expected-delay", view(busy("slow", 0, 300), busy("fast", 0, 100, told=300, age=50))) == "slow"
    assert route("expected-delay", view(busy("slow", 0, 300), busy("fast", 0, 100, told=300, age=150))) == "fast"


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_metrics_that_are_old_say_nothing(told: int, cost: int, backlog: int) -> None:
    other = busy("b", 300, 300)
    old = busy("a", backlog, cost, told, age=STALE * cost)
    assert route("expected-delay", view(old, other)) == route("expected-delay", view(busy("a", backlog, cost), other))


def test_turns_are_taken_by_all_alike_or_by_weight() -> None:
    """Weights 5, 1, 1: turn `k` is due at (k + 1/2) / w, so at .1 .3 .5 .7 .9 of the first, and .5 of the others."""
    replicas = [held("a", weight=5.0), held("b"), held("c")]
    assert [route("round-robin", view(*replicas, turn=turn)) for turn in range(4)] == ["a", "b", "c", "a"]
    assert "".join(route("weighted", view(*replicas, turn=turn)) for turn in range(14)) == "aaabcaa" * 2


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6), st.integers(0, 10**6))
def test_turns_by_weight_are_never_far_from_their_shares(weights: list[float], start: int) -> None:
    replicas = [held(f"r{at}", weight=weight) for at, weight in enumerate(weights)]
    turns = range(start, start + 60)
    had = Counter(route("weighted", view(*replicas, turn=turn)) for turn in turns)
    for replica in replicas:
        share = len(turns) * replica.weight / sum(weights)
        assert abs(had[replica.name] - share) <= len(weights)


def test_what_weighs_nothing_is_sent_nothing_unless_nobody_weighs_anything() -> None:
    assert {route("weighted", view(held("a", weight=0.0), held("b"), turn=turn)) for turn in range(9)} == {"b"}
    none = [held("a", weight=0.0), held("b", weight=0.0)]
    assert {route("weighted", view(*none, turn=turn)) for turn in range(9)} == {"a", "b"}


def test_of_two_that_are_drawn_the_one_with_less_takes_it() -> None:
    """The one with most outstanding never does; each of the others does for its share of the pairs, 3, 2 and 1 of 6."""
    replicas = [held("a", 0), held("b", 1), held("c", 2), held("d", 3)]
    drawn = Counter(route("power-of-two", view(*replicas, seed=seed)) for seed in range(6000))
    assert drawn["d"] == 0
    for name, pairs in {"a": 3, "b": 2, "c": 1}.items():
        assert abs(drawn[name] - 1000 * pairs) < 150


def test_random_is_even_and_the_seed_s() -> None:
    replicas = [held(name) for name in "abcd"]
    drawn = [route("random", view(*replicas, seed=seed)) for seed in range(4000)]
    assert all(abs(count - 1000) < 150 for count in Counter(drawn).values())
    assert drawn == [route("random", view(*replicas, seed=seed, turn=seed)) for seed in range(4000)]


# --- keys ------------------------------------------------------------------------------------------------------------


def homes(weights: Mapping[str, float], keys: int = 3000) -> list[str]:
    replicas = [held(name, weight=weight) for name, weight in weights.items()]
    return [route("consistent-hash", view(*replicas, key=f"session {key}")) for key in range(keys)]


def test_keys_are_shared_out_by_weight() -> None:
    counts = Counter(homes({"a": 4.0, "b": 1.0, "c": 1.0}))
    assert abs(counts["a"] - 2000) < 150
    assert abs(counts["b"] - 500) < 100


def test_one_that_comes_takes_its_share_of_the_keys_and_moves_no_other() -> None:
    before = homes(dict.fromkeys("abcd", 1.0))
    after = homes(dict.fromkeys("abcde", 1.0))
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {"e"}
    assert abs(len(moved) - 600) < 120


def test_where_replicas_stand_in_the_view_does_not_matter() -> None:
    assert homes({"a": 1.0, "b": 2.0, "c": 3.0}) == homes({"c": 3.0, "b": 2.0, "a": 1.0})


def test_a_key_goes_past_a_replica_that_holds_its_bound() -> None:
    """Two of equal weight and 8 outstanding: at most ceil(1.25 * 9 / 2) = 6 each."""
    home = route("consistent-hash", view(held("a"), held("b"), key="k"))
    other = "b" if home == "a" else "a"
    assert route("consistent-hash", view(held(home, 5), held(other, 3), key="k")) == home
    assert route("consistent-hash", view(held(home, 6), held(other, 2), key="k")) == other


def test_without_a_key_it_goes_where_it_is_answered_first() -> None:
    assert route("consistent-hash", view(busy("slow", 0, 400), busy("fast", 250, 100))) == "fast"


def test_keys_may_hold_anything() -> None:
    assert route("consistent-hash", view(held("a"), key="\udc80 \x00 语")) == "a"


def test_the_delay_of_the_others_there_counts_and_not_for_the_deadline() -> None:
    """300 ms where it stops nobody, or 200 ms where others wait for it for 150 ms together."""
    stops = msgspec.structs.replace(busy("stops", 100, 100), delays=150 * MILLISECOND)
    assert route("expected-delay", view(busy("free", 0, 300), stops)) == "free"
    assert route("expected-delay", view(busy("slow", 0, 400), stops)) == "stops"
    assert lane_of(view(stops, due=200 * MILLISECOND)) == "first"


# --- every router ----------------------------------------------------------------------------------------------------

REPLICAS = st.builds(
    ReplicaView,
    name=st.just(""),
    weight=st.sampled_from([0.0, 0.25, 1.0, 3.0]),
    outstanding=st.integers(0, 20),
    backlog=st.integers(0, 10**9),
    cost=st.integers(0, 10**9),
    told=st.integers(-1, 10**9),
    age=st.integers(0, 10**9),
    delays=st.integers(0, 10**9),
    open=st.booleans(),
)
VIEWS = st.builds(
    RouteView,
    now=st.integers(0, 10**18),
    asked=st.builds(Asked, key=st.text(max_size=4), due=st.integers(0, 10**18)),
    replicas=st.lists(REPLICAS, max_size=8).map(
        lambda drawn: tuple(msgspec.structs.replace(each, name=f"r{at}") for at, each in enumerate(drawn))
    ),
    turn=st.integers(0, 10**12),
    seed=st.integers(-(2**70), 2**70),
)


@pytest.mark.parametrize("router", ROUTERS)
@given(shown=VIEWS)
def test_it_is_open_it_is_there_and_it_is_the_same_again(router: str, shown: RouteView) -> None:
    can = {replica.name for replica in shown.replicas if replica.open}
    chosen = route(router, shown)
    assert chosen in can if can else chosen == ""
    again = msgspec.json.decode(msgspec.json.encode(shown), type=RouteView) if abs(shown.seed) < 2**63 else shown
    assert route(router, again) == chosen


@given(shown=VIEWS)
def test_nobody_is_sent_more_than_its_bound_by_keys(shown: RouteView) -> None:
    shown = msgspec.structs.replace(shown, asked=Asked(key="k"))
    replicas = [replica for replica in shown.replicas if replica.open]
    weighed = [replica for replica in replicas if replica.weight] or [
        msgspec.structs.replace(replica, weight=1.0) for replica in replicas
    ]
    chosen = next((replica for replica in weighed if replica.name == route("consistent-hash", shown)), None)
    if chosen is None:
        assert not replicas
        return
    share = chosen.weight / sum(replica.weight for replica in weighed)
    bound = BOUND * share * (1 + sum(replica.outstanding for replica in weighed))
    assert chosen.outstanding + 1 <= ceil(bound + 1e-9)


@given(shown=VIEWS)
def test_expected_delay_never_passes_a_replica_that_is_better_in_all(shown: RouteView) -> None:
    shown = msgspec.structs.replace(
        shown, replicas=tuple(msgspec.structs.replace(replica, told=-1, delays=0) for replica in shown.replicas)
    )
    chosen = next((each for each in shown.replicas if each.name == route("expected-delay", shown)), None)
    for other in shown.replicas:
        if chosen is not None and other.open:
            assert not (other.backlog < chosen.backlog and other.cost < chosen.cost)


def test_an_unknown_router_is_told_with_the_known() -> None:
    with pytest.raises(KeyError, match="there is no router `best`; known: expected-delay, consistent-hash"):
        router_named("best")


# --- two lanes -------------------------------------------------------------------------------------------------------


def test_a_request_that_some_replica_answers_in_time_is_in_the_first_lane() -> None:
    replicas = [busy("slow", 0, 400), busy("fast", 250, 100)]
    now = 10 * SECOND
    assert lane_of(view(*replicas, now=now, due=now + 350 * MILLISECOND)) == "first"
    assert lane_of(view(*replicas, now=now, due=now + 349 * MILLISECOND)) == "deferred"
    assert lane_of(view(*replicas, now=now)) == "first", "there is no instant by which it must be answered"
    closed = [msgspec.structs.replace(replica, open=False) for replica in replicas]
    assert lane_of(view(*closed, now=now, due=now + SECOND)) == "deferred"


def test_the_first_lane_goes_first_and_the_deferred_never_starves() -> None:
    """Both lanes always full: one of eight turns is the deferred lane's."""
    lanes = [next_lane(turn, first=5, deferred=5) for turn in range(4 * DEFERRED_TURN)]
    assert lanes[:8] == ["first"] * 7 + ["deferred"]
    assert Counter(lanes) == {"first": 28, "deferred": 4}
    assert next_lane(DEFERRED_TURN - 1, first=1, deferred=0) == "first"
    assert next_lane(0, first=0, deferred=1) == "deferred"
    assert next_lane(0, first=0, deferred=0) is None


def test_under_a_burst_two_lanes_answer_more_in_time_than_one() -> None:
    """Twice as much as one replica can do comes for a while, each due 4 services after it came."""

    def in_time(two: bool) -> int:
        random, free, turn, good = Random(1), 0.0, 0, 0  # noqa: S311
        coming = [number * 0.5 if number < 40 else number - 20.0 for number in range(80)]
        first: list[float] = []
        deferred: list[float] = []
        while coming or first or deferred:
            if not (first or deferred):
                free = max(free, coming[0])
            while coming and coming[0] <= free:
                first.append(coming.pop(0))
            lane = next_lane(turn, len(first), len(deferred))
            came = (first if lane == "first" else deferred).pop(0)
            replica = ReplicaView("r", cost=SECOND)
            late = lane_of(view(replica, now=round(free * SECOND), due=round((came + 4) * SECOND) or 1)) == "deferred"
            if two and lane == "first" and late:
                deferred.append(came)
                continue
            turn += 1
            free += random.uniform(0.9, 1.1)
            good += free <= came + 4
        return good

    assert in_time(two=True) > 1.5 * in_time(two=False)
