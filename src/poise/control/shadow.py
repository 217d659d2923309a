"""A policy in shadow: it is asked on the views on which the policy in charge decides, and nothing follows from that.
What would have come of it is not told here, but by its simulated fleet (`control/worlds`).

It runs in a process of its own, as policies of others do. It is asked one view at a time, and rests after each: what it
costs the loop is a bounded part of the time. Views that come meanwhile are passed over, and counted.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from time import perf_counter, time

from poise.control.decider import WorkerDecider
from poise.drivers.plugins import Choice
from poise.model.decisions import Decision, Place, Plan, Preempt, Resize
from poise.model.reports import ShadowDifference, ShadowReport
from poise.model.times import Times
from poise.model.views import Snapshot

SHARE = 0.05
"""The part of the loop's time that a shadow may take."""

KEPT = 20
"""The latest differences that are kept, and the units of most differences that are told."""

MOST_UNITS = 10_000
"""Units whose differences are counted."""

Act = tuple[str, str]


class Shadow:
    """Compares the plans of one policy with those of the one in charge."""

    def __init__(self, choice: Choice, times: Times, since: float = 0.0) -> None:
        """`since` is when somebody asked for it, in seconds since 1970 (0: now)."""
        self.choice = choice
        self._label = choice.label
        self._decider = WorkerDecider(choice, times)
        self._loop = asyncio.get_running_loop()
        self._since = since or time()
        self._not_before = 0.0
        self._busy = False
        self._rounds = self._same = self._passed_over = self._failed = 0
        self._live_alone = self._shadow_alone = 0
        self._differences: deque[ShadowDifference] = deque(maxlen=KEPT)
        self._units: Counter[str] = Counter()

    async def ready(self) -> None:
        """Once it has been loaded, well or badly."""
        await self._decider.ready()

    def ask(self, view: Snapshot, live: Plan) -> None:
        """What it would have decided in the place of this plan."""
        began = self._loop.time()
        if self._busy or began < self._not_before:
            self._passed_over += 1
            return
        self._busy = True
        self._decider.decide(view, lambda plan: self._compare(view.revision, live, plan))
        self._loop.call_soon(self._rest, perf_counter())

    def _rest(self, began: float) -> None:
        """The view has been encoded by now, on this thread: that is the cost."""
        self._not_before = self._loop.time() + (perf_counter() - began) / SHARE

    def report(self) -> ShadowReport:
        """What was found so far."""
        return ShadowReport(
            policy=self._label,
            since=self._since,
            rounds=self._rounds,
            same=self._same,
            passed_over=self._passed_over,
            failed=self._failed,
            live_alone=self._live_alone,
            shadow_alone=self._shadow_alone,
            differences=tuple(self._differences),
            units=dict(self._units.most_common(KEPT)),
        )

    def close(self) -> None:
        """End its process."""
        self._decider.close()

    def _compare(self, revision: int, live: Plan, plan: Plan) -> None:
        self._busy = False
        if plan.failed or plan.policy not in (self._label, self._label.partition("@")[0]):  # the safe policy stood in
            self._failed += 1
            return
        self._rounds += 1
        done, would = _acts(live.decisions), _acts(plan.decisions)
        if done.keys() == would.keys():
            self._same += 1
            return
        only_live, only_shadow = sorted(done.keys() - would.keys()), sorted(would.keys() - done.keys())
        for unit in dict.fromkeys(unit for unit, _ in (*only_live, *only_shadow)):
            if unit in self._units or len(self._units) < MOST_UNITS:
                self._units[unit] += 1
        self._live_alone += len(only_live)
        self._shadow_alone += len(only_shadow)
        self._differences.append(
            ShadowDifference(revision=revision, live=_words(only_live, done), shadow=_words(only_shadow, would))
        )


def _acts(decisions: Sequence[Decision]) -> dict[Act, str]:
    """What changes for units, whatever the reasons; and these."""
    found: dict[Act, str] = {}
    for one in decisions:
        if isinstance(one, Place):
            places = ", ".join(_place(spot.node, spot.devices) for spot in one.spots)
            found[one.unit, f"{'queued' if one.queued else 'starts'} on {places}"] = one.why.sentence()
        elif isinstance(one, Preempt):
            found[one.unit, f"is preempted ({one.cause})"] = one.why.sentence()
        elif isinstance(one, Resize):
            found[one.unit, f"resizes by -{len(one.leaves)} +{len(one.joins)}"] = one.why.sentence()
    return found


def _place(node: str, devices: Sequence[int]) -> str:
    return f"{node}:{','.join(map(str, devices))}" if devices else node


def _words(acts: Sequence[Act], why: Mapping[Act, str]) -> tuple[str, ...]:
    return tuple(f"{unit} {what}{f': {why[unit, what]}' if why[unit, what] else ''}" for unit, what in acts)
