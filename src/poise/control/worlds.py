"""`python -m poise.control.worlds HOME`: the simulated fleets of the policies in shadow, in a process of their own.

It reads the log of the home, like the exporter of traces. It runs at low priority and uses at most a tenth of a core.
Each day it restarts from the state of the log, so that differences do not accumulate; earlier results are kept. If it
is killed, it restarts at the same revision with the same results. The supervisor keeps it alive while a policy is in
shadow.
"""

import argparse
import contextlib
import logging
import select
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from poise.config import Home
from poise.control.beside import run_beside
from poise.drivers.logfile import has_log, read_home
from poise.drivers.past import Moment, state_at
from poise.drivers.plugins import choice_of, tried
from poise.drivers.system import boot_id, boottime, settle_memory
from poise.drivers.verified import VerifiedLog
from poise.drivers.worlds import Asked, read_asked, read_told, write_told
from poise.engine.host import load_ledger
from poise.engine.lookahead import view_settings
from poise.engine.parallel import LIVE, Worlds
from poise.errors import NotFound, PoiseError
from poise.kernel.ledger import Ledger
from poise.model.events import Event, decode_event
from poise.model.worlds import Row, Window, WorldsTold, WorldTold
from poise.units import DAY, HOUR, SECOND

SHARE = 0.1
"""Fraction of a core that may be used."""

SLICE = 0.1
"""Seconds of processor time after which the process rests."""

LOOK_SECONDS, WRITE_SECONDS = 10.0, 10.0
"""Minimum interval between reads of the log, and between writes of the results. After each read, a world asks about
every unit that it has waited for: the fewer reads, the fewer questions.
"""

SETTLED = 2 * SECOND
"""Events older than this are assumed to be in the log."""

PAGE = 1000
"""Number of events read at once."""

WINDOW = DAY
"""Age at which worlds restart."""

BEHIND = HOUR
"""Worlds that lag by more than this for lack of processor time restart."""

MOST_PAIRS = 40_000
"""Maximum number of jobs, the latest, whose results are kept for each policy."""

_log = logging.getLogger("poise.worlds")


class _Anew(Exception):
    """The worlds must restart: the live policy or the policies in shadow have changed, or a day is over."""


