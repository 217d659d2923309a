"""A node, its used resources, and the reason why a device is closed.

A node's resources are counted by *pools*: the attempts of one shape on one node share `slots`, and each slot holds the
shape's resources once. An attempt placed `queued` joins a pool without its own slot and starts when another one of the
pool ends. It may wait behind brief work only, never behind the pool's `long` attempts. When attempts end, `slots`
shrinks to the number of attempts left. The agent applies the same rule, so both sides agree on what may run without a
message.
"""

from copy import copy
from typing import Literal

import msgspec

from poise.model.resources import PLENTY, Node, Shape

NodeStatus = Literal["up", "lost"]


class Pool(msgspec.Struct):
    """Attempts of one shape on one node: `slots` may run at once, `long` of them are not known to be brief."""

    shape: Shape
    slots: int = 0
    attempts: int = 0
    long: int = 0


class Share(msgspec.Struct, frozen=True, array_like=True):
    """A part of a device: thousandths of its compute and bytes of its memory, and the attempt that holds it."""

    holder: str
    share: int
    memory: int


class NodeState(msgspec.Struct):
    """A node, its used resources, and the holder of each busy device, by `device_key`; `shares` if it is shared.

    `level` is its load level, `hot` whether that has been high for a sustained window; `failures` the smoothed share of
    attempts that failed there, in thousandths. A `suspect` node has missed recent heartbeats. A drained node that
    `moves` is being evacuated: its tasks continue elsewhere. `unfit` is the reason why a node can start nothing. `by`
    is the token with which it joined, as in `NodeJoined`. `drained_for` is the reservation for whose maintenance it is
    drained, `drained_by` the token that has drained it last.
    """

    node: Node
    status: NodeStatus = "up"
    drained: bool = False
    joined: int = 0
    lost: int = 0
    used_cpu: int = 0
    used_memory: int = 0
    devices: dict[str, str] = {}
    pools: dict[str, Pool] = {}
    used_network: int = 0
    shares: dict[str, list[Share]] = {}
    level: int = 0
    hot: bool = False
    failures: int = 0
    suspect: bool = False
    moves: bool = False
    unfit: str = ""
    by: str = ""
    drained_for: str = ""
    drained_by: str = ""

    def fork(self) -> "NodeState":
        """Return an independent copy."""
        made = copy(self)
        made.devices, made.shares = self.devices.copy(), {key: of.copy() for key, of in self.shares.items()}
        made.pools = {key: copy(pool) for key, pool in self.pools.items()}
        return made

    @property
    def condition(self) -> str:
        """Status for placement: up, suspect, unfit, drained, emptying or lost. Attempts may be placed only while it is
        up.
        """
        if self.status == "lost":
            return "lost"
        if self.drained:
            return "emptying" if self.moves else "drained"
        if self.unfit:
            return "unfit"
        return "suspect" if self.suspect else "up"

    @property
    def excess(self) -> tuple[int, int, int]:
        """Milli-CPU, bytes of memory and bits per second in use beyond what the node offers. Values above 0 mean that
        it has shrunk.
        """
        node = self.node
        network = self.used_network - (node.network or PLENTY)
        return self.used_cpu - node.cpu, self.used_memory - node.memory, network


BY_HAND = "by hand"


class Cordon(msgspec.Struct, frozen=True):
    """Why a device is closed: it failed (`code`, `text`) at this instant, or a user closed it. A failed device is
    remembered after it was reopened (`opened` is the instant; 0: not reopened).
    """

    at: int
    code: str = ""
    text: str = ""
    opened: int = 0

    @property
    def why(self) -> str:
        """Return the reason as text for display."""
        return ", ".join(part for part in (self.code, self.text) if part) or BY_HAND


def device_key(index: int) -> str:
    """Return a device's index as a map key; the canonical encoding allows only strings as keys."""
    return str(index)
