"""A manifest comes from a client: what could leave the folder of the tree is refused."""

import msgspec
import pytest

from poise.errors import SpecError
from poise.model.trees import HASH, MAX_ENTRIES, MAX_TREE, PIECE, Entry, Manifest, checked, cut, decoded, digest

ONE = digest(b"one")


def a_file(path: str, size: int = 3, pieces: bytes = ONE) -> Entry:
    return Entry(path, "file", size, pieces)


def test_a_manifest_reads_back_as_it_was() -> None:
    entries = (a_file("a.py"), Entry("d", "folder"), Entry("l", "link", target="a.py"), Entry("run", "program", 3, ONE))
    assert decoded(Manifest(entries).encode()).entries == entries
    assert [*cut(ONE + digest(b"two"))] == [ONE, digest(b"two")]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        "x\0y",
        "n" * 256,
        "/".join(["d" * 200] * 30),
    ],
)
def test_a_path_that_is_none_or_leads_out_is_refused(path: str) -> None:
    with pytest.raises(SpecError) as refused:
        checked((a_file(path),))
    assert refused.value.record.code == "E141"


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ((a_file("a"), a_file("a")), "twice"),
        ((Entry("a", "link", target="b"), a_file("a/b")), "through a link"),
        ((a_file("a"), a_file("a/b/c")), "through a file"),
        ((a_file("a", size=4, pieces=b""),), "do not make up"),
        ((a_file("a", size=PIECE + 1),), "do not make up"),
        ((a_file("a", pieces=ONE[: HASH - 1]),), "do not make up"),
        ((a_file("a", size=-1, pieces=b""),), "do not make up"),
        ((Entry("a", "folder", 3, ONE),), "do not make up"),
        ((Entry("a", "link"),), "target"),
        ((Entry("a", "file", target="b"),), "target"),
        ((Entry("a", "link", target="b\0"),), "target"),
    ],
)
def test_entries_that_contradict_each_other_are_refused(entries: tuple[Entry, ...], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        checked(entries)


def test_limits_hold_before_anything_is_made() -> None:
    with pytest.raises(SpecError, match="too many"):
        checked([Entry(f"f{number}", "file") for number in range(MAX_ENTRIES + 1)])
    size = MAX_TREE + 1
    with pytest.raises(SpecError, match="too large"):
        checked([a_file("big", size, ONE * -(-size // PIECE))])


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", msgspec.msgpack.encode([[["a"]]]), msgspec.msgpack.encode([[], 2])]
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError):
        decoded(data)
