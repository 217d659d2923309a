"""Nodes with links of a given rate on one machine: network namespaces, a bridge, and the kernel's token bucket (tbf).

Each node is a namespace with one interface, whose way out is limited; the way in is not, as what comes in has
been limited where it went out. Processes of one node talk to each other without limit. Needs root, `ip` and `tc`;
`why_not` says what is missing. Nothing outside of these namespaces is changed.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

INTERFACE = "way0"
BURST_KB, QUEUE_KB = 6, 4096
"""A bucket that is small next to what is sent, and a queue in which nothing is dropped."""


def why_not() -> str:
    """Why there can be no such nodes here; empty: there can."""
    if os.geteuid():
        return "limited links need root"
    return next((f"limited links need `{name}`" for name in ("ip", "tc") if shutil.which(name) is None), "")


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[str]]:
    """The names of so many namespaces, connected; they are gone afterwards."""
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
    """A process on a node. gloo is to use its link."""
    given = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **environ}
    return subprocess.Popen(["ip", "netns", "exec", node, *command], env=given)


def run(placed: Sequence[tuple[str, Sequence[str]]], environ: Mapping[str, str], seconds: float) -> None:
    """Ranks of one group: each on its node, with its own command. Raises AssertionError if one of them fails; none is
    left.
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
    """Called on a node: what goes out over its link is limited to this from now on."""
    rate = f"{round(megabits * 1000)}kbit"
    limits = ("rate", rate, "burst", f"{BURST_KB}kb", "limit", f"{QUEUE_KB}kb")
    _run("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *limits)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
