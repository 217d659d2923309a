"""A machine that joins with one command, here and by ssh."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import poise
from poise.cli.join import Joined, unit_text
from poise.config import Home
from poise.drivers.lock import holder
from system.living import Living, free_port, until


@pytest.fixture(scope="module")
def listening() -> Iterator[Living]:
    living = Living()
    try:
        living.up("--listen", f"127.0.0.1:{free_port()}", "--no-agent")
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def address_of(living: Living) -> str:
    return next(line.split()[1] for line in living.poise("status").text.splitlines() if line.startswith("address"))


def token_for(living: Living, role: str) -> str:
    return living.poise("token", "add", "--tenant", "default", "--role", role).text.strip()


def status_of(living: Living, job: str) -> str:
    return str(next(one["status"] for one in living.poise("ls", "--json").value if one["id"] == job))


def test_a_machine_joins_runs_work_and_leaves(listening: Living) -> None:
    address, home = address_of(listening), listening.root / "second"
    token = listening.file("token", token_for(listening, "node"))
    token.chmod(0o600)
    joining = ("join", address, "--token-file", token, "--name", "second", "--home", home)
    done = listening.poise(*joining, "--json")
    assert (done.code, done.value["name"]) == (0, "second"), (done, listening.messages()[-2000:])
    assert (home / "node.token").stat().st_mode & 0o777 == 0o600
    assert [node["status"] for node in listening.poise("nodes", "--json").value] == ["up"]
    assert listening.poise("run", "--", "echo", "hello").out == b"hello\n"
    assert listening.poise(*joining, "--json").error["code"] == "E121", "it has joined already"
    if not done.value.get("service"):
        job = listening.poise("submit", "--", "sleep", "300").text.strip()
        until(lambda: status_of(listening, job) == "running", "it runs")
        for agent in listening.processes(b"poise.agent"):
            os.kill(agent, signal.SIGKILL)
        until(lambda: not holder(Home(home).node / "lock"), "it is killed, and has let its lock go")
        assert listening.poise(*joining, "--json").code == 0, "the same command starts it again"
        assert status_of(listening, job) == "running"
        listening.poise("cancel", job)
    left = listening.poise("join", "--undo", "--home", home, "--json")
    assert left.value == {"left": "second"}
    assert not listening.poise("nodes", "--json").value, "nobody waits for it to come back"
    assert not (home / "node.token").exists() and not listening.processes(b"poise.agent")
    assert listening.poise("join", "--undo", "--home", home, "--json").error["code"] == "E120"


def test_a_name_that_another_machine_has_is_refused_and_nothing_is_left(listening: Living) -> None:
    address = address_of(listening)
    for folder, code in (("third", ""), ("fourth", "E121")):
        token = listening.file(f"token-{folder}", token_for(listening, "node"))
        token.chmod(0o600)
        home = listening.root / folder
        done = listening.poise("join", address, "--token-file", token, "--name", "third", "--home", home, "--json")
        assert done.code == (1 if code else 0), done
        assert (home / "joined.json").exists() == (not code)
    assert done.error["code"] == "E121"
    assert "another" in done.error["message"]
    assert listening.poise("join", "--undo", "--home", home, "--json").error["code"] == "E120"
    listening.poise("join", "--undo", "--home", listening.root / "third")
    assert not listening.processes(b"poise.agent")


@pytest.mark.parametrize(("role", "code"), [("viewer", "E102"), ("", "E130")])
def test_a_token_that_is_no_node_s_is_refused_before_anything_is_started(
    listening: Living, role: str, code: str
) -> None:
    token = token_for(listening, role) if role else "not-a-token"
    home = listening.root / f"refused-{role}"
    done = listening.poise("join", address_of(listening), "--token", token, "--home", home, "--json")
    assert done.error["code"] == code and not home.exists(), done


def test_without_listening_no_machine_is_added_by_ssh(living: Living) -> None:
    living.up()
    refused = living.poise("up", "--ssh", "nobody@127.0.0.1", "--json")
    assert (refused.error["field"], refused.error["need"]) == ("--ssh", "--listen")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    home = Home(tmp_path / 'a "home" of 100 % $HOME')
    home.root.mkdir()
    unit = tmp_path / "poise-node-second.service"
    unit.write_text(unit_text(home, Joined("second", f"127.0.0.1:7718#{'a' * 64}")))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", unit],
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert told.returncode == 0 and unit.name not in told.stderr, told
    assert sys.executable in unit.read_text()


# --- by ssh ----------------------------------------------------------------------------------------------------------

SSHD = Path(sys.prefix) / "debian" / "usr" / "sbin" / "sshd"
LIBRARIES = Path(sys.prefix) / "debian" / "usr" / "lib" / "x86_64-linux-gnu"


@pytest.fixture
def reached(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A real sshd on this machine, in which root has another home; what `ssh` needs to find it as `box`."""
    if not SSHD.exists() or os.geteuid() or not shutil.which("ssh"):
        pytest.skip("needs root, ssh, and sshd (`make servers`)")
    home, bin_folder = tmp_path / "remote", tmp_path / "bin"
    (home / ".ssh").mkdir(parents=True)
    bin_folder.mkdir()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    shutil.copy(tmp_path / "user.pub", home / ".ssh" / "authorized_keys")
    people = [
        line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in ("root", "sshd")
    ]
    people += [f"root:x:0:0:root:{home}:/bin/sh", "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin"]
    (tmp_path / "passwd").write_text("\n".join([*people, ""]))
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nUsePAM no\nStrictModes no\n"
        "PasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n"
    )
    (tmp_path / "ssh_config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {tmp_path}/user\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking accept-new\n"
    )
    (bin_folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    (bin_folder / "ssh").chmod(0o755)
    inside = (
        f"mount --bind {tmp_path}/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && "
        f"exec {SSHD} -D -e -f {tmp_path}/sshd_config"
    )
    server = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", inside],
        stderr=subprocess.PIPE,
        env=os.environ | {"LD_LIBRARY_PATH": str(LIBRARIES)},
    )
    try:
        environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
        until(lambda: server.poll() is not None or _answers(environment), "sshd answers", seconds=20)
        if server.poll() is not None:
            pytest.skip(f"sshd does not start: {server.stderr.read().decode() if server.stderr else ''}")
        yield environment
    finally:
        server.terminate()
        server.wait()


def _answers(environment: dict[str, str]) -> bool:
    command = ["ssh", "-o", "BatchMode=yes", "box", "true"]
    return subprocess.run(command, env=os.environ | environment, capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_machine_is_added_by_ssh_with_the_same_version(listening: Living, reached: dict[str, str]) -> None:
    done = listening.poise("up", "--ssh", "box", "--json", **reached)
    assert done.code == 0, done
    [node] = [node for node in listening.poise("nodes", "--json").value if node["status"] == "up"]
    assert node["name"] == os.uname().nodename
    where = "import poise, sys; print(poise.__version__, sys.prefix)"
    there = subprocess.run(
        ["ssh", "box", f".poise-node/venv/bin/python -c '{where}'"],
        env=os.environ | reached,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert there[0] == poise.__version__ and there[1].endswith("/remote/.poise-node/venv")
    assert listening.poise("run", "--", "echo", "hello").out == b"hello\n"
    again = listening.poise("up", "--ssh", "box", "--json", **reached)
    assert again.code == 0 and "is a node already" in again.err
    subprocess.run(
        ["ssh", "box", ".poise-node/venv/bin/poise join --undo"],
        env=os.environ | reached,
        check=True,
        capture_output=True,
    )
