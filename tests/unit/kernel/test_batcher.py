"""Nothing that was accepted is lost, doubled or served late on purpose, whatever becomes of the replicas."""

from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from poise.model.serving import Curve, Limits
from poise.units import MILLISECOND, SECOND
from poise_serve.kernel.batcher import Batch, Batcher, Effect, Refuse, Replace

KNOWN = [(1, 4.0 * MILLISECOND), (8, 8.0 * MILLISECOND), (64, 32.0 * MILLISECOND)]


def batches(effects: list[Effect]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.replica, one.requests) for one in effects if isinstance(one, Batch)]


def refused(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(one.request, one.why) for one in effects if isinstance(one, Refuse)]


def busy(limits: Limits | None = None) -> Batcher:
    """A service whose one replica is serving request 0 since the beginning, for 4 ms."""
    batcher = Batcher(limits or Limits())
    batcher.up("a", 0, KNOWN)
    assert batches(batcher.arrive(0, 0)) == [("a", (0,))]
    return batcher


def test_who_comes_while_the_replica_is_busy_is_served_together() -> None:
    batcher = busy()
    for number in range(1, 7):
        assert batcher.arrive(number, MILLISECOND) == []
    told, effects = batcher.answered("a", 1, 4 * MILLISECOND, 1, 4 * MILLISECOND)
    assert told == [0]
    assert batches(effects) == [("a", (1, 2, 3, 4, 5, 6))]


def test_who_comes_together_is_served_together_and_who_leaves_at_once_was_never_there() -> None:
    batcher = Batcher(Limits())
    batcher.up("a", 0, KNOWN)
    batcher.gather()
    for number in range(4):
        assert batcher.arrive(number, 0) == []
    batcher.cancel(1)
    assert batches(batcher.gathered(0)) == [("a", (0, 2, 3))]


def test_requests_wait_for_the_first_replica() -> None:
    batcher = Batcher(Limits())
    assert batcher.arrive(1, 0) == []
    assert batches(batcher.up("a", SECOND, KNOWN)) == [("a", (1,))]


def test_who_came_before_the_first_replica_waited_for_its_start_and_who_came_behind_did_not() -> None:
    batcher = Batcher(Limits(batch=1))
    batcher.arrive(1, 0)
    batcher.arrive(2, 1)
    assert batcher.started(2) > 2
    [(_, first)] = batches(batcher.up("a", SECOND, KNOWN))
    batcher.arrive(3, SECOND + 1)
    assert batcher.started(SECOND + 1) > SECOND + 1
    assert batcher.answered("a", 1, MILLISECOND, 1, 2 * SECOND)[0] == list(first) == [1]
    batcher.cancel(2)
    assert batcher.started(3 * SECOND) == 3 * SECOND == batcher.started(4 * SECOND)
    batcher.down("a", 5 * SECOND)
    assert batcher.started(5 * SECOND) > 5 * SECOND


@pytest.mark.parametrize(("slower", "expected"), [(0.0, "abab"), (1.0, "abab"), (9.0, "aaaa")])
def test_requests_served_one_by_one_are_divided_among_replicas_by_their_speed(slower: float, expected: str) -> None:
    """A replica has a slot for each request that it serves at once, and those share its process. At first, nothing is
    known of the speeds.
    """
    batcher = Batcher(Limits())
    for name, takes in (("a", 10.0), ("b", 10.0 * slower)):
        for slot in range(4):
            batcher.up(f"{name}#{slot}", 0, [(1, takes * MILLISECOND)] if slower else [], alone=True)
    sent = [name for number in range(2) for name, _ in batches(batcher.arrive(number, 0))]
    batcher.gather()
    for number in range(2, 4):
        batcher.arrive(number, 0)
    sent += [name for name, _ in batches(batcher.gathered(0))]
    assert "".join(name[0] for name in sent) == expected


