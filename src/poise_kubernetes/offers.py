"""What a Pod on a node of Kubernetes has, and what its node of Poise offers then."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from poise.model.catalogue import device_found
from poise.model.resources import ALLOCATED, Device, Node
from poise_kubernetes.records import NodeObject, amounts, device_of, quantity

MIB = 2**20

PILOT_MEMORY = 256 * MIB
"""Bytes of each Pod that the pilot and its agent need for themselves."""

MOST_LABELS = 64

PRODUCT, PRODUCT_MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
"""Labels by which NVIDIA's feature discovery tells the model of a node's GPUs, and the MiB of each."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Grant(NamedTuple):
    """What a Pod has of its node: milli-CPU, bytes of memory, and the `number` of accelerators that are called
    `device`. The memory of the pilot is in it.
    """

    node: str
    cpu: int
    memory: int
    device: str = ""
    number: int = 0

    def amounts(self) -> dict[str, int]:
        """The same by the names of Kubernetes."""
        held = {"cpu": self.cpu, "memory": self.memory}
        return held | ({self.device: self.number} if self.number else {})


def labels_of(node: NodeObject) -> dict[str, str]:
    """Labels of a node of Poise: those of Kubernetes, of which the part behind the `/` is the name here."""
    found: dict[str, str] = {}
    for key, value in sorted((node.metadata.labels or {}).items()):
        name = key.rpartition("/")[2]
        if value and name != ALLOCATED and _NAME.fullmatch(name) and len(found) < MOST_LABELS:
            found.setdefault(name, value)
    return found


def offered(node: NodeObject) -> Node:
    """The node that a Pod there would be, as far as that is known before: name, labels, and one of its devices."""
    name, labels = node.metadata.name, labels_of(node)
    devices = (_device(node.metadata.labels or {}),) if device_of(amounts(node.status.allocatable)) else ()
    return Node(name=name, incarnation="", cpu=0, memory=0, labels=labels, devices=devices)


def _device(labels: Mapping[str, str]) -> Device:
    memory = quantity(labels.get(PRODUCT_MEMORY, "0")) * MIB
    return device_found(labels.get(PRODUCT, ""), 0, **({"memory": memory} if memory else {}))
