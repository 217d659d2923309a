"""Amounts of what a node has and a task asks for, and the shapes by which tasks are told apart.

Tasks of equal `Shape` are interchangeable to placement: they fit on the same nodes and leave the same room.
"""

import msgspec

from poise.units import format_bytes, format_cpu


class Shape(msgspec.Struct, frozen=True, order=True):
    """What one task asks of one node.

    `cpu` in milli-CPU, `memory` and `gpu_memory` in bytes (`gpu_memory` per device), `gpus` in whole devices. A memory
    of 0 means that none was asked for: nothing is reserved and nothing is limited.
    """

    cpu: int = 1000
    memory: int = 0
    gpus: int = 0
    gpu_memory: int = 0

    def key(self) -> str:
        """A short text that is equal for equal shapes; keys maps in the ledger."""
        return f"{self.cpu}.{self.memory}.{self.gpus}.{self.gpu_memory}"

    def describe(self) -> str:
        """For people: `2 CPU, 8 GiB, 1 GPU of 12 GiB`."""
        parts = [f"{format_cpu(self.cpu)} CPU"]
        if self.memory:
            parts.append(format_bytes(self.memory))
        if self.gpus:
            parts.append(f"{self.gpus} GPU" + (f" of {format_bytes(self.gpu_memory)}" if self.gpu_memory else ""))
        return ", ".join(parts)


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accelerator of a node. `index` is its position on the node, `uuid` what its driver calls it."""

    index: int
    kind: str = "gpu"
    model: str = ""
    memory: int = 0
    uuid: str = ""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent identity and what it offers.

    `incarnation` changes when the machine is booted or the node's folder is made anew: processes of an older
    incarnation are gone. `cpu` in milli-CPU, `memory` in bytes.
    """

    name: str
    incarnation: str
    cpu: int
    memory: int
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