@pytest.mark.parametrize(("slower", "expected"), [(2.0, "abaaba"), (3.5, "aaabaa"), (9.0, "aaaaaa")])
def test_requests_that_come_together_are_divided_as_those_that_come_one_by_one(slower: float, expected: str) -> None:
    """While a quick replica has fewer requests than slots, those that it has still delay each other."""
    together, one_by_one = (Batcher(Limits(batch=1)) for _ in range(2))
    for batcher in (together, one_by_one):
        for name, takes in (("a", 10.0), ("b", 10.0 * slower)):
            for slot in range(6):
                batcher.up(f"{name}#{slot}", 0, [(1, takes * MILLISECOND)], alone=True)
    together.gather()
    for number in range(6):
        together.arrive(number, 0)
    sent = [name for name, _ in batches(together.gathered(0))]
    assert "".join(name[0] for name in sent) == expected
    sent = [name for number in range(6) for name, _ in batches(one_by_one.arrive(number, 0))]
    assert "".join(name[0] for name in sent) == expected


def test_a_slow_replica_takes_what_the_quicker_would_be_later_with_however_many_wait() -> None:
    """`a` is busy until 10 ms and then takes 10 ms each: `b` leaves it those that are done there before its 35 ms."""
    batcher = Batcher(Limits(batch=1))
    batcher.up("a", 0, [(1, 10.0 * MILLISECOND)])
    assert batches(batcher.arrive(0, 0)) == [("a", (0,))]
    assert batches(batcher.up("b", 0, [(1, 35.0 * MILLISECOND)])) == []
    assert batches(batcher.arrive(1, 0)) == [], "done at 20 ms by `a`"
    assert batches(batcher.arrive(2, 0)) == [], "done at 30 ms by `a`"
    assert batches(batcher.arrive(3, 0)) == [("b", (1,))], "the last would be done at 40 ms"


def test_a_killed_replica_loses_nothing() -> None:
    batcher = busy()
    batcher.up("b", 0, KNOWN)
    assert batches(batcher.arrive(1, 0)) == [("b", (1,))]
    assert batcher.arrive(2, 0) == []
    assert batcher.down("a", MILLISECOND) == []
    _, effects = batcher.answered("b", 2, 4 * MILLISECOND, 1, 4 * MILLISECOND)
    assert batches(effects) == [("b", (0,))], "what was interrupted goes before what waits"


def test_what_kills_whoever_serves_it_kills_two_and_takes_nobody_along() -> None:
    batcher = Batcher(Limits())
    for number in range(8):
        batcher.arrive(number, 0)
    poison, lives = 5, 0
    served: set[int] = set()
    gone: list[tuple[int, str]] = []
    while not gone:
        lives += 1
        name = f"r{lives}"
        effects = batcher.up(name, lives, KNOWN)
        while (sent := [one for one in effects if isinstance(one, Batch)]) and poison not in sent[0].requests:
            told, effects = batcher.answered(name, sent[0].number, MILLISECOND, len(sent[0].requests), lives)
            served.update(told)
        gone = refused(batcher.down(name, lives))
    assert (gone, lives) == ([(poison, "lost")], 2)
    effects = batcher.up("last", 100, KNOWN)
    while left := [one for one in effects if isinstance(one, Batch)]:
        told, effects = batcher.answered("last", left[0].number, MILLISECOND, len(left[0].requests), 100)
        served.update(told)
    assert served == set(range(8)) - {poison}


def test_those_that_are_sent_again_one_by_one_take_turns_with_those_that_wait() -> None:
    batcher = busy()
    for number in range(1, 4):
        batcher.arrive(number, 0)
    _, effects = batcher.answered("a", 1, MILLISECOND, 1, MILLISECOND)
    assert batches(effects) == [("a", (1, 2, 3))]
    for number in range(4, 8):
        batcher.arrive(number, MILLISECOND)
    batcher.down("a", MILLISECOND)
    effects, order = batcher.up("b", MILLISECOND, KNOWN), []
    while sent := [one for one in effects if isinstance(one, Batch)]:
        order.append(sent[0].requests)
        _, effects = batcher.answered("b", sent[0].number, MILLISECOND, len(sent[0].requests), MILLISECOND)
    assert order == [(1,), (4, 5, 6), (2,), (7,), (3,)]


