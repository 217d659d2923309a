"""A service's replicas follow its load, and why is told."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from poise.model.scaling import Announced, ScaleRules, after
from poise.model.serving import Limits
from poise.policy.replicas import DEFAULT_SCALER, SCALERS
from poise.units import DAY, MILLISECOND, MINUTE, SECOND
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.scaler import Scaler
from poise_serve.service import Service
from poise_serve.service_metrics import Registry, ServiceMetrics
from poise_serve.wire import Answer

WINDOW = 10 * SECOND


class Followed:
    """A service whose replicas take 100 requests a second, followed from window to window."""

    def __init__(self, rules: ScaleRules, there: int = 0, announced: Sequence[Announced] = ()) -> None:
        metrics = ServiceMetrics(Registry(CollectorRegistry()), "digits")
        self.service = Service("digits", Limits(batch=1), Path("unused"), metrics)
        self.said: list[str] = []
        self.now = SECOND
        policy = SCALERS[DEFAULT_SCALER]
        self.scaler = Scaler(self.service, rules, WINDOW, policy, self.said.append, self.now, there, announced)
        self.there = 0

    def passes(self, rate: float, windows: int = 1) -> int:
        for _ in range(windows):
            while self.there < self.scaler.wanted:
                self.there += 1
                self.service.batcher.up(f"j{self.there}.main", self.now, [(1, 10.0 * MILLISECOND)])
            while self.there > self.scaler.wanted:
                self.service.batcher.down(f"j{self.there}.main", self.now)
                self.there -= 1
            self.now += WINDOW
            self.service.seen.asked += int(rate * WINDOW / SECOND)
            self.scaler.look(self.now, SECOND)
        return self.scaler.wanted


def test_replicas_are_there_before_what_is_announced() -> None:
    """A replica starts in a second, and takes 100 requests a second: 400 at 70 % are more than five take."""
    begins = 2 * MINUTE
    followed = Followed(ScaleRules(least=1, most=8), announced=[Announced(begins, 400, begins + MINUTE)])
    wanted = {}
    while followed.now < begins + 10 * MINUTE:
        wanted[followed.now] = followed.passes(10)
    before = [number for at, number in wanted.items() if at < begins - 2 * WINDOW]
    assert set(before) == {1}
    assert max(number for at, number in wanted.items() if at <= begins) == 6
    assert any("400 requests/s are announced" in line for line in followed.said)
    assert wanted[max(wanted)] == 1, "and gone after it"


def test_replicas_follow_the_load_up_at_once_and_down_later() -> None:
    followed = Followed(ScaleRules(least=1, most=8, fall=MINUTE))
    assert followed.passes(40, 6) == 1
    assert followed.passes(400, 2) >= 6
    assert followed.passes(40, 3) >= 6, "more were needed within the last minute"
    followed.passes(40, 60 * 3)
    assert followed.scaler.wanted <= 2
    assert followed.said[0].startswith("digits: from 1 to ")
    assert "requests/s" in followed.said[0]


@pytest.mark.parametrize("least", [0, 1])
def test_the_last_goes_only_where_there_may_be_none_and_comes_back_as_soon_as_somebody_waits(least: int) -> None:
    followed = Followed(ScaleRules(least=least, most=4, fall=MINUTE, idle=MINUTE))
    followed.passes(10, 2)
    assert followed.passes(0, 30) == least
    if not least:
        followed.passes(0)
        assert followed.there == 0
        followed.service.batcher.arrive(1, followed.now)
        assert followed.scaler.look(followed.now + MILLISECOND, SECOND) == 1
        assert "something waits and nothing serves" in followed.said[-1]


def test_replicas_are_there_before_an_event_that_multiplies_the_load() -> None:
    """50 requests a second, and four times as many for two minutes: the scaler knows it before, and after it too."""
    begins, began = 3 * MINUTE + SECOND, 20_000 * DAY
    event = Announced(began + begins, 0.0, began + begins + 2 * MINUTE, 4.0, 0, "launch")
    followed = Followed(ScaleRules(least=1, most=8, fall=MINUTE), announced=after([event], began))
    wanted, foreseen = {}, {}
    while followed.now < begins + 6 * MINUTE:
        wanted[followed.now] = followed.passes(200 if begins <= followed.now < begins + 2 * MINUTE else 50)
        outlook = followed.scaler.outlook
        foreseen[followed.now] = outlook.rate if outlook is not None else 0.0
    assert foreseen[begins - WINDOW] == pytest.approx(50, rel=0.1)
    assert foreseen[begins] == pytest.approx(200, rel=0.1), "the next window is the first of the event"
    assert foreseen[begins + MINUTE] == pytest.approx(200, rel=0.1), "not four times what has come"
    assert wanted[begins - WINDOW] == 3 > wanted[begins - 3 * WINDOW]
    assert wanted[begins + 6 * MINUTE] == wanted[begins - 3 * WINDOW]
    assert any("200 requests/s are announced in 10.0 s" in line for line in followed.said), followed.said


def test_the_forecast_of_the_next_window_is_told() -> None:
    followed = Followed(ScaleRules(least=1, most=8))
    assert followed.scaler.outlook is None
    followed.passes(40, 8)
    outlook = followed.scaler.outlook
    assert outlook is not None
    assert outlook.rate == pytest.approx(40, rel=0.05)
    assert 0 < outlook.spread < 20


def test_between_windows_nothing_changes() -> None:
    followed = Followed(ScaleRules(least=1, most=8))
    followed.service.seen.asked += 10_000
    assert followed.scaler.look(followed.now + WINDOW // 2, SECOND) == 1


def test_an_objective_that_is_missed_is_seen_within_a_second_and_told() -> None:
    rules = ScaleRules(signals=("latency",), least=1, most=2, latency_p99=100 * MILLISECOND, shared=True)
    followed = Followed(rules)
    followed.passes(10)
    followed.service._channels["j1.main"] = Mock()  # it serves
    assert followed.scaler.why == ""
    seen = followed.service.seen
    seen.asked, seen.took, seen.refused = 40, [50 * MILLISECOND] * 39 + [150 * MILLISECOND], 4
    assert followed.scaler.look(followed.now + SECOND, SECOND) == 1, "one request decides nothing"
    seen.took[0] = 150 * MILLISECOND
    assert followed.scaler.look(followed.now + SECOND // 2, SECOND) == 1
    assert followed.scaler.look(followed.now + SECOND, SECOND) == 2
    assert followed.scaler.why == "P99 is 150 ms with 10% of the requests refused, the objective is 100 ms"


def test_what_may_be_late_is_in_no_danger() -> None:
    async def asked() -> tuple[int, int]:
        service = Followed(ScaleRules(least=1, most=2, latency_p99=100 * MILLISECOND)).service
        service._channels["j1.main"] = Mock()
        service.batcher.up("j1.main", 0)
        told: list[Answer | Refuse] = []
        for deferred in (True, False):
            service.ask(b"1", told.append, timeout=MILLISECOND, deferred=deferred)
        await service.drained()
        return service.seen.refused, len(service.seen.took)

    assert asyncio.run(asked()) == (1, 1)


def test_a_request_that_waits_for_a_start_is_in_no_danger_either_whatever_becomes_of_it() -> None:
    async def asked() -> tuple[int, int]:
        service = Followed(ScaleRules(least=0, most=2, latency_p99=100 * MILLISECOND)).service
        told: list[Answer | Refuse] = []
        service.ask(b"1", told.append, timeout=MILLISECOND)
        await service.drained()
        return service.seen.refused, len(service.seen.took)

    assert asyncio.run(asked()) == (0, 0)


def test_latencies_that_are_too_few_to_be_judged_are_kept_until_there_are_enough() -> None:
    rules = ScaleRules(signals=("latency",), least=1, most=9, latency_p99=100 * MILLISECOND)
    followed = Followed(rules)
    followed.service._channels["j1.main"] = Mock()
    wanted = []
    for _ in range(4):
        followed.service.seen.took += [200 * MILLISECOND] * 6
        wanted.append(followed.passes(0.6))
    assert wanted == [1, 1, 1, 2]


def test_replicas_of_a_gateway_that_was_killed_stay_until_fewer_have_been_enough_for_long() -> None:
    followed = Followed(ScaleRules(least=1, most=4, fall=MINUTE), there=3)
    assert followed.passes(10, 5) == 3
    assert followed.passes(10, 2) == 1
    assert Followed(ScaleRules(least=1, most=2), there=3).scaler.wanted == 2
