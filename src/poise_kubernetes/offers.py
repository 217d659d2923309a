"""Resources of a Pod on a Kubernetes node, and the Poise node that it offers."""

import re
from typing import NamedTuple

from poise.model.catalogue import device_found
from poise.model.resources import ALLOCATED, SUBSTRATE, Device, Node
from poise_kubernetes.records import NodeObject, amounts, device_of, quantity

MIB = 2**20

PILOT_MEMORY = 256 * MIB
"""Bytes of each Pod that are reserved for the pilot and its agent."""

MOST_LABELS = 64
FEATURES = "feature.node.kubernetes.io/"
"""Prefix of the labels of Node Feature Discovery, which are often more than `MOST_LABELS`: the others come first."""

PRODUCT, PRODUCT_MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
"""Labels of NVIDIA's feature discovery: the model of a node's GPUs, and the MiB of each."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Grant(NamedTuple):
    """Resources that a Pod holds of its node: milli-CPU, bytes of memory, and the `number` of accelerators named
    `device`. The memory includes that of the pilot.
    """

    node: str
    cpu: int
    memory: int
    device: str = ""
    number: int = 0

    def amounts(self) -> dict[str, int]:
        """Return the amounts by their Kubernetes names."""
        held = {"cpu": self.cpu, "memory": self.memory}
        return held | ({self.device: self.number} if self.number else {})


def labels_of(node: NodeObject) -> dict[str, str]:
    """Return labels for the Poise node: the Kubernetes labels, named by the part after the `/`."""
    found: dict[str, str] = {}
    labels = sorted((node.metadata.labels or {}).items(), key=lambda of: (of[0].startswith(FEATURES), of[0]))
    for key, value in labels:
        name = key.rpartition("/")[2]
        if value and name != ALLOCATED and _NAME.fullmatch(name) and len(found) < MOST_LABELS:
            found.setdefault(name, value)
    return found


def offered(node: NodeObject, device: Device | None = None) -> Node:
    """Return the node that a Pod there would become, as far as it is known: name, labels, and one of its devices.
    `device` is a device that a driver publishes.
    """
    name, labels = node.metadata.name, labels_of(node) | {SUBSTRATE: "kubernetes"}
    if device is None and device_of(amounts(node.status.allocatable)):
        device = device_at(node, 0)
    devices = (device,) if device is not None else ()
    return Node(name=name, incarnation="", cpu=0, memory=0, labels=labels, devices=devices)


def device_at(node: NodeObject, index: int) -> Device:
    """Return an accelerator of a node, as far as its labels describe it."""
    labels = node.metadata.labels or {}
    return published(labels.get(PRODUCT, ""), index, quantity(labels.get(PRODUCT_MEMORY, "0")) * MIB)


def published(product: str, index: int, memory: int) -> Device:
    """Return an accelerator as its driver publishes it: its model, and its bytes of memory, or 0 if the driver does not
    report them.
    """
    return device_found(product, index, **({"memory": memory} if memory else {}))