def test_a_suspect_is_served_alone_and_not_sent_again() -> None:
    batcher = busy()
    batcher.arrive(1, 0)
    batcher.arrive(2, 0, suspect=True)
    batcher.arrive(3, 0)
    _, effects = batcher.answered("a", 1, MILLISECOND, 1, MILLISECOND)
    assert batches(effects) == [("a", (2,))]
    assert refused(batcher.down("a", MILLISECOND)) == [(2, "lost")]


def test_what_the_model_refuses_is_told_to_who_asked_it_and_to_nobody_else() -> None:
    batcher = busy()
    for number in range(1, 5):
        batcher.arrive(number, 0)
    _, effects = batcher.answered("a", 1, MILLISECOND, 1, MILLISECOND)
    told, gone = set(), []
    while effects:
        [batch] = [one for one in effects if isinstance(one, Batch)]
        gone += refused(effects)
        if 3 in batch.requests:
            effects = batcher.broke("a", batch.number, "ValueError: 3", MILLISECOND)
            gone += refused(effects)
            if not batches(effects):
                break
        else:
            answered, effects = batcher.answered("a", batch.number, MILLISECOND, len(batch.requests), MILLISECOND)
            told.update(answered)
    assert told == {1, 2, 4}
    assert set(gone) == {(3, "broken")}


