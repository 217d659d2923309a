"""Signals that are unusual for their own past."""

from poise.model.season import LATELY, WEEK, Ewma, unusual
from poise.model.usage import HOUR, MINUTE, SIGNALS, Window, profile_of

MONDAY = 345_600
"""The first Monday of 1970, in seconds."""


def hours(weeks: int, busy: int = 800) -> list[tuple[int, int]]:
    """Busy from 9 to 17 each day."""
    return [
        (MONDAY + week * WEEK + hour * HOUR, busy if 9 <= hour % 24 < 17 else 100)
        for week in range(weeks)
        for hour in range(168)
    ]


def minutes(at: int, value: int, count: int = LATELY) -> list[tuple[int, int]]:
    return [(at + number * MINUTE, value) for number in range(count)]


def test_what_is_usual_depends_on_the_hour_of_the_week() -> None:
    now = MONDAY + 4 * WEEK
    assert unusual(minutes(now + 10 * HOUR, 800), hours(4)) is None
    at_night = unusual(minutes(now + 3 * HOUR, 800), hours(4))
    assert at_night is not None
    assert (at_night.value, at_night.usual, at_night.by) == (800, 100, "hour of week")
    idle = unusual(minutes(now + 10 * HOUR, 100), hours(4))
    assert idle is not None
    assert idle.score < 0


def test_without_weeks_of_history_the_day_counts() -> None:
    day = [(MONDAY + number * MINUTE, 290 + number * 7919 % 21) for number in range(600)]
    assert unusual(day, []) is None
    found = unusual([*day, *minutes(day[-1][0] + MINUTE, 700)], [])
    assert found is not None
    assert (found.value, found.by, abs(found.usual - 300) <= 5) == (700, "day", True)
    assert unusual(minutes(MONDAY, 700), []) is None, "nothing is known"
    assert unusual([], []) is None


def test_one_far_value_hardly_moves_what_is_usual() -> None:
    learned = Ewma(floor=1.0)
    for _ in range(100):
        learned.take(300.0)
    assert learned.take(10_000.0) > 100
    assert learned.mean < 301


def test_a_profile_names_unusual_signals() -> None:
    def window(at: int, memory: int) -> Window:
        values = tuple(memory if name == "memory" else 100 for name in SIGNALS)
        return Window(at, values, values)

    now = MONDAY + 3 * WEEK
    past = [window(MONDAY + hour * HOUR, 300) for hour in range(3 * 168)]
    profile = profile_of("n1", [window(now + number * MINUTE, 900) for number in range(20)], past)
    assert list(profile.unusual) == ["memory"]
    assert (profile.unusual["memory"].value, profile.unusual["memory"].usual) == (900, 300)
