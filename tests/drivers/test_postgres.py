"""What is PostgreSQL's own of a log that several control planes reach. What is the same elsewhere is in `test_led`."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from system.living import PATIENCE, until

from drivers.notes import Note, Owner, encode, lease_of, note, noted_at
from drivers.postgres_server import NOBODY, PostgresServer, running
from poise.errors import Fault, InputError, NotLeading, StoreAway, StoreFull
from poise.model.record import seal
from poise.ports import StoredCheckpoint
from poise.units import SECOND
from poise_ha.postgres import store as postgres_store
from poise_ha.postgres.store import PostgresWriter


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    return postgres


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.database()


SLEEPERS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_database_whose_clock_jumps_may_change_the_leader_and_never_has_two(
    server: PostgresServer, url: str, jump: timedelta
) -> None:
    with contextlib.closing(noted_at(url)) as old, contextlib.closing(noted_at(url)) as new:
        lost = threading.Event()
        first = lease_of(url, "a", lasts=3 * SECOND, on_lost=lambda _: lost.set())
        old.lead(first.take())
        server.let_run_out(url, by=jump)
        second = lease_of(url, "b")
        new.lead(until(second.take, "somebody may lead, at whatever time the clock is set to"))
        with pytest.raises(NotLeading):
            old.append([note(1)], expected=0)
        assert new.append([note(1)], expected=0) == 1
        assert lost.wait(PATIENCE)
        assert not first.holds()
        second.release()


def test_a_commit_that_is_on_its_way_is_waited_for(server: PostgresServer, url: str) -> None:
    """Its answer was lost, and the second try waits for the first."""
    with contextlib.closing(noted_at(url)) as store:
        store.lead(lease_of(url, "a").take())
        insert = "INSERT INTO poise.log VALUES ($1, $2)"
        slowly = f"WITH first AS ({insert} RETURNING 1) SELECT pg_sleep(1) FROM first"  # noqa: S608 - ours
        first = threading.Thread(target=server.run, args=(slowly, url, 1, seal(1, encode(note(1)))))
        first.start()
        until(lambda: server.run(SLEEPERS, url), "the first try is under way")
        store.append([note(1)], expected=0)
        assert not server.run(SLEEPERS, url)
        first.join()


def test_who_waits_too_long_for_a_lock_tries_it_again(server: PostgresServer, url: str) -> None:
    """Whoever stands by would end for good by what is no more than a moment's."""
    noted_at(url).close()
    lease = lease_of(url, "a")
    server.run(f"ALTER DATABASE {urlsplit(url).path[1:]} SET lock_timeout = '50ms'", "postgres")
    hold = "SELECT pg_sleep(1) FROM (SELECT FROM poise.leadership FOR SHARE) AS held"
    holding = threading.Thread(target=server.run, args=(hold, url))
    holding.start()
    until(lambda: server.run(SLEEPERS, url), "it is locked")
    with pytest.raises(StoreAway):
        lease.take()
    holding.join()
    assert lease.take() == 1


def test_where_a_url_names_several_servers_one_that_is_silent_is_left_for_the_next(
    server: PostgresServer, url: str
) -> None:
    """As one is whose machine is gone, while its copy on another one is ready."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{quote(str(server.folder), safe='')}"
        both = f"postgresql://poise@{servers}{urlsplit(url).path}?target_session_attrs=read-write"
        with contextlib.closing(noted_at(both)) as store:
            store.lead(lease_of(both, "a").take())
            assert store.append([note(1)], expected=0) == 1
            assert [event for _, event in store.read()] == [note(1)]


def test_a_large_commit_has_the_time_that_it_takes(server: PostgresServer, url: str) -> None:
    """It would be begun again and again, and nothing would ever be committed."""
    with contextlib.closing(noted_at(url, warn=pytest.fail)) as store:
        store.lead(lease_of(url, "a").take())
        sleep = "BEGIN PERFORM pg_sleep(6); RETURN NULL; END"
        server.run(f"CREATE FUNCTION slow() RETURNS trigger AS '{sleep}' LANGUAGE plpgsql", url)
        server.run("CREATE TRIGGER slow AFTER INSERT ON poise.log EXECUTE FUNCTION slow()", url)
        assert store.append([Note("x" * 2**20)] * 4, expected=0) == 4


def test_a_connection_that_falls_silent_within_a_transaction_holds_up_commits_no_longer_than_any_other(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rollback would be waited for without a limit, while the lease is renewed: nothing would be written."""
    monkeypatch.setattr(postgres_store, "WITHIN", 2.0)
    noted_at(url).close()
    sleep = "BEGIN PERFORM pg_sleep(4); RETURN NULL; END"
    server.run(f"CREATE FUNCTION slow() RETURNS trigger AS '{sleep}' LANGUAGE plpgsql", url)
    server.run("CREATE TRIGGER slow AFTER INSERT ON poise.checkpoint EXECUTE FUNCTION slow()", url)
    through, wire = server.wire(url)
    writer = PostgresWriter(through, pytest.fail)
    with contextlib.closing(wire), contextlib.closing(writer), ThreadPoolExecutor() as threads:
        writing = threads.submit(writer.add_checkpoint, StoredCheckpoint(1, b"state"))
        until(lambda: server.run(SLEEPERS, url), "the transaction is under way")
        wire.cut()
        try:
            with pytest.raises(StoreAway, match="it takes too long"):
                writing.result(PATIENCE)
        finally:
            wire.mend()
        writer.probe()


def test_large_records_are_written_and_read_a_few_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LARGEST", "PAGE_BYTES"):
        monkeypatch.setattr(postgres_store, name, 5_000)
    written = [*[Note("x" * 2_000)] * 5, Note("y" * 20_000), *[note(number) for number in range(100)]]
    with contextlib.closing(noted_at(url)) as store:
        store.lead(lease_of(url, "a").take())
        last = store.append(written, expected=0)
        store._leader.append([(at, seal(at, encode(event))) for at, event in enumerate(written, start=1)])  # once more
        assert [len(store._log._rows(after, last)) for after in (0, 4, 5, 6)] == [3, 2, 1, 100]
        assert [event for _, event in store.read()] == written


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
    with contextlib.closing(noted_at(url, call_soon=owner.call_soon)) as store:
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


@pytest.mark.parametrize("wrong", ["nobody", "no database"])
def test_what_a_person_has_to_mend_is_told_and_no_secret_with_it(url: str, wrong: str) -> None:
    name = {"nobody": url.replace("poise@", "somebody:secret@"), "no database": url.replace("/d", "/x")}[wrong]
    with pytest.raises(Fault) as told:
        noted_at(name)
    assert told.value.record.code == "E213"
    assert "secret" not in repr(told.value.record)
    typed = {"nobody": "psql 'postgresql://somebody@", "no database": "createdb --maintenance-db='postgresql://poise@"}
    assert typed[wrong] in told.value.record.hint


def test_a_file_that_the_control_plane_would_not_find_is_told(url: str) -> None:
    with pytest.raises(InputError) as told:
        noted_at(f"{url}&sslmode=verify-full&sslrootcert=near.pem")
    assert (told.value.record.field, told.value.record.have) == ("--store", "near.pem")
