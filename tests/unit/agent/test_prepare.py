"""The files of an attempt: fetched by hash, checked, and made so that no path leads elsewhere."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from poise.agent import prepare
from poise.agent.prepare import Alive, Source, copied, fetched, written
from poise.config import Address, Home
from poise.drivers.blobs import Blobs
from poise.drivers.following import NOT_PLANNED, Plan, held, make_room, planned
from poise.drivers.tellings import Tellings, failure_path, result_path
from poise.errors import Fault, NotFound, SpecError, StoreFull
from poise.model.jobs import Ending
from poise.model.messages import Attempt, Ended, Launch
from poise.model.resources import Shape
from poise.model.trees import PIECE, Entry, Manifest, Tree, cut, digest


class Given(Source):
    """A control plane that has these pieces; `wrong` stands in for one of them."""

    def __init__(self, manifest: bytes, pieces: list[bytes], few: int = 1000) -> None:
        self.manifest = manifest
        self.known = {digest(one): one for one in (manifest, *pieces)}
        self.few = few
        self.asked: list[bytes] = []

    def ask(self, data: bytes, alive: Alive) -> bytes:
        if not data:
            return digest(self.manifest)
        self.asked += (wanted := list(cut(data))[: self.few])
        return msgspec.msgpack.encode([self.known[one] for one in wanted])

    def close(self) -> None:
        pass


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[Blobs]:
    store = Blobs(tmp_path / "fetched.db")
    yield store
    store.close()


def plan_for(manifest: bytes) -> Plan:
    return Plan(
        attempt=Attempt("j1.main", 1), tree=Tree(hash=digest(manifest).hex()), key="k", folder="", root="", failure=""
    )


def a_tree(**contents: bytes) -> tuple[bytes, list[bytes]]:
    entries = []
    pieces = []
    for path, content in contents.items():
        cuts = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
        pieces += cuts
        entries.append(Entry(path.replace("__", "/"), "file", len(content), b"".join(map(digest, cuts))))
    return Manifest(tuple(entries)).encode(), pieces


def test_only_what_is_missing_is_fetched_and_a_cut_connection_is_gone_on_from(blobs: Blobs, tmp_path: Path) -> None:
    large = os.urandom(3 * PIECE + 7)
    manifest, pieces = a_tree(a=b"one", d__b=b"two", big=large)
    source = Given(manifest, pieces, few=2)
    blobs.put("", [b"one"])
    entries = fetched(blobs, plan_for(manifest), source, Alive(""))
    assert digest(b"one") not in source.asked and len(source.asked) == len(set(source.asked)) == 6
    written(blobs, entries, tmp_path / "copy", Alive(""))
    assert (tmp_path / "copy" / "big").read_bytes() == large and (tmp_path / "copy" / "d" / "b").read_bytes() == b"two"
    again = Given(manifest, [])
    assert fetched(blobs, plan_for(manifest), again, Alive("")) == entries and not again.asked


def test_a_piece_that_is_another_one_is_refused_and_not_kept(blobs: Blobs) -> None:
    manifest, pieces = a_tree(a=b"one")
    source = Given(manifest, pieces)
    source.known[digest(b"one")] = b"something else"
    with pytest.raises(Fault, match="another piece"):
        fetched(blobs, plan_for(manifest), source, Alive(""))
    assert blobs.missing("", [digest(b"one"), digest(b"something else")]) == [digest(b"one"), digest(b"something else")]
    other, _ = a_tree(b=b"one")
    lying = Given(other, [])
    with pytest.raises(SpecError, match="another hash"):
        fetched(blobs, plan_for(manifest), lying, Alive(""))


def test_a_manifest_that_leads_out_is_refused_on_the_node_too(blobs: Blobs) -> None:
    manifest, pieces = a_tree(**{"..__x": b"one"})
    with pytest.raises(SpecError, match="leads out"):
        fetched(blobs, plan_for(manifest), Given(manifest, pieces), Alive(""))


def test_files_programs_links_and_folders_are_made(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put("", [b"one"])
    entries = (
        Entry("d/run", "program", 3, digest(b"one")),
        Entry("d-e", "file"),
        Entry("empty", "folder"),
        Entry("l", "link", target="d/run"),
    )
    copy = tmp_path / "copy"
    written(blobs, entries, copy, Alive(""))
    assert os.access(copy / "d" / "run", os.X_OK) and (copy / "l").read_bytes() == b"one"
    assert (copy / "d-e").stat().st_size == 0 and (copy / "empty").is_dir() and (copy / "l").is_symlink()


def test_a_link_in_the_way_is_not_followed(blobs: Blobs, tmp_path: Path) -> None:
    """Somebody who can write there may make one at any moment."""
    blobs.put("", [b"one"])
    copy, elsewhere = tmp_path / "copy", tmp_path / "elsewhere"
    copy.mkdir()
    elsewhere.mkdir()
    (copy / "d").symlink_to(elsewhere)
    with pytest.raises(OSError):
        written(blobs, (Entry("d/f", "file", 3, digest(b"one")),), copy, Alive(""))
    (copy / "f").symlink_to(elsewhere / "f")
    written(blobs, (Entry("f", "file", 3, digest(b"one")),), copy, Alive(""))
    assert not list(elsewhere.iterdir())


def test_progress_is_told_meanwhile(blobs: Blobs, tmp_path: Path) -> None:
    manifest, pieces = a_tree(a=b"one")
    fetched(blobs, plan_for(manifest), Given(manifest, pieces), Alive(str(tmp_path / "progress")))
    assert (tmp_path / "progress").exists()


def test_what_is_already_there_stays(blobs: Blobs, tmp_path: Path) -> None:
    """Only the log of the attempt can be (`output`)."""
    blobs.put("", [b"one"])
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "run.log").write_text("the beginning")
    written(blobs, (Entry("run.log", "file", 3, digest(b"one")),), tmp_path / "copy", Alive(""))
    assert (tmp_path / "copy" / "run.log").read_text() == "the beginning"


def test_small_files_are_taken_together_and_a_large_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "AT_ONCE", 10)
    entries = [Entry(name, "file", size) for name, size in (("a", 4), ("b", 4), ("c", 4), ("d", 100), ("e", 1))]
    assert [[one.path for one in group] for group in prepare._together(entries)] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_the_oldest_copies_of_ended_attempts_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    for number, name in enumerate(("j1/main.1", "j2/main.1", "j3/main.1")):
        (work / name).mkdir(parents=True)
        (work / f"{name}.lock").touch()
        os.utime(work / f"{name}.lock", (number, number))
    held(work / "j1" / "main.1")

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(total=1000, free=400 - 100 * len(list(work.glob("*/main.1"))))

    monkeypatch.setattr("shutil.disk_usage", usage)
    make_room(work, 100)
    assert sorted(path.parent.name for path in work.glob("*/main.1")) == ["j1", "j3"], "one is in use, one is younger"


def test_it_becomes_the_command_and_imports_nothing_of_the_job(tmp_path: Path) -> None:
    """Modules in the folder of the attempt, and variables of the job, are the job's alone."""
    manifest, pieces = a_tree(**{"msgspec.py": b"raise SystemExit('the wrong one')", "sub__f": b"one"})
    store = Blobs(tmp_path / "home" / "fetched.db")
    fetched(store, plan_for(manifest), Given(manifest, pieces), Alive(""))
    store.close()
    launch = Launch(
        attempt=Attempt("j1.main", 1),
        argv=("sh", "-c", "cat f; echo $PWD $WHO"),
        shape=Shape(),
        slots=1,
        tree=Tree(hash=digest(manifest).hex(), folder="sub", everywhere=True),
    )
    result = tmp_path / "j1.main.1.json"
    folder, *first = planned(Home(tmp_path / "home"), launch, "key", str(result))
    assert "key" not in str(first) and Path(first[-2]).stat().st_mode & 0o077 == 0
    environ = {"PATH": "/usr/bin:/bin", "WHO": "me", "PYTHONPATH": str(tmp_path / "home" / "work" / "j1" / "main.1")}
    done = subprocess.run([*first, *launch.argv], cwd=folder, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"one{folder} me\n"), done
    assert not Path(first[-2]).exists(), "the key is gone once it is read"
    again = subprocess.run([*first, "true"], cwd=folder, env=environ, capture_output=True, text=True)
    assert again.returncode == prepare.NOT_PREPARED


