"""A working tree: what is sent, what is left out, what is refused, and never a stale file."""

import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.drivers import worktree
from poise.drivers.blobs import Asked, Blobs, answered
from poise.drivers.bringing import brought, tree_root
from poise.drivers.ignores import deciding, rules_of
from poise.drivers.worktree import Snapshot, look, sending
from poise.errors import Conflict, SpecError
from poise.model.trees import PIECE, digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    return root


def seen(root: Path) -> Snapshot:
    return look(root, root.parent / "state")


def made(root: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def paths(snapshot: Snapshot) -> list[str]:
    return [entry.path for entry in snapshot.entries]


def test_files_programs_links_and_empty_folders_are_in_it(tree: Path) -> None:
    made(tree, a="text", sub__run="#!/bin/sh\n")
    (tree / "sub" / "run").chmod(0o755)
    (tree / "link").symlink_to("sub/run")
    (tree / "out").mkdir()
    entries = {entry.path: entry for entry in seen(tree).entries}
    assert {path: entry.kind for path, entry in entries.items()} == {
        "a": "file",
        "link": "link",
        "out": "folder",
        "sub/run": "program",
    }
    assert entries["a"].pieces == digest(b"text") and entries["link"].target == "sub/run"


def test_a_large_file_is_cut_and_its_pieces_are_given_once(tree: Path) -> None:
    content = os.urandom(PIECE + 10)
    made(tree, big=content, same=content, small="x")
    snapshot = seen(tree)
    assert [entry.size for entry in snapshot.entries] == [PIECE + 10, PIECE + 10, 1]
    wanted = {piece for entry in snapshot.entries for piece in entry.hashes()}
    assert {digest(data) for data in snapshot.contents(wanted)} == wanted and len(wanted) == 3
    made(tree, small="y")
    with pytest.raises(Conflict, match="changed"):
        list(snapshot.contents(wanted))


def test_what_is_left_out_is_told_with_its_reason(tree: Path) -> None:
    made(tree, **{".gitignore": "*.log\nbuild/\n", "a": "1", "b.log": "2", "build__c": "3", "__pycache__": "4"})
    made(tree, **{".git/config".replace("/", "__"): "5", "env__pyvenv.cfg": "6", "data__.poiseignore": "*\n!keep\n"})
    made(tree, data__keep="7", data__big="8")
    snapshot = seen(tree)
    assert paths(snapshot) == [".gitignore", "a", "data/keep"]
    reasons = {one.path: one.why for one in snapshot.left}
    assert reasons["b.log"] == "`*.log` in .gitignore" and reasons["build/"] == "`build/` in .gitignore"
    assert reasons[".git/"] == "version control" and reasons["env/"] == worktree.ENVIRONMENT
    assert reasons["data/big"] == "`*` in data/.poiseignore"
    assert "b.log (`*.log` in .gitignore)" in snapshot.told()


@pytest.mark.parametrize(
    "name", [".env", ".env.local", "server.pem", "id_rsa", "api.key", ".netrc", "credentials.json"]
)
def test_a_secret_is_refused_by_its_name_until_it_is_allowed_or_left_out(tree: Path, name: str) -> None:
    made(tree, a="1", **{name: "x"})
    with pytest.raises(SpecError) as refused:
        seen(tree)
    assert refused.value.record.have == name and f"`!{name}`" in refused.value.record.hint
    made(tree, **{".poiseignore": f"{name}\n"})
    assert paths(seen(tree)) == [".poiseignore", "a"]
    made(tree, **{".poiseignore": f"!{name}\n"})
    assert name in paths(seen(tree))


def test_a_secret_is_refused_by_its_text(tree: Path) -> None:
    made(tree, **{"settings.py": "TOKEN = 'ghp_" + "a1B2" * 9 + "'\n", ".env.example": "TOKEN=\n"})
    with pytest.raises(SpecError, match="a token is in its text") as refused:
        seen(tree)
    assert refused.value.record.have == "settings.py"
    made(tree, **{".poiseignore": "!settings.py\n"})
    assert "settings.py" in paths(seen(tree))
    made(tree, **{".poiseignore": ""})
    with pytest.raises(SpecError, match="a token is in its text"):
        seen(tree)


def test_what_cannot_be_sent_is_told_all_at_once(tree: Path) -> None:
    made(tree, a="1")
    (tree / "out").symlink_to("/etc")
    (tree / "up").symlink_to("../elsewhere")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree / "sock"))
    with pytest.raises(SpecError) as refused:
        seen(tree)
    told = {record.message: record.have for record in refused.value.record.all()}
    assert told["the link leads out of the tree"] == "out, up"
    assert told["it is a pipe, which cannot be sent"] == "pipe"
    assert told["it is a socket, which cannot be sent"] == "sock"
    made(tree, **{".poiseignore": "out\nup\npipe\nsock\n"})
    assert paths(seen(tree)) == [".poiseignore", "a"]


