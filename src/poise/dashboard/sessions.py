"""Who may look: links that are good once, and the sessions of browsers that came by one.

A secret in a link is exchanged once, within `LINK_SECONDS`, for the secret of a session, which a browser keeps in a
cookie. A session has the token of whoever made its link, and shows what that token may see. Only digests are kept.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable

from poise.drivers.security import digest

LINK_SECONDS = 300.0
SESSION_SECONDS = 12 * 3600.0
"""A session that was not used for so long is over."""

MAX_LINKS, MAX_SESSIONS = 64, 256
"""Of the token that has most of them, the oldest give way: nobody can push others out."""


class Session:
    """One browser. `streams` counts its open streams, which end once it is `over`."""

    def __init__(self, token: str, seen: float) -> None:
        self.token = token
        self.seen = seen
        self.streams = 0
        self.over = asyncio.Event()


class Sessions:
    """Links and sessions, by the digests of their secrets. All are lost with the process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._links: dict[str, tuple[str, float]] = {}
        self._sessions: dict[str, Session] = {}

    def link(self, token: str) -> str:
        """The secret of a new link of a token."""
        secret = secrets.token_urlsafe(32)
        self._links[digest(secret)] = token, self._now() + LINK_SECONDS
        while len(self._links) > MAX_LINKS:
            most = _most_frequent(of for of, _ in self._links.values())
            del self._links[next(key for key, (of, _) in self._links.items() if of == most)]
        return secret

    def open(self, link: str) -> str | None:
        """Exchange the secret of a link for that of a session; None if it is unknown, was used or has expired."""
        token, until = self._links.pop(digest(link), ("", 0.0))
        if not token or self._now() > until:
            return None
        secret = secrets.token_urlsafe(32)
        self._sessions[digest(secret)] = Session(token, self._now())
        known = self._sessions
        while len(known) > MAX_SESSIONS:
            most = _most_frequent(session.token for session in known.values())
            theirs = (key for key, session in known.items() if session.token == most)
            self._end(min(theirs, key=lambda key: (known[key].streams > 0, known[key].seen)))
        return secret

    def of(self, secret: str) -> Session | None:
        """The session of a browser; None if there is none, or it is over."""
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
        """A browser has signed out."""
        self._end(digest(secret))

    def forget(self, token: str) -> None:
        """Drop everything that has this token: it was revoked. Its streams say so, and end by themselves."""
        for key in [key for key, (of, _) in self._links.items() if of == token]:
            del self._links[key]
        for key in [key for key, session in self._sessions.items() if session.token == token]:
            del self._sessions[key]

    def _end(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            session.over.set()


def _most_frequent(tokens: Iterable[str]) -> str:
    return Counter(tokens).most_common(1)[0][0]
