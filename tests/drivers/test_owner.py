"""The helper that changes users: what it refuses, and what a command has left of root's rights."""

import json
import os
import pwd
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poise.config import Home
from poise.drivers import accounts, owner
from poise.model.resources import Device

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user of this machine")


def a_person(uid: int = 4711, gid: int = 4711, starts: str = "/bin/sh") -> pwd.struct_passwd:
    return pwd.struct_passwd(("ann", "x", uid, gid, "", "/home/ann", starts))


def test_commands_never_run_as_root_or_as_the_system() -> None:
    assert owner.why_not(a_person()) == ""
    assert owner.why_not(a_person(uid=0)) == "it is root"
    for uid in (1, 33, 999, 65534, 65535, 2**32 - 1):
        assert "an account of the system" in owner.why_not(a_person(uid=uid)), uid
    assert "its group" in owner.why_not(a_person(gid=0))
    assert "nobody may log in" in owner.why_not(a_person(starts="/usr/sbin/nologin"))
    for name in ("root", "daemon", "nobody", "no-such-account", "", "a/b", "../x", "a\nb", None, 7, "x" * 64):
        with pytest.raises(owner.Refused):
            owner.account_of(name)


PIECES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 1.5, "", "root", "nobody", "ann", "/var/lib", "/dev/null", "..",
    "/dev/../etc/shadow", "/dev/nvidia0", "/dev/nvidia0\0", "/etc/shadow", "/" + "a" * 5000, "\ud800", [], {}, [[]],
    ["/dev/nvidia0"], ["/dev/./null"], ["/etc"], [None], ["/dev/" + "a/" * 9], {"account": "root"},
)  # fmt: skip


def any_request(chance: random.Random) -> Any:
    """A request as an attacker could send it: right names with wrong values, and wrong names."""
    names = ["account", "tmp", "hide", "processes", "refused", "uid", "ACCOUNT", "account "]
    request: dict[str, Any] = {"account": "ann"} if chance.random() < 0.5 else {}
    request |= {chance.choice(names): chance.choice(PIECES) for _ in range(chance.randint(0, 5))}
    if chance.random() < 0.5:
        text = "".join(chance.choice(string.printable) for _ in range(chance.randint(0, 40)))
        request[chance.choice(names)] = chance.choice([text, [text], text.encode(), {text: text}])
    return chance.choice([request, request, request, request, chance.choice(PIECES)])


def test_a_malformed_request_is_refused_and_never_names_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 requests: each is refused with `Refused`, or is one that the rules allow."""
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"ann": a_person(), "root": a_person(uid=0)}[name])
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 0, 27])
    accepted = 0
    for seed in range(20_000):
        asked = any_request(random.Random(seed))  # noqa: S311 — a seed
        try:
            request = owner.Request(asked)
        except owner.Refused:
            continue
        accepted += 1
        assert request.account.uid == 4711, (seed, asked)
        assert 0 not in request.account.groups, (seed, asked)
        assert request.tmp == "" or (request.tmp[0] == "/" and ".." not in request.tmp), (seed, asked)
        assert all(node.startswith("/dev/") and ".." not in node for node in request.hide), (seed, asked)
    assert accepted > 500, "some of them are right, or nothing was tested"


LOOKS = """
import json, os, resource
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "ids": [*os.getresuid(), *os.getresgid()], "groups": sorted(os.getgroups()), "session": os.getsid(0) == os.getpid(),
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"], "core": resource.getrlimit(resource.RLIMIT_CORE),
    "processes": resource.getrlimit(resource.RLIMIT_NPROC), "files": sorted(os.listdir("/proc/self/fd")),
    "umask": os.umask(0), "folder": os.getcwd(), "home": os.environ["HOME"],
    "others": [of for of in os.listdir("/proc") if of.isdigit() and os.stat(f"/proc/{of}").st_uid != os.getuid()],
}))
"""

STARTS = """
import os, pwd, sys
from poise.config import Home
from poise.drivers import accounts, owner
from poise.model.resources import Device
pwd.getpwnam = lambda name: pwd.struct_passwd(("ann", "x", 54399, 54399, "", "/", "/bin/sh"))
os.getgrouplist = lambda name, gid: [gid, 0]
kept = os.open("/etc/shadow", os.O_RDONLY | os.O_CLOEXEC)
def enter():
    os.chdir("/usr")
    return "/usr/bin/python3"
pid = owner.spawn(owner.Request({"account": "ann", "processes": 77}), enter, ["python3", "-c", sys.argv[1]], {})
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@NEEDS_ROOT
def test_as_root_a_command_keeps_nothing_of_roots_rights() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS, LOOKS], capture_output=True, check=True, text=True)
    told = json.loads(done.stdout)
    assert told["ids"] == [54399] * 6
    assert told["groups"] == [54399], "the group of root is left out"
    assert told["session"]
    assert {int(caps, 16) for caps in told["caps"]} == {0}
    assert told["no_new_privs"] == "1"
    assert told["core"] == [0, 0]
    assert told["processes"] == [77, 77]
    assert len(told["files"]) == 4, "the standard streams, and the one that lists them"
    assert (told["umask"], told["folder"], told["home"]) == (0o077, "/usr", "/")
    assert told["others"] == [], "processes of other users are hidden"


