"""Control planes on machines that share nothing but the database: nodes and commands go over to the one that leads, by
TLS, and what commands wrote is read there.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers.postgres_server import PostgresServer, running

from poise.client import Client
from poise.config import Address, Home
from system.living import PATIENCE, Done, Living, free_port, kill, until

HERE = os.uname().nodename


class Apart:
    """`first` leads and has an agent, `second` stands by and has none, a node that is called `far` has a home of its
    own: three machines, as far as they know.
    """

    def __init__(self, server: PostgresServer) -> None:
        self.first, self.second, self.third = Living(), Living(), Living()
        ports = [free_port(), free_port()]
        url = server.database()
        self.first.up("--store", url, "--listen", f"127.0.0.1:{ports[0]}")
        address = Address.parse(self.first.poise("status").text.partition("address ")[2].strip())
        self.addresses = ",".join(Address("127.0.0.1", port, address.authority).text for port in ports)
        assert self.first.poise("down").code == 0
        self.second.home.root.mkdir(mode=0o700)
        shutil.copy(self.first.home.token, self.second.home.token)
        shutil.copytree(self.first.home.authority, self.second.home.authority)
        for living, port, more in ((self.first, ports[0], ()), (self.second, ports[1], ("--no-agent",))):
            living.variables["POISE_CONTROL"] = f"{living.home.socket},{self.addresses}"
            living.up("--store", url, "--listen", f"127.0.0.1:{port}", *more)
            if living is self.first:
                until(lambda: Client(self.first.home).status().accepting, "the first one leads", self.story)
        token = self.first.work / "token.node"
        token.touch(mode=0o600)
        token.write_bytes(self.first.poise("token", "add", "--tenant", "default", "--role", "node").out)
        self.agent = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "poise.agent",
                str(self.third.home.root),
                "--name",
                "far",
                "--connect",
                self.addresses,
            ],
            env=self.third.environment(POISE_TOKEN_FILE=str(token)),
            stderr=(self.third.work / "messages").open("ab"),
        )
        until(lambda: self.up() == {HERE, "far"}, "both nodes are there", self.story)

    def somewhere(self, *arguments: str) -> Done:
        """A command on a machine with no home."""
        there = {"POISE_ADDRESS": self.addresses, "POISE_TOKEN_FILE": str(self.second.home.token)}
        return self.third.poise(*arguments, POISE_HOME=str(self.third.work / "none"), **there)

    def up(self) -> set[str]:
        nodes = self.somewhere("nodes", "--json").value
        return {node["name"] for node in nodes if node["status"] == "up"}

    @contextlib.contextmanager
    def only(self, node: str) -> Iterator[None]:
        """What begins meanwhile begins on this node."""
        other = "far" if node == HERE else HERE
        assert self.somewhere("drain", other).code == 0
        yield
        assert self.somewhere("drain", other, "--undo").code == 0

    def has_said(self, job: str, what: str) -> bool:
        return what in self.somewhere("logs", job).text

    def story(self) -> str:
        far = (self.third.work / "messages").read_text()
        return "\n".join(text[-3000:] for text in (self.first.messages(), self.second.messages(), far))

    def pull_the_plug(self) -> None:
        """The first one's control plane is gone, and stays so."""
        kill(self.first.pid("supervisor"))
        kill(self.first.pid("control"))

    def close(self) -> None:
        self.first.poise("down", "--leave")
        until(lambda: Client(Home(self.second.home.root)).status().accepting, "it leads", self.story)
        done = self.second.poise("down", "--cancel")
        assert done.code == 0, (done.err, self.story())
        self.agent.terminate()
        self.agent.wait(PATIENCE)
        for living in (self.first, self.second, self.third):
            living.close()


@pytest.fixture
def apart() -> Iterator[Apart]:
    with running() as server:
        apart = Apart(server)
        try:
            yield apart
            apart.close()
        finally:
            apart.agent.kill()
            for living in (apart.first, apart.second, apart.third):
                living.destroy()


def test_nodes_and_commands_of_other_machines_follow_to_the_one_that_leads(apart: Apart, tmp_path: Path) -> None:
    held = tmp_path / "held"
    script = f"seq 1 20000; echo before; until [ -e {held} ]; do sleep 0.05; done; echo after"
    jobs = {}
    for node in (HERE, "far"):
        with apart.only(node):
            done = apart.somewhere("submit", "--json", "--cpu", "0.1", "--", "sh", "-c", script)
            assert done.code == 0, done.err
            job = jobs[node] = done.value["job"]
            until(functools.partial(apart.has_said, job, "before"), "it runs, and is read", apart.story)
    apart.pull_the_plug()
    until(lambda: Client(Home(apart.second.home.root)).status().accepting, "the second one leads", apart.story)
    until(lambda: apart.up() == {HERE, "far"}, "both nodes have followed", apart.story)
    held.touch()
    for node, job in jobs.items():
        assert apart.somewhere("wait", job).code == 0, apart.story()
        task = apart.somewhere("show", job, "--json").value["tasks"][0]
        assert (task["node"], task["epoch"]) == (node, 1)
        wrote = apart.second.poise("logs", job).text
        assert wrote == "".join(f"{number}\n" for number in range(1, 20001)) + "before\nafter\n"
    for node in (HERE, "far"):
        with apart.only(node):
            assert apart.somewhere("run", "--", "echo", "new").text == "new\n"
    assert apart.second.poise("status").text.count("stands by") == 0
    apart.first.up()
    status = apart.first.poise("status", POISE_CONTROL="").text
    assert f"stands by for {apart.addresses.split(',')[1].partition('#')[0]}" in status
