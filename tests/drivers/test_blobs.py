"""The store of files: what is acknowledged is there, nobody sees another's, and no hash lies."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from poise.drivers import blobs as module
from poise.drivers.blobs import LENGTH, Asked, Blobs, Told, serve
from poise.errors import NotFound, SpecError, StoreFull
from poise.model.trees import PIECE, Entry, Manifest, digest


@pytest.fixture
def store(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "files.db")


def tree_of(*contents: bytes) -> tuple[bytes, bytes]:
    """A manifest of files with these contents, and its hash."""
    entries = tuple(Entry(f"f{at}", "file", len(one), digest(one) if one else b"") for at, one in enumerate(contents))
    manifest = Manifest(entries).encode()
    return digest(manifest), manifest


def registered(store: Blobs, tenant: str, *contents: bytes) -> bytes:
    tree, manifest = tree_of(*contents)
    store.put(tenant, [manifest, *contents])
    assert store.register(tenant, tree, tree) == []
    return tree


def test_only_what_is_missing_is_asked_for_and_all_of_it_comes_back(tmp_path: Path, store: Blobs) -> None:
    one, two = b"one", b"two"
    assert store.put("ann", [one]) == 1 and store.put("ann", [one]) == 0
    assert store.missing("ann", [digest(one), digest(two), digest(two)]) == [digest(two)]
    assert store.put("ann", [two, one]) == 1
    store.close()
    assert Blobs(tmp_path / "files.db").get("ann", [digest(two), digest(one)]) == [two, one]
    assert (tmp_path / "files.db").stat().st_mode & 0o077 == 0


def test_another_tenant_can_neither_read_nor_probe(store: Blobs) -> None:
    tree = registered(store, "ann", b"secret")
    assert store.missing("bob", [digest(b"secret")]) == [digest(b"secret")]
    with pytest.raises(NotFound):
        store.get("bob", [digest(b"secret")])
    assert not store.has("bob", tree) and store.has("ann", tree)
    _, manifest = tree_of(b"secret")
    store.put("bob", [manifest])  # even who knows the manifest has to bring the files
    assert store.register("bob", tree, tree) == [digest(b"secret")]
    assert not store.has("bob", tree)


def test_a_manifest_that_lies_is_refused(store: Blobs) -> None:
    tree, manifest = tree_of(b"one")
    store.put("ann", [manifest, b"one"])
    with pytest.raises(SpecError, match="another hash"):
        store.register("ann", digest(b"another"), tree)
    with pytest.raises(NotFound):
        store.register("ann", tree, digest(b"not here"))
    long = Manifest((Entry("f", "file", 7, digest(b"one")),)).encode()
    store.put("ann", [long])
    with pytest.raises(SpecError, match="another size"):
        store.register("ann", digest(long), digest(long))
    both = Manifest((Entry("a", "file", 3, digest(b"one")), Entry("b", "file", 4, digest(b"one")))).encode()
    store.put("ann", [both])
    with pytest.raises(SpecError, match="two sizes"):
        store.register("ann", digest(both), digest(both))
    leads_out = Manifest((Entry("../x", "file", 3, digest(b"one")),)).encode()
    store.put("ann", [leads_out])
    with pytest.raises(SpecError, match="leads out"):
        store.register("ann", digest(leads_out), digest(leads_out))
    with pytest.raises(SpecError, match="too large"):
        store.register("ann", tree, tree * 1000)


def test_a_tree_that_differs_in_one_file_looks_up_one_piece(store: Blobs) -> None:
    contents = [b"%d" % number for number in range(2 * module.AT_ONCE)]
    registered(store, "ann", *contents)
    tree, manifest = tree_of(b"changed", b"", *contents[1:])
    store.put("ann", [manifest])
    asked: list[str] = []
    store._db.set_trace_callback(asked.append)
    assert store.register("ann", tree, tree) == [digest(b"changed")]
    (lookup,) = [one for one in asked if one.startswith("SELECT hash, size, id, used")]
    assert lookup.count(",") < 2 * len("hash, size"), "one hash, not those of all files"
    store._db.set_trace_callback(None)
    store.put("ann", [b"changed"])
    assert store.register("ann", tree, tree) == [] and store.has("ann", tree)


def test_only_a_tree_that_is_still_there_proves_its_pieces(store: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(store, "ann", b"one", b"two")
    lies = Manifest((Entry("f", "file", 7, digest(b"one")),)).encode()
    store.put("ann", [lies])
    with pytest.raises(SpecError, match="another size"):
        store.register("ann", digest(lies), digest(lies))
    now = module._now()
    monkeypatch.setattr(module, "_now", lambda: now + module.KEPT + 1)
    assert store.tidy([]) == 1
    tree, manifest = tree_of(b"one", b"two", b"three")
    store.put("ann", [manifest, b"three"])
    assert set(store.register("ann", tree, tree)) == {digest(b"one"), digest(b"two")}


def test_a_piece_too_large_or_one_too_many_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    store = Blobs(tmp_path / "files.db", limit=2**20)
    with pytest.raises(SpecError, match="too large"):
        store.put("ann", [b"x" * (PIECE + 1)])
    first = os.urandom(300_000)
    store.put("ann", [first])
    with pytest.raises(StoreFull, match="no room") as full:
        store.put("ann", [os.urandom(300_000)])
    assert "of one tenant" in full.value.record.need
    with pytest.raises(StoreFull, match="no room"):
        store.put("ann/unix", [os.urandom(300_000)])  # an account of the tenant
    store.put("bob", [os.urandom(300_000)])
    with pytest.raises(StoreFull):
        store.put("eve", [os.urandom(500_000)])
    assert store.get("ann", [digest(first)]) == [first]


def test_trees_that_no_job_needs_go_with_their_pieces(store: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, other = registered(store, "ann", b"a", b"both"), registered(store, "ann", b"b", b"both")
    foreign = registered(store, "bob", b"b")
    store.put("ann", [b"on its way"])
    assert store.tidy({("ann", needed), ("bob", other)}) == 0, "all was used just now"
    real = module._now
    monkeypatch.setattr(module, "_now", lambda: real() + module.KEPT + 1)
    store.put("ann", [b"just now"])
    assert store.tidy({("ann", needed), ("bob", foreign)}) == 1
    assert store.has("ann", needed) and store.has("bob", foreign) and not store.has("ann", other)
    asked = [digest(one) for one in (b"a", b"b", b"both", b"on its way", b"just now")]
    assert store.missing("ann", asked) == [digest(b"b"), digest(b"on its way")]
    assert store.get("bob", [digest(b"b")]) == [b"b"]


def test_when_it_is_full_what_no_job_needs_goes_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Blobs(tmp_path / "files.db", limit=2**20)
    old = registered(store, "ann", os.urandom(400_000))
    registered(store, "bob", os.urandom(480_000))
    real = module._now
    monkeypatch.setattr(module, "_now", lambda: real() + module.AT_HAND + 1)
    assert store.tidy(set()) == 1 and not store.has("ann", old)
    store.put("eve", [os.urandom(400_000)])


def test_a_node_drops_what_it_used_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Blobs(tmp_path / "files.db", limit=2**20)
    first, last = os.urandom(400_000), os.urandom(400_000)
    store.put("", [first])
    real = module._now
    monkeypatch.setattr(module, "_now", lambda: real() + 1)
    store.put("", [last])
    store.shrink()
    assert store.missing("", [digest(first), digest(last)]) == [digest(first)]


def test_the_process_answers_in_order_and_tells_what_is_wrong(store: Blobs) -> None:
    asked = [
        Asked(1, "put", "ann", data=msgspec.msgpack.encode([b"one"])),
        Asked(2, "missing", "ann", data=digest(b"one") + digest(b"two")),
        Asked(3, "get", "ann", data=digest(b"two")),
        Asked(4, "put", "ann", data=b"\xff"),
        Asked(5, "pieces", "ann", tree=digest(b"none")),
    ]
    frames = [msgspec.msgpack.encode(one) for one in asked]
    reads, writes = io.BytesIO(b"".join(LENGTH.pack(len(one)) + one for one in frames)), io.BytesIO()
    serve(store, reads, writes)
    data, told = writes.getvalue(), []
    while data:
        (length,) = LENGTH.unpack(data[: LENGTH.size])
        told.append(msgspec.msgpack.decode(data[LENGTH.size : LENGTH.size + length], type=Told))
        data = data[LENGTH.size + length :]
    assert [one.number for one in told] == [1, 2, 3, 4, 5]
    assert (told[0].data, told[1].data) == (b"1", digest(b"two"))
    assert [one.status for one in told[2:]] == [404, 400, 404] or [one.error is not None for one in told[2:]] == [
        True
    ] * 3


def test_the_cache_of_a_node_is_smaller_where_the_disk_has_less_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fetched.db"
    store = Blobs(path)
    pieces = [os.urandom(PIECE) for _ in range(8)]
    store.put("", pieces)
    hashes = [digest(one) for one in pieces]
    free = 1000 * PIECE
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=1000 * PIECE, free=free))
    store.shrink()
    assert not store.missing("", hashes)
    free = 10 * PIECE
    store.shrink()
    assert 4 <= len(store.missing("", hashes)) < 8
    assert path.with_name("fetched.db-wal").stat().st_size == 0 and path.stat().st_size < 5 * PIECE


def test_the_log_of_a_put_without_room_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "fetched.db"
    store = Blobs(path)
    store._db.execute("PRAGMA cache_size = 10").fetchall()  # what does not fit into memory is in the log early
    store._db.execute("PRAGMA max_page_count = 100").fetchall()
    with pytest.raises(StoreFull):
        store.put("", [os.urandom(PIECE) for _ in range(8)])
    assert path.with_name("fetched.db-wal").stat().st_size == 0
    assert store.put("", [b"small"]) == 1


def test_files_of_a_control_plane_leave_room_for_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant could fill the disk with files, and then the log took nothing more of anybody for an hour."""
    store = Blobs(tmp_path / "files.db", spare=module.FREE)
    free, small = 2 * module.FREE, 4 * PIECE
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=1000 * module.FREE, free=free))
    old = registered(store, "ann", os.urandom(PIECE))
    free = module.FREE + small
    store.put("ann", [os.urandom(PIECE)])
    free = module.FREE + PIECE // 2
    with pytest.raises(StoreFull, match="free for the log"):
        store.put("ann", [os.urandom(PIECE)])
    real = module._now
    monkeypatch.setattr(module, "_now", lambda: real() + module.AT_HAND + 1)
    assert store.tidy(set()) == 1 and not store.has("ann", old)
