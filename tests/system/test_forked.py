"""Daemons that tests fork (`forked`) are like the daemons that a user's command starts."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from system.living import POISE, Living, ended, until

DAEMONS = ("supervisor", "control", "agent")


class Given(NamedTuple):
    """The properties of a process that the system shows."""

    arguments: list[str]
    environment: list[str]
    folder: str
    program: str
    alone: tuple[bool, bool]
    """Whether the process leads its session, and whether it leads its group."""

    signals: list[str]
    files: list[str]


def given(living: Living, pid: int) -> Given:
    entry = Path(f"/proc/{pid}")

    def words(name: str) -> list[str]:
        return (entry / name).read_bytes().decode().replace(str(living.root), "ROOT").split("\0")

    status = (entry / "status").read_text()
    files = [str(file.readlink()).replace(str(living.root), "ROOT") for file in (entry / "fd").iterdir()]
    return Given(
        words("cmdline"),
        sorted(words("environ")),
        str((entry / "cwd").readlink()),
        str((entry / "exe").readlink()),
        (os.getsid(pid) == pid, os.getpgid(pid) == pid),
        re.findall("^Sig(?:Blk|Ign|Cgt):.*", status, re.MULTILINE),
        sorted({re.sub("[0-9]+", "N", file) for file in files}),
    )


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Living, Living]]:
    """A home started as tests start one, and a home started as a user starts one."""
    forked, typed = Living(), Living()
    try:
        forked.up()
        up = [POISE, "up", "--port", "0"]
        done = ended(
            subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=typed.environment())
        )
        assert done.code == 0, done.err
        for living in (forked, typed):
            client = living.client()
            until(client.nodes, "its node has joined", living.messages)
            client.close()
        yield forked, typed
    except BaseException:
        forked.destroy()
        typed.destroy()
        raise
    forked.close()
    typed.close()


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_forked_daemon_is_given_what_a_started_one_is(started: tuple[Living, Living], daemon: str) -> None:
    """Compare them when both are idle, because some files are open only for an instant."""

    def both() -> list[Given]:
        return [given(living, living.pid(daemon)) for living in started]

    until(lambda: len({str(one) for one in both()}) == 1, "they are given the same", both, seconds=20)


def test_a_forked_daemon_is_a_child_of_its_supervisor(started: tuple[Living, Living]) -> None:
    for living in started:
        parents = [Path(f"/proc/{living.pid(name)}/stat").read_text().rpartition(")")[2].split()[1] for name in DAEMONS]
        assert parents[1:] == [str(living.pid("supervisor"))] * 2
