"""What adding up takes, a step with it, how it is fitted, and what is advised."""

from itertools import product

import pytest

from poise_train.policy.advise import Candidate, Seen, advise
from poise_train.policy.communication import (
    Cost,
    Costs,
    Link,
    Message,
    Pattern,
    Timing,
    Way,
    Work,
    exposed,
    fitted,
    fitted_link,
    given_out,
    seconds,
    speedups,
    step_seconds,
)

MB = 1_000_000
LINK = Link(*2 * [Way(start=0.0, latency=0.001, byte=1e-8)])
"""A hundred megabytes a second."""

PATTERNS: tuple[Pattern, ...] = ("reduce", "gather")


def test_a_ring_of_four_gives_out_one_and_a_half_times_the_bytes_in_six_rounds() -> None:
    assert given_out("reduce", 4 * MB, 4) == 6 * MB
    assert seconds("reduce", 4 * MB, 4, LINK) == pytest.approx(6 * 0.001 + 0.06)
    assert seconds("gather", 1 * MB, 4, LINK) == pytest.approx(3 * 0.001 + 0.03)
    assert seconds("reduce", 4 * MB, 1, LINK) == 0.0


def test_costs_are_found_again_and_foresee_what_was_not_measured() -> None:
    true = Costs(
        reduce=Cost(start=2e-4, latency=5e-5, wire=1.05, handling=2e-9),
        gather=Cost(start=0.0, latency=9e-5, wire=1.2, handling=1e-9),
    )
    timings = [
        Timing(pattern, size, workers, rate, seconds(pattern, size, workers, true.on(rate)))
        for pattern, size, workers, rate in product(PATTERNS, (10_000, MB), (2, 4), (1e7, 1e8))
    ]
    found = fitted(timings)
    assert [*found.reduce, *found.gather] == pytest.approx([*true.reduce, *true.gather], rel=1e-6)
    assert fitted([*timings]) == found  # to the bit
    assert seconds("reduce", 300_000, 8, found.on(5e7)) == pytest.approx(
        seconds("reduce", 300_000, 8, true.on(5e7)), rel=1e-6
    )


def test_no_cost_is_below_zero_whatever_was_measured() -> None:
    timings = [Timing("reduce", size, 2, 1.0, took) for size, took in ((1000, 0.5), (10_000, 0.1), (100_000, 0.4))]
    link = fitted_link(timings)
    assert min(link.reduce) >= 0.0 and max(link.reduce) > 0.0
    assert link.gather == link.reduce, "nothing else is known of it"


def test_what_is_sent_during_backward_costs_only_what_is_left_at_its_end() -> None:
    early, late = Message(0.1, MB), Message(0.9, MB)
    one = seconds("reduce", MB, 2, LINK)
    assert exposed([early], 1.0, 2, LINK) == 0.0
    assert exposed([early, late], 1.0, 2, LINK) == 0.0
    assert exposed([Message(1.0, MB)], 1.0, 2, LINK) == pytest.approx(one)
    assert exposed([Message(1.0, MB)] * 3, 1.0, 2, LINK) == pytest.approx(3 * one)


def test_more_workers_help_as_long_as_the_link_keeps_up() -> None:
    work = Work(samples=64, compute=1.0, ends=0.9, messages=(Message(0.5, 20 * MB), Message(0.9, 20 * MB)))
    told = speedups(work, 64, 4, together=Link(*2 * [Way(0.0, 0.0, 1e-11)]), apart=LINK)
    assert told.together[0] == told.apart[0] == 1000
    assert told.together[3] == pytest.approx(1000 / (0.9 / 4 + 0.1), rel=0.01)  # the optimizer's step is not shared out
    assert all(near >= far for near, far in zip(told.together, told.apart, strict=True))
    assert told.apart[3] < 2000
    assert step_seconds(work, 1.0, 1, LINK) == pytest.approx(1.0)
    assert len(speedups(work, 2, 8, LINK, LINK).apart) == 2  # there are no more samples to share out


def candidates(size: int) -> list[Candidate]:
    """Plain; half as large; a hundredth, which takes 0.05 s to make and 0.05 s to read."""
    return [
        Candidate("plain", (Message(0.5, size), Message(0.9, size)), (0.0, 0.0)),
        Candidate("fp16", (Message(0.5, size // 2), Message(0.9, size // 2)), (0.001, 0.001)),
        Candidate("topk", (Message(0.5, size // 100), Message(0.9, size // 100)), (0.025, 0.025), (), 0.05),
    ]


def seen(size: int, hidden: bool = True) -> Seen:
    messages = candidates(size)[0].during
    waits = exposed(messages, 0.9, 2, LINK) if hidden else sum(seconds("reduce", one.size, 2, LINK) for one in messages)
    return Seen(workers=2, compute=1.0, ends=0.9, plain=1.0 + waits, link=LINK)


@pytest.mark.parametrize(("size", "choice"), [(MB // 10, "plain"), (15 * MB, "fp16"), (100 * MB, "topk")])
def test_the_slower_the_link_for_what_is_sent_the_more_is_squeezed(size: int, choice: str) -> None:
    advice = advise(seen(size), candidates(size))
    assert advice.choice == choice
    assert advice.overlap == 1.0
    took = {one.name: one.seconds for one in advice.alternatives}
    assert took["plain"] == pytest.approx(seen(size).plain)
    assert took[choice] <= 1.05 * min(took[name] for name in ("plain", "fp16", "topk"))
    assert sorted(took.values()) == [one.seconds for one in advice.alternatives]


def test_what_changes_the_training_is_told_and_never_chosen() -> None:
    advice = advise(seen(100 * MB), candidates(100 * MB))
    changing = {one.name for one in advice.alternatives if one.changes}
    assert {"local 4", "local 16", "accumulation 2", "accumulation 4"} == changing
    assert advice.choice not in changing


def test_an_overlap_that_was_not_there_is_not_counted_on() -> None:
    hidden, open_ = (advise(seen(15 * MB, hidden=here), candidates(15 * MB)) for here in (True, False))
    assert hidden.overlap == 1.0
    assert open_.overlap == pytest.approx(0.0, abs=1e-9)
    later = {one.name: one.seconds for one in open_.alternatives}
    assert all(later[one.name] >= one.seconds - 1e-12 for one in hidden.alternatives)
