"""The clusters of published traces: a number of devices of each model, spread evenly over nodes, with enough CPU."""

from collections.abc import Mapping, Sequence

from poise.model.resources import Device, Node

GAVEL = ("V100", "P100", "K80")
"""Device models in the order of Gavel's cluster specifications and those derived from them."""


def gavel(devices: Sequence[int]) -> Mapping[str, int]:
    """Parse devices by model, as in `36:36:36`."""
    return dict(zip(GAVEL, devices, strict=True))


def nodes_of(devices: Mapping[str, int], each: int = 1) -> list[Node]:
    """Return nodes with `each` devices of one model; the argument gives the number of nodes by model."""
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
