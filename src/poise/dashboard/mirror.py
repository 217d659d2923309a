"""A mirror of the state that one token may see, kept current in a thread: one for all browsers with that token.

It asks the control plane for changes after the last revision that it knows. Each kind of request may take at most a
hundredth of the time: after a slow or large answer the mirror waits longer. So the control plane decides as quickly as
without a dashboard. Loads change without an event, so the mirror also asks for all nodes in turn, in small pages: a
change does not wait for the list of a large fleet.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from poise.client import Client
from poise.config import Home
from poise.dashboard.feed import Feed
from poise.dashboard.picture import MAX_JOBS, Picture
from poise.errors import Denied, PoiseError

SHARE = 100
"""Seconds without a request of the same kind after an answer that took one second."""

WHOLE_EVERY, OVERVIEW_EVERY, CHANGES_EVERY = 5.0, 0.25, 0.1
"""Minimum seconds between two reads of everything, and between two requests of a kind."""

PAGE = 200
"""Maximum number of nodes in one request."""

RECORD = 50e-6
"""Seconds that the control plane spends on one record of an answer about changes. It is an estimate, as the measured
time includes the wait for a change.
"""

LONGEST = 5.0
"""Maximum seconds that a request waits for a change."""

AGAIN = 0.5
"""Seconds between two attempts to reach a control plane that does not answer."""

LINGER = 60.0
"""Seconds for which a mirror without viewers is kept for browsers that reconnect."""


TURN = 1.0
"""Seconds within which to find one of several control planes that answers."""


def client_for(home: Home, token: str) -> Client:
    """Return a client that raises at once where no control plane answers: pages show that, and the mirror retries."""
    return Client(home, token=token, patience=TURN if len(home.doors) > 1 else 0.0)


class Pace:
    """Limits the rate of one kind of request."""

    def __init__(self, least: float) -> None:
        self.least = least
        self._earliest = self._next = 0.0

    def left(self) -> float:
        """Return the seconds until the next request may be sent."""
        return max(0.0, self._next - time.monotonic())

    def hasten(self) -> None:
        """Allow the next request as soon as the share permits it."""
        self._next = self._earliest

    def took(self, seconds: float) -> None:
        """Record that an answer took this many seconds."""
        self._earliest = time.monotonic() + SHARE * seconds
        self._next = max(self._earliest, time.monotonic() + self.least)


class Mirror:
    """Reads for one token and publishes into `feed`, until `stop` or until the token is refused."""

    def __init__(self, home: Home, token: str, ended: Callable[[], None]) -> None:
        """`ended` is called on the event loop when the control plane refuses the token."""
        self.feed = Feed()
        self._home, self._token, self._ended = home, token, ended
        self._loop = asyncio.get_running_loop()
        self._picture = Picture()
        self._stopping = threading.Event()
        self._whole, self._part, self._overview = Pace(WHOLE_EVERY), Pace(WHOLE_EVERY), Pace(OVERVIEW_EVERY)
        self._changes = Pace(CHANGES_EVERY)
        self._revision = 0
        self._is_unknown = True
        """Whether changes do not tell the state: at the start, after an error, or if the log no longer has them."""
        self._parts: Iterator[None] = iter(())
        self._is_behind = True
        """Whether the overview is older than the latest change."""
        threading.Thread(target=self._run, name="mirror", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        with client_for(self._home, self._token) as client:
            while not self._stopping.is_set():
                pause = 0.0
                try:
                    self._look(client)
                    self._picture.head_is(condition="ok", trouble="", revision=self._revision)
                except Denied as error:
                    self._tell(self.feed.end, "revoked", str(error))
                    self._tell(self._ended)
                    return
                except PoiseError as error:
                    self._whole.hasten()
                    self._is_unknown = True
                    self._picture.head_is(condition="away", trouble=str(error))
                    pause = AGAIN
                if delta := self._picture.delta():
                    self._tell(self.feed.publish, delta)
                self._stopping.wait(pause)

    def _look(self, client: Client) -> None:
        """Send a request that is due, or wait for a change."""
        if self._is_unknown and not self._whole.left():
            self._ask_everything(client)
            return
        if not self._part.left():
            self._ask_part(client)
            return
        if self._is_behind and not self._overview.left():
            self._ask_overview(client)
            return
        if self._stopping.wait(self._changes.left()):
            return
        until = min(self._part.left(), self._overview.left() if self._is_behind else LONGEST, LONGEST)
        told = client.changes(self._revision, wait=until)
        if told.whole:
            self._whole.hasten()
            self._is_unknown = True
        self._changes.took(RECORD * (len(told.nodes) + len(told.jobs)))
        self._is_behind |= told.revision != self._revision
        self._revision = told.revision
        self._picture.merge(told)

    def _ask_everything(self, client: Client) -> None:
        begun = time.monotonic()
        self._revision = self._ask_overview(client)
        parts = sum(1 for _ in self._read_parts(client))
        self._is_unknown = False
        self._whole.took(time.monotonic() - begun)
        self._part.least = WHOLE_EVERY / parts
        self._part.took((time.monotonic() - begun) / parts)

    def _ask_part(self, client: Client) -> None:
        """Read the next part of everything, or begin again."""
        begun = time.monotonic()
        if next(self._parts, self) is self:
            self._parts = self._read_parts(client)
            next(self._parts)
        self._part.took(time.monotonic() - begun)

    def _read_parts(self, client: Client) -> Iterator[None]:
        """Read everything but the overview; yield after each request or two."""
        who = client.whoami()
        self._picture.head_is(tenant=who.tenant, role=who.role, token=who.name or who.token)
        self._picture.jobs_are(client.jobs(latest=MAX_JOBS))
        yield
        last = ""
        for page in client.pages_of_nodes(PAGE):
            until = page[-1].name if len(page) == PAGE else ""
            self._picture.nodes_are(page, last, until)
            last = until
            yield

    def _ask_overview(self, client: Client) -> int:
        """Update the overview; return its revision."""
        begun = time.monotonic()
        told = client.overview()
        self._overview.took(time.monotonic() - begun)
        self._picture.overview_is(told, time.time())
        self._is_behind = False
        return told.revision

    def _tell(self, what: Callable[..., Any], *given: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *given)
