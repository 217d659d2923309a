"""A policy in shadow gets the views on which the active policy decides; its plans have no effect. The results that it
would have had come from its simulated fleet (`control/worlds`).

It runs in a separate process, like a third-party policy. It decides one view at a time and rests after each, so it
costs the loop a bounded share of its time. Views that arrive meanwhile are skipped and counted.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from time import perf_counter, time

from poise.control.decider import WorkerDecider
from poise.drivers.plugins import Choice
from poise.model.decisions import Decision, Place, Plan, Preempt, Resize
from poise.model.reports.policies import ShadowDifference, ShadowReport
from poise.model.times import Times
from poise.model.views import Snapshot

SHARE = 0.05
"""Fraction of the loop's time that a shadow may use."""

KEPT = 20
"""Number of latest differences kept, and of units with most differences reported."""

MOST_UNITS = 10_000
"""Maximum number of units whose differences are counted."""

Act = tuple[str, str]


class Shadow:
    """Compares the plans of one policy with those of the active policy."""

    def __init__(self, choice: Choice, times: Times, since: float = 0.0) -> None:
        """`since` is when the shadow was requested, in seconds since 1970 (0: now)."""
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
        """Wait until the policy has loaded or failed to load."""
        await self._decider.ready()

    def ask(self, view: Snapshot, live: Plan) -> None:
        """Ask the policy for its plan on this view, and compare it with the live plan."""
        began = self._loop.time()
        if self._busy or began < self._not_before:
            self._passed_over += 1
            return
        self._busy = True
        self._decider.decide(view, lambda plan: self._compare(view.revision, live, plan))
        self._loop.call_soon(self._rest, perf_counter())

    def _rest(self, began: float) -> None:
        """Rest in proportion to the cost so far: the view has been encoded on this thread by now."""
        self._not_before = self._loop.time() + (perf_counter() - began) / SHARE

    def report(self) -> ShadowReport:
        """Return the results so far."""
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
        """End the process of the policy."""
        self._decider.close()

    def _compare(self, revision: int, live: Plan, plan: Plan) -> None:
        self._busy = False
        if plan.failed or plan.policy not in (self._label, self._label.partition("@")[0]):  # by the safe policy
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
    """Return the changes to units, each with its reason. Reasons are not compared."""
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