def test_without_memory_batches_are_half_as_large_from_then_on() -> None:
    batcher = busy()
    for number in range(1, 41):
        batcher.arrive(number, 0)
    _, effects = batcher.answered("a", 1, 4 * MILLISECOND, 1, 4 * MILLISECOND)
    [batch] = [one for one in effects if isinstance(one, Batch)]
    whole = len(batch.requests)
    assert whole > 20
    effects = batcher.no_memory("a", batch.number, "MemoryError", 5 * MILLISECOND)
    sizes = []
    while found := [one for one in effects if isinstance(one, Batch)]:
        sizes.append(len(found[0].requests))
        _, effects = batcher.answered("a", found[0].number, 9 * MILLISECOND, sizes[-1], 6 * MILLISECOND)
    assert sizes[:2] == [whole - whole // 2, whole // 2]
    assert sum(sizes) == 40
    assert max(sizes[2:]) <= whole - whole // 2 == batcher.replicas["a"].curve.limit


def test_none_is_larger_than_there_is_memory_for_now() -> None:
    batcher = busy()
    for number in range(1, 41):
        batcher.arrive(number, 0)
    sizes, number, now = [], 1, 4 * MILLISECOND
    for room in (5, 5, 2, 9, 0):
        _, effects = batcher.answered("a", number, 4 * MILLISECOND, 1, now, room)
        [batch] = [one for one in effects if isinstance(one, Batch)]
        sizes.append(len(batch.requests))
        number, now = batch.number, now + 4 * MILLISECOND
    assert sizes[:4] == [5, 5, 2, 9]
    assert sizes[4] > 9


def test_who_cannot_be_served_in_time_is_refused_at_once_and_told_when_to_come_again() -> None:
    batcher = busy(Limits(objective=20 * MILLISECOND))
    answers = [batcher.arrive(number, MILLISECOND) for number in range(1, 100)]
    late = [one for effects in answers for one in effects if isinstance(one, Refuse)]
    assert len(late) > 50
    assert {one.why for one in late} == {"late"}
    assert all(one.after > 0 for one in late)
    assert 10 < batcher.waiting < 40, "as many as are served within 20 ms"


def test_who_may_be_deferred_waits_instead_and_fills_what_is_idle() -> None:
    batcher = busy(Limits(objective=20 * MILLISECOND, defer=True))
    assert not any(batcher.arrive(number, MILLISECOND) for number in range(1, 100))
    accepted = batcher.waiting
    assert accepted == 99
    seen: list[int] = []
    now, batch = 4 * MILLISECOND, 1
    while batcher.serving:
        told, effects = batcher.answered("a", batch, 0, 0, now)
        seen += told
        now += MILLISECOND
        batch = next((one.number for one in effects if isinstance(one, Batch)), 0)
    assert sorted(seen) == list(range(100))


def test_what_is_deferred_does_not_starve() -> None:
    batcher = busy(Limits(timeout=60 * SECOND))
    batcher.arrive(1, 0, deferred=True)
    number, now, batch = 2, 0, 1
    for _ in range(3000):
        now += 4 * MILLISECOND
        batcher.arrive(number, now)
        number += 1
        told, effects = batcher.answered("a", batch, 4 * MILLISECOND, 1, now)
        if 1 in told:
            break
        batch = next(one.number for one in effects if isinstance(one, Batch))
    assert 10 * SECOND <= now < 10.1 * SECOND


def test_an_unlucky_start_does_not_close_the_service_for_ever() -> None:
    batcher = busy(Limits(objective=10 * MILLISECOND))
    batcher.margin = 1000.0
    batcher.answered("a", 1, 4 * MILLISECOND, 1, 4 * MILLISECOND)
    assert batches(batcher.arrive(1, 5 * MILLISECOND)), "who finds nobody waiting is served"


def test_it_is_learned_by_how_much_what_is_foreseen_is_exceeded() -> None:
    """Batches take from 0.8 to 1.5 times what they did when they were tried, at twice the load that can be served."""
    batcher, draw = Batcher(Limits(objective=100 * MILLISECOND)), Random(1)  # noqa: S311 — the same times each time
    batcher.up("a", 0, KNOWN)
    came: dict[int, int] = {}
    took: list[int] = []
    truth, batch = Curve(64, KNOWN), None
    now = number = began = due = 0
    while number < 40_000:
        number, arrives = number + 1, number * SECOND // 4000
        while batch is not None and due <= arrives:
            now = due
            told, effects = batcher.answered("a", batch.number, due - began, batch.padded, now)
            batcher.written(now)
            took += [now - came.pop(one) for one in told]
            batch = next((one for one in effects if isinstance(one, Batch)), None)
            if batch is not None:
                began = now
                due = now + int(truth.takes(batch.padded) * draw.uniform(0.8, 1.5))
        came[number] = now = arrives
        effects = batcher.arrive(number, now)
        sent = next((one for one in effects if isinstance(one, Batch)), None)
        if sent is not None:
            batch, began, due = sent, now, now + int(5 * MILLISECOND)
    late = sum(one > 100 * MILLISECOND for one in took) / len(took)
    assert len(took) > 10_000
    assert late < 0.03
    assert batcher.margin > 1.0


def test_a_cancelled_request_is_not_served_and_one_in_service_is_dropped() -> None:
    batcher = busy()
    batcher.arrive(1, 0)
    batcher.arrive(2, 0)
    batcher.cancel(1)
    batcher.cancel(0)
    batcher.cancel(77)
    told, effects = batcher.answered("a", 1, MILLISECOND, 1, MILLISECOND)
    assert told == []
    assert batches(effects) == [("a", (2,))]


def test_a_request_whose_time_is_over_is_refused_wherever_it_is() -> None:
    batcher = busy()
    batcher.arrive(1, 0, timeout=100 * MILLISECOND)
    batcher.arrive(2, 0)
    assert batcher.wakeup() == 100 * MILLISECOND
    assert refused(batcher.tick(100 * MILLISECOND)) == [(1, "expired")]
    assert refused(batcher.tick(30 * SECOND)) == [(2, "expired"), (0, "expired")]
    told, _ = batcher.answered("a", 1, MILLISECOND, 1, 31 * SECOND)
    assert told == []


def test_what_is_to_be_sent_again_does_not_wait_for_ever_either() -> None:
    batcher = busy()
    batcher.down("a", 0)
    assert refused(batcher.tick(30 * SECOND)) == [(0, "unavailable")]
    assert batcher.up("b", 30 * SECOND, KNOWN) == []


def test_requests_wait_for_a_replica_as_long_as_they_may_and_are_told_when_one_is_likely_there() -> None:
    batcher = busy(Limits(hold=2 * SECOND))
    batcher.start_up = 5 * SECOND
    batcher.arrive(1, 0)
    batcher.down("a", SECOND)
    batcher.arrive(2, 2 * SECOND, timeout=500 * MILLISECOND)
    batcher.arrive(3, 2 * SECOND)
    assert refused(batcher.tick(2500 * MILLISECOND)) == [(2, "expired")], "its own time is over"
    given_up = batcher.tick(3 * SECOND)
    assert [(one.request, one.why, one.after) for one in given_up if isinstance(one, Refuse)] == [
        (1, "unavailable", 3 * SECOND),
        (0, "unavailable", 3 * SECOND),
    ]
    assert batches(batcher.up("b", 3500 * MILLISECOND, KNOWN)) == [("b", (3,))]
    assert refused(batcher.tick(6 * SECOND)) == [], "it is served"


def test_the_time_before_and_after_the_batcher_counts_for_the_objective() -> None:
    """Behind one that waits, the next would be answered after 5.6 ms. One whose client has waited for 3 ms is late."""
    batcher = busy(Limits(objective=8 * MILLISECOND))
    batcher.margin = 1.0
    assert batcher.arrive(1, 3 * MILLISECOND) == []
    assert refused(batcher.arrive(2, 3 * MILLISECOND, came=1)) == [(2, "late")]
    assert batcher.arrive(3, 3 * MILLISECOND) == []
    batcher.answered("a", 1, 4 * MILLISECOND, 1, 4 * MILLISECOND)
    batcher.written(4 * MILLISECOND)
    told, _ = batcher.answered("a", 2, 4 * MILLISECOND, 2, 8 * MILLISECOND)
    assert (told, batcher.margin) == ([1, 3], 1.0)
    batcher.written(10 * MILLISECOND)
    assert batcher.margin == 7 / 5, "request 1 was expected to take 5 ms, and took 7 until its answer was written"


def ahead(limits: Limits | None = None) -> Batcher:
    """A replica that serves 1, for 4 ms, while 2 to 5 wait, two in a batch; it is sent ahead from 3 ms on."""
    batcher = Batcher(limits or Limits(batch=2), ahead=MILLISECOND)
    batcher.up("a", 0, [*KNOWN[:1], (2, 5.0 * MILLISECOND)])
    for number in range(1, 6):
        batcher.arrive(number, 0)
    return batcher


def test_a_full_queue_sends_the_next_batch_shortly_before_the_replica_is_idle() -> None:
    batcher = ahead()
    assert batcher.wakeup() == 3 * MILLISECOND
    assert batcher.tick(2 * MILLISECOND) == []
    assert batcher.tick(3 * MILLISECOND) == [Batch("a", 2, (2, 3), 2, ahead=True)]
    assert batcher.tick(4 * MILLISECOND) == [], "one at most"
    assert (batcher.waiting, batcher.serving) == (2, 3)
    told, effects = batcher.answered("a", 1, 4 * MILLISECOND, 1, 4 * MILLISECOND)
    assert (told, effects) == ([1], []), "the rest waits: it fits into one batch, and more may join it"
    told, effects = batcher.answered("a", 2, 5 * MILLISECOND, 2, 9 * MILLISECOND)
    assert (told, batches(effects)) == ([2, 3], [("a", (4, 5))])


def test_what_was_sent_ahead_to_a_replica_that_died_was_not_the_reason() -> None:
    batcher = ahead()
    batcher.tick(3 * MILLISECOND)
    batcher.down("a", 3 * MILLISECOND)
    assert batches(batcher.up("b", 4 * MILLISECOND, KNOWN)) == [("b", (1,))], "alone: it may have killed the replica"
    assert refused(batcher.down("b", 5 * MILLISECOND)) == [(1, "lost")]
    assert batches(batcher.up("c", 6 * MILLISECOND, KNOWN)) == [("c", (2, 3))]
    batcher.down("c", 7 * MILLISECOND)
    assert refused(batcher.tick(8 * MILLISECOND)) == []


def test_a_batch_that_breaks_does_not_break_the_one_that_was_sent_ahead() -> None:
    batcher = ahead()
    batcher.tick(3 * MILLISECOND)
    assert refused(batcher.broke("a", 1, "no", 4 * MILLISECOND)) == [(1, "broken")]
    batcher.cancel(2)
    told, effects = batcher.answered("a", 2, 5 * MILLISECOND, 2, 9 * MILLISECOND)
    assert (told, batches(effects)) == ([3], [("a", (4, 5))])


def test_a_replica_that_is_overdue_gets_nothing_ahead() -> None:
    batcher = ahead()
    assert batcher.tick(6 * MILLISECOND) == []


def test_a_replica_that_hangs_is_replaced() -> None:
    batcher = busy(Limits(timeout=300 * SECOND))
    assert Replace("a") not in batcher.tick(30 * SECOND)
    assert Replace("a") in batcher.tick(31 * SECOND)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (Limits(objective=200 * MILLISECOND), 5),
        (Limits(objective=SECOND), 10),
        (Limits(), 15),  # half of its time-out
    ],
)
def test_what_a_replica_held_that_hangs_is_answered_in_time(limits: Limits, seconds: int) -> None:
    batcher = busy(limits)
    batcher.arrive(1, MILLISECOND)
    assert Replace("a") not in batcher.tick(seconds * SECOND)
    assert Replace("a") in batcher.tick(seconds * SECOND + MILLISECOND)
    batcher.down("a", seconds * SECOND + MILLISECOND, "hung")
    assert batches(batcher.up("b", 16 * SECOND, KNOWN)) == [("b", (0,))]
    told, effects = batcher.answered("b", 2, MILLISECOND, 1, 16 * SECOND)
    assert (told, batches(effects)) == ([0], [("b", (1,))])


