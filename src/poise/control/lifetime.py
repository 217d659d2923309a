"""How long the control plane stays: until told to end or, started by `poise run`, until the last job has ended."""

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
    """Ends this process by SIGTERM, which the server takes as the wish to stop in order.

    That somebody asked it to stay is on file, so that one restarted after a crash stays too.
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
        """End because somebody asked for it: nothing stays up after this."""
        self._home.stay.unlink(missing_ok=True)
        self.end()

    def stay(self) -> None:
        """Stay up from now on, jobs or not."""
        with contextlib.suppress(OSError):  # a full disk keeps nobody up or down
            self._home.stay.touch(mode=0o600)
        self._until_idle = False

    @property
    def wanted_again(self) -> bool:
        """Something was accepted after the decision to leave: somebody has to be here for those who wait for it."""
        return self._left_at >= 0 and (not self._until_idle or self._plane.ledger.revision != self._left_at)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Somebody is being answered, perhaps with a long log: not the time to leave."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def leave_when_idle(self) -> None:
        """Returns when the process has been told to end."""
        idle_since = self._plane.clock.now()
        while self._until_idle:
            await asyncio.sleep(_LOOK_EVERY)
            now = self._plane.clock.now()
            ledger = self._plane.ledger
            busy = ledger.jobs.unfinished() or ledger.schedules.any_awaited or ledger.jobs.notifying
            if self._requests or busy:
                idle_since = now
            elif now - idle_since > Times().idle_exit and self._until_idle:
                self._left_at = self._plane.ledger.revision
                self._home.left.touch(mode=0o600)
                self.end()
                return
