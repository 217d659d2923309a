"""The figures of a service for its last minutes."""

from math import exp, sin

import pytest

from poise.model.served import Served
from poise.units import MILLISECOND, MINUTE, SECOND
from poise_serve.lately import LONGEST, Lately


def test_a_quantile_is_that_of_the_latencies() -> None:
    lately = Lately(0)
    took = [int(exp(sin(number) * 4) * MILLISECOND) for number in range(2000)]
    for one in took:
        lately.answered(200, one, SECOND)
    of, took = lately.recent(MINUTE, 2 * SECOND), sorted(took)
    assert of.answered == 2000
    assert of.p50 == pytest.approx(took[999], rel=0.012)
    assert of.p95 == pytest.approx(took[1899], rel=0.012)
    assert of.p99 == pytest.approx(took[1979], rel=0.012)


def test_a_single_answer_is_every_quantile_and_none_is_none() -> None:
    lately = Lately(0)
    assert lately.recent(MINUTE, SECOND)[1:] == (0, 0, 0, 0, 0, 0, 0, {}, 0, 0.0, 0, 0)
    lately.answered(200, 10 * MILLISECOND, SECOND)
    of = lately.recent(MINUTE, SECOND)
    assert of.p50 == of.p95 == of.p99 == pytest.approx(10 * MILLISECOND, rel=0.012)


def test_what_is_older_than_the_window_is_not_counted() -> None:
    lately = Lately(0)
    for second in range(600):
        lately.answered(200, MILLISECOND, second * SECOND)
    now = 600 * SECOND
    for window in (SECOND, MINUTE, LONGEST, 2 * LONGEST):
        of = lately.recent(window, now)
        assert min(window, LONGEST) <= of.window < min(window, LONGEST) + 5 * SECOND
        assert of.answered == of.window // SECOND, "one in each second that it covers"


def test_the_mean_wait_is_that_of_requests_and_not_of_batches() -> None:
    lately = Lately(0)
    lately.sent(1, 10 * MILLISECOND, SECOND)
    lately.sent(3, 6 * MILLISECOND, 20 * SECOND)
    assert lately.recent(MINUTE, 20 * SECOND).wait_mean == 4 * MILLISECOND
    assert lately.recent(5 * SECOND, 20 * SECOND).wait_mean == 2 * MILLISECOND


def test_an_idle_time_counts() -> None:
    lately = Lately(0)
    lately.answered(200, MILLISECOND, 0)
    for _ in range(60):
        lately.answered(200, MILLISECOND, 200 * SECOND)
    of = lately.recent(MINUTE, 200 * SECOND)
    assert (of.answered, of.window) == (60, MINUTE)
    assert lately.recent(MINUTE, 300 * SECOND).answered == 0


def test_patient_requests_and_errors_and_refusals_are_told_apart() -> None:
    lately = Lately(0)
    lately.answered(200, SECOND, 0, patient=True)
    lately.answered(500, MILLISECOND, 0)
    lately.answered(422, MILLISECOND, 0)
    lately.cached(0)
    for why in ("late", "full", "late"):
        lately.refused(why, 0)
    for size in (1, 3):
        lately.batch(size, 0)
    of = lately.recent(MINUTE, SECOND)
    assert (of.answered, of.failed, of.faulty, of.cached) == (3, 2, 1, 1)
    assert of.refused == {"full": 1, "late": 2}
    assert of.p99 < 2 * MILLISECOND, "nobody promised the patient one anything"
    assert (of.batches, of.batch_mean, of.batch_max) == (2, 2.0, 3)


def test_the_state_for_the_control_plane_leaves_out_what_clients_cancelled() -> None:
    lately = Lately(0)
    for _ in range(90):
        lately.answered(200, 250 * MILLISECOND, SECOND)
    for why, count in (("full", 15), ("cancelled", 60)):
        for _ in range(count):
            lately.refused(why, SECOND)
    for _ in range(15):
        lately.cached(SECOND)
    told = lately.recent(MINUTE, 30 * SECOND).served(objective=300 * MILLISECOND, waiting=4, ready=2, wanted=3)
    assert (told.rate, told.refused, told.waiting, told.ready, told.wanted) == (4000, 125, 4, 2, 3)
    assert told.p99 == pytest.approx(250 * MILLISECOND, rel=0.02)
    assert Lately(0).recent(MINUTE, SECOND).served(objective=0, waiting=0, ready=1, wanted=1) == Served(
        ready=1, wanted=1
    )