def test_a_replica_that_has_answered_nothing_yet_may_take_longer() -> None:
    batcher = busy()
    batcher.up("b", 0)
    assert batches(batcher.arrive(1, 0)) == [("b", (1,))]
    assert Replace("b") not in batcher.tick(30 * SECOND)
    assert Replace("b") in batcher.tick(31 * SECOND)


def test_the_first_batch_of_a_size_may_take_as_long_as_a_first_batch_and_the_next_may_not() -> None:
    """It may be compiled for that size first."""
    batcher = Batcher(Limits(objective=200 * MILLISECOND))
    batcher.up("a", 0, KNOWN)

    def send_three(now: int) -> int:
        batcher.gather()
        for number in range(3):
            batcher.arrive(now + number, now)
        [batch] = [one for one in batcher.gathered(now) if isinstance(one, Batch)]
        assert batch.padded == 3
        return batch.number

    first = send_three(0)
    assert Replace("a") not in batcher.tick(2 * SECOND)
    assert Replace("a") not in batcher.tick(30 * SECOND)
    assert Replace("a") in batcher.tick(31 * SECOND)
    batcher.answered("a", first, 5 * MILLISECOND, 3, SECOND)
    send_three(2 * SECOND)
    assert Replace("a") not in batcher.tick(7 * SECOND)
    assert Replace("a") in batcher.tick(7 * SECOND + MILLISECOND)


