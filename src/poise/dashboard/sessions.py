"""Access to the dashboard: one-time links, and the sessions of browsers that opened one.

The secret of a link is exchanged once, within `LINK_SECONDS`, for the secret of a session, which the browser keeps in a
cookie. A session has the token of the user who made its link, and shows only data that this token may see. The secrets
of links and sessions are stored as digests only.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from poise.drivers.security import digest
from poise.model.tenants import DEFAULT

LINK_SECONDS = 300.0
SESSION_SECONDS = 12 * 3600.0
"""Timeout of an unused session."""

MAX_LINKS, MAX_SESSIONS = 64, 256
"""Maximum numbers. Beyond them, the oldest of the tenant with the most is dropped, and there of the token with the
most: no tenant can push out those of others.
"""


class Viewer(NamedTuple):
    """A viewer: a token, and its tenant."""

    tenant: str
    token: str


class Session:
    """One browser. `streams` counts its open streams, which end once it is `over`. If the browser has `signed_in`, the
    token is only for this session.
    """

    def __init__(self, viewer: Viewer, seen: float, *, signed_in: bool = False) -> None:
        self.viewer = viewer
        self.signed_in = signed_in
        self.seen = seen
        self.streams = 0
        self.over = asyncio.Event()


class Sessions:
    """Links and sessions by the digests of their secrets. All are lost with the process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._links: dict[str, tuple[Viewer, float]] = {}
        self._sessions: dict[str, Session] = {}

    def link(self, token: str, tenant: str = DEFAULT) -> str:
        """Return the secret of a new link for a token of this tenant."""
        secret = secrets.token_urlsafe(32)
        self._links[digest(secret)] = Viewer(tenant, token), self._now() + LINK_SECONDS
        while len(self._links) > MAX_LINKS:
            most = _most_frequent([of for of, _ in self._links.values()])
            del self._links[next(key for key, (of, _) in self._links.items() if of == most)]
        return secret

    def open(self, link: str) -> str | None:
        """Exchange the secret of a link for that of a session; None if it is unknown, was used or has expired."""
        viewer, until = self._links.pop(digest(link), (None, 0.0))
        if viewer is None or self._now() > until:
            return None
        return self.begin(viewer)

    def begin(self, viewer: Viewer, *, signed_in: bool = False) -> str:
        """Return the secret of a new session."""
        secret = secrets.token_urlsafe(32)
        self._sessions[digest(secret)] = Session(viewer, self._now(), signed_in=signed_in)
        known = self._sessions
        while len(known) > MAX_SESSIONS:
            most = _most_frequent([session.viewer for session in known.values()])
            theirs = (key for key, session in known.items() if session.viewer == most)
            self._end(min(theirs, key=lambda key: (known[key].streams > 0, known[key].seen)))
        return secret

    def of(self, secret: str) -> Session | None:
        """Return the session of a browser; None if it has none, or the session is over."""
        key = digest(secret)
        session = self._sessions.get(key)
        if session is None:
            return None
        if self._now() - session.seen > SESSION_SECONDS and not session.streams:
            self._end(key)
            return None
        session.seen = self._now()
        return session

    def end(self, secret: str) -> None:
        """End the session of a browser that signed out."""
        self._end(digest(secret))

    def forget(self, token: str) -> None:
        """Drop the links and sessions of a revoked token. Its streams send the reason, and end by themselves."""
        for key in [key for key, (of, _) in self._links.items() if of.token == token]:
            del self._links[key]
        for key in [key for key, session in self._sessions.items() if session.viewer.token == token]:
            del self._sessions[key]

    def _end(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            session.over.set()

    def end_streams(self) -> None:
        """End the streams of all browsers."""
        for session in self._sessions.values():
            session.over.set()

    def streams(self, tenant: str) -> tuple[int, int]:
        """Return the numbers of open streams of a tenant, and of all others."""
        theirs = sum(one.streams for one in self._sessions.values() if one.viewer.tenant == tenant)
        return theirs, sum(one.streams for one in self._sessions.values()) - theirs


def _most_frequent(viewers: Sequence[Viewer]) -> Viewer:
    tenant = Counter(one.tenant for one in viewers).most_common(1)[0][0]
    return Counter(one for one in viewers if one.tenant == tenant).most_common(1)[0][0]
