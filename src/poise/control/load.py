"""Forecasts of the load of a home, from its log: submissions by tenant, class or priority, requests by service."""

from collections.abc import Iterable, Sequence
from math import floor, isnan

from poise.engine.futures import scheduled
from poise.kernel.ledger import Ledger
from poise.kernel.loads import Loads, loads_of
from poise.model.calendar import CalendarEvent, concerning
from poise.model.reports.services import LoadAccuracy, LoadForecast, LoadWindow
from poise.model.scaling import Announced, days_in, times_in
from poise.policy.load import LEVEL, Band, LoadForecaster
from poise.units import SECOND

MAX_TURNS = 10_000
"""Maximum number of turns of one schedule that a forecast counts."""


def load_forecasts(
    loads: Loads,
    now: int,
    window: int,
    horizon: int,
    by: str,
    counted: str,
    names: Iterable[str] = (),
    events: Sequence[CalendarEvent] = (),
) -> list[LoadForecast]:
    """Forecast the load of the named subjects, or of all, the largest first. `window` in nanoseconds; `horizon` is the
    number of windows. `events` are those of a calendar.
    """
    coming = _announced(loads.ledger, now, window, horizon, by, counted) if by != "service" else {}
    for subject, windows in loads.announced.items():
        for number, amount in windows.items():
            if number >= loads.window_of(now):
                of = coming.setdefault(subject, {})
                of[number] = of.get(number, 0.0) + amount
    wanted = list(names) or list(dict.fromkeys([*loads.subjects(), *coming]))
    first = loads.window_of(now)
    return [
        forecast_of(
            subject,
            counted,
            loads.series(subject, now),
            window,
            horizon,
            first,
            coming.get(subject, {}),
            concerning(events, by, subject),
        )
        for subject in wanted
    ]


def forecast_of(
    subject: str,
    counted: str,
    series: list[tuple[int, float]],
    window: int,
    horizon: int,
    first: int,
    announced: dict[int, float],
    events: Sequence[Announced] = (),
) -> LoadForecast:
    """Forecast one series from window number `first` on. What is announced is added to what is expected. Events of a
    calendar change what is expected, and are taken out of the past that is learned from.
    """
    forecaster = LoadForecaster(window, horizon)
    for at, value in series:
        forecaster.learn(at, value / (times_in(events, at, at + window) or 1.0))
    bands = forecaster.ahead() or [Band(0.0, 0.0, 0.0, known=False)] * horizon
    windows = []
    for distance, band in enumerate(bands, start=1):
        number = first + distance - 1
        extra, begins = announced.get(number, 0.0), number * window
        band, names = _with_events(forecaster, band, distance, events, begins, begins + window)
        low, high = (band.low + extra, band.high + extra) if band.known else (None, None)
        windows.append(
            LoadWindow(
                at=begins / SECOND,
                expected=band.expected + extra,
                low=low,
                high=high,
                announced=extra,
                events=names,
            )
        )
    distances = dict.fromkeys((1, horizon))
    return LoadForecast(
        subject=subject,
        counted=counted,
        window=window / SECOND,
        seen=len(series),
        level=LEVEL,
        seasonal=forecaster.seasonal,
        windows=tuple(windows),
        accuracy=tuple(_accuracy(forecaster, distance, window) for distance in distances),
    )


def _with_events(
    forecaster: LoadForecaster, band: Band, distance: int, events: Sequence[Announced], since: int, until: int
) -> tuple[Band, tuple[str, ...]]:
    """Return the forecast of a window with the effect of its events, and their names."""
    there = [one for one in events if one.at < until and since < one.until]
    days, times = days_in(there, since, until), times_in(there, since, until)
    like = forecaster.as_on(distance, days) if days else float("nan")
    change = 0.0 if isnan(like) else like - band.expected
    expected, low, high = (max(0.0, value + change) * times for value in band[:3])
    rate = max((one.rate for one in there), default=0.0)
    made = Band(max(rate, expected), max(rate, low), max(rate, high), band.known)
    return made, tuple(dict.fromkeys(one.name or "event" for one in there))


def _accuracy(forecaster: LoadForecaster, distance: int, window: int) -> LoadAccuracy:
    found = forecaster.accuracy(distance)
    return LoadAccuracy(
        ahead=distance * window / SECOND,
        judged=found.judged,
        coverage=found.coverage,
        error=found.error,
        naive=found.naive,
        max_of_six=found.max_of_six,
    )


def _announced(
    ledger: Ledger, now: int, window: int, horizon: int, by: str, counted: str
) -> dict[str, dict[int, float]]:
    """Return the load of the coming turns of schedules, by subject and window."""
    found: dict[str, dict[int, float]] = {}
    end = now + window * horizon
    for one in scheduled(ledger, now):
        units, due = [unit.spec for unit in one.job.units], one.last
        for _ in range(MAX_TURNS):
            due += one.every
            if due > end:
                break
            for subject, at, amount in loads_of(one.job.tenant, units, due, by, counted):
                windows = found.setdefault(subject, {})
                number = floor(ledger.leader.wall(at) * SECOND) // window
                windows[number] = windows.get(number, 0.0) + amount
    return found


__all__ = ["forecast_of", "load_forecasts"]