def test_links_that_leave_the_tree_only_together_are_refused(tree: Path) -> None:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "up").symlink_to("../..")
    (tree / "x").symlink_to("a/b/up/../..")
    with pytest.raises(SpecError, match="leads out"):
        seen(tree)


def test_limits_are_told_before_anything_is_sent(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tree, a="1", b="2", c="333")
    monkeypatch.setattr(worktree, "MAX_ENTRIES", 2)
    with pytest.raises(SpecError, match="too many files"):
        seen(tree)
    monkeypatch.setattr(worktree, "MAX_ENTRIES", 9)
    monkeypatch.setattr(worktree, "MAX_TREE", 4)
    read: list[bytes] = []

    def reading(data: bytes) -> bytes:
        read.append(data)
        return digest(data)

    monkeypatch.setattr(worktree, "digest", reading)
    with pytest.raises(SpecError, match="too large"):
        seen(tree)
    assert len(read) < 3, "the rest is not read"


def test_an_unchanged_tree_is_not_read_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "SETTLED", 20_000_000)
    made(tree, a="1", sub__b="2")
    time.sleep(0.05)
    first, second = seen(tree), seen(tree)
    assert (first.read, second.read, second.hash) == (2, 0, first.hash)
    made(tree, sub__b="3")
    third = seen(tree)
    assert third.read == 1 and third.hash != first.hash


def test_a_file_that_was_just_written_is_read_again(tree: Path) -> None:
    """It may be changed once more within the same tick of the clock, and look the same."""
    made(tree, a="1")
    assert (seen(tree).read, seen(tree).read) == (1, 1)


def test_on_the_file_system_of_another_machine_nothing_is_believed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "SETTLED", 20_000_000)
    monkeypatch.setattr(worktree, "_mounts", lambda: {"/": "nfs4"})
    made(tree, a="1")
    time.sleep(0.05)
    assert (seen(tree).read, seen(tree).read) == (1, 1)


def test_a_damaged_index_costs_time_only(tree: Path) -> None:
    made(tree, a="1")
    first = seen(tree)
    (index,) = (tree.parent / "state" / "trees").iterdir()
    index.write_bytes(b"\xffnonsense")
    assert seen(tree).hash == first.hash


# --- never a stale file ----------------------------------------------------------------------------------------------

NAMES = ("a", "b", "d/a", "d/b")
NAME = st.sampled_from(NAMES)


def _write(root: Path, one: str, other: str, text: str) -> None:
    path = root / one
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def _write_in_place_with_old_times(root: Path, one: str, other: str, text: str) -> None:
    """As `rsync -t`, `tar` and `touch -r` do: another content of the same size, with the times of before."""
    path = root / one
    if path.exists():
        times = path.stat()
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replace_with_old_times(root: Path, one: str, other: str, text: str) -> None:
    path = root / one
    if path.exists():
        shutil.copystat(path, _fresh(root, text))
        _fresh(root, text, make=False).replace(path)


def _fresh(root: Path, text: str, *, make: bool = True) -> Path:
    path = root / ".new"
    if make:
        path.write_text(text)
    return path


def _swap(root: Path, one: str, other: str, text: str) -> None:
    """As a switch between branches that have the two files in each other's place."""
    if one != other and (root / one).exists() and (root / other).exists():
        (root / one).rename(root / ".swap")
        (root / other).rename(root / one)
        (root / ".swap").rename(root / other)


def _rename(root: Path, one: str, other: str, text: str) -> None:
    if (root / one).exists():
        (root / other).parent.mkdir(exist_ok=True)
        (root / one).replace(root / other)


def _copy(root: Path, one: str, other: str, text: str) -> None:
    if one != other and (root / one).exists():
        (root / other).parent.mkdir(exist_ok=True)
        shutil.copy2(root / one, root / other)


def _remove(root: Path, one: str, other: str, text: str) -> None:
    (root / one).unlink(missing_ok=True)


def _make_a_program(root: Path, one: str, other: str, text: str) -> None:
    if (root / one).exists():
        (root / one).chmod(0o755 if text < "5" else 0o644)


def _wait(root: Path, one: str, other: str, text: str) -> None:
    time.sleep(0.03)


