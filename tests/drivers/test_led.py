"""A log that several control planes reach, whatever keeps it: one leads, a stale one's commits are refused, and a store
that is away only makes them wait. What holds for every store is in `test_stores`.
"""

import contextlib
import random
import threading
import time

import pytest
from system.living import until

from drivers.etcd_server import EtcdServer
from drivers.notes import Note, Owner, encode, lease_of, note, noted_at, notes
from drivers.postgres_server import PostgresServer
from poise.drivers.led import lease as led_lease
from poise.drivers.led.link import name_of
from poise.errors import Conflict, InputError, NotLeading, PoiseError, StoreAway
from poise.model.record import seal
from poise.units import SECOND

Server = PostgresServer | EtcdServer

TURNS = 40
"""How often two take the lead from each other."""


@pytest.fixture(params=["postgres", "etcd"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def url(server: Server) -> str:
    return server.database()


def test_a_commit_of_a_stale_leader_is_refused_by_the_store(server: Server, url: str) -> None:
    with contextlib.closing(noted_at(url)) as stale, contextlib.closing(noted_at(url)) as fresh:
        first, second = lease_of(url, "a"), lease_of(url, "b")
        stale.lead(first.take())
        stale.append(notes(1, 2), expected=0)
        assert second.take() == 0
        server.let_run_out(url)
        assert fresh.lead(second.take()) == 2
        with pytest.raises(NotLeading) as refused:
            stale.append([note(3)], expected=2)
        assert refused.value.record.code == "E212"
        assert "of b" in refused.value.record.have
        assert stale.durable() == 2
        assert not stale.recover()
        assert fresh.append([note(3)], expected=2) == 3
        assert [revision for revision, _ in stale.read()] == [1, 2, 3]
        first.release()  # says nothing any more
        assert second.look().held
        second.release()


def test_nothing_is_written_before_the_lead_is_won(url: str) -> None:
    with contextlib.closing(noted_at(url)) as store, pytest.raises(NotLeading):
        store.append([note(1)], expected=0)


def test_a_lease_is_held_until_it_runs_out_and_is_free_when_it_is_released(server: Server, url: str) -> None:
    noted_at(url).close()  # makes the tables
    first, second = lease_of(url, "a", lasts=6 * SECOND), lease_of(url, "b")
    assert (first.take(), second.take()) == (1, 0)
    assert second.look()[:2] == (1, "at a")
    assert first.holds() and not second.holds()
    first.release()
    assert not first.holds()
    assert (second.take(), first.take()) == (2, 0)
    assert lease_of(url, "b").take() == 3  # of the same home: whoever had it is dead


def test_a_leader_that_cannot_renew_knows_it_before_another_may_lead(server: Server, url: str) -> None:
    with contextlib.closing(noted_at(url)) as store:
        lost: list[NotLeading] = []
        first = lease_of(url, "a", lasts=3 * SECOND, on_lost=lost.append)
        store.lead(first.take())
        before = server.renewed(url)
        until(lambda: server.renewed(url) != before, "it is renewed")
        server.stand_still()
        time.sleep(3)  # so long at least it would have been kept from others
        assert not first.holds()
        until(lambda: lost, "the lease is taken for lost")
        server.stand_still(False)
        assert until(lease_of(url, "a").take, "it may lead again: what was on its way is over") == 2


def test_a_leader_that_hangs_leads_no_longer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is renewed on another thread than the one that leads: nobody else could ever take it."""
    monkeypatch.setattr(led_lease, "HANGS_AFTER", 3 * SECOND)
    noted_at(url).close()
    lost: list[NotLeading] = []
    # long enough that a renewal that waits for a core of a busy machine is still in time
    first = lease_of(url, "a", lasts=5 * SECOND, on_lost=lost.append)
    assert first.take() == 1
    for _ in range(8):
        first.lives()
        time.sleep(0.4)
    assert first.holds() and not lost
    until(lambda: lost, "nothing is heard of it any more, and the lease is taken for lost")
    assert "hangs" in str(lost[0])
    assert until(lease_of(url, "b").take, "another one leads") == 2


def test_while_the_store_is_away_commits_wait_and_none_is_lost_or_doubled(url: str, server: Server) -> None:
    owner, warnings = Owner(), list[str]()
    with contextlib.closing(noted_at(url, call_soon=owner.call_soon, warn=warnings.append)) as store:
        lease = lease_of(url, "a")
        store.lead(lease.take())
        store.on_failed = lambda error: pytest.fail(str(error))
        last = 0
        for turn in range(3):
            for number in range(last + 1, last + 200):
                last = store.append([note(number)], expected=last)
                if number % 100 == 50:
                    server.kill()
            with pytest.raises(StoreAway):
                list(store.read())
            assert store.durable() < last
            server.start()
            owner.run(until=lambda wanted=last: store.durable() == wanted)  # type: ignore[misc]
            assert list(store.read()) == list(enumerate(notes(1, last), start=1)), turn
        assert "commits wait" in warnings[0]
        lease.release()


def test_a_store_that_is_closed_does_not_wait_for_the_store(url: str, server: Server) -> None:
    store = noted_at(url, call_soon=Owner().call_soon, warn=lambda _: None)
    store.lead(lease_of(url, "a").take())
    server.kill()
    try:
        store.append([note(1)], expected=0)
        store.close()
    finally:
        server.start()


def test_a_commit_whose_answer_was_lost_is_found_there(server: Server, url: str) -> None:
    with contextlib.closing(noted_at(url)) as store:
        store.lead(lease_of(url, "a").take())
        server.add(url, 1, seal(1, encode(note(1))))
        store.append([note(1)], expected=0)
        server.add(url, 2, b"something else")
        with pytest.raises(Conflict):
            store.append([note(2)], expected=1)


def test_two_that_take_the_lead_from_each_other_all_the_time_make_one_log(server: Server, url: str) -> None:
    """Each writes for as long as it is let, and every revision that one of them was told of is there for ever."""
    noted_at(url).close()
    acknowledged: dict[int, str] = {}
    over = threading.Event()
    failures: list[BaseException] = []

    def live(name: str) -> None:
        choose = random.Random(name)  # noqa: S311 - how much to write, not a secret
        try:
            while not over.is_set():
                lease = lease_of(url, name)
                with contextlib.closing(noted_at(url)) as store:
                    while not (term := lease.take()):
                        server.let_run_out(url)
                    last = store.lead(term)
                    if term == TURNS:
                        over.set()
                    with contextlib.suppress(NotLeading):
                        while not over.is_set():
                            texts = [f"{name} {last} {number}" for number in range(choose.randint(1, 5))]
                            first, last = last + 1, store.append([Note(text) for text in texts], expected=last)
                            acknowledged.update(enumerate(texts, start=first))
                lease.close()
        except BaseException as error:
            failures.append(error)
            over.set()

    threads = [threading.Thread(target=live, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with contextlib.closing(noted_at(url)) as store:
        found = {revision: event.text for revision, event in store.read()}
    assert list(found) == list(range(1, len(found) + 1))
    assert {revision: found.get(revision) for revision in acknowledged} == acknowledged
    assert {text[0] for text in acknowledged.values()} == {"a", "b"}


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:9/x", "etcd://127.0.0.1:9,127.0.0.1:10/x"])
def test_a_store_that_is_not_there_is_away(url: str) -> None:
    with pytest.raises(PoiseError) as told:
        noted_at(url)
    assert told.value.record.code == "E211"


def test_no_secret_of_a_url_is_in_messages() -> None:
    assert name_of("postgresql://u:secret@h:1,i:2/x?a=b") == "postgresql://h:1,i:2/x"


@pytest.mark.parametrize(
    "wrong",
    [
        "mysql://u:secret@h/x",
        "postgresql+asyncpg://u:secret@h/x",
        "postgresql://u:s/secret@h/x",
        "postgresql://u:s@secret/secret@h/x",
        "postgresql://u:s?secret@h/x",
        "postgresql://u:s#secret@h/x",
        "postgresql://u:secret@[::1/x",
        "postgresql://u:secret@h\N{CARE OF}/x",
        "etcd://u:s/secret@h:1/x",
        "u:secret@h/x",
    ],
)
def test_no_secret_of_what_is_no_url_is_in_messages(wrong: str) -> None:
    with pytest.raises(InputError) as told:
        noted_at(wrong)
    assert told.value.record.field == "--store"
    assert "secret" not in repr(told.value.record) + name_of("postgresql://u:s/secret@h/x")