def test_what_takes_far_longer_than_most_is_no_hang_where_others_took_as_long() -> None:
    batcher = busy(Limits(objective=200 * MILLISECOND, timeout=60 * SECOND))
    batcher.answered("a", 1, 4 * SECOND, 1, 4 * SECOND)
    now = 4 * SECOND
    for number in range(100):
        batcher.arrive(number, now)
        batcher.answered("a", 2 + number, 4 * MILLISECOND, 1, now)
    batcher.arrive(100, now)
    assert Replace("a") not in batcher.tick(now + 8 * SECOND)
    assert Replace("a") in batcher.tick(now + 8 * SECOND + MILLISECOND)


def test_an_idle_replica_serves_what_another_holds_for_too_long_and_the_first_answer_counts() -> None:
    batcher = busy(Limits(objective=100 * MILLISECOND))
    for number in (1, 2):
        batcher.arrive(number, 0)
    _, effects = batcher.answered("a", 1, 4 * MILLISECOND, 1, 0)
    assert batches(effects) == [("a", (1, 2))]
    batcher.up("b", 0, KNOWN)
    assert batcher.tick(100 * MILLISECOND) == []
    now = 101 * MILLISECOND
    assert batches(batcher.tick(now)) == [("b", (1,))], "alone: if it is a request that hangs, it takes none along"
    told, effects = batcher.answered("b", 3, 4 * MILLISECOND, 1, now)
    assert (told, batches(effects)) == ([1], [("b", (2,))])
    told, _ = batcher.answered("a", 2, 102 * MILLISECOND, 2, now)
    assert told == [2]
    assert batcher.answered("b", 4, 4 * MILLISECOND, 1, now)[0] == []