def _ignore(root: Path, one: str, other: str, text: str) -> None:
    (root / ".gitignore").write_text(f"/{one}\n" if text < "5" else "")


def _look(root: Path, one: str, other: str, text: str) -> None:
    seen(root)


DEEDS: list[Callable[[Path, str, str, str], None]] = [
    _write,
    _write_in_place_with_old_times,
    _replace_with_old_times,
    _swap,
    _rename,
    _copy,
    _remove,
    _make_a_program,
    _wait,
    _ignore,
    _look,
    _look,
]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DEEDS), NAME, NAME, st.sampled_from("0123456789")), max_size=25))
def test_a_tree_is_never_stale(deeds: list[tuple[Callable[[Path, str, str, str], None], str, str, str]]) -> None:
    """Whatever was done between two looks, the index gives the hash that reading all files gives."""
    before, worktree.SETTLED = worktree.SETTLED, 20_000_000
    folder = Path(tempfile.mkdtemp(prefix="poise-tree-"))
    root = folder / "tree"
    root.mkdir()
    try:
        for deed, one, other, text in deeds:
            deed(root, one, other, text)
        known = seen(root)
        anew = look(root, folder / "anew")
        assert (known.hash, paths(known)) == (anew.hash, paths(anew))
    finally:
        worktree.SETTLED = before
        shutil.rmtree(folder)


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_switch_of_branches_is_seen(tree: Path) -> None:
    git(tree, "init", "-q")
    made(tree, a="one")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "one")
    git(tree, "checkout", "-qb", "other")
    made(tree, a="two")
    git(tree, "commit", "-qam", "two")
    two = seen(tree).hash
    git(tree, "checkout", "-q", "main")
    one = seen(tree).hash
    git(tree, "checkout", "-q", "other")
    assert seen(tree).hash == two != one
    assert tree_root(tree / "sub") == tree and tree_root(tree.parent) is None


# --- rules, beside Git's own -----------------------------------------------------------------------------------------

PATTERNS = st.text(alphabet="ab*?/![]\\. -^", min_size=1, max_size=7)
PART = st.text(alphabet="ab. -", min_size=1, max_size=3).filter(lambda part: part.strip(".") and part == part.strip())


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.one_of(PATTERNS, st.sampled_from(["a/", "/a", "a/**", "**/b", "a/**/b", "!a", "*.b", "[ab]", "[!a]"])),
             min_size=1, max_size=4),
    st.lists(st.lists(PART, min_size=1, max_size=3), min_size=1, max_size=4),
)  # fmt: skip
def test_rules_are_read_as_git_reads_them(lines: list[str], found: list[list[str]]) -> None:
    names = sorted({"/".join(parts) for parts in found})
    asked = [name for name in names if not any(other.startswith(name + "/") for other in names)]
    text = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        git(root, "init", "-q")
        (root / ".gitignore").write_text(text)
        done = subprocess.run(
            ["git", "check-ignore", "--no-index", "-z", "--stdin"],
            cwd=root,
            input="\0".join(asked) + "\0",
            capture_output=True,
            text=True,
        )
    by_git = set(done.stdout.split("\0")) - {""}
    rules = rules_of(text, ".gitignore", "")

    def out(path: str) -> bool:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            rule = deciding(rules, "/".join(parts[:depth]), is_folder=depth < len(parts))
            if rule is not None and not rule.includes:
                return True
        return False

    assert {path for path in asked if out(path)} == by_git, text


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("Icon\r\r\n", {"Icon\r"}),
        ("b\r\n", {"b"}),
        ("\ufeffb\n", {"b"}),
        ("a\x0cb\n", set()),
        ("?\n", {"b"}),
        ("[!a]\n", {"b"}),
        ("??\n", {"é"}),
        ("é\n", {"é"}),
        ("*é*\n", {"é"}),
    ],
)
def test_lines_and_bytes_are_those_of_git(tree: Path, text: str, left_out: set[str]) -> None:
    """The template for a Mac has the line `Icon\\r\\r`, which left out every folder called `Icon`."""
    names = {"Icon", "Icon\r", "b", "é"}
    git(tree, "init", "-q")
    made(tree, **dict.fromkeys(names, "1"), **{".gitignore": text})
    listed = subprocess.run(["git", "ls-files", "-oz", "--exclude-standard"], cwd=tree, capture_output=True, check=True)
    by_git = {*listed.stdout.decode().split("\0")} - {"", ".gitignore"}
    assert {*paths(seen(tree))} - {".gitignore"} == by_git == names - left_out


