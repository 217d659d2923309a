"""What `make setup` installs is pinned, with hashes: all that the project asks for, and what that asks for."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
EXTRAS = ("demo", "dev", "docs", "nvidia", "ray")
"""Those that `make setup` installs."""

ENTRY = re.compile(
    r"^([a-z0-9.-]+)==([^ ;\\]+)(?: ; [^\\]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)
PINNED = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
"""By version alone."""


def test_every_dependency_is_locked_at_a_version_that_will_do() -> None:
    text = (ROOT / "requirements.lock").read_text()
    locked: dict[str, set[str]] = {}
    for name, version, _ in ENTRY.findall(text):
        locked.setdefault(name, set()).add(version)
    assert ENTRY.sub("", text) == "", "nothing is there without a hash"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    for wanted in map(Requirement, asked):
        name = canonicalize_name(wanted.name)
        versions = {PINNED[name]} if name in PINNED else locked.get(name, set())
        assert versions, f"{name} is not locked: `make lock`"
        assert all(wanted.specifier.contains(one, prereleases=True) for one in versions), (name, versions)


def test_what_is_pinned_without_hashes_is_only_what_has_many_builds() -> None:
    assert set(PINNED) == {"torch"}
