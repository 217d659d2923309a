"""Links that are good once, and the sessions of browsers."""

from poise.dashboard.sessions import LINK_SECONDS, MAX_LINKS, MAX_SESSIONS, SESSION_SECONDS, Sessions


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_link_is_good_once() -> None:
    sessions = Sessions()
    secret = sessions.open(sessions.link("token"))
    assert secret is not None
    found = sessions.of(secret)
    assert (found and found.viewer) == ("default", "token")
    link = sessions.link("token")
    assert sessions.open(link) is not None
    assert sessions.open(link) is None


def test_a_link_expires() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    link = sessions.link("token")
    clock.time += LINK_SECONDS + 1
    assert sessions.open(link) is None


def test_a_session_ends_when_it_is_not_used() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    secret = sessions.open(sessions.link("token")) or ""
    clock.time += SESSION_SECONDS - 1
    assert sessions.of(secret) is not None
    clock.time += SESSION_SECONDS - 1
    assert sessions.of(secret) is not None
    clock.time += SESSION_SECONDS + 1
    assert sessions.of(secret) is None


def test_unknown_secrets_open_nothing() -> None:
    sessions = Sessions()
    assert sessions.open("") is None
    assert sessions.open("x") is None
    assert sessions.of("") is None


def test_a_revoked_token_ends_its_sessions_and_links_and_no_others() -> None:
    sessions = Sessions()
    theirs, mine = sessions.open(sessions.link("theirs")) or "", sessions.open(sessions.link("mine")) or ""
    link = sessions.link("theirs")
    sessions.forget("theirs")
    assert sessions.of(theirs) is None
    assert sessions.open(link) is None
    assert sessions.of(mine) is not None


def test_links_and_sessions_are_bounded() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    links = [sessions.link("token") for _ in range(MAX_LINKS + 1)]
    assert sessions.open(links[0]) is None
    secrets = []
    for _ in range(MAX_SESSIONS + 1):
        clock.time += 1
        secrets.append(sessions.open(sessions.link("token")) or "")
    assert sessions.of(secrets[0]) is None
    assert sessions.of(secrets[1]) is not None


def test_a_token_with_many_links_and_sessions_takes_none_from_others() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    mine, link = sessions.open(sessions.link("mine")) or "", sessions.link("mine")
    for _ in range(MAX_LINKS + 1):
        sessions.link("theirs")
    assert sessions.open(link) is not None
    for _ in range(MAX_SESSIONS + 1):
        clock.time += 1
        sessions.open(sessions.link("theirs"))
    assert sessions.of(mine) is not None


def test_of_one_token_a_session_that_is_looked_at_stays_longest() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    looks = sessions.open(sessions.link("token")) or ""
    session = sessions.of(looks)
    assert session is not None
    session.streams = 1
    for _ in range(MAX_SESSIONS + 1):
        clock.time += 1
        sessions.open(sessions.link("token"))
    assert sessions.of(looks) is session
