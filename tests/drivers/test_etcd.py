"""What is etcd's own of a log that several control planes reach. What is the same elsewhere is in `test_led`."""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.living import until

from drivers.etcd_server import Cut, EtcdServer, Seat, keys_of, running
from drivers.notes import Note, Owner, lease_of, note, noted_at, notes
from poise.config import Home
from poise.drivers.authority import server_context
from poise.drivers.led import Lease, LedStore
from poise.errors import Fault, InputError, NotLeading, PoiseError, StoreAway, StoreFull
from poise.units import SECOND
from poise_ha.etcd import words
from poise_ha.etcd.lease import EtcdLease, Seen
from poise_ha.etcd.link import Members
from poise_ha.etcd.words import end_of

MEGABYTE = 2**20


@pytest.fixture
def server(etcd: EtcdServer) -> EtcdServer:
    return etcd


@pytest.fixture
def url(server: EtcdServer) -> str:
    return server.database()


class Load:
    """Writes one note after another, and knows which it was told of."""

    def __init__(self, url: str) -> None:
        self._owner = Owner()
        self.store: LedStore[Note] = noted_at(url, call_soon=self._owner.call_soon)
        self.store.on_failed = lambda error: pytest.fail(str(error))
        self.store.lead(lease_of(url, "a").take())
        self.last = 0

    def write(self, more: int) -> None:
        """Until they are acknowledged."""
        for _ in range(more):
            self.last = self.store.append([note(self.last + 1)], expected=self.last)
            self._owner.run(until=lambda: self.store.durable() > self.last - 20)
        self._owner.run(until=lambda: self.store.durable() == self.last)

    def check(self) -> None:
        assert list(self.store.read()) == list(enumerate(notes(1, self.last), start=1))


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("which", ["the one that leads the members", "another one"])
def test_with_a_member_gone_commits_go_on_and_none_is_lost_or_doubled(
    server: EtcdServer, url: str, how: str, which: str
) -> None:
    load = Load(url)
    load.write(50)
    leader = server.leader()
    member = leader if which.startswith("the one") else next(one for one in server.members if one != leader)
    try:
        server.kill(member) if how == "killed" else server.stand_still(True, member)
        load.write(100)
        load.check()
    finally:
        server.start() if how == "killed" else server.stand_still(False, member)
    load.write(50)
    load.check()
    load.store.close()


def test_with_most_members_gone_nothing_is_acknowledged(server: EtcdServer, url: str) -> None:
    load, leader = Load(url), server.leader()
    load.write(5)
    others = [one for one in server.members if one != leader]
    server.stand_still(True, *others)
    try:
        last = load.store.append([note(6)], expected=5)
        time.sleep(1.5)  # longer than a member is waited for
        assert load.store.durable() < last
    finally:
        server.stand_still(False, *others)
    load.last = last
    load.write(5)
    load.check()
    load.store.close()


def test_who_is_cut_off_knows_it_first_and_writes_nothing_later(server: EtcdServer, url: str) -> None:
    through, wire = server.wire(url)
    failures, owner = list[Exception](), Owner()
    with contextlib.closing(wire), contextlib.closing(noted_at(url)) as fresh:
        stale: LedStore[Note] = noted_at(through, call_soon=owner.call_soon)
        stale.on_failed = failures.append
        first, second = lease_of(through, "a", lasts=2 * SECOND), lease_of(url, "b")
        stale.lead(first.take())
        stale.append([note(1)], expected=0)
        owner.run(until=lambda: stale.durable() == 1)
        assert second.take() == 0
        wire.cut()
        stale.append([note(2)], expected=1)
        fresh.lead(until(second.take, "the other one leads"))
        assert not first.holds()
        wire.mend()
        owner.run(until=lambda: bool(failures))
        assert isinstance(failures[0], NotLeading)
        assert fresh.append([note(9)], expected=1) == 2
        assert [event for _, event in fresh.read()] == [note(1), note(9)]
        stale.close()
        second.release()


@pytest.fixture
def apart() -> Iterator[tuple[EtcdServer, Cut]]:
    """Three members, the first of which can be cut off from the others."""
    if os.geteuid() != 0:
        pytest.skip("networks of one's own need root")
    with contextlib.closing(Cut()) as cut, running([cut.seat, cut.others, cut.others]) as server:
        yield server, cut