class Shadowing:
    """The worlds of one home. It runs until `stopping`; `wake` becomes readable when that changes."""

    def __init__(self, home: Home, *, stopping: Callable[[], bool], wake: int) -> None:
        self._home = home
        self._stopping, self._wake = stopping, wake
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._windows: dict[str, list[Window]] = {}

    def run(self) -> None:
        """Simulate until told to stop, or until no policy is in shadow."""
        told, killed = read_told(self._home), True
        while not self._stopping() and (asked := read_asked(self._home)):
            labels = {one.choice.label for one in asked}
            again = told if killed and told is not None and told.worlds.keys() == labels else None
            self._windows = _earlier(told, labels, whole=again is None)
            try:
                if has_log(self._home):
                    self._follow(asked, again)
            except _Anew:
                told, killed = read_told(self._home), False
                continue
            except (PoiseError, OSError) as error:
                _log.warning("the simulated fleets wait: %s", error)
                self._pause(WRITE_SECONDS)
            self._pause(LOOK_SECONDS)

    def _follow(self, asked: Sequence[Asked], again: WorldsTold | None) -> None:
        """Follow the log and advance the worlds. Raises `_Anew` when they must restart."""
        with contextlib.closing(read_home(self._home, decode_event)) as log:
            ledger = self._beginning(log, again)
            if ledger.leader.began is None:
                return
            live = tried(choice_of(ledger.leader.began))
            label = ledger.leader.policy
            policies = {one.choice.label: tried(one.choice) for one in asked}
            now = ledger.now if again is not None else self._now(ledger)
            worlds = Worlds(ledger, live, policies, view_settings(ledger), now)
            settle_memory()
            written = 0.0
            while not self._stopping():
                before = time.process_time()
                page = self._page(log, ledger.revision)
                for _, event in page:
                    worlds.take(event)
                    if worlds.other_policy:
                        break
                now = ledger.now if len(page) == PAGE else max(ledger.now, self._now(ledger) - SETTLED)
                limit = before + SLICE
                worlds.advance(now, lambda: time.process_time() < limit)  # noqa: B023 — called within the turn
                late = now - worlds.now
                over = worlds.other_policy or now - worlds.since > WINDOW or read_asked(self._home) != list(asked)
                computing = time.process_time() >= limit
                if time.monotonic() - written >= WRITE_SECONDS or over:
                    self._write(worlds, label, late)
                    written = time.monotonic()
                if over or (computing and late > BEHIND and not any(one.twin.unsure for one in worlds.worlds.values())):
                    raise _Anew
                spent = time.process_time() - before
                self._pause(max(0.0 if computing or len(page) == PAGE else LOOK_SECONDS, spent * (1 / SHARE - 1)))
            self._write(worlds, label, 0)

    def _beginning(self, log: VerifiedLog[Event], again: WorldsTold | None) -> Ledger:
        """Return the state to fork: the one from which the resumed worlds began, else the latest."""
        if again is not None:
            with contextlib.suppress(NotFound):
                return state_at(log, Moment(revision=again.revision)).ledger
        return load_ledger(log)

    def _now(self, ledger: Ledger) -> int:
        return ledger.leader.resume_at(boot_id(), boottime(), time.time())

    def _page(self, log: VerifiedLog[Event], after: int) -> list[tuple[int, Event]]:
        page = list(log.read(after, PAGE))
        if (page and page[0][0] != after + 1) or (not page and log.last_revision() < after):
            _log.warning("the log does not go on at revision %d: the simulated fleets begin anew", after)
            raise _Anew
        return page

    def _write(self, worlds: Worlds, live: str, late: int) -> None:
        """Write the results of the closed windows, and of the current one so far."""
        wall, told = worlds.ledger.leader.wall, {}
        for name, world in worlds.worlds.items():
            if name != LIVE:
                windows = [*self._windows.get(name, []), _window(worlds, name)]
                told[name] = WorldTold(windows=tuple(_latest(windows)), failed=world.failed)
        write_told(
            self._home,
            WorldsTold(
                revision=worlds.revision,
                live=live,
                at=wall(worlds.now),
                written=time.time(),
                late=late / SECOND,
                cpu=(time.process_time() - self._cpu) / max(1e-9, time.monotonic() - self._began),
                left_out=dict(worlds.left_out),
                worlds=told,
            ),
        )

    def _pause(self, seconds: float) -> None:
        """Sleep for up to `seconds`; return early on a request to stop."""
        if not self._stopping():
            wakes = select.poll()  # unlike `select`, for file descriptors above 1,023 too
            wakes.register(self._wake, select.POLLIN)
            wakes.poll(1000 * seconds)


def _earlier(told: WorldsTold | None, labels: Collection[str], *, whole: bool) -> dict[str, list[Window]]:
    """Return the closed windows of the policies that are still in shadow. Without `whole`, leave out the last window of
    each policy, which is replayed.
    """
    if told is None:
        return {}
    return {
        label: list(world.windows if whole else world.windows[:-1])
        for label, world in told.worlds.items()
        if label in labels
    }


def _window(worlds: Worlds, name: str) -> Window:
    ledger, until = worlds.ledger, worlds.until(name)
    fleet = ledger.columns.fleet()
    devices = sum(len(node.devices) for node in fleet.nodes) or sum(node.cpu for node in fleet.nodes) / 1000
    span = until - worlds.since
    pairs: list[tuple[Row, Row]] = [(live, shadow) for _, live, shadow in worlds.compared(name)]
    return Window(
        since=ledger.leader.wall(worlds.since),
        hours=span / HOUR,
        capacity=devices * span,
        pairs=tuple(pairs),
        guessed=len(worlds.worlds[name].guessed),
        converted=len(worlds.worlds[name].converted),
    )


def _latest(windows: Sequence[Window]) -> list[Window]:
    """Return the latest windows, up to `MOST_PAIRS` pairs in total, without empty windows."""
    kept: list[Window] = []
    left = MOST_PAIRS
    for window in reversed(windows):
        if left <= 0:
            break
        kept.insert(0, msgspec.structs.replace(window, pairs=window.pairs[-left:]))
        left -= len(window.pairs)
    return [window for window in kept[:-1] if window.pairs] + kept[-1:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.control.worlds", description="simulated fleets of a home")
    parser.add_argument("home", type=Path)
    home = Home(parser.parse_args().home.resolve())
    return run_beside(
        home.shadow / "lock",
        "process of simulated fleets",
        _log.name,
        lambda stop: Shadowing(home, stopping=stop.asked, wake=stop.wake).run(),
    )


if __name__ == "__main__":
    sys.exit(main())
