"""The room on one node in plain numbers: as it is now, or after some attempts have ended."""

from collections.abc import Sequence

from poise.model.fleet import CPU, DEVICES, MEMORY, NETWORK, Fleet, Ints, Resident
from poise.model.resources import WHOLE, Link, Shape

INDEX, MODEL, FREE_MEMORY, FREE_SHARE, SPARE = range(5)
"""Fields of a device's entry: its index on the node, its model in the fleet, free bytes, free thousandths, and how many
of these are not available to shares.
"""


class Room:
    """Free amounts of one node; `devices` has an entry for each of its devices."""

    __slots__ = ("cpu", "devices", "links", "memory", "network")

    def __init__(
        self, cpu: int, memory: int, network: int, devices: list[list[int]], links: tuple[Link, ...] = ()
    ) -> None:
        self.cpu = cpu
        self.memory = memory
        self.network = network
        self.devices = devices
        self.links = links

    def copy(self) -> "Room":
        return Room(self.cpu, self.memory, self.network, [list(device) for device in self.devices], self.links)

    def pick(self, shape: Shape, able: list[bool]) -> tuple[int, ...] | None:
        """Return the devices that one task would take; None if it does not fit, for any reason."""
        if self.cpu < shape.cpu or self.memory < shape.memory or self.network < shape.network:
            return None
        return self.pick_devices(shape, able) if shape.gpus else ()

    def pick_devices(self, shape: Shape, able: list[bool], worth: Sequence[float] = ()) -> tuple[int, ...] | None:
        """Return the devices for one task. Whole devices: the smallest that fit, linked ones together. A share: the
        fullest device that has room; of several devices those with most room, so that as many tasks fit as possible
        (`feasible.capacity`). `worth` is the worth of taking a share of each device, if they differ.
        """
        memory, share = shape.gpu_memory, shape.share
        if share == WHOLE:
            found = [
                device for device in self.devices if device[3] == WHOLE and able[device[1]] and device[2] >= memory
            ]
        else:
            found = [
                device
                for device in self.devices
                if device[3] >= share + device[4] and able[device[1]] and device[2] >= memory
            ]
        if len(found) < shape.gpus:
            return None
        if shape.share == WHOLE:
            if shape.gpus > 1 and self.links:
                return _linked([device[INDEX] for device in found], shape.gpus, self.links)
            if len(found) > shape.gpus:
                found.sort(key=_by_memory)
        elif shape.gpus == 1:
            found.sort(key=_by_share)
            if len(worth):
                of = dict(zip([device[INDEX] for device in self.devices], worth, strict=False))
                found.sort(key=lambda device: -of[device[INDEX]])
        else:
            found.sort(key=lambda device: (-_parts(device, shape), device[INDEX]))
        return tuple(sorted([device[INDEX] for device in found[: shape.gpus]]))

    def has(self, shape: Shape, devices: tuple[int, ...]) -> bool:
        """Return whether one task fits on these devices."""
        free = [
            one
            for one in self.devices
            if one[FREE_SHARE] >= (WHOLE if shape.share == WHOLE else shape.share + one[SPARE])
            and one[FREE_MEMORY] >= shape.gpu_memory
        ]
        enough = self.cpu >= shape.cpu and self.memory >= shape.memory and self.network >= shape.network
        return enough and {one[INDEX] for one in free}.issuperset(devices)

    def take(self, shape: Shape, devices: tuple[int, ...]) -> None:
        self.cpu -= shape.cpu
        self.memory -= shape.memory
        self.network -= shape.network
        if devices:
            self._change(shape, devices, 1)

    def give(self, shape: Shape, devices: tuple[int, ...]) -> None:
        self.cpu += shape.cpu
        self.memory += shape.memory
        self.network += shape.network
        if devices:
            self._change(shape, devices, -1)

    def _change(self, shape: Shape, devices: tuple[int, ...], sign: int) -> None:
        memory = sign * shape.gpu_memory if shape.share != WHOLE else 0
        for device in self.devices:
            if device[INDEX] in devices:
                device[FREE_MEMORY] -= memory
                device[FREE_SHARE] -= sign * shape.share


def room_on(fleet: Fleet, row: int, free: Ints, memory: Ints, share: Ints) -> Room:
    """Return the room of a node: `free` is its column (4,), `memory` and `share` are (N, D) as in `Fleet`."""
    node = fleet.nodes[row]
    columns = (fleet.device_model[row], memory[row], share[row], fleet.device_spare[row])
    state = zip(*(column.tolist() for column in columns), strict=True)
    devices = [[device.index, *of] for device, of in zip(node.devices, state, strict=False)]
    amounts = free.tolist()
    return Room(amounts[CPU], amounts[MEMORY], amounts[NETWORK], devices, node.links)


def give_back(room: Room, resident: Resident) -> None:
    """Free the room of an attempt that has ended."""
    room.give(resident.shape, resident.devices)


def change_on(fleet: Fleet, row: int, resident: Resident, sign: int) -> None:
    """Free the room that an attempt holds (`sign` 1), or take it (-1), in the columns of a copy."""
    shape = resident.shape
    fleet.free[CPU, row] += sign * shape.cpu
    fleet.free[MEMORY, row] += sign * shape.memory
    fleet.free[NETWORK, row] += sign * shape.network
    for place, device in enumerate(fleet.nodes[row].devices):
        before = fleet.device_share[row, place]
        if device.index in resident.devices and before >= 0:
            fleet.device_share[row, place] += sign * shape.share
            fleet.device_memory[row, place] += sign * shape.gpu_memory if shape.share != WHOLE else 0
            fleet.free[DEVICES, row] += int(fleet.device_share[row, place] == WHOLE) - int(before == WHOLE)


def _by_memory(device: list[int]) -> tuple[int, int]:
    return (device[FREE_MEMORY], device[INDEX])


def _by_share(device: list[int]) -> tuple[int, int]:
    return (device[FREE_SHARE], device[INDEX])


def _parts(device: list[int], shape: Shape) -> int:
    """Return how many shares of the shape's size are free on a device."""
    parts = (device[FREE_SHARE] - device[SPARE]) // shape.share
    return min(parts, device[FREE_MEMORY] // shape.gpu_memory) if shape.gpu_memory else parts


def _linked(free: list[int], count: int, links: tuple[Link, ...]) -> tuple[int, ...]:
    """Return `count` devices with high bandwidth between them. From each start add the best linked one next; choose the
    set whose slowest pair is fastest, then the one of least latency, then the first.
    """
    speed: dict[tuple[int, int], tuple[int, int]] = {}
    for link in links:
        speed[link.a, link.b] = speed[link.b, link.a] = (link.bandwidth, -link.latency)
    none = (0, -(2**62))
    best: tuple[tuple[int, int], tuple[int, ...]] | None = None
    for start in free:
        chosen, weakest = [start], (2**62, 0)
        while len(chosen) < count:
            rest = [index for index in free if index not in chosen]
            added = max(rest, key=lambda index: (min(speed.get((index, of), none) for of in chosen), -index))
            weakest = min(weakest, min(speed.get((added, of), none) for of in chosen))
            chosen.append(added)
        if best is None or weakest > best[0]:
            best = (weakest, tuple(sorted(chosen)))
    return best[1] if best is not None else ()
