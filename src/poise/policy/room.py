"""The room on one node in plain numbers: what is there now, and what there would be if some attempts ended."""

from typing import NamedTuple

from poise.model.fleet import CPU, MEMORY, NETWORK, Fleet, Resident
from poise.model.resources import SHARED_CAP, WHOLE, Link, Shape


class Bank(NamedTuple):
    """One device: its index on the node, its model in the fleet, free bytes, free thousandths of its compute."""

    place: int
    model: int
    memory: int
    share: int


class Room:
    """Free amounts of one node; `devices` lists all of its devices with what is free of each."""

    __slots__ = ("cpu", "devices", "links", "memory", "network")

    def __init__(self, cpu: int, memory: int, network: int, devices: list[Bank], links: tuple[Link, ...] = ()) -> None:
        self.cpu = cpu
        self.memory = memory
        self.network = network
        self.devices = devices
        self.links = links

    def copy(self) -> "Room":
        return Room(self.cpu, self.memory, self.network, self.devices.copy(), self.links)

    def pick(self, shape: Shape, able: list[bool]) -> tuple[int, ...] | None:
        """The devices that one task would take; None where it does not fit, for whatever reason."""
        if self.cpu < shape.cpu or self.memory < shape.memory or self.network < shape.network:
            return None
        return self.pick_devices(shape, able) if shape.gpus else ()

    def pick_devices(self, shape: Shape, able: list[bool]) -> tuple[int, ...] | None:
        """Whole devices: the smallest that fit, linked ones together. Shares: the fullest device that has room."""
        least = WHOLE if shape.share == WHOLE else shape.share + WHOLE - SHARED_CAP
        found = [
            bank
            for bank in self.devices
            if bank.share >= least and able[bank.model] and bank.memory >= shape.gpu_memory
        ]
        if len(found) < shape.gpus:
            return None
        if shape.share == WHOLE:
            if shape.gpus > 1 and self.links:
                return _linked([bank.place for bank in found], shape.gpus, self.links)
            if len(found) > shape.gpus:
                found.sort(key=_by_memory)
        else:
            found.sort(key=_by_share)
        return tuple(sorted(bank.place for bank in found[: shape.gpus]))

    def take(self, shape: Shape, devices: tuple[int, ...]) -> None:
        self.cpu -= shape.cpu
        self.memory -= shape.memory
        self.network -= shape.network
        if devices:
            self.devices = [_less(bank, shape, 1) if bank.place in devices else bank for bank in self.devices]

    def give(self, shape: Shape, devices: tuple[int, ...]) -> None:
        self.cpu += shape.cpu
        self.memory += shape.memory
        self.network += shape.network
        if devices:
            self.devices = [_less(bank, shape, -1) if bank.place in devices else bank for bank in self.devices]

    def lacks(self, shape: Shape, able: list[bool]) -> float:
        """The sum over resources of the missing share of the need; 0 when it fits."""
        usable = 0
        if shape.gpus:
            least = WHOLE if shape.share == WHOLE else shape.share + WHOLE - SHARED_CAP
            usable = sum(
                bank.share >= least and able[bank.model] and bank.memory >= shape.gpu_memory for bank in self.devices
            )
        missing = 0.0
        for have, need in (
            (self.cpu, shape.cpu), (self.memory, shape.memory), (self.network, shape.network), (usable, shape.gpus),
        ):  # fmt: skip
            missing += max(0.0, 1 - have / need) if need else 0.0
        return missing


def room_on(fleet: Fleet, row: int) -> Room:
    """What is free on a node of the fleet now."""
    node = fleet.nodes[row]
    models, memory, share = (
        fleet.device_model[row].tolist(), fleet.device_memory[row].tolist(), fleet.device_share[row].tolist(),
    )  # fmt: skip
    devices = [
        Bank(device.index, models[place], memory[place], share[place]) for place, device in enumerate(node.devices)
    ]
    cpu, mem, network = (int(fleet.free[resource, row]) for resource in (CPU, MEMORY, NETWORK))
    return Room(cpu, mem, network, devices, node.links)


def give_back(room: Room, resident: Resident) -> None:
    """The room as it is once the attempt has ended."""
    room.give(resident.shape, resident.devices)


def _less(bank: Bank, shape: Shape, sign: int) -> Bank:
    memory = shape.gpu_memory if shape.share != WHOLE else 0
    return Bank(bank.place, bank.model, bank.memory - sign * memory, bank.share - sign * shape.share)


def _by_memory(bank: Bank) -> tuple[int, int]:
    return (bank.memory, bank.place)


def _by_share(bank: Bank) -> tuple[int, int]:
    return (bank.share, bank.place)


def _linked(free: list[int], count: int, links: tuple[Link, ...]) -> tuple[int, ...]:
    """`count` devices with much bandwidth among them: from each start, the best linked one is added next; the set whose
    slowest pair is fastest wins, then the one of least latency, then the first.
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
