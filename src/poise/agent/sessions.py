"""Watches whether the sessions of a node are in use, and ends or reports idle ones."""

import asyncio
from collections.abc import Callable, Sequence

from poise.drivers.process import Keepers
from poise.drivers.working import Work, work_of
from poise.kernel.idling import Idling, Signs, Verdict, notice, pause
from poise.model.messages import Attempt, Idle, Launch
from poise.units import SECOND, format_duration

NO_USE = "no input, CPU use, device use or file writes"
HAS_DEVICE = "a process of it has a device open, so it cannot be suspended"


class Sessions:
    """The sessions of a node. `device_use` returns the sum of the samples of an attempt's devices, in thousandths, and
    the number of samples.
    """

    def __init__(self, keepers: Keepers, device_use: Callable[[Attempt], tuple[int, int]]) -> None:
        self._keepers = keepers
        self._device_use = device_use
        self._idling = Idling()

    @staticmethod
    def pause(sessions: Sequence[Launch]) -> float:
        """Return the seconds until the next look."""
        return min([SECOND, *(pause(launch.idle) for launch in sessions)]) / SECOND

    def resumed(self, attempt: Attempt) -> None:
        """Count a session as in use now, because it was resumed."""
        self._idling.begin_anew(attempt)

    async def look(self, sessions: Sequence[Launch], now: int) -> tuple[Idle, ...]:
        """Look at the sessions whose turn it is, and return those whose use has changed. Show notices in their
        terminals, and end those that must end.
        """
        self._idling.keep(frozenset(launch.attempt for launch in sessions))
        due = [launch for launch in sessions if self._idling.is_due(launch.attempt, launch.idle, now)]
        found = []
        for launch in due:
            keeper = self._keepers.keeper_of(launch.attempt)
            if not keeper:
                continue
            work = await asyncio.to_thread(work_of, keeper)
            verdict = self._idling.look(launch.attempt, launch.idle, self._signs(launch.attempt, work), now)
            if (told := self._act(launch, verdict, work)) is not None:
                found.append(told)
        return tuple(found)

    def _signs(self, attempt: Attempt, work: Work) -> Signs:
        traffic, (device, samples) = self._keepers.traffic(attempt), self._device_use(attempt)
        return Signs(traffic.typed, traffic.sent, work.cpu, work.written, device, samples, work.waits)

    def _act(self, launch: Launch, verdict: Verdict, work: Work) -> Idle | None:
        """Carry out a verdict. Return what the control plane must know."""
        attempt, ends = launch.attempt, launch.if_idle == "end" or work.has_device
        if verdict.what == "notice":
            left = format_duration(notice(launch.idle))
            what = f"it ends in {left}" if ends else f"it is suspended in {left}"
            why = f"; {HAS_DEVICE}" if ends and launch.if_idle == "suspend" else ""
            self._keepers.note(attempt, f"idle for {format_duration(verdict.lasts)}; {what} unless it is used{why}")
        elif verdict.what == "due" and ends:
            why = f"; {HAS_DEVICE}" if launch.if_idle == "suspend" else ""
            self._keepers.end_idle(attempt, f"idle for {format_duration(launch.idle)}: {NO_USE}{why}")
            return None
        elif not verdict.what:
            return None
        return Idle(attempt=attempt, lasts=verdict.lasts, due=verdict.what == "due")
