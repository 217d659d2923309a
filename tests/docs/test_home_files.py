"""The pages about the state directory name the files that the code keeps there."""

import re
from collections import Counter
from pathlib import Path

from poise.config import Home

PAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to"
HOME = Home(Path("/home/you/.poise"))
NOT_SAVED = {
    *("lock", "poise.sock", "control.json", "supervisor", "stay", "left", "failure.json"),  # of what runs
    *("dashboard", "dashboard.json", "dashboard.html", "services", "gangs", "meetings", "traces", "shadow"),
    *("node", "nodes"),  # of keepers, which a restored home does not have
    *("incidents", "series", "fetched.db", "environments", "work", "ssh"),  # made again
    *("logs", "checkpoints", "poise.log"),  # ordinary files, as the page says
}
"""What a restored home does without. A new file is either here or in the line of `tar`."""


def files_of_home() -> set[str]:
    """The names of what `Home` has a place for."""
    names = [name for name, value in vars(Home).items() if isinstance(value, property)]
    values = (getattr(HOME, name) for name in names)
    return {value.name for value in values if isinstance(value, Path) and value.parent == HOME.root}


def test_the_table_of_contents_names_every_file_once() -> None:
    text = (PAGES / "move-the-home.md").read_text(encoding="utf-8").partition("## Contents")[2]
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    named = Counter(name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    assert [name for name, count in named.items() if count > 1] == []
    assert files_of_home() - named.keys() == set()


def test_a_backup_holds_what_a_restored_home_needs() -> None:
    text = (PAGES / "operate.md").read_text(encoding="utf-8")
    line = text.partition("tar --create --file ~/backup.tar ")[2].partition("2> /dev/null")[0]
    saved = set(re.findall(r"[\w.*/-]+", line))
    assert files_of_home() - saved == NOT_SAVED
    assert "*/cluster.json" in saved
