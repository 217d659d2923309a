"""Choose the nodes or devices of a reservation. Pure, and deterministic.

A reservation gets the same places in all of its windows if some are free in all of them; in the other windows it gets
other places. Places with the least reserved time come first, so that windows spread over the fleet.

    calendar = Taken()
    calendar.take(spots, begins, length)
    choose(reservation, begins, sites, calendar)
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from poise.model.decisions import Spot
from poise.model.fleet import Bools, Ints
from poise.model.reservations import Reservation

WHOLE_NODE = -1
NEVER = 2**62


class Site(NamedTuple):
    """A node that may be reserved: its name, the devices that suit the reservation, and all of its devices. From
    `until` on (seconds since 1970) it is gone.
    """

    node: str
    devices: tuple[int, ...] = ()
    every: tuple[int, ...] = ()
    until: int = NEVER


class Chosen(NamedTuple):
    """The usual places, and the other places of some windows, by their start in seconds since 1970."""

    places: tuple[Spot, ...]
    elsewhere: Mapping[int, tuple[Spot, ...]]


class NoRoom(NamedTuple):
    """The first window, by its start, in which too few places are free, and how many are."""

    begins_at: int
    have: int


class Taken:
    """The reserved times of each node and each device."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Ints] = {}  # (2, N): starts and ends of windows, in order
        self._time: dict[str, int] = {}  # reserved seconds of each node
        self._order: list[tuple[int, str]] = []  # the same, the least first

    def take(self, spots: Iterable[Spot], begins: Ints, length: int) -> None:
        """Take these places in windows of one length, in which they are free."""
        windows = np.stack((begins, begins + length))
        for spot in spots:
            for device in spot.devices or (WHOLE_NODE,):
                known = self._rows.get((spot.node, device))
                if known is not None:
                    both = np.concatenate((known, windows), axis=1)
                    self._rows[spot.node, device] = both[:, both[0].argsort(kind="stable")]
                else:
                    self._rows[spot.node, device] = windows
            time = self._time.get(spot.node, 0)
            if time:
                del self._order[bisect_left(self._order, (time, spot.node))]
            self._time[spot.node] = time = time + len(begins) * length
            insort(self._order, (time, spot.node))

    def free(self, node: str, device: int, begins: Ints, length: int) -> Bools | None:
        """Return in which windows this row is free; None: in all."""
        known = self._rows.get((node, device))
        if known is None:
            return None
        taken, ends = known
        at = ends.searchsorted(begins, "right")
        free = np.append(taken, NEVER)[at] >= begins + length
        return None if free.all() else free

    def in_turn(self, sites: Mapping[str, Site]) -> Iterator[Site]:
        """Yield the sites, those with the least reserved time first."""
        time = self._time
        yield from (site for name, site in sites.items() if name not in time)
        yield from (sites[name] for _, name in self._order if name in sites)


def choose(wanted: Reservation, begins: Ints, sites: Mapping[str, Site], taken: Taken) -> Chosen | NoRoom:
    """Return places for all windows of a reservation, or the first window without enough room. Sites are by node."""
    ordered = taken.in_turn(sites)
    if wanted.devices:
        return _choose_devices(wanted, begins, ordered, taken)
    need = len(wanted.nodes) or wanted.count
    always: list[str] = []
    partly: list[tuple[str, Bools]] = []
    for site in ordered:
        free = _free_node(site, begins, wanted.length, taken)
        if free is None:
            always.append(site.node)
            if len(always) == need:
                return Chosen(tuple(Spot(node) for node in sorted(always)), {})
        elif free.any():
            partly.append((site.node, free))
    partly.sort(key=lambda entry: (-int(entry[1].sum()), entry[0]))
    usual = sorted((always + [node for node, _ in partly])[:need])
    places = tuple(Spot(node) for node in usual)
    elsewhere: dict[int, tuple[Spot, ...]] = {}
    for number, begins_at in enumerate(begins.tolist()):
        free_now = always + [node for node, free in partly if free[number]]
        if len(free_now) < need:
            return NoRoom(begins_at, len(free_now))
        if not set(usual) <= set(free_now):
            kept = [node for node in free_now if node in usual]
            others = [node for node in free_now if node not in usual]
            elsewhere[begins_at] = tuple(Spot(node) for node in sorted((kept + others)[:need]))
    return Chosen(places, elsewhere)


def _free_node(site: Site, begins: Ints, length: int, taken: Taken) -> Bools | None:
    """Return in which windows the whole node is free; None: in all."""
    free = taken.free(site.node, WHOLE_NODE, begins, length)
    for device in site.every:
        free = _both(free, taken.free(site.node, device, begins, length))
    return _both(free, _before_end(site, begins, length))


def _before_end(site: Site, begins: Ints, length: int) -> Bools | None:
    return None if site.until == NEVER else np.asarray(begins + length <= site.until)


def _both(one: Bools | None, other: Bools | None) -> Bools | None:
    if one is None or other is None:
        return other if one is None else one
    return np.asarray(one & other)


def _choose_devices(wanted: Reservation, begins: Ints, sites: Iterable[Site], taken: Taken) -> Chosen | NoRoom:
    """Choose devices: all on one node, if one has enough, else on as few nodes as possible."""
    need, length = wanted.devices, wanted.length
    free: dict[tuple[str, int], Bools | None] = {}
    for site in sites:
        whole = _both(taken.free(site.node, WHOLE_NODE, begins, length), _before_end(site, begins, length))
        for device in site.devices:
            free[site.node, device] = _both(whole, taken.free(site.node, device, begins, length))
    always = [key for key, mask in free.items() if mask is None]
    usual = _packed(always, need)
    if usual is not None:
        return Chosen(usual, {})
    places: tuple[Spot, ...] = ()
    elsewhere: dict[int, tuple[Spot, ...]] = {}
    for number, begins_at in enumerate(begins.tolist()):
        free_now = [key for key, mask in free.items() if mask is None or mask[number]]
        spots = _packed(free_now, need)
        if spots is None:
            return NoRoom(begins_at, len(free_now))
        if not places:
            places = spots
        elif {(spot.node, of) for spot in places for of in spot.devices} - set(free_now):
            elsewhere[begins_at] = spots
    return Chosen(places, elsewhere)


def _packed(keys: Iterable[tuple[str, int]], need: int) -> tuple[Spot, ...] | None:
    """Return this number of the devices, on few nodes; None if there are fewer."""
    on: dict[str, list[int]] = {}
    for node, device in keys:
        on.setdefault(node, []).append(device)
    enough = [node for node, devices in on.items() if len(devices) >= need]
    if enough:
        node = min(enough, key=lambda name: len(on[name]))
        return (Spot(node, tuple(on[node][:need])),)
    spots: list[Spot] = []
    for node in sorted(on, key=lambda name: -len(on[name])):
        part = on[node][:need]
        spots.append(Spot(node, tuple(part)))
        need -= len(part)
        if not need:
            return tuple(sorted(spots, key=lambda spot: spot.node))
    return None
