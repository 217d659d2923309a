"""What an attempt has left comes as one archive, and nothing from elsewhere."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from poise.drivers.getting import GoneError, archive


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
