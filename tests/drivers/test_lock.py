"""Locks of a home: who holds one is told, and nobody else."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poise.drivers.lock import holder, is_held, take_lock
from poise.errors import InputError


def test_who_holds_it_is_told(tmp_path: Path) -> None:
    with take_lock(tmp_path / "lock", "control plane"):
        assert is_held(tmp_path / "lock") and holder(tmp_path / "lock")
    assert not is_held(tmp_path / "lock") and holder(tmp_path / "lock") == 0


def test_who_only_looks_is_not_taken_for_a_holder(tmp_path: Path) -> None:
    """Or `poise down` would end the process that has the number of one that held it long ago."""
    with take_lock(tmp_path / "lock", "control plane"):
        pass
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda _: holder(tmp_path / "lock"), range(4000)))


def test_a_file_in_place_of_the_home_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(InputError, match="the home cannot be used: Not a directory") as raised:
        is_held(tmp_path / "home" / "lock")
    assert raised.value.record.field == str(tmp_path / "home")
