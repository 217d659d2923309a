"""How long the control plane runs: until told to stop or, if `poise run` started it, until it is idle."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

from poise.config import Home
from poise.control.plane import Plane
from poise.model.times import Times

_LOOK_EVERY = 0.25


class Lifetime:
    """Ends this process with SIGTERM, on which the server shuts down in order.

    A request to stay up is recorded in a file, so that it survives a crash.
    """

    def __init__(self, plane: Plane, home: Home, *, until_idle: bool) -> None:
        self._plane = plane
        self._home = home
        self._until_idle = until_idle and not home.stay.exists()
        self._requests = 0
        self._left_at = -1

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def shut_down(self) -> None:
        """Stop because somebody asked for it, and forget any request to stay up."""
        self._home.stay.unlink(missing_ok=True)
        self.end()

    def stay(self) -> None:
        """Stay up from now on, also without jobs."""
        with contextlib.suppress(OSError):  # a full disk must not fail the request
            self._home.stay.touch(mode=0o600)
        self._until_idle = False

    @property
    def wanted_again(self) -> bool:
        """Return whether work was accepted after the decision to exit, so that the process must be started again."""
        return self._left_at >= 0 and (not self._until_idle or self._plane.ledger.revision != self._left_at)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request in progress: the process does not exit while it is answered."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def leave_when_idle(self) -> None:
        """Exit when idle for long enough. Return at once if the process is to stay up."""
        idle_since = self._plane.clock.now()
        while self._until_idle:
            await asyncio.sleep(_LOOK_EVERY)
            now = self._plane.clock.now()
            if self._stays():
                idle_since = now
            elif now - idle_since > Times().idle_exit:
                await self._announce()
                if not self._stays():
                    self._left_at = self._plane.ledger.revision
                    self.end()
                    return
                self._home.left.unlink(missing_ok=True)
                idle_since = now

    async def _announce(self) -> None:
        """Announce the exit, and answer for a while those who looked before the announcement. The others wait."""
        self._home.left.touch(mode=0o600)
        await asyncio.sleep(_LOOK_EVERY)

    def _stays(self) -> bool:
        """Return whether there is or will be something to do, or the process is to stay up."""
        ledger = self._plane.ledger
        to_come = ledger.schedules.any_awaited or ledger.reservations
        busy = self._requests or ledger.jobs.unfinished() or to_come or ledger.jobs.notifying
        return bool(busy) or not self._until_idle
