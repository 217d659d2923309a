"""Create nodes with limited links on one machine: network namespaces, a bridge, the kernel's token bucket (tbf).

Each node is a namespace with one interface. Outgoing traffic is limited; incoming traffic is not, because its sender
was limited already. Processes of one node communicate without a limit. Requires root, `ip` and `tc`; `why_not` reports
missing requirements. Nothing outside of these namespaces is changed.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

INTERFACE = "way0"
BURST_KB, QUEUE_KB = 6, 4096
"""A bucket that is small compared with the messages, and a queue that drops nothing."""


def why_not() -> str:
    """Return why such nodes cannot be created here; empty if they can."""
    if os.geteuid():
        return "limited links need root"
    return next((f"limited links need `{name}`" for name in ("ip", "tc") if shutil.which(name) is None), "")


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[str]]:
    """Create connected namespaces and yield their names; remove them afterwards."""
    prefix = f"poise-{os.getpid()}"
    bridge, names = f"{prefix}-bridge", [f"{prefix}-{node}" for node in range(count)]
    made = []
    try:
        for name in (bridge, *names):
            _run("ip", "netns", "add", name)
            made.append(name)
        _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", bridge, "link", "set", "bridge", "up")
        for node, name in enumerate(names):
            peer = f"port{node}"
            _run("ip", "-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", peer, "netns", bridge)
            _run("ip", "-n", bridge, "link", "set", peer, "master", "bridge", "up")
            _run("ip", "-n", name, "addr", "add", f"10.99.0.{node + 1}/24", "dev", INTERFACE)
            _run("ip", "-n", name, "link", "set", INTERFACE, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            _run("ip", "netns", "del", name)


def start(node: str, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process on a node, with gloo on its link."""
    given = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **environ}
    return subprocess.Popen(["ip", "netns", "exec", node, *command], env=given)


def run(placed: Sequence[tuple[str, Sequence[str]]], environ: Mapping[str, str], seconds: float) -> None:
    """Run the ranks of one group, each on its node with its own command. Kill all of them at the end; raise
    AssertionError if one fails.
    """
    ranks = [start(node, command, {**environ, "POISE_RANK": str(rank)}) for rank, (node, command) in enumerate(placed)]
    try:
        ended = [one.wait(seconds) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert not any(ended), ended


def limit(megabits: float) -> None:
    """Limit the outgoing rate of the node's link. Call it on the node."""
    rate = f"{round(megabits * 1000)}kbit"
    limits = ("rate", rate, "burst", f"{BURST_KB}kb", "limit", f"{QUEUE_KB}kb")
    _run("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *limits)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