def test_the_index_is_found_by_the_path_of_the_tree(tree: Path) -> None:
    made(tree, a="1")
    seen(tree)
    (index,) = (tree.parent / "state" / "trees").iterdir()
    assert index.name == hashlib.blake2b(os.fsencode(tree.resolve()), digest_size=16).hexdigest()
    assert index.stat().st_mode & 0o077 == 0


# --- what a job brings along -----------------------------------------------------------------------------------------


def what(tree: Path, *, remote: bool = False, **spec: object) -> tuple[Path, bool, bool] | None:
    found = brought({"run": ["true"], "folder": str(tree / "sub"), **spec}, remote=remote)
    return None if found is None else (found.root, found.everywhere, found.by_default)


def test_a_job_brings_its_git_tree_along_by_default_and_another_folder_if_it_says_so(tree: Path) -> None:
    made(tree, sub__a="1")
    assert what(tree) is None and what(tree, sync=False) is None
    assert what(tree, sync=True) == (tree / "sub", True, False)
    (tree / ".git").mkdir()
    assert what(tree) == (tree, False, True) and what(tree, remote=True) == (tree, True, True)
    assert what(tree, sync=True) == what(tree, requirements="r.txt") == (tree, True, False)
    assert what(tree, sync="..") == (tree, True, False) and what(tree, sync="../sub") == (tree / "sub", True, False)
    assert what(tree, sync=False) is what(tree, serves="x") is what(tree, calls=True) is what(tree, folder="") is None
    assert what(tree, sync={"tree": "0" * 64}) is what(tree, sync=3) is None


def test_the_job_is_told_where_in_the_tree_it_runs(tree: Path) -> None:
    made(tree, sub__a="1", sub__r="six", top="six")
    (tree / ".git").mkdir()
    for requirements, found in (("r", "sub/r"), ("top", "top"), ("../top", "top")):
        spec = {"folder": str(tree / "sub"), "requirements": requirements}
        wanted = brought(spec, remote=False)
        assert wanted is not None
        snapshot = wanted.look(tree.parent / "state")
        told = wanted.told(spec, snapshot)
        assert told["sync"] == {"tree": snapshot.hash, "folder": "sub", "everywhere": True}
        assert told["requirements"] == found
    for requirements in ("missing", "../../outside", "a/b"):
        wanted = brought({"folder": str(tree / "sub"), "requirements": requirements}, remote=False)
        assert wanted is not None
        with pytest.raises(SpecError, match="lock file"):
            wanted.look(tree.parent / "state")


def test_full_paths_of_files_of_the_tree_lead_to_the_copy(tree: Path) -> None:
    """As the path of a script with directives does."""
    made(tree, sub__a="1", top="2", out__log="3", **{".gitignore": "out\n"})
    words = ["sh", f"{tree}/sub/a", f"{tree}/top", f"{tree}/out/log", "/bin/sh", f"{tree}/sub", 3]
    spec = {"run": words, "folder": str(tree / "sub"), "sync": ".."}
    wanted = brought(spec, remote=False)
    assert wanted is not None
    told = wanted.told(spec, wanted.look(tree.parent / "state"))
    assert told["run"] == ["sh", "./a", "../top", f"{tree}/out/log", "/bin/sh", f"{tree}/sub", 3]


def test_only_what_is_missing_is_sent_and_an_unchanged_tree_is_one_question(tree: Path) -> None:
    made(tree, a="1", b="2")
    store = Blobs(tree.parent / "files.db")
    asked: list[str] = []

    def ask(method: str, path: str, data: bytes | None) -> bytes:
        asked.append(f"{method} {path.partition('/v1/')[2].partition('/')[0]}")
        hashes, name = data or b"", path.rpartition("/")[2]
        if method == "GET":
            return answered(store, Asked(1, "pieces", "ann", bytes.fromhex(name)))
        if name in ("missing", "files"):
            return answered(store, Asked(1, {"missing": "missing", "files": "put"}[name], "ann", b"", hashes))
        return answered(store, Asked(1, "register", "ann", bytes.fromhex(name), hashes))

    def sent() -> list[bytes]:
        asked.clear()
        return [piece for pieces in sending(seen(tree), ask) for piece in pieces]

    assert sorted(sent()) == [b"1", b"2"]
    assert sent() == [] and asked == ["GET trees"]
    made(tree, b="3")
    assert sent() == [b"3"]
    (tree / "a").rename(tree / "c")
    assert sent() == [], "a file under another name is no new file"