@pytest.mark.root
def test_the_leader_on_the_side_of_the_few_writes_nothing_and_reads_nothing_old(apart: tuple[EtcdServer, Cut]) -> None:
    """Also where the member that it asks leads the others, and does not know yet that they are gone."""
    server, cut = apart
    few, most = server.url("x", 0), server.url("x", 1, 2)
    failures, owner = list[Exception](), Owner()
    server.be_led_by(0)
    stale, fresh = noted_at(few, call_soon=owner.call_soon), noted_at(most)
    with contextlib.closing(stale), contextlib.closing(fresh):
        stale.on_failed = failures.append
        first, second = lease_of(few, "a", lasts=2 * SECOND), lease_of(most, "b")
        stale.lead(first.take())
        stale.append([note(1)], expected=0)
        owner.run(until=lambda: stale.durable() == 1)
        cut.cut()
        stale.append([note(2)], expected=1)
        fresh.lead(until(lambda: taken(second), "the other one leads"))
        assert not first.holds()
        fresh.append([note(9)], expected=1)
        with pytest.raises(StoreAway):
            list(stale.read())
        assert stale.durable() == 1
        cut.mend()
        owner.run(until=lambda: bool(failures))
        assert isinstance(failures[0], NotLeading)
        assert [event for _, event in stale.read()] == [note(1), note(9)]


def taken(lease: Lease) -> int:
    """The term, if it could be taken."""
    with contextlib.suppress(StoreAway):
        return lease.take()
    return 0


def test_whose_leader_died_long_ago_is_found_out(server: EtcdServer, url: str) -> None:
    """Nobody else's clock tells: who comes new has to watch for as long as the lease lasts."""
    through, wire = server.wire(url)
    with contextlib.closing(wire):
        noted_at(url).close()
        gone = lease_of(through, "a", lasts=1 * SECOND)
        assert gone.take()
        assert lease_of(url, "b").look().held  # it was renewed meanwhile
        wire.cut()
        until(lambda: not gone.holds(), "it is lost")
        late = lease_of(url, "b")
        assert late.take() == 0
        assert not late.look().held
        assert late.take() == 2
        late.release()


def test_no_lease_depends_on_what_time_it_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noted_at(url).close()
    first, second = lease_of(url, "a", lasts=1 * SECOND), lease_of(url, "b")
    assert (first.take(), second.take()) == (1, 0)
    real, begun = time.time_ns, time.monotonic()
    for jump in (3600, -3600):
        monkeypatch.setattr(time, "time_ns", lambda by=jump: real() + by * SECOND)
        monkeypatch.setattr(time, "time", lambda: time.time_ns() / SECOND)
        while time.monotonic() < begun + 1.5:
            assert first.holds()
            assert second.take() == 0
            time.sleep(0.05)
        begun = time.monotonic()
    first.release()


