"""Whether a service meets its objective, and when a miss begins, lasts and ends."""

from collections.abc import Mapping, Sequence

import pytest

from poise.kernel.objectives import AGAIN, FEWEST, LONG, SHORT, Judge, Look, missed
from poise.model.reports.services import ServiceReport
from poise.units import MILLISECOND, SECOND


def report(
    p99: int = 100, *, answered: int = 1000, faulty: int = 0, failed: int = 0, refused: Mapping[str, int] | None = None
) -> ServiceReport:
    """Of a service whose objective is 200 ms."""
    return ServiceReport(
        service="digits", url="", window=SHORT, rate=1.0, answered=answered, failed=failed or faulty, faulty=faulty,
        cached=0, p50=MILLISECOND, p95=MILLISECOND, p99=p99 * MILLISECOND, objective=200 * MILLISECOND,
        refused=refused or {}, replicas=1, started=1, waiting=0, serving=0, batches=1, batch_mean=1.0, batch_max=1,
        jobs=("j1",),
    )  # fmt: skip


WELL, SLOW, IDLE = report(100), report(310), report(310, answered=FEWEST - 1)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (WELL, ""),
        (SLOW, "P99 310 ms, objective 200 ms"),
        (IDLE, None),
        (report(faulty=10), ""),
        (report(faulty=25), "2.5 % of 1000 requests got an error"),
        (report(failed=1000), ""),
        (report(answered=900, refused={"late": 60, "full": 40}), "10.0 % of 1000 requests got an error"),
        (report(refused={"cancelled": 1000}), ""),
        (report(310, answered=0, refused={"lost": 200}), "100.0 % of 200 requests got an error"),
        (report(310, refused={"late": 1000}), "P99 310 ms, objective 200 ms, 50.0 % of 2000 requests got an error"),
    ],
)
def test_slow_answers_and_errors_of_the_service_miss_it_and_mistakes_of_clients_do_not(
    of: ServiceReport, told: str | None
) -> None:
    assert missed(of) == told


def told(made: Judge, looks: Sequence[Look], now: int = 0, *, all_answered: bool = True) -> list[tuple[str, bool]]:
    taken = made.take(looks, now, all_answered=all_answered)
    return [(one.text.removeprefix("service "), one.over) for one in taken]


def look(short: ServiceReport, long: ServiceReport, service: str = "digits") -> list[Look]:
    return [Look(service, short, long)]


MISSES = [("digits misses its objective: P99 310 ms, objective 200 ms", False)]


def test_a_miss_begins_when_it_matters_and_still_lasts_and_ends_when_all_of_it_is_past() -> None:
    made = Judge((), 0)
    assert told(made, look(SLOW, WELL)) == [], "a moment"
    assert told(made, look(WELL, SLOW)) == [], "that is past"
    assert told(made, look(SLOW, SLOW)) == MISSES
    assert told(made, look(SLOW, SLOW)) == []
    assert told(made, look(WELL, SLOW)) == []
    assert told(made, look(WELL, WELL)) == [("digits meets its objective", True)]
    assert told(made, look(WELL, WELL)) == []


def test_few_requests_in_a_minute_are_judged_by_five_minutes_and_too_few_are_not_judged() -> None:
    made = Judge((), 0)
    assert told(made, look(IDLE, IDLE)) == []
    assert told(made, look(IDLE, SLOW)) == MISSES
    assert told(made, look(IDLE, IDLE)) == [("digits had fewer than 100 requests in 5m0s", True)]


def test_a_miss_that_lasts_is_told_again_before_its_incident_is_stale() -> None:
    made = Judge((), 0)
    assert told(made, look(SLOW, SLOW), SECOND) == MISSES
    assert told(made, look(SLOW, SLOW), AGAIN) == []
    assert told(made, look(SLOW, SLOW), AGAIN + SECOND) == MISSES
    assert told(made, look(SLOW, SLOW), AGAIN + 2 * SECOND) == []


def test_a_service_of_several_gateways_misses_it_as_long_as_one_of_them_does() -> None:
    made = Judge((), 0)
    assert told(made, look(WELL, WELL) + look(SLOW, SLOW)) == MISSES
    assert told(made, look(SLOW, SLOW) + look(WELL, WELL)) == []
    assert told(made, look(WELL, WELL) + look(WELL, WELL)) == [("digits meets its objective", True)]


def test_a_service_that_has_ended_misses_nothing_unless_its_gateway_only_does_not_answer() -> None:
    made = Judge(["digits", "ann:words"], 0)
    assert told(made, look(SLOW, SLOW, "ann:words"), all_answered=False) == []
    assert told(made, look(SLOW, SLOW, "ann:words")) == [("digits is not served any more", True)]
    assert told(made, look(WELL, WELL, "ann:words")) == [("ann:words meets its objective", True)]


def test_the_long_window_is_what_gateways_keep() -> None:
    from poise_serve.lately import LONGEST

    assert SHORT < LONG <= LONGEST