def a_plan(folder: Path, manifest: bytes) -> Plan:
    (folder / "copies").mkdir()
    return msgspec.structs.replace(plan_for(manifest), folder=str(folder / "copies" / "main.1"))


def damage_head(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)


def damage_pages(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))


@pytest.mark.parametrize("damage", [damage_head, damage_pages])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    home, (manifest, pieces) = Home(tmp_path), a_tree(a=b"one", d__b=b"two")
    store = Blobs(home.fetched)
    store.put("", [manifest, *pieces])
    assert not store.register("", digest(manifest), digest(manifest))
    store.close()
    damage(home.fetched)
    plan = a_plan(tmp_path, manifest)
    home.work.mkdir()
    copied(home, plan, Given(manifest, pieces), Alive(""))
    assert Path(plan.folder, "d", "b").read_bytes() == b"two"
    again = Given(manifest, [])
    fetched(Blobs(home.fetched), plan, again, Alive(""))
    assert not again.asked, "the new cache is used"


def test_a_cache_without_room_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, (manifest, pieces) = Home(tmp_path), a_tree(a=os.urandom(6 * PIECE))
    monkeypatch.setattr(prepare, "Blobs", lambda path: Blobs(path, limit=16 * PIECE))
    old = [os.urandom(PIECE) for _ in range(11)]
    store = Blobs(home.fetched)
    store.put("", old)
    store.close()
    plan = a_plan(tmp_path, manifest)
    home.work.mkdir()
    copied(home, plan, Given(manifest, pieces), Alive(""))
    assert Path(plan.folder, "a").read_bytes() == b"".join(pieces)
    too_much, more = a_tree(b=os.urandom(17 * PIECE))
    with pytest.raises(StoreFull):
        copied(home, msgspec.structs.replace(plan, tree=plan_for(too_much).tree), Given(too_much, more), Alive(""))
    assert not home.fetched.exists(), "it does not fill the disk"