@NEEDS_ROOT
def test_as_root_a_command_that_cannot_start_says_why() -> None:
    fails = STARTS.replace('return "/usr/bin/python3"', "FAILS")
    for line, said in (
        ('return "/no/such/program"', "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/program'"),
        ('return "/etc/shadow"', "PermissionError: [Errno 13] Permission denied: '/etc/shadow'"),
        ('os.chdir("/root")', "PermissionError: [Errno 13] Permission denied"),
        ('raise KeyError("x")', "Refused: 'x'"),
    ):
        program = fails.replace("FAILS", line)
        done = subprocess.run([sys.executable, "-c", program, LOOKS], capture_output=True, check=False, text=True)
        assert said in done.stderr.strip().splitlines()[-1], done.stderr


@NEEDS_ROOT
def test_as_root_files_are_opened_with_borrowed_rights_only() -> None:
    """In a process of its own, because it changes the ids of the whole process meanwhile."""
    program = """
import os, sys
from poise.config import Home
from poise.drivers import accounts, owner
from poise.model.resources import Device
ann = owner.Account("ann", 54399, 54399, [54399], "/", "/bin/sh")
with owner.borrowed(ann):
    try:
        os.open("/etc/shadow", os.O_RDONLY)
    except PermissionError:
        print(os.geteuid(), os.getegid(), os.getgroups(), os.getresuid()[0])
os.open("/etc/shadow", os.O_RDONLY)
print(os.getresuid(), os.getresgid())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == ["54399 54399 [54399] 0", "(0, 0, 0) (0, 0, 0)"]


@NEEDS_ROOT
def test_as_root_the_kernel_of_the_tests_lacks_nothing() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", owner.__file__], capture_output=True, check=True, text=True)
    assert done.stdout == ""


def test_without_root_nothing_starts_as_another_user() -> None:
    """Also where the tests run as root: the process gives up its rights first."""
    program = STARTS.replace("pid = owner", "os.getuid() or os.setresuid(65534, 65534, 65534)\npid = owner")
    program = program.replace('kept = os.open("/etc/shadow", os.O_RDONLY | os.O_CLOEXEC)', "")
    done = subprocess.run([sys.executable, "-c", program, LOOKS], capture_output=True, check=False, text=True)
    assert "Operation not permitted" in done.stderr.splitlines()[-1], done.stderr


def test_only_device_nodes_that_are_known_to_be_of_other_attempts_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_DEV", tmp_path / "dev")
    monkeypatch.setattr(accounts, "_GPUS", tmp_path / "gpus")
    for name in (
        "nvidia0",
        "nvidia1",
        "nvidiactl",
        "nvidia-caps/cap1",
        "kfd",
        "dri/renderD128",
        "davinci0",
        "davinci1",
    ):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    for minor, uuid in enumerate(("GPU-b", "GPU-a")):
        (tmp_path / "gpus" / uuid).mkdir(parents=True)
        facts = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (tmp_path / "gpus" / uuid / "information").write_text(facts)

    def hidden(*devices: Device) -> list[str]:
        return [path.removeprefix(f"{tmp_path}/dev/") for path in accounts.hidden(devices)]

    others = ["dri/renderD128", "kfd"]
    nvidia = ["nvidia-caps/cap1", "nvidia0", "nvidia1"]
    assert hidden() == ["davinci0", "davinci1", *others, *nvidia]
    assert hidden(Device(index=0, uuid="GPU-a")) == ["davinci0", "davinci1", *others, "nvidia0"]
    assert hidden(Device(index=7, uuid="GPU-?")) == ["davinci0", "davinci1", *others]
    assert hidden(Device(index=1, kind="npu")) == ["davinci0", *others, *nvidia]
    assert hidden(Device(index=0, kind="amd")) == ["davinci0", "davinci1", *nvidia]


@NEEDS_ROOT
def test_as_root_folders_of_an_account_belong_to_it_and_those_above_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "ROOT", tmp_path / "poise")
    monkeypatch.setattr(accounts, "account_of", lambda name: owner.Account(name, 54399, 54399, [54399], "/", "/bin/sh"))
    kept = accounts.Accounts(Home(tmp_path), "n1")
    places = kept.ensure("ann")
    assert kept.ensure("ann")[1:] == places[1:]
    for path in (Path(places.results), places.checkpoints, Path(places.tmp)):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (54399, 0o700), path
        for above in (*path.parents,)[: len(path.parents) - len(tmp_path.parents) - 1]:
            assert (above.stat().st_uid, above.stat().st_mode & 0o777) == (0, 0o711), above
    (Path(places.tmp) / "left").write_text("over")
    (places.checkpoints / "step").write_text("saved")
    kept.tidy({"ann"})
    assert (Path(places.tmp) / "left").exists()
    kept.tidy({"bob"})
    assert not Path(places.tmp).exists()
    assert (places.checkpoints / "step").exists(), "checkpoints stay"
    Path(places.tmp).parent.symlink_to("/etc")
    with pytest.raises(OSError, match="Not a directory"):
        kept.ensure("ann")
