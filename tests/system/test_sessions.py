"""Connections to running jobs: ports that are forwarded, and SSH with a real client and a real server."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.living import PATIENCE, Living, ended, until

SSHD = Path(sys.prefix) / "debian" / "usr" / "sbin" / "sshd"
LIBRARIES = Path(sys.prefix) / "debian" / "usr" / "lib" / "x86_64-linux-gnu"

SERVER = """
import socket, sys, threading

def serve(peer):
    with peer, peer.makefile("rb") as lines:
        asked = lines.readline()
        if asked == b"much\\n":  # more than any buffer, and nothing is read meanwhile
            peer.sendall(b"x" * (8 << 20))
        elif asked == b"bye\\n":  # its direction ends first
            peer.sendall(b"good\\n")
            peer.shutdown(socket.SHUT_WR)
            open(sys.argv[1], "wb").write(lines.read())
        else:
            rest = lines.read()  # until the client's direction ends
            peer.sendall(asked + rest[::-1])

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def job(shared: Living) -> Iterator[tuple[str, int]]:
    """A job that listens, and its port."""
    shared.file("server.py", SERVER)
    name = shared.poise("submit", "--", sys.executable, "server.py", str(shared.work / "told")).text.strip()
    until(lambda: shared.poise("logs", name).out, "the job listens", seconds=PATIENCE)
    yield name, int(shared.poise("logs", name).text)
    shared.poise("cancel", name)


@pytest.fixture(scope="module")
def local(shared: Living, job: tuple[str, int]) -> Iterator[int]:
    """The port of this machine that is forwarded."""
    process = shared.start("forward", job[0], f"{job[1]}:0")
    assert process.stderr is not None
    yield int(process.stderr.readline().split(b"localhost:")[1].split()[0])
    process.terminate()
    process.communicate()


def asked(local: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", local)) as peer:
        for piece in pieces:
            peer.sendall(piece)
        peer.shutdown(socket.SHUT_WR)
        with peer.makefile("rb") as answer:
            return answer.read()


def test_each_direction_ends_by_itself(local: int) -> None:
    assert asked(local, b"echo\n", b"abc") == b"echo\ncba"


def test_the_service_may_end_first(shared: Living, local: int) -> None:
    with socket.create_connection(("127.0.0.1", local)) as peer:
        peer.sendall(b"bye\n")
        with peer.makefile("rb") as answer:
            assert answer.read() == b"good\n"
        peer.sendall(b"and the rest")
        peer.shutdown(socket.SHUT_WR)
    told = shared.work / "told"
    until(lambda: told.exists() and told.read_bytes() == b"and the rest", "the service got the rest", seconds=PATIENCE)


def test_a_reader_that_does_not_read_holds_up_only_its_own_connection(local: int) -> None:
    with socket.create_connection(("127.0.0.1", local)) as slow:
        slow.sendall(b"much\n")
        assert [asked(local, b"n\n", b"%d" % number) for number in range(3)] == [b"n\n0", b"n\n1", b"n\n2"]
        left = 8 << 20
        while left:
            left -= len(slow.recv(min(left, 1 << 20)))


def test_a_port_on_which_nothing_listens(shared: Living, job: tuple[str, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    process = shared.start("forward", job[0], f"{port}:0")
    assert process.stderr is not None
    local = int(process.stderr.readline().split(b"localhost:")[1].split()[0])
    assert asked(local, b"hello\n") == b""
    assert b"cannot be reached: Connection refused" in process.stderr.readline()
    process.terminate()
    process.communicate()


def test_what_is_no_port_or_not_running_is_refused(shared: Living, job: tuple[str, int]) -> None:
    assert "this is not a port" in shared.poise("forward", job[0], "http").err
    over = shared.poise("submit", "--", "true").text.strip()
    assert shared.poise("wait", over).code == 0
    assert f"job {over} is over" in shared.poise("forward", over, "80:0").err


# --- ssh -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_sshd(shared: Living) -> Iterator[str]:
    """A job on a node that has `sshd`. As root the server needs a user and a folder that only an installation makes."""
    if not SSHD.exists() or os.geteuid() or not shutil.which("ssh"):
        pytest.skip("needs root, ssh, and sshd (`make servers`)")
    people = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("sshd:")]
    people.append("sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin")
    shared.file("passwd", "\n".join([*people, ""]))
    inside = f"mount --bind {shared.work}/passwd /etc/passwd; mount -t tmpfs tmpfs /run; mkdir /run/sshd"
    tools = shared.work / "tools"
    tools.mkdir()
    (tools / "sshd").write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={LIBRARIES}\n"
        f'exec unshare --mount sh -c \'{inside}; exec {SSHD} "$@"\' sshd "$@"\n'
    )
    (tools / "sshd").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    name = shared.poise("submit", "--env", f"PATH={path}", "--env", 'COLOUR=deep "blue" \\', "--", "sleep", "600").text
    name = name.strip()
    until(lambda: shared.client().job(name).status == "running", "the job runs", seconds=PATIENCE)
    tried = shared.poise("ssh", name, "true")
    if b"unshare" in tried.err.encode():
        pytest.skip(tried.err)
    yield name
    shared.poise("cancel", name)


def test_a_command_by_ssh_has_the_environment_of_the_task(shared: Living, with_sshd: str) -> None:
    done = shared.poise("ssh", with_sshd, "--", "sh", "-c", "echo $POISE_JOB $COLOUR; exit 3")
    assert (done.code, done.text, done.err) == (3, f'{with_sshd} deep "blue" \\\n', "")


def test_an_editor_connects_by_its_own_configuration(shared: Living, with_sshd: str) -> None:
    """And copies files, and forwards a port, as editors do."""
    config = shared.file("config", shared.poise("ssh", "--config", with_sshd).text)
    shared.file("sent", "much to say")
    environment = shared.environment()
    copy = ["scp", "-q", "-F", str(config), str(shared.work / "sent"), f"poise-{with_sshd}:{shared.work}/got"]
    assert subprocess.run(copy, env=environment, timeout=PATIENCE).returncode == 0
    assert (shared.work / "got").read_text() == "much to say"


def test_without_sshd_it_says_what_is_missing(shared: Living, job: tuple[str, int]) -> None:
    if shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin:/sbin"):
        pytest.skip("this machine has sshd")
    done = shared.poise("ssh", job[0], "true")
    assert done.code == 255
    assert "the node of the job has no `sshd`" in done.err
    assert ended(shared.start("exec", job[0], "--", "true")).code == 0