@pytest.mark.parametrize("rule", ["", "build/\n"])
def test_a_path_that_was_left_out_is_looked_at_again(tree: Path, rule: str) -> None:
    """Whether it is left out depends on more than the rules: on its kind, and on what makes an environment of it."""
    made(tree, **{".gitignore": rule, "env__pyvenv.cfg": "", "env__a": "1", "build__b": "2", "plain__c": "3"})
    seen(tree)
    (tree / "env" / "pyvenv.cfg").unlink()
    shutil.rmtree(tree / "build")
    made(tree, build="a file", **{"plain__pyvenv.cfg": ""})
    again = seen(tree)
    assert paths(again) == [".gitignore", "build", "env/a"] and [one.path for one in again.left] == ["plain/"]
    assert again.hash == look(tree, tree.parent / "anew").hash


def test_a_folder_of_a_git_tree_follows_the_rules_from_above_it(tree: Path) -> None:
    git(tree, "init", "-q")
    made(tree, **{".gitignore": "*.log\n/sub/data\n/other\n", "sub__.gitignore": "!keep.log\n", "sub__in__a.log": ""})
    made(
        tree, **{"sub__in__keep.log": "", "sub__in__data": "", "sub__data": "", "sub__in__notes": "", "sub__other": ""}
    )
    made(tree, **{".git/info/exclude".replace("/", "__"): "notes\n"})
    tracked = git(tree, "ls-files", "--others", "--exclude-standard", "sub").split()
    assert [f"sub/{path}" for path in paths(seen(tree / "sub"))] == sorted(tracked)
    inner = look(tree / "sub" / "in", tree.parent / "state")
    assert paths(inner) == ["data", "keep.log"]
    assert {one.path: one.why for one in inner.left} == {
        "a.log": "`*.log` in ../../.gitignore",
        "notes": "`notes` in ../../.git/info/exclude",
    }
    made(tree, **{".git/info/exclude".replace("/", "__"): "data\n"})
    assert paths(look(tree / "sub" / "in", tree.parent / "state")) == ["keep.log", "notes"]


def test_a_second_working_tree_of_a_repository_follows_its_exclusions(tree: Path) -> None:
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "m")
    made(tree, **{".git/info/exclude".replace("/", "__"): "notes\n"})
    second = tree.parent / "second"
    git(tree, "worktree", "add", "-q", str(second))
    made(second, a="1", notes="2")
    assert paths(look(second, tree.parent / "state")) == ["a"]


def test_names_that_are_not_utf8_are_told_or_left_out(tree: Path) -> None:
    made(tree, **{".gitignore": "*.tmp\n", "a": "1"})
    odd = os.fsdecode(b"\xff")
    (tree / f"{odd}.tmp").write_text("")
    first, second = seen(tree), seen(tree)
    assert paths(first) == paths(second) == [".gitignore", "a"] and "udcff.tmp" in first.told()
    assert first.told().encode()
    (tree / odd).mkdir()
    (tree / odd / "b").write_text("")
    with pytest.raises(SpecError, match="not UTF-8") as refused:
        seen(tree)
    assert "udcff" in str(refused.value.record.have)


@pytest.mark.parametrize(
    "name", [b"a b", b"#a", b"!a", b"a*b", b"a?[b]", b"a\\b", b"a\nb", b"a\xffb", b"end ", "a\u2028b".encode()]
)
def test_the_line_of_a_hint_can_be_typed_and_leaves_the_file_out(tree: Path, name: bytes) -> None:
    made(tree, a="1")
    os.mkfifo(tree / os.fsdecode(name))
    with pytest.raises(SpecError) as refused:
        seen(tree)
    line = refused.value.record.hint.split("`")[1]
    assert line.isprintable()
    made(tree, **{".poiseignore": f"{line}\n"})
    assert paths(seen(tree)) == [".poiseignore", "a"]


def test_a_file_that_vanishes_meanwhile_is_not_in_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tree, a="1", b="2", sub__c="3", **{"sub__.gitignore": "c\n"})
    (tree / "z").symlink_to("a")

    def name_of(entry: "os.DirEntry[str]") -> str:
        """The names are known by now, and nothing else is."""
        if entry.name in ("b", ".gitignore", "z"):
            Path(entry.path).unlink()
        return entry.name

    monkeypatch.setattr(worktree, "_name_of", name_of)
    assert paths(seen(tree)) == ["a", "sub/c"]


def test_a_deep_tree_is_sent(deep: Path) -> None:
    snapshot = look(deep, deep.parent / "state")
    assert paths(snapshot) == ["d/" * 1_200 + "a"]
    assert look(deep, deep.parent / "state").hash == snapshot.hash
