"""A control plane and real nodes on machines that only a network joins; the nodes dial it by TLS."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from poise.config import Address, Home
from poise.drivers.lock import holder
from system.living import POISE, Living, ended, kill, until
from system.networks import Networks

CONTROL = "c"
NODES = ("a", "b")
PORT = 7718


class Apart:
    """The control plane's machine offers nothing itself. The disk is the one of this machine: what commands on any node
    append to a file can be read here, in the order in which it happened.
    """

    def __init__(self, living: Living, networks: Networks) -> None:
        self.living = living
        self.networks = networks
        self.homes = {node: Home(living.home.root.with_name(f"home-{node}")) for node in NODES}
        listen = f"{networks.addresses[CONTROL]}:{PORT}"
        up = [*networks.inside(CONTROL), POISE, "up", "--port", "0", "--no-agent", "--listen", listen]
        done = ended(
            subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=living.environment()),
        )
        assert done.code == 0, done.err
        self.address = Address.parse(living.poise("status").text.partition("address ")[2].split()[0])
        token = living.file("token.node", "")
        token.chmod(0o600)
        token.write_bytes(living.poise("token", "add", "--tenant", "fleet", "--role", "node").out)
        self._token = token
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        for node in NODES:
            self.start(node)
        until(lambda: self.statuses() == dict.fromkeys(NODES, "up"), "both nodes have joined", living.messages)

    def start(self, node: str) -> None:
        agent = [sys.executable, "-m", "poise.agent", str(self.homes[node].root), "--name", node]
        with self.living.home.messages.open("ab") as messages:
            self._agents[node] = subprocess.Popen(
                [*self.started_by(node), *agent, "--connect", self.address.text],
                stdin=subprocess.DEVNULL,
                stderr=messages,
                env=self.living.environment(POISE_TOKEN_FILE=str(self._token)),
            )

    def started_by(self, node: str) -> list[str]:
        """What an agent is typed behind, to run on this machine."""
        return self.networks.inside(node)

    def statuses(self) -> dict[str, str]:
        return {node.name: node.status for node in self.living.client().nodes()}

    def agent(self, node: str) -> int:
        return holder(self.homes[node].node / "lock")

    def switch_off(self, node: str) -> None:
        """The machine is gone, with all that runs there, and its network says nothing of it."""
        self.networks.cut(node)
        mark = str(self.homes[node].root).encode()
        while left := self.living.processes(mark):
            for pid in left:
                kill(pid)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.kill()
            agent.wait()


@contextlib.contextmanager
def on_three_machines(living: Living) -> Iterator[Apart]:
    """All of it, and no network left behind."""
    networks = Networks((CONTROL, *NODES))
    apart = None
    try:
        apart = Apart(living, networks)
        yield apart
    finally:
        if apart is not None:
            apart.close()
        networks.close()