@pytest.mark.parametrize("released", [False, True])
def test_a_lease_that_is_renewed_while_another_takes_it_stays(
    server: EtcdServer, url: str, released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wants it was stopped between looking and taking."""
    noted_at(url).close()
    first, second = lease_of(url, "a"), lease_of(url, "b")
    first.take()
    if released:
        server.let_run_out(url)
    assert isinstance(second, EtcdLease)
    look = second._watch

    def look_and_stand_still() -> tuple[Seen, bool]:
        seen, _ = look()
        server.put(keys_of(url).renewed, b"")
        return seen, False

    monkeypatch.setattr(second, "_watch", look_and_stand_still)
    assert second.take() == 0
    assert second.look().term == 1


def test_what_is_too_large_for_one_request_is_written_read_and_forgotten_whole(server: EtcdServer, url: str) -> None:
    large = [Note(letter * (2 * MEGABYTE)) for letter in "abc"]
    with contextlib.closing(noted_at(url, keep=1)) as store:
        store.lead(lease_of(url, "a").take())
        store.append([note(1), *large, note(5)], expected=0)
        assert [event for _, event in store.read()] == [note(1), *large, note(5)]
        for revision in (4, 5):
            store.checkpoint(revision, b"s" * (3 * MEGABYTE) + b"%d" % revision)
        found = store.latest_checkpoint()
        assert found is not None and found.state.endswith(b"s5")
        assert [event for _, event in store.read()] == [note(5)]
        store.append([note(6)], expected=5)
        store.checkpoint(6, b"small")
        store.append([note(7)], expected=6)
        store.checkpoint(7, b"small")
    keys = keys_of(url)
    left = server.get(keys.pieces(b""), end_of(keys.pieces(b"")[:-1]))
    assert not left, sorted(left)


def test_a_log_of_large_commits_is_read_a_little_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a member longer than it is waited for would be asked again and again, and never be read."""
    answers, decode, read = list[int](), words.decode_answer, Members.range

    def measured(text: bytes) -> words.Told:
        answers.append(len(text))
        return decode(text)

    async def slow(self: Members, key: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False) -> Any:
        if limit > 6:
            raise StoreAway("it takes too long")
        return await read(self, key, end, limit=limit, keys_only=keys_only)

    with contextlib.closing(noted_at(url)) as store:
        store.lead(lease_of(url, "a").take())
        written = [Note("x" * 250_000)] * 40
        for last in range(40):
            store.append(written[:1], expected=last)
        monkeypatch.setattr(words, "decode_answer", measured)
        assert [event for _, event in store.read()] == written
        assert max(answers) < 6 * MEGABYTE  # four, in base64
        monkeypatch.setattr(Members, "range", slow)
        assert [event for _, event in store.read()] == written


def test_half_of_a_checkpoint_is_none(server: EtcdServer, url: str) -> None:
    keys, warnings = keys_of(url), list[str]()
    with contextlib.closing(noted_at(url, warn=warnings.append)) as store:
        store.lead(lease_of(url, "a").take())
        store.append([note(1)], expected=0)
        store.checkpoint(1, b"s" * MEGABYTE)
        server.delete(keys.piece(keys.checkpoint(1), 2))
        assert store.latest_checkpoint() is None
        assert "damaged" in warnings[0]


def test_a_full_database_refuses_appends_reads_go_on_and_room_heals() -> None:
    with running([Seat()], "--quota-backend-bytes", str(4 * MEGABYTE)) as server:
        url = server.database()
        with contextlib.closing(noted_at(url)) as store:
            store.lead(lease_of(url, "a").take())
            store.append(notes(1, 10), expected=0)
            for number in itertools.count():  # somebody else's
                try:
                    server.put(b"others/%d" % number, b"x" * (MEGABYTE // 2))
                except OSError:
                    break
            with pytest.raises(StoreFull) as told:
                store.append([note(11)], expected=10)
            assert told.value.record.code == "E202"
            assert "alarm disarm" in told.value.record.hint
            assert not store.recover()
            assert [revision for revision, _ in store.read()] == list(range(1, 11))
            server.make_room(b"others/")
            assert store.recover()
            assert store.append([note(11)], expected=10) == 11


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[EtcdServer, str]]:
    """One that speaks TLS and wants a user; and how it is reached, without the user."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    server_context(home, ["127.0.0.1"])
    pem = str(home.authority / "server.pem")
    with running([Seat()], tls=("--cert-file", pem, "--key-file", pem)) as server:
        server.ask("auth/user/add", {"name": "root", "password": "s3/cret"})
        server.ask("auth/role/add", {"name": "root"})
        server.ask("auth/user/grant", {"user": "root", "role": "root"})
        server.ask("auth/enable", {})
        yield server, f"127.0.0.1:{server.places[0][1]}/guarded?ca={home.authority / 'authority.pem'}"


def test_tls_and_a_user_and_a_member_that_has_forgotten_who_that_is(guarded: tuple[EtcdServer, str]) -> None:
    server, place = guarded
    owner = Owner()
    with contextlib.closing(noted_at(f"etcds://root:s3%2Fcret@{place}", call_soon=owner.call_soon)) as store:
        store.lead(lease_of(f"etcds://root:s3%2Fcret@{place}", "a").take())
        store.append([note(1)], expected=0)
        owner.run(until=lambda: store.durable() == 1)
        server.kill()
        store.append([note(2)], expected=1)
        server.start()
        owner.run(until=lambda: store.durable() == 2)
    for user in ("root:another@", ""):
        with pytest.raises(Fault) as told:
            noted_at(f"etcds://{user}{place}")
        assert told.value.record.code == "E213"
        assert "another" not in repr(told.value.record)
    with pytest.raises(PoiseError) as untrusted:
        noted_at(f"etcds://root:s3%2Fcret@{place.partition('?')[0]}")
    assert "certificate" in str(untrusted.value)
    assert "s3" not in repr(untrusted.value.record)


def test_members_of_two_clusters_are_not_one_store() -> None:
    with running([Seat()]) as one, running([Seat()]) as other:
        url = f"etcd://127.0.0.1:{one.places[0][1]},127.0.0.1:{other.places[0][1]}/x"
        with contextlib.closing(noted_at(url)) as store:
            store.lead(lease_of(url, "a").take())
            store.append([note(1)], expected=0)
            one.kill()
            with pytest.raises(Fault, match="another cluster"):
                list(store.read())


@pytest.mark.parametrize(
    "wrong",
    [
        "etcd://",
        "etcd://somewhere",
        "etcd://h:1,:2",
        "etcd://h:x/p",
        "etcd://a..b:1/p",
        "etcd://h:1?ca=x",
        "etcds://h:1?ca=/none",
        "etcds://h:1?ca=near.pem",
        "etcds://h:1?x=y",
    ],
)
def test_a_url_that_does_not_say_where_etcd_is_is_told(wrong: str) -> None:
    with pytest.raises(InputError) as told:
        noted_at(wrong)
    assert told.value.record.field == "--store"


def test_what_is_not_etcd_is_told(server: EtcdServer) -> None:
    peers: Any = [word for word in server._commands[0] if word.startswith("http")]
    with pytest.raises(PoiseError) as told:
        noted_at(f"etcd://{peers[0].removeprefix('http://')}/x")
    assert told.value.record.code == "E213"
