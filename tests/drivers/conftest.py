"""What tests of stores leave behind is closed; a tree that is too deep to be walked by calls of calls."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.notes import leases


@pytest.fixture(autouse=True)
def _closed_leases() -> Iterator[None]:
    yield
    while leases:
        leases.pop().close()


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """1,200 folders in each other, with one file at the end."""
    top = path = tmp_path / "deep"
    path.mkdir()
    for _ in range(1_200):
        path = path / "d"
        path.mkdir()
    (path / "a").write_text("1")
    yield top
    subprocess.run(["rm", "-r", str(top)], check=True)  # `shutil.rmtree` of Python 3.11 calls itself for each folder