def test_half_of_a_file_does_not_stay(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put("", [bytes(PIECE)])
    entries = (Entry("f", "file", 5 * PIECE, digest(bytes(PIECE)) * 4 + digest(b"gone")),)
    with pytest.raises(NotFound):
        written(blobs, entries, tmp_path / "copy", Alive(""))
    assert not (tmp_path / "copy" / "f").exists()


def test_why_files_cannot_be_made_is_told_on_a_full_disk_too(tmp_path: Path) -> None:
    """Nothing can be written to the log, and the reason needs no more room than the plan has taken."""
    home, attempt = Home(tmp_path / "home"), Attempt("j1.main", 1)
    (home.root / "fetched.db").mkdir(parents=True)
    launch = Launch(attempt=attempt, argv=("true",), shape=Shape(), slots=1, tree=Tree(hash="0" * 64, everywhere=True))
    tellings = Tellings(f"{tmp_path}/")
    folder, *first = planned(home, launch, "key", result_path(f"{tmp_path}/", attempt))
    tellings.planned(attempt)
    ended = Ended(attempt=attempt, ending=Ending(outcome="failed", code=prepare.NOT_PREPARED))
    assert tellings.last_word(ended) == ended, "no reason is known yet"
    size = Path(failure_path(result_path(f"{tmp_path}/", attempt))).stat().st_size
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*first, "true"], cwd=folder, env={}, stderr=full)
    assert done.returncode == prepare.NOT_PREPARED
    told = tellings.last_word(ended).ending
    assert told.outcome == "unstartable" and told.note.startswith("E216: the files of the job cannot be made here")
    assert Path(failure_path(result_path(f"{tmp_path}/", attempt))).stat().st_size == size


def test_an_attempt_of_which_no_plan_could_be_written_is_unstartable(tmp_path: Path) -> None:
    attempt = Attempt("j1.main", 1)
    tellings = Tellings(f"{tmp_path}/")
    ended = Ended(attempt=attempt, ending=Ending(outcome="failed", code=prepare.NOT_PREPARED))
    tellings.planned(attempt, NOT_PLANNED)
    told = tellings.last_word(ended).ending
    assert told.outcome == "unstartable" and told.note == NOT_PLANNED
    tellings.forget([attempt])
    assert tellings.last_word(ended) == ended


def test_where_the_folder_is_seen_it_runs_there_unless_the_copy_counts_everywhere(tmp_path: Path) -> None:
    here, there = Home(tmp_path), Home(tmp_path, Address("head", 7718, "a" * 64))
    for home, tree, is_copied in (
        (here, None, False),
        (here, Tree(hash="0" * 64), False),
        (here, Tree(hash="0" * 64, everywhere=True), True),
        (there, Tree(hash="0" * 64), True),
    ):
        launch = Launch(attempt=Attempt("j1.main", 1), argv=("true",), shape=Shape(), slots=1, tree=tree)
        assert bool(planned(home, launch, "key", str(tmp_path / "j1.main.1.json"))) == is_copied
