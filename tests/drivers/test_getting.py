"""What an attempt has left comes as one archive, and nothing from elsewhere."""

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest

from poise.cli.get import kept
from poise.config import Home
from poise.drivers.getting import Giving, GoneError, archive
from poise.errors import SpecError
from poise.model.messages import Attempt, Credit, FromConsole, Get, Left, Said


def names(folder: Path, path: str) -> dict[str, bytes | str | None]:
    """What is in the archive: content, target or nothing, by name."""
    data = io.BytesIO(b"".join(archive(folder, path)))
    found: dict[str, bytes | str | None] = {}
    with tarfile.open(fileobj=data, mode="r|") as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            found[entry.name] = file.read() if file else entry.linkname or None
    return found


@pytest.fixture
def left(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "out" / "deep").mkdir(parents=True)
    (folder / "out" / "a").write_bytes(b"1" * 100_000)
    (folder / "out" / "deep" / "b").write_bytes(b"")
    (folder / "out" / ("n" * 200)).write_bytes(b"long")
    (tmp_path / "secret").write_text("secret")
    return folder


def test_a_file_and_a_folder(left: Path) -> None:
    assert names(left, "out/a") == {"a": b"1" * 100_000}
    assert names(left, "out") == {
        "out": None,
        "out/a": b"1" * 100_000,
        "out/deep": None,
        "out/deep/b": b"",
        "out/" + "n" * 200: b"long",
    }
    assert names(left / "out" / "deep", ".") == {".": None, "./b": b""}


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "out/../../secret", "nothing", "out/a/b", "a\0b", ""])
def test_a_path_that_leads_out_or_nowhere_is_gone(left: Path, path: str) -> None:
    with pytest.raises(GoneError):
        list(archive(left, path))


def test_links_are_not_followed(left: Path) -> None:
    (left / "out" / "up").symlink_to("../..")
    (left / "out" / "link").symlink_to("/etc/passwd")
    with pytest.raises(GoneError):
        list(archive(left, "out/up/secret"))
    assert names(left, "out/link") == {"link": "/etc/passwd"}
    assert names(left, "out")["out/up"] == "../.."


def test_what_is_no_file_is_left_out(left: Path) -> None:
    os.mkfifo(left / "out" / "pipe")
    assert "out/pipe" not in names(left, "out")


def test_a_file_that_shrinks_is_filled_up(left: Path) -> None:
    (left / "big").write_bytes(b"x" * 300_000)
    pieces = archive(left, "big")
    first = next(pieces)
    (left / "big").write_bytes(b"")
    data = first + b"".join(pieces)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as tar:
        (entry,) = list(tar)
        assert entry.size == 300_000


def test_a_deep_folder_is_given_to_its_end(deep: Path) -> None:
    said: list[FromConsole] = []

    async def give() -> None:
        over = asyncio.Event()

        def say(message: FromConsole) -> None:
            said.append(message)
            if isinstance(message, Said):
                giving.takes(Credit(name="g1", bytes=len(message.data)))
            if isinstance(message, Left):
                over.set()

        giving = Giving(Home(deep.parent / "home"), say)
        assert giving.takes(Get(name="g1", attempt=Attempt("j1.main", 1), folder=str(deep), path="."))
        await asyncio.wait_for(over.wait(), 60.0)

    asyncio.run(give())
    assert said.pop() == Left(name="g1", code=0)
    data = b"".join(message.data for message in said if isinstance(message, Said))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as tar:
        last = tar.getnames()[-1]
    assert last == "./" + "d/" * 1_200 + "a"


def test_folders_side_by_side_are_all_given(left: Path) -> None:
    (left / "out" / "z" / "y").mkdir(parents=True)
    (left / "out" / "z" / "y" / "x").write_bytes(b"1")
    assert [name for name in names(left, "out") if "n" not in name] == [
        "out", "out/a", "out/deep", "out/deep/b", "out/z", "out/z/y", "out/z/y/x",
    ]  # fmt: skip


def test_a_folder_that_is_moved_meanwhile_leads_nowhere_else(left: Path) -> None:
    (left / "out" / "deep" / "big").write_bytes(b"1" * 200_000)
    pieces = archive(left, "out")
    while b"out/deep/big" not in next(pieces):
        pass
    (left / "elsewhere").mkdir()
    (left / "out" / "deep").rename(left / "elsewhere" / "deep")
    with pytest.raises(OSError, match="moved"):
        list(pieces)


def test_what_is_no_file_is_refused_where_it_is_asked_for_by_its_name(left: Path, tmp_path: Path) -> None:
    os.mkfifo(left / "pipe")
    (left / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link"):
        with pytest.raises(SpecError, match="nothing to copy"):
            kept(archive(left, name), tmp_path / "got", 2**30)
    assert not (tmp_path / "got").exists() and not list(tmp_path.glob(".poise-get-*"))
    assert kept(archive(left, "out/a"), tmp_path / "got", 2**30) == (1, 100_000)
    assert (tmp_path / "got").read_bytes() == b"1" * 100_000


def test_a_deep_folder_is_replaced_by_what_came(deep: Path, left: Path) -> None:
    kept(archive(left, "out/a"), deep / "d", 2**30, force=True)
    assert (deep / "d").read_bytes() == b"1" * 100_000


def test_a_link_that_is_left_out_has_its_own_name(
    left: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (left / "out" / "link").symlink_to("/etc/passwd")
    kept(archive(left, "out"), tmp_path / "got", 2**30)
    assert capsys.readouterr().err == "poise: 'got/link' is left out: a link that leads elsewhere\n"
