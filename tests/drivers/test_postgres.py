"""A log that several control planes reach: one leads, a stale one's commits are refused, and a database that is away
only makes them wait. What holds for every store is in `test_stores`.
"""

import contextlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from system.living import PATIENCE, until

from drivers.notes import Note, Owner, decode, encode, note, notes
from drivers.postgres_server import NOBODY, PostgresServer, running
from poise.drivers.postgres import Lease, PostgresStore
from poise.drivers.postgres.link import name_of
from poise.errors import Conflict, Fault, NotLeading, PoiseError, StoreAway, StoreFull
from poise.model.record import seal
from poise.units import HOUR, MINUTE, SECOND


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.database()


def store_at(url: str, **options: Any) -> PostgresStore[Note]:
    return PostgresStore(url, encode, decode, **options)


def lease_of(
    url: str, holder: str, *, lasts: int = MINUTE, on_lost: Callable[[NotLeading], object] = lambda _: None
) -> Lease:
    return Lease(url, holder=holder, address=f"at {holder}", token="", lasts=lasts, on_lost=on_lost)


SLEEPERS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


def shift(server: PostgresServer, url: str, by: int) -> None:
    """As if the database's clock had jumped by so much since the lease was renewed."""
    server.run("UPDATE poise.leadership SET renewed = renewed - $1::interval", url, timedelta(seconds=by // SECOND))


def test_a_commit_of_a_stale_leader_is_refused_by_the_store(server: PostgresServer, url: str) -> None:
    with contextlib.closing(store_at(url)) as stale, contextlib.closing(store_at(url)) as fresh:
        first, second = lease_of(url, "a"), lease_of(url, "b")
        stale.lead(first.take())
        stale.append(notes(1, 2), expected=0)
        assert second.take() == 0
        shift(server, url, 2 * MINUTE)
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
    with contextlib.closing(store_at(url)) as store, pytest.raises(NotLeading):
        store.append([note(1)], expected=0)


def test_a_lease_is_held_until_it_runs_out_and_is_free_when_it_is_released(server: PostgresServer, url: str) -> None:
    store_at(url).close()  # makes the tables
    first, second = lease_of(url, "a"), lease_of(url, "b")
    assert (first.take(), second.take()) == (1, 0)
    assert second.look()[:2] == (1, "at a")
    assert first.holds() and not second.holds()
    first.release()
    assert not first.holds()
    assert (second.take(), first.take()) == (2, 0)
    assert lease_of(url, "b").take() == 3  # of the same home: whoever had it is dead


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_database_whose_clock_jumps_may_change_the_leader_and_never_has_two(
    server: PostgresServer, url: str, jump: int
) -> None:
    with contextlib.closing(store_at(url)) as old, contextlib.closing(store_at(url)) as new:
        lost = threading.Event()
        first = lease_of(url, "a", lasts=3 * SECOND, on_lost=lambda _: lost.set())
        old.lead(first.take())
        shift(server, url, jump)
        second = lease_of(url, "b")
        new.lead(until(second.take, "somebody may lead, at whatever time the clock is set to"))
        with pytest.raises(NotLeading):
            old.append([note(1)], expected=0)
        assert new.append([note(1)], expected=0) == 1
        assert lost.wait(PATIENCE)
        assert not first.holds()
        second.release()


def test_a_leader_that_cannot_renew_knows_it_before_another_may_lead(server: PostgresServer, url: str) -> None:
    with contextlib.closing(store_at(url)) as store:
        lost: list[NotLeading] = []
        first = lease_of(url, "a", lasts=3 * SECOND, on_lost=lost.append)
        store.lead(first.take())
        renewed = "SELECT renewed FROM poise.leadership"
        before = server.run(renewed, url)
        until(lambda: server.run(renewed, url) != before, "it is renewed")
        server.stand_still()
        time.sleep(3)  # so long at least the database would have kept it from others
        assert not first.holds()
        until(lambda: lost, "the lease is taken for lost")
        server.stand_still(False)
        assert lease_of(url, "a").take() == 2


def test_while_the_database_is_away_commits_wait_and_none_is_lost_or_doubled(url: str, server: PostgresServer) -> None:
    owner, warnings = Owner(), list[str]()
    with contextlib.closing(store_at(url, call_soon=owner.call_soon, warn=warnings.append)) as store:
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


def test_a_commit_whose_answer_was_lost_is_found_there(server: PostgresServer, url: str) -> None:
    """Also while it is still on its way: the second try waits for the first."""
    with contextlib.closing(store_at(url)) as store:
        store.lead(lease_of(url, "a").take())
        insert = "INSERT INTO poise.log VALUES ($1, $2)"
        server.run(insert, url, 1, seal(1, encode(note(1))))
        store.append([note(1)], expected=0)
        slowly = f"WITH first AS ({insert} RETURNING 1) SELECT pg_sleep(1) FROM first"  # noqa: S608 - ours
        first = threading.Thread(target=server.run, args=(slowly, url, 2, seal(2, encode(note(2)))))
        first.start()
        until(lambda: server.run(SLEEPERS, url), "the first try is under way")
        store.append([note(2)], expected=1)
        assert not server.run(SLEEPERS, url)
        first.join()
        server.run("INSERT INTO poise.log VALUES (3, 'something else')", url)
        with pytest.raises(Conflict):
            store.append([note(3)], expected=2)


@pytest.fixture
def small_disk() -> Iterator[tuple[PostgresServer, Path]]:
    """Of a server of its own: it does not get over losing it."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    with running() as server:
        small = server.folder / "small"
        small.mkdir()
        options = f"size=2m,uid={NOBODY},gid={NOBODY},mode=700"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
        yield server, small
        server.kill()
        subprocess.run(["umount", "--lazy", small], check=True)


@pytest.mark.root
def test_a_full_disk_of_the_database_refuses_appends_reads_go_on_and_space_heals(
    small_disk: tuple[PostgresServer, Path],
) -> None:
    server, small = small_disk
    url, owner, failures = server.database(), Owner(), list[Exception]()
    with contextlib.closing(store_at(url, call_soon=owner.call_soon)) as store:
        server.run(f"CREATE TABLESPACE small LOCATION '{small}'", url)
        server.run("ALTER TABLE poise.log SET TABLESPACE small", url)
        lease = lease_of(url, "a")
        store.lead(lease.take())
        store.on_failed = failures.append
        last = 0
        with pytest.raises(StoreFull) as raised:
            while True:
                last = store.append([Note("x" * 2000)] * 10, expected=last)
                owner.run(until=lambda wanted=last: store.durable() == wanted or bool(failures))  # type: ignore[misc]
        assert raised.value.record.code == "E202"
        durable = store.durable()
        assert not store.recover()
        assert len(list(store.read())) == durable
        subprocess.run(["mount", "-o", "remount,size=8m", small], check=True)
        assert store.recover()
        assert store.append([note(1)], expected=durable) == durable + 1
        owner.run(until=lambda: store.durable() == durable + 1)
        lease.release()


def test_a_store_that_is_closed_does_not_wait_for_a_database(url: str, server: PostgresServer) -> None:
    store = store_at(url, call_soon=Owner().call_soon, warn=lambda _: None)
    store.lead(lease_of(url, "a").take())
    server.kill()
    try:
        store.append([note(1)], expected=0)
        store.close()
    finally:
        server.start()


def test_two_that_take_the_lead_from_each_other_all_the_time_make_one_log(server: PostgresServer, url: str) -> None:
    """Each writes for as long as it is let, and every revision that one of them was told of is there for ever."""
    store_at(url).close()
    acknowledged: dict[int, str] = {}
    over = time.monotonic() + 6
    failures: list[BaseException] = []

    def live(name: str) -> None:
        choose = random.Random(name)  # noqa: S311 - how much to write, not a secret
        try:
            while time.monotonic() < over:
                lease = lease_of(url, name)
                with contextlib.closing(store_at(url)) as store:
                    while not (term := lease.take()):
                        shift(server, url, HOUR)
                    last = store.lead(term)
                    with contextlib.suppress(NotLeading):
                        while time.monotonic() < over:
                            texts = [f"{name} {last} {number}" for number in range(choose.randint(1, 5))]
                            first, last = last + 1, store.append([Note(text) for text in texts], expected=last)
                            acknowledged.update(enumerate(texts, start=first))
                lease.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with contextlib.closing(store_at(url)) as store:
        found = {revision: event.text for revision, event in store.read()}
    assert list(found) == list(range(1, len(found) + 1))
    assert {revision: found.get(revision) for revision in acknowledged} == acknowledged
    assert {text[0] for text in acknowledged.values()} == {"a", "b"}


@pytest.mark.parametrize("wrong", ["nobody", "no database"])
def test_what_a_person_has_to_mend_is_told_and_no_secret_with_it(url: str, wrong: str) -> None:
    name = {"nobody": url.replace("poise@", "somebody:secret@"), "no database": url.replace("/d", "/x")}[wrong]
    with pytest.raises(Fault) as told:
        store_at(name)
    assert told.value.record.code == "E213"
    assert "secret" not in repr(told.value.record)


def test_a_database_that_is_not_there_is_away() -> None:
    with pytest.raises(PoiseError) as told:
        store_at("postgresql://127.0.0.1:9/x")
    assert told.value.record.code == "E211"
    assert name_of("postgresql://u:secret@h:1,i:2/x?a=b") == "postgresql://h:1,i:2/x"
