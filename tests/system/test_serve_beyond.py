"""Replicas on another machine than their gateway's: here one that sees nothing of the folder where its sockets are."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poise.config import Address, Endpoint
from poise.decoding import json_decoder
from poise.drivers.reach import trusting
from poise.drivers.security import read_token, worker_key
from poise.model.messages import Attempt
from poise_serve.wire import Enter, Hello, framed
from system.living import PATIENCE, Living, free_port, kill, until
from system.serving import Serving

APP = """
import os

class Model:
    def decode(self, body: memoryview):
        return bytes(body)

    def predict(self, batch):
        return [b"%d " % os.getpid() + one for one in batch]

    def encode(self, result):
        return result
"""
READY = "serve_deployment_replica_healthy"
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can hide a folder from a process")


class Far:
    """A home that listens to other machines, and a node that is one."""

    def __init__(self) -> None:
        self.living = Living()
        self.living.file("app.py", APP)
        self.living.up("--listen", f"127.0.0.1:{free_port()}")
        home = self.living.home
        home.services.mkdir(mode=0o700)
        token = self.living.work / "token.node"
        token.touch(mode=0o600)
        token.write_bytes(self.living.poise("token", "add", "--tenant", "default", "--role", "node").out)
        address = json_decoder(Endpoint).decode(home.endpoint.read_bytes()).address
        agent = [sys.executable, "-m", "poise.agent", str(home.root.with_name("home-far")), "--name", "far"]
        hidden = f'mount -t tmpfs none {home.services} && exec "$@"'
        with home.messages.open("ab") as messages:
            self.agent = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", hidden, "sh", *agent, "--connect", address],
                stderr=messages,
                env=self.living.environment(POISE_TOKEN_FILE=str(token)),
            )

    def settle(self) -> None:
        """Wait for both nodes, and close the one that is here to work."""
        names = {os.uname().nodename, "far"}
        until(
            lambda: names == {node.name for node in self.living.client().nodes()},
            "both are there",
            self.living.messages,
        )
        assert self.living.poise("drain", os.uname().nodename).code == 0

    def close(self) -> None:
        self.agent.terminate()
        self.agent.wait(PATIENCE)
        self.living.close()


@pytest.fixture
def far() -> Iterator[Far]:
    far = Far()
    try:
        far.settle()
        yield far
        far.close()
    finally:
        far.agent.kill()
        far.living.destroy()


def test_replicas_on_another_machine_answer(far: Far) -> None:
    serving = Serving(far.living, "app.py:Model", "--replicas", "2")
    until(lambda: serving.metric(READY) == 2, "both are ready", far.living.messages)
    jobs = [job for job in far.living.client().jobs() if job.status == "running"]
    assert {task.node for job in jobs for task in far.living.client().job(job.id).tasks} == {"far"}
    large = os.urandom(3 << 20)
    pids = set()
    for body in (b"small", large) * 5:
        told = serving.ask(body)
        pid, _, rest = told.body.partition(b" ")
        assert (told.status, rest == body) == (200, True)
        pids.add(int(pid))
    kill(min(pids))
    assert serving.ask(b"again").status == 200
    until(lambda: serving.metric(READY) == 2, "it is started again", far.living.messages)
    assert serving.end() == 0


def test_a_gateway_that_was_killed_takes_over_replicas_on_another_machine(far: Far) -> None:
    serving = Serving(far.living, "app.py:Model")
    pid = serving.ask(b"").body
    children = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children").read_text().split()
    kill(int(children[0]))
    serving.until_said("another takes over")
    until(lambda: serving.ask(b"").body == pid, "the same replica answers", lambda: serving.text)
    assert serving.end() == 0


def test_who_has_no_key_is_no_replica(far: Far) -> None:
    serving = Serving(far.living, "app.py:Model")
    replica = Path(f"/proc/{serving.ask(b'').body.decode().strip()}/environ").read_bytes().split(b"\0")
    known = dict(line.decode().partition("=")[::2] for line in replica)
    service, task, key = (known[name] for name in ("POISE_SERVICE_SOCKET", "POISE_TASK", "POISE_WORKER_KEY"))
    address = Address.parse(known["POISE_SERVICE_ADDRESS"])
    for enter in (
        Enter(service, task, 1, "wrong"),
        Enter(service, task, 2, key),
        Enter(service, "j99.main", 1, worker_key(read_token(far.living.home), Attempt("j99.main", 1))),
        Enter("elsewhere", task, 1, key),
    ):
        with dialled(address) as channel:
            channel.sendall(framed(enter) + framed(Hello("another")))
            assert channel.recv(1) == b""
    for nonsense in (b"\0\0\0\1x", b"\xff\xff\xff\xff", framed(Hello("another"))):
        with dialled(address) as channel:
            channel.sendall(nonsense)
            assert channel.recv(1) == b""
    with dialled(address) as channel:  # a replica that says that it is another one
        channel.sendall(framed(Enter(service, task, 1, key)) + framed(Hello("another")))
        assert channel.recv(1) == b""
    assert serving.metric(READY) == 1
    assert serving.ask(b"x").status == 200
    assert serving.end() == 0


@contextlib.contextmanager
def dialled(address: Address) -> Iterator[socket.socket]:
    with (
        socket.create_connection((address.host, address.port), PATIENCE) as plain,
        trusting(address).wrap_socket(plain, server_hostname=address.host) as channel,
    ):
        yield channel
