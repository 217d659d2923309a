"""What is learned of replicas from what they answer."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import exp
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from poise.units import MILLISECOND, MINUTE, SECOND
from poise_serve.model.estimates import Estimates, Known
from poise_serve.model.routing import Asked
from poise_serve.model.speeds import FADES, UNKNOWN, InFlight, Reckoner, Sizes, Speed
from poise_serve.policy.route import router_named


def served(reckoner: Reckoner, replica: str, took: int, now: int = 0, size: float = 1.0) -> int:
    """One request by itself; gives when it was answered."""
    reckoner.sent(replica, "r", size, now)
    reckoner.answered(replica, "r", now + took)
    return now + took


def test_a_reckoner_learns_how_fast_replicas_are() -> None:
    reckoner, now = Reckoner(), 0
    for name in ("fast", "slow"):
        reckoner.add(name, now)
    for _ in range(20):
        now = served(reckoner, "fast", 20 * MILLISECOND, now)
        now = served(reckoner, "slow", 80 * MILLISECOND, now)
    costs = {name: reckoner.known(name, 1.0, now)[2] / MILLISECOND for name in ("fast", "slow")}
    assert costs == {"fast": pytest.approx(20, rel=0.3), "slow": pytest.approx(80, rel=0.3)}


def test_kinds_of_requests_have_speeds_of_their_own_and_wait_for_each_other() -> None:
    reckoner, now = Reckoner(), 0
    reckoner.add("r", now)
    for _ in range(20):
        for kind, took in (("small", 10 * MILLISECOND), ("large", SECOND)):
            reckoner.sent("r", "x", 1.0, now, kind)
            now += took
            reckoner.answered("r", "x", now)
    assert [reckoner.known("r", 1.0, now, kind)[2] for kind in ("small", "large")] == [10 * MILLISECOND, SECOND]
    assert reckoner.lasting("r", 1.0, now, "small") == 10 * MILLISECOND
    reckoner.sent("r", "1", 1.0, now, "small")
    reckoner.sent("r", "2", 1.0, now, "large")
    outstanding, backlog, _ = reckoner.known("r", 1.0, now, "small")
    assert (outstanding, backlog) == (2, 1010 * MILLISECOND)


def test_backlog_is_what_is_in_flight_less_the_time_served() -> None:
    """Three of 100 ms each, sent 30 ms ago: 270 ms. One is answered at 100 ms: 200 ms, and 160 ms 40 ms later."""
    flight = InFlight()
    for name in "abc":
        flight.sent(name, 1.0, 1.0, 0)
    pace = 100.0 * MILLISECOND
    assert flight.left({"": pace}, 30 * MILLISECOND) == 270 * MILLISECOND
    known = flight.answered("a", 100 * MILLISECOND)
    assert known is not None
    assert known[1] == 100 * MILLISECOND
    assert flight.left({"": pace}, 100 * MILLISECOND) == 200 * MILLISECOND
    assert flight.left({"": pace}, 140 * MILLISECOND) == 160 * MILLISECOND
    known = flight.answered("b", 160 * MILLISECOND)
    assert known is not None
    assert known[1] == 60 * MILLISECOND, "it waited until the one before it was answered"
    flight.dropped("c", 170 * MILLISECOND)
    assert flight.left({"": pace}, 170 * MILLISECOND) == 0
    assert flight.answered("c", 180 * MILLISECOND) is None


def test_what_takes_longer_than_foreseen_is_foreseen_to_take_as_long_again() -> None:
    flight = InFlight()
    flight.sent("a", 1.0, 1.0, 0)
    assert flight.left({"": 100.0}, 1000) == 1000


def test_a_new_replica_is_foreseen_to_be_as_fast_as_its_like() -> None:
    reckoner, now = Reckoner(), 0
    reckoner.add("h1", now, like="H100")
    reckoner.add("l1", now, like="L4")
    assert reckoner.known("h1", 1.0, now)[2] == UNKNOWN
    for _ in range(30):
        now = served(reckoner, "h1", 10 * MILLISECOND, now)
        now = served(reckoner, "l1", 90 * MILLISECOND, now)
    reckoner.add("other", now, like="A100")
    reckoner.add("l2", now, like="L4")
    assert reckoner.known("l2", 1.0, now)[2] == pytest.approx(90 * MILLISECOND, rel=0.1)
    assert reckoner.known("other", 1.0, now)[2] == pytest.approx(50 * MILLISECOND, rel=0.1)
    reckoner.remove("l2")
    with pytest.raises(KeyError):
        reckoner.known("l2", 1.0, now)


def test_the_first_answer_tells_of_all() -> None:
    """It took 20 s: nobody else is foreseen to take a tenth of a second for want of an answer."""
    reckoner = Reckoner()
    for name in ("a", "b"):
        reckoner.add(name, 0, like=name)
    now = served(reckoner, "a", 20 * SECOND)
    assert [reckoner.known(name, 1.0, now)[2] for name in ("a", "b")] == [20 * SECOND] * 2


def test_a_slow_down_by_ten_is_half_learned_in_six_answers_and_forgotten_if_nothing_is_sent() -> None:
    speed, now = Speed(), 0
    for _ in range(300):
        now += 10 * MILLISECOND
        speed = speed.observe(1.0, 10 * MILLISECOND, now)
    for _ in range(6):
        now += 100 * MILLISECOND
        speed = speed.observe(1.0, 100 * MILLISECOND, now)
    assert speed.pace > 50 * MILLISECOND
    assert speed.at(now + 10 * FADES) < 15 * MILLISECOND


def test_one_that_has_always_been_slow_is_not_thought_fast_after_a_while() -> None:
    speed, now = Speed(), 0
    for _ in range(50):
        now += SECOND
        speed = speed.observe(1.0, SECOND, now)
    assert speed.at(now + 100 * FADES) > 0.5 * SECOND


def crowded(reckoner: Reckoner, replica: str, slower: Callable[[int], float], most: int) -> int:
    """Requests of 50 to 150 ms by themselves, of which 1 to `most` are in flight, for a while each; `slower` says how
    many times as long they take where so many are there. Gives when the last was answered.
    """
    random, now, number = Random(1), 0, 0  # noqa: S311
    left: dict[str, float] = {}
    for turn in range(800):
        if turn % 20 == 0:
            many = random.randint(1, most)
        while len(left) < many:
            reckoner.sent(replica, str(number), 1.0, now)
            left[str(number)] = random.uniform(50, 150) * MILLISECOND
            number += 1
        done, times = min(left, key=lambda name: left[name]), slower(len(left))
        step = left.pop(done)
        now += round(step * times)
        left = {name: each - step for name, each in left.items()}
        reckoner.answered(replica, done, now)
    for name in left:
        reckoner.dropped(replica, name, now)
    return now


def foreseen_with(reckoner: Reckoner, replica: str, beside: int, now: int) -> float:
    """Times its cost that a request of the usual size is foreseen to take with so many beside it."""
    for number in range(beside):
        reckoner.sent(replica, f"beside {number}", 1.0, now)
    outstanding, backlog, cost = reckoner.known(replica, 1.0, now)
    assert outstanding == beside
    for number in range(beside):
        reckoner.dropped(replica, f"beside {number}", now)
    return (backlog + cost) / cost


def test_slots_that_are_free_are_not_waited_for() -> None:
    reckoner = Reckoner()
    reckoner.add("r", 0)
    now = crowded(reckoner, "r", lambda many: 1.0, most=6)
    assert reckoner.known("r", 1.0, now)[2] == pytest.approx(100 * MILLISECOND, rel=0.2)
    assert foreseen_with(reckoner, "r", 3, now) == pytest.approx(1.0, abs=0.2)


def test_more_than_was_ever_beside_each_other_waits() -> None:
    """Or a replica with slots that are free would be sent everything until it answers."""
    reckoner = Reckoner()
    reckoner.add("r", 0)
    now = crowded(reckoner, "r", lambda many: 1.0, most=6)
    few, many = (foreseen_with(reckoner, "r", beside, now) for beside in (19, 39))
    assert few > 2.5
    assert many == pytest.approx(2 * few, rel=0.05)


def test_one_that_divides_itself_is_as_much_slower_as_many_are_there() -> None:
    reckoner = Reckoner()
    reckoner.add("r", 0)
    now = crowded(reckoner, "r", float, most=6)
    assert reckoner.known("r", 1.0, now)[2] == pytest.approx(100 * MILLISECOND, rel=0.2)
    assert foreseen_with(reckoner, "r", 3, now) == pytest.approx(4.0, rel=0.1)


def test_batches_that_slow_down_are_between_these() -> None:
    reckoner = Reckoner()
    reckoner.add("r", 0)
    now = crowded(reckoner, "r", lambda many: 1 + 0.2 * (many - 1), most=8)
    assert foreseen_with(reckoner, "r", 4, now) == pytest.approx(1.8, rel=0.2)


def test_what_a_request_lasts_is_from_sending_to_the_end_less_what_it_was_held_up() -> None:
    reckoner = Reckoner()
    reckoner.add("r", 0)
    assert reckoner.lasting("r", 1.0, 0) == 0
    for name in ("a", "b"):
        reckoner.sent("r", name, 1.0, 0)
    reckoner.answered("r", "a", 100 * MILLISECOND)
    reckoner.answered("r", "b", 60_200 * MILLISECOND, held=60 * SECOND)
    assert reckoner.lasting("r", 1.0, 60 * SECOND) == pytest.approx(150 * MILLISECOND)
    assert reckoner.known("r", 1.0, 60 * SECOND)[2] == pytest.approx(150 * MILLISECOND)


def shares_by_minute(minutes: int, rate: float, late: Callable[[int, int, int], int]) -> list[float]:
    """The part of requests that the first of two equal servers gets, which take 50 to 150 ms, 16 side by side; `late`
    says when one of its own that was to begin and to end at instants is really answered.
    """
    random, estimates, router = Random(1), Estimates(), router_named("expected-delay")  # noqa: S311
    free, running = {name: [0] * 16 for name in "ab"}, dict.fromkeys("ab", 0)
    for name in free:
        estimates.add(name, 0)
    ends: list[tuple[int, str, str]] = []
    counts = [dict.fromkeys("ab", 0) for _ in range(minutes)]
    now = number = 0
    while (now := now + int(random.expovariate(rate) * SECOND)) < minutes * MINUTE:
        number += 1
        while ends and ends[0][0] <= now:
            end, name, request = heappop(ends)
            estimates.answered(name, request, end)
            running[name] -= 1
        servers = [Known(name, 1.0, many, has_room=True) for name, many in running.items()]
        name = router.decide(estimates.view(Asked(), servers, number, now)).replica
        estimates.sent(name, str(number), Asked(), now)
        running[name] += 1
        begin = max(now, heappop(free[name]))
        end = begin + int(random.uniform(0.05, 0.15) * SECOND)
        end = late(number, begin, end) if name == "a" else end
        heappush(free[name], end)
        heappush(ends, (end, name, str(number)))
        counts[now // MINUTE][name] += 1
    return [count["a"] / sum(count.values()) for count in counts]


def test_one_answer_that_took_long_beside_others_changes_little() -> None:
    def late(number: int, begin: int, end: int) -> int:
        return end + 20 * SECOND if 1200 <= number < 1203 else end

    assert min(shares_by_minute(6, 20.0, late)) > 0.2


def test_one_that_stood_still_for_a_while_is_tried_again() -> None:
    """All that it had in flight is late then."""

    def late(number: int, begin: int, end: int) -> int:
        return max(end, 90 * SECOND) if end > 60 * SECOND and begin < 90 * SECOND else end

    shares = shares_by_minute(12, 60.0, late)
    assert shares[1] < 0.15, "nothing is sent there while it stands still"
    assert min(shares[9:]) > 0.1


def test_of_what_was_given_up_nothing_is_learned() -> None:
    reckoner = Reckoner()
    reckoner.add("r", 0)
    reckoner.sent("r", "a", 5.0, 0)
    reckoner.dropped("r", "a", SECOND)
    now = served(reckoner, "r", MILLISECOND, SECOND)
    assert reckoner.known("r", 1.0, now) == (0, 0, MILLISECOND)


def test_one_outlier_changes_little() -> None:
    speed = Speed()
    for at in range(100):
        speed = speed.observe(1.0, 10 * MILLISECOND, at)
    assert speed.observe(1.0, 3600 * SECOND, 100).pace < 1.2 * speed.pace


@pytest.mark.parametrize(("told", "slope"), [("exact", 1.0), ("noisy", 0.5), ("nothing", 0.0)])
def test_sizes_count_as_far_as_they_tell(told: str, slope: float) -> None:
    """Log-normal sizes, told with as much noise as they are spread: half of what is told is noise."""
    random, sizes = Random(1), Sizes()  # noqa: S311
    for _ in range(2000):
        real, noise = random.gauss(0, 0.5), random.gauss(0, 0.5)
        size = {"exact": real, "noisy": real + noise, "nothing": noise}[told]
        sizes = sizes.observe(exp(size), exp(real))
    assert sizes.tells == pytest.approx(slope, abs=0.1)
    assert sizes.work(4.0) / sizes.work(2.0) == pytest.approx(2**sizes.tells)


def test_what_is_asked_without_a_size_is_of_the_usual() -> None:
    sizes = Sizes()
    for _ in range(10):
        sizes = sizes.observe(50.0, 1.0)
    assert sizes.work(0.0) == sizes.work(float("nan")) == sizes.work(float("inf")) == 1.0
    assert sizes.work(50.0) == pytest.approx(1.0)
    assert sizes.work(5e-324) > 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["sent", "answered", "dropped"]), st.integers(0, 5), st.floats(0, 1e308)), max_size=60
    )
)
def test_whatever_is_told_what_is_foreseen_is_a_time(steps: list[tuple[str, int, float]]) -> None:
    reckoner = Reckoner()
    reckoner.add("r", 0)
    flying: set[int] = set()
    for now, (what, request, size) in enumerate(steps):
        if what == "sent" and request not in flying:
            reckoner.sent("r", str(request), size, now)
            flying.add(request)
        elif what == "answered":
            reckoner.answered("r", str(request), now)
            flying.discard(request)
        elif what == "dropped":
            reckoner.dropped("r", str(request), now)
            flying.discard(request)
        outstanding, backlog, cost = reckoner.known("r", size, now)
        assert outstanding == len(flying)
        assert backlog >= 0
        assert cost >= 0
        assert (backlog == 0) if not flying else True
