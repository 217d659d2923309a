"""Machines that only a network joins: a network of its own for each, on one machine, and a bridge between them."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from system.living import kill

HERE = os.getuid() == 0 and shutil.which("ip") is not None
"""Whether networks can be made here: only root makes them, with `ip`."""

NOBODY = "02:00:00:00:00:01"
"""What is sent there reaches nobody, and nobody is told."""


class Networks:
    """A network for each machine of these names, which are short: they are parts of names of links."""

    def __init__(self, machines: Sequence[str]) -> None:
        own = f"poise{os.getpid() % 10**5}"
        self.names = {machine: f"{own}{machine}" for machine in machines}
        self.addresses = {machine: f"10.77.0.{number}" for number, machine in enumerate(machines, 1)}
        self._bridge = f"{own}br"
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("link", "set", self._bridge, "up")
        for machine, name in self.names.items():
            self._ip("netns", "add", name)
            self._ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            self._ip("link", "set", name, "master", self._bridge)
            self._ip("-n", name, "address", "add", f"{self.addresses[machine]}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self._ip("-n", name, "link", "set", device, "up")
            self.join(machine)

    def inside(self, machine: str) -> list[str]:
        """What a command is typed behind to run on a machine."""
        return ["ip", "netns", "exec", self.names[machine]]

    def cut(self, machine: str) -> None:
        """Nothing reaches it, and nothing comes from it."""
        self._ip("link", "set", self.names[machine], "down")

    def join(self, machine: str) -> None:
        self._ip("link", "set", self.names[machine], "up")

    def cut_way(self, machine: str, to: str) -> None:
        """What one sends to another is lost; the other way is as it was."""
        self._ip("-n", self.names[machine], "neigh", "replace", *self._neighbour(to), "lladdr", NOBODY)

    def join_way(self, machine: str, to: str) -> None:
        self._ip("-n", self.names[machine], "neigh", "del", *self._neighbour(to))

    def close(self) -> None:
        for name in self.names.values():
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False).stdout.split():
                kill(int(pid))
            subprocess.run(["ip", "link", "del", name], check=False)
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", self._bridge], check=False)

    def _neighbour(self, machine: str) -> list[str]:
        return [self.addresses[machine], "dev", "eth0"]

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)