def test_a_request_that_hangs_its_replica_hangs_two() -> None:
    batcher = busy(Limits(objective=100 * MILLISECOND))
    batcher.up("b", 0, KNOWN)
    batcher.up("c", 0, KNOWN)
    assert batches(batcher.tick(SECOND)) == [("b", (0,))]
    assert batches(batcher.tick(2 * SECOND)) == [], "no third, however idle"
    assert batcher.tick(6 * SECOND) == [Replace("a")]
    assert batcher.down("a", 6 * SECOND, "hung") == [], "another serves it"
    assert batcher.tick(7 * SECOND) == [Replace("b")]
    [refuse] = batcher.down("b", 7 * SECOND, "hung")
    assert refuse == Refuse(0, "lost", "b hung while it was served, and so did another")


def test_where_none_is_idle_what_an_overdue_replica_holds_goes_first_at_half_of_its_patience() -> None:
    batcher = busy(Limits(timeout=20 * SECOND))
    batcher.up("b", 0, [(1, SECOND)])
    number, sent = 2, []
    effects, now = batcher.arrive(1, 0), 0
    while (0,) not in sent:
        sent += [one.requests for one in effects if isinstance(one, Batch) and one.replica == "b"]
        now += SECOND
        batcher.arrive(number, now)
        number += 1
        _, effects = batcher.answered("b", batcher.replicas["b"].batch, SECOND, 1, now)
        sent += [one.requests for one in effects if isinstance(one, Batch)]
        effects = []
    assert now == 10 * SECOND


def test_a_replica_that_is_overdue_is_not_counted_on() -> None:
    limits = Limits(objective=50 * MILLISECOND)
    refusals = []
    for hung in (False, True):
        batcher = busy(limits)
        batcher.up("b", 0, KNOWN)
        now = SECOND if hung else 0
        batcher.tick(now)
        if not hung:
            batcher.arrive(1, now)
        refusals.append(len([one for number in range(2, 400) for one in batcher.arrive(number, now)]))
    assert refusals[1] > 1.2 * refusals[0]


def test_a_replica_that_is_drained_is_sent_nothing_more() -> None:
    batcher = busy()
    batcher.arrive(1, 0)
    batcher.drain("a")
    told, effects = batcher.answered("a", 1, MILLISECOND, 1, MILLISECOND)
    assert (told, effects) == ([0], [])


def test_no_more_wait_than_the_queue_holds() -> None:
    batcher = busy(Limits(queue=3))
    assert [refused(batcher.arrive(number, 0)) for number in (1, 2, 3, 4)] == [[], [], [], [(4, "full")]]


