"""Jobs leave folders of any shape; they are removed, and nothing beside them."""

import os
from pathlib import Path

import pytest

from poise.drivers.tidy import remove_folder, remove_folders


def make_deep(top: Path, name: str, depth: int) -> None:
    """A chain of folders, with a file in each, which is longer than any path may be."""
    top.mkdir()
    above = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=above)
        inner = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        above = inner
    os.close(above)


@pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("long" * 50, 60)])
def test_a_folder_of_any_depth_is_removed(tmp_path: Path, name: str, depth: int) -> None:
    make_deep(tmp_path / "j1", name, depth)
    remove_folders([tmp_path, tmp_path / "none"], iter(["j1", "j2"]))
    assert not (tmp_path / "j1").exists()


def test_no_link_is_followed(tmp_path: Path) -> None:
    kept, job = tmp_path / "kept", tmp_path / "j1"
    for folder in (kept, job, job / "d"):
        folder.mkdir()
    (kept / "file").touch()
    (job / "link").symlink_to(kept)
    (job / "d" / "link").symlink_to(kept)
    (tmp_path / "j2").symlink_to(kept)
    os.mkfifo(job / "d" / "pipe")
    remove_folders([tmp_path], ["j1", "j2"])
    assert not job.exists() and (kept / "file").exists() and (tmp_path / "j2").is_symlink()


def test_read_only_folders_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "j1" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for folder in (inner, inner.parent, inner.parent.parent):
        folder.chmod(0o555)
    remove_folder(tmp_path / "j1")
    assert not (tmp_path / "j1").exists()


def test_a_removal_that_fails_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "j1").touch()
    remove_folders([tmp_path], ["j1", "n" * 300])
    assert (tmp_path / "j1").exists()
