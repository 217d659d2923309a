"""What root does in the folders of accounts: it follows none of their links."""

import os
from pathlib import Path

import pytest

from poise.config import Home
from poise.drivers import accounts
from poise.drivers.accounts import Accounts, barred
from poise.drivers.owner import Account
from poise.drivers.tidy import remove_folder

ANN = Account("ann", 54321, 54321, [54321], "/home/ann", "/bin/sh")


@pytest.fixture
def of_ann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Accounts, Path]:
    """The accounts of a home, and the state directory of one."""
    monkeypatch.setattr(accounts, "ROOT", tmp_path / "root")
    made = Accounts(Home(tmp_path / "home"), "n1")
    state = made.root / "ann" / "home"
    for name in ("work/j1/main.1", "work/j2/main.1", "values/j1"):
        (state / name).mkdir(parents=True)
        (state / name / "file").touch()
    return made, state


def test_what_jobs_have_left_is_found_and_removed(of_ann: tuple[Accounts, Path]) -> None:
    made, state = of_ann
    (state / "work" / "not a job").mkdir()
    assert made.jobs() == ["j1", "j2"]
    made.remove(["j1", "j3"])
    assert made.jobs() == ["j2"]
    assert not (state / "values" / "j1").exists()
    assert (state / "work" / "not a job").exists()


def test_links_in_place_of_folders_lead_nowhere(of_ann: tuple[Accounts, Path], tmp_path: Path) -> None:
    made, state = of_ann
    theirs = tmp_path / "theirs" / "j2"
    theirs.mkdir(parents=True)
    (theirs / "kept").touch()
    (state / "work").rename(state / "moved")
    (state / "work").symlink_to(theirs.parent)
    (state / "values" / "j2").symlink_to(theirs)
    assert made.jobs() == ["j1", "j2"], "names in `values`"
    made.remove(["j1", "j2"])
    assert (theirs / "kept").exists()


def test_an_account_runs_only_what_it_can_reach(tmp_path: Path) -> None:
    place = Path("/srv" if os.geteuid() == 0 else tmp_path) / f"of-{os.getpid()}"
    try:
        place.mkdir(mode=0o755)
        (place / "program").touch(mode=0o755)
        (place / "program").chmod(0o755)
        assert barred(ANN, place / "program") == "" or os.geteuid() != 0
        (place / "link").symlink_to(place / "closed" / "program")
        (place / "closed").mkdir(mode=0o700)
        (place / "closed" / "program").touch(mode=0o755)
        if os.geteuid() == 0:
            assert barred(ANN, place / "link") == str(place / "closed")
        assert "private" in barred(ANN, Path("/tmp"))  # noqa: S108 — it is never used
    finally:
        remove_folder(place)
