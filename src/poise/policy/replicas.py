"""Autoscaling of a service: each signal proposes a number of replicas, and the largest within the limits is chosen.

In five steps: learn from the windows that ended since; let each signal propose a number; take the largest proposal or
announcement; let recent proposals delay a rise or a fall; scale to zero when idle, and from zero when requests wait.
CPU, devices, latency and queue propose as Kubernetes' horizontal autoscaler does: replicas times value over target,
rounded up, with no change within the tolerance. The shipped scalers differ in what they propose for the rate.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import ceil

import msgspec

from poise.model.scaling import (
    Announced,
    Because,
    Learned,
    Outlook,
    Scale,
    ScaleMemory,
    ScaleView,
    Signal,
    Window,
    effects_in,
    times_in,
)
from poise.policy.foresight import at_rest, begin, decided, foresee, learn, without_events
from poise.policy.protocol import Policy
from poise.policy.sharing import weights
from poise.units import format_duration

ReplicaPolicy = Policy[ScaleView, Scale]
Wish = Callable[[ScaleView, ScaleMemory], Because | None]

RECENT = 6
"""Number of windows whose largest rate `max-of-six` takes."""

WEIGHT = 0.5
"""Weight of the newest rate in the moving mean of `ewma`: the cheapest at equal violations among 0.1, 0.3, 0.5 and
0.7."""

FURTHEST = 64
"""Maximum number of windows to forecast ahead while a replica starts."""

_EXACT = 1e-9  # tolerance for floating-point error in rounding up


class Scaler:
    """A scaler; `rate` proposes for the signal of that name. A `fixed` scaler ignores all other signals."""

    def __init__(self, name: str, rate: Wish, *, fixed: bool = False) -> None:
        self.name = name
        self._wishes: Mapping[Signal, Wish] = {**SIGNALS, "rate": rate}
        self._fixed = fixed

    def decide(self, view: ScaleView, /) -> Scale:
        memory = _remember(view)
        signals: tuple[Signal, ...] = ("rate",) if self._fixed else view.rules.signals
        said = [line for signal in signals if (line := self._wishes[signal](view, memory)) is not None]
        if not said:
            said = [Because(code="NOTHING_SEEN", wish=len(view.replicas))]
        lines = sorted([*said, *_announcements(view)], key=lambda line: -line.wish)
        wish, bounds = _bounded(view, lines[0].wish)
        if (shared := _shared(view, wish)) is not None:
            wish, bounds = shared.wish, (*bounds, shared)
        replicas, holds, until = _held(view, memory, wish)
        memory = msgspec.structs.replace(memory, wishes=_wishes(view, memory, wish))
        floor = max((_bounded(view, line.wish)[0] for line in lines if line.code == "ANNOUNCED"), default=0)
        replicas, emptied, empty_at = _emptied(view, memory, max(replicas, floor))
        if not replicas and memory.learned is not None:
            memory = msgspec.structs.replace(memory, learned=at_rest(memory.learned))
        instants = [at for at in (until, empty_at, *_announced_at(view)) if at is not None and at > view.now]
        return Scale(
            policy=self.name,
            replicas=replicas,
            because=(*lines, *bounds, *holds, *emptied),
            memory=_noted(view, memory, replicas),
            until=min(instants, default=None),
        )


def scaler_named(name: str) -> ReplicaPolicy:
    """Return the scaler of this name. Raises KeyError with the known names."""
    try:
        return SCALERS[name]
    except KeyError:
        raise KeyError(f"there is no scaler `{name}`; known: {', '.join(SCALERS)}") from None


# --- memory ----------------------------------------------------------------------------------------------------------


def _remember(view: ScaleView) -> ScaleMemory:
    """Return the memory updated with all windows that ended since the last view."""
    memory = view.memory
    for window in view.windows:
        if memory.seen is None or window.at > memory.seen:
            memory = _seen(view, memory, window)
    busy = view.now if view.waiting > 0 or memory.busy is None else memory.busy
    return msgspec.structs.replace(memory, busy=busy)


def _seen(view: ScaleView, memory: ScaleMemory, window: Window) -> ScaleMemory:
    rate, learned = window.rate, memory.learned
    return ScaleMemory(
        seen=window.at,
        busy=window.at if rate > 0 or window.queue > 0 else memory.busy,
        wishes=memory.wishes,
        recent=(*memory.recent, rate)[-RECENT:],
        level=memory.level + WEIGHT * (rate - memory.level) if memory.recent else rate,
        learned=begin(rate, view.rules)
        if learned is None
        else learn(learned, window.at, rate, view.rules, view.window, view.announced),
    )


def _noted(view: ScaleView, memory: ScaleMemory, replicas: int) -> ScaleMemory:
    """Record the forecast and the capacity of the chosen replicas, to be judged when that window has ended."""
    if memory.learned is None or memory.seen is None:
        return memory
    outlook = _outlook(view, memory.learned, memory.seen)
    if view.capacity > 0 or any(view.replicas):
        outlook = msgspec.structs.replace(outlook, enough=_can_take(view, replicas))
    return msgspec.structs.replace(memory, learned=decided(memory.learned, outlook))


def _wishes(view: ScaleView, memory: ScaleMemory, wish: int) -> tuple[tuple[int, int], ...]:
    """Return the recent wishes that can still delay a change, and the newest. An earlier wish for the same number is
    left out.
    """
    since = view.now - max(view.rules.rise, view.rules.fall)
    kept = tuple(one for one in memory.wishes if one[0] > since and one[1] != wish)
    return (*kept, (view.now, wish))


# --- limits and delays -----------------------------------------------------------------------------------------------


def _bounded(view: ScaleView, wish: int) -> tuple[int, tuple[Because, ...]]:
    """Limit a wish to the least and most replicas; only idleness ends the last one of a service that may have none."""
    least, most = max(1, view.rules.least), view.rules.most
    if wish > most:
        return most, (Because(code="MOST", wish=most, have=str(wish)),)
    if wish < least:
        why = Because(code="LEAST", wish=least) if view.rules.least else None
        return least, () if why is None else (why,)
    return wish, ()


def _shared(view: ScaleView, wish: int) -> Because | None:
    """Return the limit where devices are shared with training: the weighted part of the service's range, or as many
    replicas as the load needs if that is more. Replicas that give the load its target headroom stay, or they would
    return at once. A missed objective comes first.
    """
    last, rules = _last(view), view.rules
    if not rules.shared or last is None:
        return None
    _, seen, objective = _used_up(view) or ("", 0, 1)
    if seen > objective:
        return None
    weight = weights(last.devices, seen / objective).service
    least = max(1, rules.least)
    stay = min(len(view.replicas), _enough(view, last.rate / rules.target) or 0)
    comes = min(rules.most, max(stay, _enough(view, last.rate) or 0))
    number = max(least + int(weight * (rules.most - least) + 0.5), comes)
    return Because(code="SHARED", wish=number, have=f"{weight:.0%}") if number < wish else None


def _held(view: ScaleView, memory: ScaleMemory, wish: int) -> tuple[int, tuple[Because, ...], int | None]:
    """Limit a rise to the least wish of the last `rise`, and a fall to the largest of the last `fall`; return also the
    instant at which that changes. As Kubernetes' stabilization windows, by time and not by number of calls.
    """
    now, rules, there = view.now, view.rules, len(view.replicas)
    if wish > there:
        late, held = rules.rise, min([wish, *(one for at, one in memory.wishes if now - at < rules.rise)])
        code, number = "RISES_LATER", max(there, held)
    else:
        late, held = rules.fall, max([wish, *(one for at, one in memory.wishes if now - at < rules.fall)])
        code, number = "FALLS_LATER", min(there, held)
    if number == wish:
        return wish, (), None
    until = max(at for at, one in memory.wishes if one == held) + late
    return number, (Because(code=code, wish=number, have=str(wish), need=format_duration(late)),), until


def _emptied(view: ScaleView, memory: ScaleMemory, replicas: int) -> tuple[int, tuple[Because, ...], int | None]:
    """Scale to zero when idle, and from zero as soon as requests wait; return also the instant at which it becomes
    idle.
    """
    if view.rules.least > 0 or memory.busy is None:
        return replicas, (), None
    idle = format_duration(view.rules.idle)
    if not view.replicas and view.waiting > 0:
        return replicas, (Because(code="COLD_START", wish=replicas),), None
    if view.now - memory.busy < view.rules.idle:
        ends = memory.busy + view.rules.idle
        return replicas, (Because(code="NOT_IDLE", wish=replicas, need=idle),) if replicas == 1 else (), ends
    if _announcements(view):
        return replicas, (), None
    return 0, (Because(code="IDLE", wish=0, have=idle),), None


def _announcements(view: ScaleView) -> list[Because]:
    """Return the announcements that begin before a replica started at the next window's end would be ready, or are
    active.
    """
    found = []
    for at, one in zip(_announced_at(view), view.announced, strict=True):
        rate = _announced_rate(view, one)
        wish = _enough(view, rate / view.rules.target)
        if rate and at <= view.now < one.until and wish is not None:
            begins = f"in {format_duration(one.at - view.now)}" if one.at > view.now else "now"
            found.append(Because(code="ANNOUNCED", wish=wish, have=f"{rate:.4g}", need=begins))
    return found


def _announced_rate(view: ScaleView, one: Announced) -> float:
    """Return the rate for which to prepare. Once an event that multiplies the load has begun, the forecast knows it.
    Before, the last rate counts without its events, and with those of the time when this one begins.
    """
    learned, ended = view.memory.learned, view.memory.seen
    if one.times <= 1 or view.now >= one.at or learned is None or ended is None:
        return one.rate
    times = times_in(view.announced, one.at, min(one.until, one.at + view.window))
    return max(one.rate, times * without_events(learned, ended, view.window, view.announced))


def _announced_at(view: ScaleView) -> list[int]:
    """Return when preparation for each announcement begins."""
    return [one.at - view.start_up - view.window for one in view.announced]


# --- signals ---------------------------------------------------------------------------------------------------------


def _by_cpu(view: ScaleView, _: ScaleMemory) -> Because | None:
    last, target = _last(view), view.rules.target
    return None if last is None else _in_proportion(view, last, "CPU", last.cpu / target, *_used(last.cpu, target))


def _by_devices(view: ScaleView, _: ScaleMemory) -> Because | None:
    last, target = _last(view), view.rules.target
    if last is None:
        return None
    return _in_proportion(view, last, "DEVICES", last.devices / target, *_used(last.devices, target))


def _by_latency(view: ScaleView, _: ScaleMemory) -> Because | None:
    """Propose by the objective with the largest ratio of value to limit. A missed objective has no tolerance, since it
    is a promise. Propose nothing without an objective, or if nothing was answered.
    """
    last, used = _last(view), _used_up(view)
    if last is None or used is None:
        return None
    name, seen, objective = used
    have = f"{name} is {format_duration(seen)}"
    have += f" with {last.refused:.0%} of the requests refused" if last.refused else ""
    if seen > objective and last.replicas:
        wish, need = _up(last.replicas * seen / objective), format_duration(objective)
        if 0 < last.peak < wish:  # more replicas than concurrent requests would idle
            wish, need = last.peak, f"{need}, and no more than {last.peak} requests were there at one time"
        return Because(code="LATENCY", wish=wish, have=have, need=need)
    return _in_proportion(view, last, "LATENCY", seen / objective, have, format_duration(objective))


def _used_up(view: ScaleView) -> tuple[str, int, int] | None:
    """Return the objective with the largest ratio of value to limit: its name, the measured value, and the limit."""
    last, rules = _last(view), view.rules
    if last is None:
        return None
    both = (("P99", last.p99, rules.latency_p99), ("the mean", last.mean, rules.latency_mean))
    set_and_seen = [one for one in both if one[1] > 0 and one[2] > 0]
    return max(set_and_seen, key=lambda one: one[1] / one[2], default=None)


def _by_queue(view: ScaleView, _: ScaleMemory) -> Because | None:
    """Propose nothing while replicas start: as many requests would wait, however many more start."""
    if view.starting:
        return None
    last, bearable = _last(view), view.rules.waiting
    waiting = max(float(view.waiting), last.queue if last else 0.0)
    ratio = waiting / bearable / max(1, len(view.replicas))
    if view.replicas and abs(ratio - 1) <= view.rules.tolerance:
        return Because(code="ON_TARGET", wish=len(view.replicas), have=f"{ratio:.0%}")
    return Because(code="QUEUE", wish=_up(waiting / bearable), have=f"{waiting:g}", need=f"{bearable:g}")


def _in_proportion(view: ScaleView, last: Window, code: str, ratio: float, have: str, need: str) -> Because | None:
    """Return the serving replicas times value over target; the present number if the ratio is within the tolerance."""
    if last.replicas == 0:
        return None
    if abs(ratio - 1) <= view.rules.tolerance:
        return Because(code="ON_TARGET", wish=len(view.replicas), have=f"{ratio:.0%}")
    return Because(code=code, wish=_up(last.replicas * ratio), have=have, need=need)


def _last(view: ScaleView) -> Window | None:
    return view.latest or (view.windows[-1] if view.windows else None)


def _used(use: float, target: float) -> tuple[str, str]:
    return f"{use:.0%}", f"{target:.0%}"


SIGNALS: Mapping[Signal, Wish] = {
    "cpu": _by_cpu,
    "devices": _by_devices,
    "latency": _by_latency,
    "queue": _by_queue,
}


# --- proposals by rate -----------------------------------------------------------------------------------------------


def _always(view: ScaleView, _: ScaleMemory) -> Because:
    return Because(code="STATIC", wish=view.rules.most)


def _as_last(view: ScaleView, memory: ScaleMemory) -> Because | None:
    return _for_rate(view, memory.recent[-1]) if memory.recent else None


def _as_mean(view: ScaleView, memory: ScaleMemory) -> Because | None:
    return _for_rate(view, memory.level) if memory.recent else None


def _as_largest(view: ScaleView, memory: ScaleMemory) -> Because | None:
    return _for_rate(view, max(memory.recent)) if memory.recent else None


def _as_use(view: ScaleView, memory: ScaleMemory) -> Because | None:
    """Propose by the rate over the present capacity, as by CPU use."""
    if not memory.recent:
        return None
    rate, can = memory.recent[-1], _can_take(view, len(view.replicas))
    if can <= 0:
        return _for_rate(view, rate)
    ratio = rate / can / view.rules.target
    if abs(ratio - 1) <= view.rules.tolerance:
        return Because(code="ON_TARGET", wish=len(view.replicas), have=f"{ratio:.0%}")
    return _wishing(view, _up(len(view.replicas) * ratio), rate)


def _as_foreseen(view: ScaleView, memory: ScaleMemory) -> Because | None:
    if memory.learned is None or memory.seen is None:
        return None
    outlook = _outlook(view, memory.learned, memory.seen)
    wish = _enough(view, outlook.enough)
    if wish is None:
        return Because(code="UNKNOWN_CAPACITY", wish=len(view.replicas))
    events = effects_in(view.announced, outlook.at - view.window, outlook.at)
    have = f"{outlook.rate:.4g} ± {outlook.spread:.2g} requests/s are foreseen{events}"
    return Because(code="FORECAST", wish=wish, have=have, need=f"{outlook.enough:.4g}")


def _for_rate(view: ScaleView, rate: float) -> Because:
    wish = _enough(view, rate / view.rules.target)
    if wish is None:
        return Because(code="UNKNOWN_CAPACITY", wish=len(view.replicas))
    return _wishing(view, wish, rate)


def _wishing(view: ScaleView, wish: int, rate: float) -> Because:
    return Because(code="RATE", wish=wish, have=f"{rate:.4g}", need=f"{rate / view.rules.target:.4g}")


def _outlook(view: ScaleView, learned: Learned, seen: int) -> Outlook:
    """Return the forecast for the window in which a replica started now begins to serve."""
    ready = max(0, view.now - seen) + view.start_up
    ahead = min(FURTHEST, ready // view.window + 1)
    return foresee(learned, seen, ahead, view.rules, view.window, view.announced)


def _enough(view: ScaleView, rate: float) -> int | None:
    """Return how many replicas handle this rate, the fastest first, then new ones. None if capacity is unknown."""
    can = [0.0, *accumulate(_fastest(view))]
    if can[-1] >= rate - _EXACT:
        return bisect_left(can, rate - _EXACT)
    return len(view.replicas) + _up((rate - can[-1]) / view.capacity) if view.capacity > 0 else None


def _can_take(view: ScaleView, count: int) -> float:
    fastest = _fastest(view)
    return sum(fastest[:count]) + max(0, count - len(fastest)) * view.capacity


def _fastest(view: ScaleView) -> list[float]:
    known = [one or view.capacity for one in view.replicas] if 0 in view.replicas else view.replicas
    return sorted(known, reverse=True)


def _up(count: float) -> int:
    return max(0, ceil(count - _EXACT))


DEFAULT_SCALER = "forecast"

SCALERS: dict[str, ReplicaPolicy] = {
    scaler.name: scaler
    for scaler in (
        Scaler(DEFAULT_SCALER, _as_foreseen),
        Scaler("hpa", _as_use),
        Scaler("last-value", _as_last),
        Scaler("ewma", _as_mean),
        Scaler("max-of-six", _as_largest),
        Scaler("static", _always, fixed=True),
    )
}
