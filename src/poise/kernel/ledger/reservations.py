"""Reservations, and the windows that have not ended."""

from collections.abc import Iterable, Iterator

import msgspec

from poise.kernel.lasting import Booked
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.room import Handlers, Room, hold_same
from poise.kernel.ledger.state import ReservationState, State
from poise.model.decisions import Spot
from poise.model.events import ReservationAdded, ReservationMoved, ReservationReleased, ReservationRemoved
from poise.model.fleet import Ints
from poise.model.reservations import Window, time_text
from poise.model.resources import Node
from poise.model.tenants import Bearer
from poise.units import SECOND

FOREVER = 2**62


class Reservations(Room, dict[str, ReservationState]):
    """Reservations by id, in order of acceptance. Owns `reservations` and `reservations_ever`.

    The starts of windows are times of the wall clock; the clock of the leader converts them to instants.
    """

    def __init__(self, state: State, leader: Leader, changes: Changes) -> None:
        super().__init__(sorted(state.reservations.items(), key=_by_number))
        self._state, self._leader, self._changes, state.reservations = state, leader, changes, self
        self._begins: dict[str, Ints] = {name: of.reservation.begins() for name, of in self.items()}
        self._names = {(of.reservation.tenant, of.reservation.name): name for name, of in self.items()}
        self._booked = Booked(())
        self._valid: tuple[int, int, float] | None = None  # until this instant, under this anchor of the clock
        self._marks = self._marks_of_devices()

    def next_id(self) -> str:
        return f"r{self._state.reservations_ever + 1}"

    def begins(self, name: str) -> Ints:
        """Return the starts of all windows of a reservation, in seconds since 1970."""
        return self._begins[name]

    def named(self, tenant: str, name: str) -> ReservationState | None:
        return self.get(self._names.get((tenant, name), ""))

    def find(self, name: str, bearer: Bearer) -> ReservationState | None:
        """Return a reservation by id, or by name: of the bearer's tenant, of maintenance, or the only one of this name.
        None if the bearer may not see it.
        """
        found = self.get(name) or self.named(bearer.tenant, name) or self.named("", name)
        if found is None:
            others = [of for (_, called), id_ in self._names.items() if called == name and (of := self[id_])]
            found = others[0] if len(others) == 1 else None
        return found if found is not None and bearer.sees(found.reservation.tenant) else None

    def booked(self, now: int) -> Booked:
        """Return the next windows of all reservations: of each place of a reservation, the current or next one."""
        anchor = self._leader.anchor
        if self._valid is None or now >= self._valid[0] or self._valid[1:] != anchor:
            windows = [window for name in self for window in self.windows(name, now)]
            windows.sort(key=_by_begin)
            self._booked = Booked(tuple(windows))
            self._valid = (min((window.end for window in windows), default=FOREVER), *anchor)
        return self._booked

    def windows(self, name: str, now: int) -> Iterator[Window]:
        """Yield the windows of a reservation that have not ended: the first one at its usual places, and all at other
        places.
        """
        of, begins = self[name], self._begins[name]
        first = int(begins.searchsorted(self._leader.wall(now) - of.reservation.length - 1))
        for begins_at in begins[first:].tolist():
            window = self._window(of, begins_at)
            if window.end <= now or begins_at in of.released:
                continue
            yield window
            if str(begins_at) not in of.elsewhere:
                break
        else:
            return
        for begins_at in sorted(map(int, of.elsewhere)):
            if begins_at > window.begins_at and begins_at not in of.released:
                yield self._window(of, begins_at)

    def _window(self, of: ReservationState, begins_at: int) -> Window:
        kept = of.reservation
        begin = self._leader.instant(begins_at)
        until = begins_at + kept.length
        return Window(
            reservation=kept.id,
            tenant=kept.tenant,
            firm=kept.firm,
            begin=begin,
            end=min(FOREVER, begin + kept.length * SECOND),
            begins_at=begins_at,
            spots=of.elsewhere.get(str(begins_at), of.places),
            told=f"from {time_text(begins_at)}" + (f" to {time_text(until)}" if until < 10**11 else ""),
        )

    def marked(self, node: Node) -> Node:
        """Return the node with the reservations of its devices."""
        marks = self._marks.get(node.name)
        if marks is None:
            return node
        devices = (msgspec.structs.replace(of, kept=marks.get(of.index, ())) for of in node.devices)
        return msgspec.structs.replace(node, devices=tuple(devices))

    def _marks_of_devices(self) -> dict[str, dict[int, tuple[str, ...]]]:
        """Return, by node and device, the reservations that take only some devices of it in some window."""
        marks: dict[str, dict[int, tuple[str, ...]]] = {}
        for name, of in self.items():
            for spot in {spot: None for spots in (of.places, *of.elsewhere.values()) for spot in spots}:
                for device in spot.devices:
                    known = marks.setdefault(spot.node, {}).setdefault(device, ())
                    if name not in known:
                        marks[spot.node][device] = (*known, name)
        return marks

    def handlers(self) -> Handlers:
        return {
            ReservationAdded: self._added,
            ReservationMoved: self._moved,
            ReservationReleased: self._released,
            ReservationRemoved: self._removed,
        }

    def _added(self, event: ReservationAdded) -> None:
        kept = event.reservation
        self._state.reservations_ever += 1
        self[kept.id] = ReservationState(
            reservation=kept,
            places=event.places,
            added=event.at,
            elsewhere=dict(sorted(event.elsewhere.items())),
            by=event.by,
        )
        self._begins[kept.id] = kept.begins()
        self._names[kept.tenant, kept.name] = kept.id
        self._renew(event.places)

    def _moved(self, event: ReservationMoved) -> None:
        of = self[event.reservation]
        of.elsewhere = dict(sorted((of.elsewhere | {str(event.begins_at): event.places}).items()))
        self._renew(event.places)

    def _released(self, event: ReservationReleased) -> None:
        of = self[event.reservation]
        of.released = [*of.released, event.begins_at]
        self._renew(())

    def _removed(self, event: ReservationRemoved) -> None:
        of = self.pop(event.reservation)
        del self._begins[event.reservation]
        self._names.pop((of.reservation.tenant, of.reservation.name), None)
        self._renew(of.places)

    def _renew(self, spots: Iterable[Spot]) -> None:
        """Forget the known windows, after these places were reserved or are free again."""
        self._valid = None
        if any(spot.devices for spot in spots):
            self._marks, self._changes.fleet = self._marks_of_devices(), True

    def check(self, anew: "Reservations") -> None:
        hold_same("names of reservations", self._names, anew._names)
        hold_same("marks of devices", self._marks, anew._marks)
        hold_same("windows", self.booked(self._state.now).windows, anew.booked(self._state.now).windows)


def _by_number(item: tuple[str, ReservationState]) -> int:
    return int(item[0][1:])


def _by_begin(window: Window) -> tuple[int, str]:
    return window.begin, window.reservation