class Story(RuleBasedStateMachine):
    """Requests and replicas come and go; every request is answered or refused once, and nobody is told twice."""

    @initialize(defer=st.booleans(), objective=st.sampled_from([0, 20 * MILLISECOND]), queue=st.sampled_from([5, 1000]))
    def begin(self, defer: bool, objective: int, queue: int) -> None:
        limits = Limits(objective=objective, timeout=SECOND, queue=queue, defer=defer, batch=8)
        self.batcher = Batcher(limits, ahead=10 * MILLISECOND)
        self.now = 0
        self.open: set[int] = set()
        self.out: dict[str, Batch] = {}
        self.next: dict[str, Batch] = {}  # sent ahead
        self.number = 0
        self.names = 0

    def take(self, effects: list[Effect]) -> None:
        for one in effects:
            if isinstance(one, Batch):
                to = self.next if one.ahead else self.out
                assert one.replica not in to, "a replica that is busy was sent a batch"
                assert not one.ahead or one.replica in self.out, "an idle replica gets nothing ahead"
                assert len(set(one.requests)) == len(one.requests) <= one.padded
                having = (*self.out.values(), *self.next.values())
                others = [number for batch in having for number in batch.requests]
                again = [number for number in one.requests if number in others]
                assert not again or len(one.requests) == 1, "what another holds is sent alone"
                assert all(others.count(number) == 1 for number in again), "three replicas were sent one request"
                to[one.replica] = one
            elif isinstance(one, Refuse):
                assert one.request in self.open, "a request was told twice"
                self.open.discard(one.request)
            else:
                self.out.pop(one.replica, None)
                self.next.pop(one.replica, None)
                self.take(self.batcher.down(one.replica, self.now, "hung"))

    @rule(
        deferred=st.booleans(),
        timeout=st.sampled_from([0, 50 * MILLISECOND]),
        count=st.integers(1, 9),
        suspect=st.sampled_from([False, False, True]),
    )
    def arrive(self, deferred: bool, timeout: int, count: int, suspect: bool) -> None:
        for _ in range(count):
            self.number += 1
            self.open.add(self.number)
            arrived = self.batcher.arrive(self.number, self.now, timeout=timeout, deferred=deferred, suspect=suspect)
            self.take(arrived)

    @rule(known=st.booleans())
    def up(self, known: bool) -> None:
        if len(self.batcher.replicas) < 4:
            self.names += 1
            self.take(self.batcher.up(f"r{self.names}", self.now, KNOWN if known else ()))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), how=st.sampled_from(["answered", "answered", "answered", "broke", "no_memory", "down"]))
    def end(self, data: Any, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.out)))
        batch = self.out.pop(name)
        ahead = self.next.pop(name, None)
        if ahead is not None and how != "down":
            self.out[name] = ahead
        if how == "answered":
            room = data.draw(st.integers(0, 20))
            took = 4 * MILLISECOND
            told, effects = self.batcher.answered(name, batch.number, took, batch.padded, self.now, room)
            for number in told:
                assert number in self.open, "a request was told twice"
                self.open.discard(number)
            self.take(effects)
        elif how == "down":
            self.take(self.batcher.down(name, self.now))
        else:
            self.take(getattr(self.batcher, how)(name, batch.number, "no", self.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.open.discard(number)
        self.batcher.cancel(number)

    @rule(passes=st.sampled_from([MILLISECOND, 10 * MILLISECOND, 400 * MILLISECOND]))
    def time_passes(self, passes: int) -> None:
        self.now += passes
        self.take(self.batcher.tick(self.now))

    @invariant()
    def everybody_is_somewhere(self) -> None:
        if not hasattr(self, "batcher"):
            return
        kept = self.batcher.waiting + self.batcher.serving
        assert kept >= len(self.open)
        if self.open and not self.batcher.serving and self.batcher.replicas:
            assert self.batcher.wakeup() is not None

    def teardown(self) -> None:
        """With a replica that answers, everybody is told in the end."""
        if not hasattr(self, "batcher"):
            return
        for name in list(self.out):
            del self.out[name]
            self.next.pop(name, None)
            self.take(self.batcher.down(name, self.now))
        self.take(self.batcher.up("last", self.now, KNOWN))
        for _ in range(5000):
            if not self.open:
                break
            self.now += MILLISECOND
            for name, batch in list(self.out.items()):
                del self.out[name]
                if name in self.next:
                    self.out[name] = self.next.pop(name)
                told, effects = self.batcher.answered(name, batch.number, MILLISECOND, batch.padded, self.now)
                self.open.difference_update(told)
                self.take(effects)
            self.take(self.batcher.tick(self.now))
        assert not self.open
        assert not self.batcher.waiting
        assert self.batcher.started(self.now) <= self.now, "nobody waits for a start any more"


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
