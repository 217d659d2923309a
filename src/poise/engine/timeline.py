"""Virtual time: a queue of calls, ordered by instant and then by the order of scheduling. Time without calls costs
nothing.

A *process* is a unit that can be killed or paused as a whole: it has timers, and its own clock, which never steps back.
Its timers are dropped when it is killed, and delayed while it is paused.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from poise.units import SECOND, Instant


class Killed(BaseException):
    """Ends a process in the middle of a call. A port raises it, and only the timeline catches it."""


class Timer:
    """A scheduled call. `process` owns it, if any."""

    __slots__ = ("arguments", "at", "call", "cancelled", "life", "process")

    def __init__(self, at: int, call: Callable[..., object], arguments: tuple[Any, ...], process: "Process | None"):
        self.at, self.call, self.arguments, self.process = at, call, arguments, process
        self.life = process.life if process is not None else 0
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timeline:
    """`now` is in nanoseconds since the start. `steps` counts the calls."""

    def __init__(self) -> None:
        self.now = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._asked = 0

    def call_at(
        self, at: int, call: Callable[..., object], /, *arguments: Any, process: "Process | None" = None
    ) -> Timer:
        """Call at an instant, or as soon as possible if that has passed."""
        timer = Timer(max(at, self.now), call, arguments, process)
        self.push(timer)
        return timer

    def call_in(self, delay: int, call: Callable[..., object], /, *arguments: Any) -> Timer:
        """Call after `delay` nanoseconds."""
        return self.call_at(self.now + delay, call, *arguments)

    def call_each(self, due: Iterable[tuple[int, Any]], call: Callable[[Any], object], /) -> None:
        """Call with each value at its instant. They are in the order of their instants, and each is read only when the
        one before it is due. At an equal instant they come before all that is scheduled after this.
        """
        self._asked += 1
        self._call_next(iter(due), call, self._asked)

    def _call_next(self, due: Iterator[tuple[int, Any]], call: Callable[[Any], object], place: int) -> None:
        at, value = next(due, (0, None))
        if value is not None:
            timer = Timer(max(at, self.now), self._call_and_next, (value, due, call, place), None)
            heapq.heappush(self._heap, (timer.at, place, timer))

    def _call_and_next(
        self, value: Any, due: Iterator[tuple[int, Any]], call: Callable[[Any], object], place: int
    ) -> None:
        self._call_next(due, call, place)
        call(value)

    @property
    def pending(self) -> bool:
        """Whether any call is scheduled."""
        return any(not timer.cancelled for _, _, timer in self._heap)

    def step(self, until: int | None) -> bool:
        """Run the next call and return True. If none is due by `until`, set the time to that and return False."""
        while self._heap and (until is None or self._heap[0][0] <= until):
            at, _, timer = heapq.heappop(self._heap)
            self.now = at
            process = timer.process
            if timer.cancelled or (process is not None and process.life != timer.life):
                continue
            if process is not None and process.paused_until > at:
                process.put_off(timer)
                continue
            self.steps += 1
            try:
                timer.call(*timer.arguments)
            except Killed:
                if process is not None:
                    process.kill()
            return True
        if until is not None:
            self.now = until
        return False

    def push(self, timer: Timer) -> None:
        """Schedule a timer at its instant."""
        self._asked += 1
        heapq.heappush(self._heap, (timer.at, self._asked, timer))


class Process:
    """A unit that can be killed or paused. `on_kill` is called after its death. `wall_off` is the error of its
    machine's wall clock in seconds.
    """

    def __init__(self, timeline: Timeline, name: str, *, wall_off: float = 0.0) -> None:
        self.timeline = timeline
        self.name = name
        self.life = 1
        self.alive = False
        self.paused_until = 0
        self.wall_off = wall_off
        self._put_off: list[Timer] = []
        self.on_kill: Callable[[], None] = lambda: None

    def start(self) -> None:
        self.alive = True

    def kill(self) -> None:
        """Kill the process as by kill -9: its timers are dropped."""
        if self.alive:
            self.alive = False
            self.life += 1
            self.paused_until = 0
            self._put_off.clear()
            self.on_kill()

    def pause(self, duration: int) -> None:
        """Pause as by SIGSTOP, and SIGCONT after this many nanoseconds."""
        self.paused_until = max(self.paused_until, self.timeline.now + duration)
        self.timeline.call_at(self.paused_until, self.go_on)

    def go_on(self) -> None:
        """Run the delayed calls now, in their order, unless another pause lasts longer."""
        if self.timeline.now >= self.paused_until:
            put_off, self._put_off = self._put_off, []
            for timer in put_off:
                timer.at = self.timeline.now
                self.timeline.push(timer)

    def end_pauses(self) -> None:
        self.paused_until = min(self.paused_until, self.timeline.now)
        self.go_on()

    def put_off(self, timer: Timer) -> None:
        """Delay a timer until the process continues."""
        self._put_off.append(timer)

    # timers, like those of asyncio's loop: delays in seconds

    def call_soon(self, call: Callable[..., object], /, *arguments: Any) -> Timer:
        return self.timeline.call_at(self.timeline.now, call, *arguments, process=self)

    def call_later(self, delay: float, call: Callable[..., object], /, *arguments: Any) -> Timer:
        return self.timeline.call_at(self.timeline.now + int(delay * SECOND), call, *arguments, process=self)


WALL = 1_700_000_000.0


class SimulatedClock:
    """The clock of a process: `offset` continues the log's time; the wall clock has the error of its machine."""

    def __init__(self, process: Process, offset: int = 0) -> None:
        self._process = process
        self._offset = offset

    def now(self) -> Instant:
        return Instant(self._process.timeline.now + self._offset)

    def wall(self) -> float:
        return WALL + self._process.timeline.now / SECOND + self._process.wall_off
