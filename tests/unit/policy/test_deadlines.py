"""Schedules of work with deadlines, worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from poise.policy.deadlines import ONE_POOL, Owed, latest_starts, met


def owed(
    name: str,
    left: int,
    due: int,
    width: int = 1,
    worth: float = 1.0,
    margin: int = 0,
    factors: tuple[float, ...] = ONE_POOL,
) -> Owed:
    return Owed(unit=name, due=due, left=left, width=width, worth=worth, margin=margin, factors=factors)


def names(kept: list[Owed]) -> list[str]:
    return [one.unit for one in kept]


def test_moore_and_hodgson_on_one_machine() -> None:
    """By due date: a 0-4, b 4-5, c would end at 11 and is due at 9, so the longest of a, b, c goes: c. d 5-8, e 8-14,
    f 14-22, g would end at 29 and is due at 28: the longest of all so far goes, f. g 14-21, h 21-31.
    """
    jobs = [
        owed("h", 10, 35), owed("e", 6, 20), owed("d", 3, 11), owed("b", 1, 8), owed("a", 4, 6), owed("f", 8, 25),
        owed("g", 7, 28), owed("c", 6, 9),
    ]  # fmt: skip
    assert names(met(jobs, pools=[1], now=0)) == ["a", "b", "d", "e", "g", "h"]


def test_what_is_late_anyway_is_given_up_first() -> None:
    """It would be the shortest of all."""
    assert names(met([owed("hopeless", 2, 1), owed("long", 90, 100)], pools=[1], now=0)) == ["long"]


def test_two_of_three_on_two_machines() -> None:
    """Each takes 10 and is due at 14; only two can run at once. The device time is 30 of 28."""
    assert len(met([owed(name, 10, 14) for name in "abc"], pools=[2], now=0)) == 2


def test_a_gang_waits_for_all_of_its_devices() -> None:
    """a 0-4 on one of two; the gang b has to wait for it and ends at 9. It is due at 8, and takes 10 of device time
    where a takes 4: a is kept.
    """
    assert names(met([owed("a", 4, 5), owed("b", 5, 8, width=2)], pools=[2], now=0)) == ["a"]
    assert names(met([owed("a", 4, 5), owed("b", 5, 9, width=2)], pools=[2], now=0)) == ["a", "b"]


def test_what_is_worth_more_is_kept() -> None:
    jobs = [owed("short", 3, 5), owed("dear", 4, 6, worth=8.0)]
    assert names(met(jobs, pools=[1], now=0)) == ["dear"]


def test_devices_that_are_taken_come_later() -> None:
    assert names(met([owed("a", 4, 5)], pools=[1], now=0, taken=[(1, 1, 0)])) == ["a"]
    assert names(met([owed("a", 4, 5)], pools=[1], now=0, taken=[(2, 1, 0)])) == []


def test_unequal_devices_meet_fewer_deadlines_than_as_many_fast_ones() -> None:
    """A fast and a slow device, where both take four times as long. a 0-6 on the fast one; b would end at 13 there, and
    at 28 on the slow one, and is due at 8. b takes more device time: a is kept. If b is due at 13, both are.
    """
    factors = (1.0, 4.0)
    assert names(met([owed("a", 6, 7), owed("b", 7, 8)], pools=[2], now=0)) == ["a", "b"]
    assert names(met([owed("a", 6, 7, factors=factors), owed("b", 7, 8, factors=factors)], pools=[1, 1], now=0)) == [
        "a"
    ]
    assert names(met([owed("a", 6, 7, factors=factors), owed("b", 7, 13, factors=factors)], pools=[1, 1], now=0)) == [
        "a",
        "b",
    ]


def test_work_is_not_kept_where_it_cannot_run() -> None:
    """a takes two of the slow devices, and there is only one of them."""
    assert met([owed("a", 6, 70, width=2, factors=(0.0, 4.0))], pools=[2, 1], now=0) == []
    assert names(met([owed("a", 6, 70, width=2, factors=(0.0, 4.0))], pools=[2, 2], now=0)) == ["a"]


def test_each_starts_on_the_devices_where_it_can_start_last() -> None:
    """c 18-20 on the fast device. b 16-18 there, and not 12-20 on the slow one. a 14-16 there, or, if it is not much
    slower on the slow device, 17-20 there.
    """
    kept = [owed("b", 2, 20, factors=(1.0, 4.0)), owed("c", 2, 20, factors=(1.0, 4.0))]
    assert latest_starts([*kept, owed("a", 2, 20, factors=(1.0, 4.0))], pools=[1, 1]) == {"c": 18, "b": 16, "a": 14}
    assert latest_starts([*kept, owed("a", 2, 20, factors=(1.0, 1.5))], pools=[1, 1]) == {"c": 18, "b": 16, "a": 17}


def test_each_starts_as_late_as_is_safe() -> None:
    """One device: c 7-10, b 4-7 (it could end at 9, and c needs the device at 7), a 1-3."""
    kept = [owed("a", 2, 3), owed("b", 3, 9), owed("c", 3, 10)]
    assert latest_starts(kept, pools=[1]) == {"c": 7, "b": 4, "a": 1}


def test_on_two_devices_both_end_at_their_deadline() -> None:
    assert latest_starts([owed("b", 3, 9), owed("c", 3, 10)], pools=[2]) == {"c": 7, "b": 6}


def test_a_gang_ends_before_the_first_of_its_devices_is_needed() -> None:
    """c 7-10 on one of two, the gang b has both until 7: 4-7."""
    assert latest_starts([owed("b", 3, 9, width=2), owed("c", 3, 10)], pools=[2]) == {"c": 7, "b": 4}


def test_a_margin_moves_the_start_and_what_comes_before_it() -> None:
    kept = [owed("a", 2, 8), owed("b", 3, 10, margin=2)]
    assert latest_starts(kept, pools=[1]) == {"b": 5, "a": 3}


def test_running_work_is_waited_for_where_that_is_early_enough() -> None:
    """One device, where `runs` ends at 5. b follows it, 6-9, so it may end at 6 at the latest."""
    kept = [owed("runs", 5, 20), owed("b", 3, 9)]
    assert latest_starts(kept, pools=[1], running={"runs": 0}) == {"runs": 1, "b": 6}


def test_running_work_that_ends_too_late_keeps_its_own_deadline() -> None:
    """a would have to start at 4, before `runs` ends at 5: one of them has to give way, which is decided elsewhere."""
    kept = [owed("runs", 5, 20), owed("a", 3, 7)]
    assert latest_starts(kept, pools=[1], running={"runs": 0}) == {"runs": 15, "a": 4}


def test_a_gang_waits_for_running_work_beside_free_devices() -> None:
    """Two devices. The gang c has both, 7-10; b starts on the free one, 4-7, and does not wait for `runs`."""
    kept = [owed("runs", 5, 20), owed("b", 3, 9), owed("c", 3, 10, width=2)]
    assert latest_starts(kept, pools=[2], running={"runs": 0}) == {"runs": 2, "b": 4, "c": 7}


jobs = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 60), st.integers(1, 3)).map(lambda of: of), min_size=1, max_size=7
)


@given(jobs, st.integers(3, 5))
def test_those_that_start_in_time_are_on_time(drawn: list[tuple[int, int, int]], devices: int) -> None:
    """Whoever starts at the latest start holds its devices until its deadline at most; there are enough."""
    kept = met([owed(f"u{number}", *of) for number, of in enumerate(drawn)], [devices], now=0)
    starts = latest_starts(kept, [devices])
    assert all(starts[one.unit] + one.left <= one.due for one in kept)
    for instant in {starts[one.unit] for one in kept}:
        assert sum(one.width for one in kept if starts[one.unit] <= instant < starts[one.unit] + one.left) <= devices


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=8))
def test_on_one_machine_no_choice_meets_more(drawn: list[tuple[int, int]]) -> None:
    all_of_them = [owed(f"u{number}", *of) for number, of in enumerate(drawn)]
    most = 0
    for chosen in range(1 << len(all_of_them)):
        some = sorted((one for n, one in enumerate(all_of_them) if chosen >> n & 1), key=lambda one: one.due)
        now, good = 0, True
        for one in some:
            now += one.left
            good = good and now <= one.due
        most = max(most, len(some)) if good else most
    assert len(met(all_of_them, pools=[1], now=0)) == most
