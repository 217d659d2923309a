"""Whether sessions are in use: recorded patterns, and what one of the four signals does."""

from random import Random

import pytest

from poise.kernel.idling import Idling, Signs, Verdict, notice, pause
from poise.model.messages import Attempt
from poise.units import HOUR, MINUTE, SECOND

DESK = Attempt("j1.main", 1)
LIMIT = 30 * MINUTE

QUIET = {"cpu": 5 * 1_000_000, "written": 900, "sent": 300}
"""A second of a notebook server with an open tab, and of a monitor that redraws itself: nobody is there."""


def seconds(signs: Signs, **more: int) -> Signs:
    return signs._replace(**{name: getattr(signs, name) + amount for name, amount in more.items()})


def watched(*, minutes: int, use: dict[int, dict[str, int]]) -> list[tuple[int, str]]:
    """The verdicts on a session, each with its minute; `use` has what happens in some minutes beside quiet work."""
    idling, signs, found = Idling(), Signs(), list[tuple[int, str]]()
    for second in range(0, minutes * 60, pause(LIMIT) // SECOND):
        now = second * SECOND
        every = pause(LIMIT) // SECOND
        signs = seconds(signs, **{name: amount * every for name, amount in QUIET.items()})
        if second % 60 == 0:
            signs = seconds(signs, **use.get(second // 60, {}))
        if what := idling.look(DESK, LIMIT, signs, now).what:
            found.append((second // 60, what))
    return found


def test_a_session_that_nobody_uses_gets_a_notice_and_is_due_at_its_limit() -> None:
    found = watched(minutes=32, use={})
    assert found[:3] == [(6, "idle"), (25, "notice"), (30, "due")]
    assert {what for _, what in found[2:]} == {"due"}, "it is repeated"


@pytest.mark.parametrize(
    "sign",
    [{"typed": 1}, {"sent": 60_000}, {"cpu": 3 * SECOND}, {"written": 200_000}, {"device": 500, "samples": 30}],
    ids=lambda sign: next(iter(sign)),
)
def test_each_signal_alone_is_use(sign: dict[str, int]) -> None:
    assert watched(minutes=50, use={26: sign}) == [(6, "idle"), (25, "notice"), (26, "used"), (32, "idle")]


def test_a_process_that_waits_for_a_disk_is_at_work() -> None:
    idling = Idling()
    for minute in range(60):
        assert idling.look(DESK, LIMIT, Signs(waits=True), minute * MINUTE) == Verdict()


def test_time_in_which_nobody_could_look_is_not_idle_time() -> None:
    idling, signs = Idling(), Signs()
    for second in range(0, 20 * 60, 30):
        idling.look(DESK, LIMIT, signs, second * SECOND)
    assert idling.look(DESK, LIMIT, signs, 9 * HOUR).what == "used"
    assert idling.look(DESK, LIMIT, signs, 9 * HOUR + 30 * SECOND) == Verdict()


def test_a_session_that_was_suspended_begins_anew() -> None:
    idling = Idling()
    for second in range(0, 31 * 60, 30):
        last = idling.look(DESK, LIMIT, Signs(), second * SECOND)
    assert last.what == "due"
    idling.begin_anew(DESK)
    assert idling.is_due(DESK, LIMIT, 31 * MINUTE)
    assert idling.look(DESK, LIMIT, Signs(), 31 * MINUTE) == Verdict()


@pytest.mark.parametrize("seed", range(4))
def test_no_busy_session_is_ever_due(seed: int) -> None:
    """200 patterns of people and programs: each does something at least every 20 minutes, of whatever kind."""
    for pattern in range(50):
        random = Random(f"{seed}/{pattern}")  # noqa: S311 — a test
        use, minute = {}, 0
        while minute < 150:
            kind = random.choice(["typed", "sent", "cpu", "written", "device"])
            amount = {"typed": 1, "sent": 40_000, "cpu": 2 * SECOND, "written": 150_000, "device": 2000}[kind]
            use[minute] = {kind: amount * random.randint(1, 50)} | ({"samples": 30} if kind == "device" else {})
            minute += random.randint(1, 20)
        assert "due" not in {what for _, what in watched(minutes=150, use=use)}


def test_short_limits_have_a_short_notice_and_long_ones_five_minutes() -> None:
    assert (notice(10 * SECOND), notice(8 * HOUR)) == (2 * SECOND, 5 * MINUTE)
    assert (pause(10 * SECOND), pause(8 * HOUR)) == (SECOND, 30 * SECOND)
