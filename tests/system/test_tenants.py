"""Two people and one machine: a socket that is shared, tokens that are handed over, and another user of the system."""

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import poise
from poise.drivers import sockets
from poise.errors import Conflict, InputError
from system.living import Done, Living, ended

AS_SOMEBODY_ELSE = """
import encodings.ascii, encodings.idna, importlib, os, pkgutil, pwd, sys, urllib.parse
import poise.cli
for found in pkgutil.iter_modules(poise.cli.__path__):  # while the sources can still be read
    importlib.import_module(f"poise.cli.{found.name}")
somebody = pwd.getpwnam("nobody")
os.setgroups([])
os.setresgid(*[somebody.pw_gid] * 3)
os.setresuid(*[somebody.pw_uid] * 3)
os.chdir("/")
sys.exit(poise.cli.main.main(sys.argv[1:]))
"""


class Shared(NamedTuple):
    """A home that shares its socket, and the file of a token that was handed over: a submitter of `ann`."""

    living: Living
    socket: Path
    token: Path

    def ann(self, *arguments: str, **more: str) -> Done:
        """A command of hers, who has a home of her own in which nothing runs."""
        theirs = {"POISE_HOME": str(self.living.work / "ann"), "POISE_SOCKET": str(self.socket)}
        return self.living.poise(*arguments, **(theirs | {"POISE_TOKEN_FILE": str(self.token)} | more))


@pytest.fixture(scope="module")
def shared_machine() -> Iterator[Shared]:
    living = Living()
    try:
        living.root.chmod(0o755)
        door = living.root / "door"
        door.mkdir(mode=0o755)
        living.up("--share", str(door / "poise.sock"))
        token = living.root / "token"
        token.touch(mode=0o600)
        token.write_bytes(
            living.poise("token", "add", "--tenant", "ann", "--role", "submitter", "--name", "laptop").out
        )
        yield Shared(living, door / "poise.sock", token)
    except BaseException:
        living.destroy()
        raise
    living.close()


def test_somebody_works_with_a_token_on_a_shared_socket(shared_machine: Shared) -> None:
    living, ann = shared_machine.living, shared_machine.ann
    assert ann("whoami").text == "submitter of ann, by t1 laptop\n"
    assert ann("run", "--name", "train", "--", "echo", "hers").text == "hers\n"
    assert living.poise("run", "--name", "train", "--", "echo", "mine").text == "mine\n"
    assert [job["id"] for job in ann("ls", "--json").value] == ["j1"]
    assert [(job["id"], job["tenant"]) for job in living.poise("ls", "--json").value] == [
        ("j1", "ann"),
        ("j2", "default"),
    ]
    assert ann("logs", "train").text == "hers\n"
    assert ann("logs", "j2", "--json").error["code"] == "E120"
    assert ann("top", "--json").value["running"] == []
    assert ann("drain", "n1", "--json").error["code"] == "E133"
    assert ann("up", "--json").error["field"] == "POISE_SOCKET"
    assert not (living.work / "ann").exists(), "nothing is written into a home of hers"
    told = living.poise("audit", "--json").value
    assert [(of["name"], of["tenant"], of["what"]) for of in told][1:3] == [
        ("laptop", "ann", "submitted j1 train of ann"),
        ("", "default", "submitted j2 train of default"),
    ]


def test_a_token_that_others_may_read_or_that_is_gone_is_refused(shared_machine: Shared) -> None:
    living, ann = shared_machine.living, shared_machine.ann
    shared_machine.token.chmod(0o640)
    assert ann("ls", "--json").error["hint"] == f"chmod 600 {shared_machine.token}"
    shared_machine.token.chmod(0o600)
    brief = living.poise("token", "add", "--tenant", "ann", "--role", "viewer", "--expires", "1ms", "--json").value
    assert ann("ls", "--json", POISE_TOKEN=brief["secret"]).error["code"] == "E132"
    gone = living.poise("token", "add", "--tenant", "ann", "--role", "viewer", "--json").value
    assert ann("ls", POISE_TOKEN=gone["secret"]).code == 0
    assert living.poise("token", "rm", gone["id"]).code == 0
    assert ann("ls", "--json", POISE_TOKEN=gone["secret"]).error["code"] == "E130"
    assert gone["secret"].encode() not in (living.home.root / "log.db").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user of this machine")
def test_as_root_another_user_of_the_machine_gets_in_by_the_shared_socket_only(shared_machine: Shared) -> None:
    living = shared_machine.living
    nobody = pwd.getpwnam("nobody")
    theirs = living.root / "theirs"
    theirs.write_bytes(shared_machine.token.read_bytes())
    theirs.chmod(0o600)
    os.chown(theirs, nobody.pw_uid, nobody.pw_gid)

    def as_nobody(*arguments: str, **environment: str) -> Done:
        command = [sys.executable, "-B", "-c", AS_SOMEBODY_ELSE, *arguments]
        pipe = subprocess.PIPE
        environ = living.environment(**{"POISE_TOKEN_FILE": str(theirs)} | environment)
        return ended(subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL))

    shared = {"POISE_SOCKET": str(shared_machine.socket), "POISE_HOME": str(living.root / "none")}
    ran = as_nobody("run", "--", "id", "-u", **shared)
    assert (ran.text, ran.err) == (f"{os.geteuid()}\n", ""), "it runs as who started Poise"
    assert as_nobody("ls", "--json").error["message"] == "the home belongs to another user"
    stolen = as_nobody("ls", "--json", **shared, POISE_TOKEN_FILE=str(living.home.token))
    assert stolen.error["message"] == "the token belongs to another user"


def test_nobody_else_can_stand_in_for_a_shared_socket(tmp_path: Path) -> None:
    """Whoever could put a socket there would be sent tokens."""
    tmp_path.chmod(0o777)
    with pytest.raises(InputError, match="other users could put their own socket there"):
        sockets.share(tmp_path / "poise.sock")
    tmp_path.chmod(0o755)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="this path exists and is not a socket"):
        sockets.share(tmp_path / "file")
    with pytest.raises(InputError, match="No such file"):
        sockets.share(tmp_path / "no" / "poise.sock")
    with sockets.share(tmp_path / "poise.sock"):
        assert (tmp_path / "poise.sock").stat().st_mode & 0o777 == 0o666


def test_the_shared_socket_goes_with_the_control_plane(living: Living) -> None:
    """And who connects is told at once that nobody is there."""
    door = living.root / "poise.sock"
    living.up("--share", str(door))
    assert door.exists()
    assert living.poise("down").code == 0
    assert not door.exists()
    begun = time.monotonic()
    there = {"POISE_SOCKET": str(door), "POISE_TOKEN": "x"}
    assert living.poise("ls", "--json", **there).error["code"] == "E201"
    assert time.monotonic() - begun < 5


def test_functions_say_that_they_need_a_control_plane_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_SOCKET", "/somewhere/poise.sock")
    with pytest.raises(Conflict, match="need your own control plane"):
        poise.task(len).submit([1])
