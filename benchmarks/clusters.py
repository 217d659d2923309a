"""The clusters that published traces are run on: so many devices of each model, evenly on nodes, and CPU for all."""

from collections.abc import Mapping, Sequence

from poise.model.resources import Device, Node

GAVEL = ("V100", "P100", "K80")
"""In the order in which Gavel, and what is made from it, names the devices of a cluster."""


def gavel(devices: Sequence[int]) -> Mapping[str, int]:
    """Devices by model, as in `36:36:36`."""
    return dict(zip(GAVEL, devices, strict=True))


def nodes_of(devices: Mapping[str, int], each: int = 1) -> list[Node]:
    """Nodes that have `each` devices of one model: by model, how many nodes."""
    return [
        Node(
            name=f"{model}-{number:03}",
            incarnation="1",
            cpu=2**30,
            memory=2**40,
            devices=tuple(
                Device(index=index, memory=2**34, uuid=f"{model}-{number}-{index}", model=model)
                for index in range(each)
            ),
        )
        for model, count in devices.items()
        for number in range(count)
    ]
