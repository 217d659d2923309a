"""The part of the controller that accepts reservations, and keeps them when their windows come.

Before a firm window begins, preemptible work of others on its places is preempted, each unit by its grace earlier. A
window whose node has failed gets another place. An unused window is released. Nodes are drained for maintenance, and
opened again. Which placements a window allows is not decided here, but in `kernel/lasting`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from poise.errors import Conflict, NotFound, SpecError
from poise.kernel.lasting import FOREVER, NOTICED
from poise.kernel.ledger import Ledger, ReservationState, UnitState
from poise.kernel.reserved import is_usable, lacking, work_on
from poise.model.catalogue import models_named
from poise.model.decisions import Spot
from poise.model.document import near, some
from poise.model.events import (
    ClockSet,
    Event,
    NodeDrained,
    ReservationAdded,
    ReservationMoved,
    ReservationReleased,
    ReservationRemoved,
)
from poise.model.fleet import Ints
from poise.model.reservations import MAX_RESERVATIONS, Reservation, Window, spot_names, time_text
from poise.model.tenants import Bearer
from poise.policy.reserving import NEVER, Chosen, NoRoom, Site, Taken, choose
from poise.units import MINUTE, SECOND

LEAD = 5 * MINUTE
"""Time before a window from which on its places are watched: failed nodes are replaced, and others' work ends in
time.
"""

PARTS = 4
"""Number of times that a window is looked at, within the time after which it is released if it is unused."""

MAX_DRIFT = 1.0
"""Seconds by which the wall clock may differ from the clock of the log before windows follow it."""

FEW = 4
MAX_OF_TENANT = 1_000


class Accepted(NamedTuple):
    """A reservation, whether it was there before, and the usual places of its windows."""

    reservation: Reservation
    known: bool
    places: tuple[Spot, ...]
    elsewhere: int = 0


class Bookings:
    """The controller's reservations. The controller replaces `ledger` when it reloads the durable state."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        commit: Callable[[Event], None],
        clear: Callable[[UnitState, Sequence[int], str, int], None],
        renew: Callable[[], None],
    ) -> None:
        """`commit` applies an event. `clear` preempts the tasks of these numbers of a unit, for this reason, or the
        whole unit. `renew` requests a round.
        """
        self.ledger = ledger
        self._commit, self._clear, self._renew = commit, clear, renew
        self._idle: dict[tuple[str, int], int] = {}  # by window: since when it is unused
        self._begun: set[tuple[str, int]] = set()
        self._look_at = 0

    def wall_is(self, wall: float, now: int) -> None:
        """Set the wall clock, in seconds since 1970."""
        if self.ledger.reservations and abs(wall - self.ledger.leader.wall(now)) > MAX_DRIFT:
            self._commit(ClockSet(at=now, wall=wall))
            self.look_again()

    def look_again(self) -> None:
        """Look at all windows at the next tick: a node or a reservation has changed."""
        self._look_at = 0

    # --- requests ----------------------------------------------------------------------------------------------------

    def add(self, wanted: Sequence[Reservation], bearer: Bearer, now: int) -> list[Accepted]:
        """Accept reservations, all or none. One of the same name and tenant is replaced, unless it is the same. Raises
        `Conflict`, `NotFound` and `SpecError`.
        """
        known = [self.ledger.reservations.named(one.tenant, one.name) for one in wanted]
        same = [of is not None and _is_same(of.reservation, one) for of, one in zip(known, wanted, strict=True)]
        replaced = {
            of.reservation.id for of, is_same in zip(known, same, strict=True) if of is not None and not is_same
        }
        self._check_room([one for one, is_same in zip(wanted, same, strict=True) if not is_same], len(replaced))
        taken = self._taken(now, without=replaced)
        sites: dict[tuple[tuple[str, ...], str], dict[str, Site]] = {}
        planned: list[tuple[Reservation, Chosen | None]] = []
        for one, is_same in zip(wanted, same, strict=True):
            if is_same:
                planned.append((one, None))
                continue
            one = msgspec.structs.replace(one, model=_model(one.model))
            begins = one.begins()
            which = one.nodes, one.model
            if which not in sites:
                sites[which] = self._sites(one)
            found = choose(one, begins, sites[which], taken)
            if isinstance(found, NoRoom):
                raise self._no_room(one, found, now)
            _take(taken, one, begins, found)
            planned.append((one, found))
        return [self._accept(one, found, bearer, now) for one, found in planned]

    def _accept(self, one: Reservation, found: Chosen | None, bearer: Bearer, now: int) -> Accepted:
        known = self.ledger.reservations.named(one.tenant, one.name)
        if found is None and known is not None:
            return Accepted(known.reservation, True, known.places, len(known.elsewhere))
        if known is not None:
            self._remove(known, now, by=bearer.token)
        one = msgspec.structs.replace(one, id=self.ledger.reservations.next_id())
        chosen = found or Chosen((), {})
        elsewhere = {str(begins_at): spots for begins_at, spots in chosen.elsewhere.items()}
        self._commit(
            ReservationAdded(at=now, reservation=one, places=chosen.places, elsewhere=elsewhere, by=bearer.token)
        )
        self.look_again()
        return Accepted(one, False, chosen.places, len(elsewhere))

    def cancel(self, name: str, bearer: Bearer, now: int) -> str:
        """Cancel a reservation and return its id. Raises `NotFound`."""
        of = find_reservation(self.ledger, name, bearer)
        self._remove(of, now, by=bearer.token)
        return of.reservation.id

    def _remove(self, of: ReservationState, now: int, *, by: str = "", over: bool = False) -> None:
        kept = of.reservation
        self._open(kept.id, now)
        self._commit(ReservationRemoved(at=now, reservation=kept.id, tenant=kept.tenant, over=over, by=by))
        self._renew()

    def _check_room(self, more: Sequence[Reservation], replaced: int) -> None:
        count = len(self.ledger.reservations) + len(more) - replaced
        own: dict[str, int] = {}
        for kept in (*more, *(of.reservation for of in self.ledger.reservations.values())):
            own[kept.tenant] = own.get(kept.tenant, 0) + 1
        tenant, most = max(own.items(), key=lambda item: item[1], default=("", 0))
        for limit, have, whose in ((MAX_RESERVATIONS, count, ""), (MAX_OF_TENANT, most, f" of `{tenant}`")):
            if have > limit:
                hint = "`poise reserve cancel NAME` those that nobody needs"
                what = f"there are too many reservations{whose}"
                raise Conflict(what, need=f"at most {limit}", have=str(have), hint=hint)

    def _taken(self, now: int, without: frozenset[str] | set[str] = frozenset()) -> Taken:
        """Return the times that existing reservations take from now on."""
        taken, wall = Taken(), self.ledger.leader.wall(now)
        for name, of in self.ledger.reservations.items():
            if name not in without:
                begins = self.ledger.reservations.begins(name)
                begins = begins[begins + of.reservation.length > wall]
                elsewhere = {int(at): spots for at, spots in of.elsewhere.items()}
                _take(taken, of.reservation, begins, Chosen(of.places, elsewhere), frozenset(of.released))
        return taken

    def _sites(self, wanted: Reservation, failed: frozenset[str] = frozenset()) -> dict[str, Site]:
        """Return the nodes that suit a reservation. Named ones count whatever their state. Raises `NotFound`."""
        for name in wanted.nodes:
            if name not in self.ledger.nodes:
                hint = near(name, self.ledger.nodes) or "`poise nodes`"
                raise NotFound(f"there is no node `{name}`", field="nodes", have=name, hint=hint)
        names = wanted.nodes or tuple(name for name, state in self.ledger.nodes.items() if is_usable(state))
        sites: dict[str, Site] = {}
        for name in names:
            state = self.ledger.nodes[name]
            node = state.node
            every = tuple(device.index for device in node.devices)
            suits = tuple(
                device.index
                for device in node.devices
                if (not wanted.model or wanted.model in (device.model, device.kind))
                and not self.ledger.cordons.closes(name, device)
            )
            if name in failed or (wanted.model and not suits):
                continue
            until = int(self.ledger.leader.wall(node.until)) if node.until and not wanted.nodes else NEVER
            sites[name] = Site(name, suits, every, until)
        return sites

    def _no_room(self, wanted: Reservation, found: NoRoom, now: int) -> Conflict | SpecError:
        """Return the error for a reservation that cannot fit: a fact of the fleet, or of other reservations."""
        sites = self._sites(wanted)
        amount = sum(len(site.devices) for site in sites.values()) if wanted.devices else len(sites)
        need = len(wanted.nodes) or wanted.devices or wanted.count
        field = "devices" if wanted.devices else "nodes"
        if amount < need:
            what, have = f"the fleet has too few {field} for this reservation", f"{amount} that suit"
            return SpecError(what, code="E110", field=field, need=wanted.wants(), have=have, hint="`poise nodes`")
        begin, end = found.begins_at, found.begins_at + wanted.length
        clash = sorted(
            f"{of.reservation.called} ({of.reservation.id})"
            for name, of in self.ledger.reservations.items()
            for begins in (self.ledger.reservations.begins(name),)
            if ((begins < end) & (begins + of.reservation.length > begin)).any()
        )
        what = f"the reservation cannot fit: too few {field} are free at {time_text(begin)}"
        have = f"{found.have} free; reserved then: {some(clash, FEW) or 'nothing'}"
        return Conflict(what, code="E110", field=field, need=str(need), have=have, hint="`poise reserve`")

    # --- time --------------------------------------------------------------------------------------------------------

    def wakeup(self) -> int | None:
        """Return when to look at the windows next."""
        return self._look_at if self.ledger.reservations else None

    def tick(self, now: int) -> None:
        """Keep the windows that are near: those that begin soon, have begun, or have ended."""
        if not self.ledger.reservations:
            self._begun.clear()
            return
        if now < self._look_at:
            return
        for of in [of for name, of in self.ledger.reservations.items() if self._is_over(name, now)]:
            self._remove(of, now, over=True)
        windows, next_look = self.ledger.reservations.booked(now).windows, FOREVER
        begun = set[tuple[str, int]]()
        for window in windows:
            if window.begin - LEAD > now:
                next_look = min(next_look, window.begin - LEAD)
                break
            kept = self._replace_failed(window, now)
            looks = [kept.end, *self._keep_clear(kept, now)]
            if kept.begin > now:
                looks += [kept.begin, now + NOTICED] if kept.firm else [kept.begin]
            else:
                begun.add((kept.reservation, kept.begins_at))
                looks += self._within(kept, now)
            named = self.ledger.reservations[kept.reservation].reservation.nodes
            if lacking(self.ledger, kept) and not named:
                looks.append(now + NOTICED)
            next_look = min(next_look, *looks)
        for window in windows:
            next_look = min(next_look, window.end)
        for reservation in {state.drained_for for state in self.ledger.nodes.values() if state.drained_for}:
            if not any(reservation == name for name, _ in begun):
                self._open(reservation, now)
        if begun != self._begun:
            self._begun = begun
            self._renew()
        self._look_at = next_look if next_look > now else now + NOTICED

    def _is_over(self, name: str, now: int) -> bool:
        return next(self.ledger.reservations.windows(name, now), None) is None

    def _within(self, window: Window, now: int) -> Iterator[int]:
        """Keep a window that has begun: drain its nodes for maintenance, or release it if it is not used. Yield when to
        look again.
        """
        if not window.tenant:
            for spot in window.spots:
                state = self.ledger.nodes.get(spot.node)
                if state is not None and not state.drained:
                    self._commit(
                        NodeDrained(at=now, name=spot.node, on=True, moves=True, reservation=window.reservation)
                    )
            return
        after = self.ledger.reservations[window.reservation].reservation.release_after * SECOND
        if not after:
            return
        key = window.reservation, window.begins_at
        if any(tenant == window.tenant for tenant, _, _ in work_on(self.ledger, window)):
            self._idle.pop(key, None)
        elif now - self._idle.setdefault(key, now) >= after:
            del self._idle[key]
            self._commit(ReservationReleased(at=now, reservation=window.reservation, begins_at=window.begins_at))
            self._renew()
        yield now + -(-after // PARTS)

    def _open(self, reservation: str, now: int) -> None:
        """Open the nodes that were drained for a maintenance."""
        for name, state in self.ledger.nodes.items():
            if state.drained_for == reservation:
                self._commit(NodeDrained(at=now, name=name, on=False))

    def _keep_clear(self, window: Window, now: int) -> Iterator[int]:
        """Preempt work of others on a firm window, each unit so early that its grace ends by the start. Yield when the
        next one is due.
        """
        if not window.firm:
            return
        leaving: dict[str, tuple[UnitState, list[int]]] = {}
        for tenant, unit, index in work_on(self.ledger, window):
            if tenant != window.tenant and unit.spec.preemptible and not unit.stopping and not unit.queued:
                leaving.setdefault(unit.id, (unit, []))[1].append(index)
        for unit, indexes in leaving.values():
            due = window.begin - unit.spec.grace
            if due <= now:
                self._clear(unit, indexes, f"{spot_names(window.spots)} is reserved ({window.reservation})", now)
            if due > now:
                yield due
            elif not unit.stopping:  # a gang may go on, and a stop may have been refused
                yield now + NOTICED

    def _replace_failed(self, window: Window, now: int) -> Window:
        """Move a window from failed nodes to others, if some are free. Named nodes are never replaced."""
        kept = self.ledger.reservations[window.reservation].reservation
        failed = frozenset(lacking(self.ledger, window))
        if kept.nodes or not failed:
            return window
        taken = self._taken(now)
        good = tuple(spot for spot in window.spots if spot.node not in failed)
        missing = [spot for spot in window.spots if spot.node in failed]
        wanted = msgspec.structs.replace(
            kept,
            count=len(missing) if kept.count else 0,
            devices=sum(len(spot.devices) for spot in missing) if kept.devices else 0,
            length=max(1, (window.end - now) // SECOND),
        )
        begins = _at(max(window.begins_at, int(self.ledger.leader.wall(now))))
        found = choose(wanted, begins, self._sites(kept, failed), taken)
        if isinstance(found, NoRoom):
            return window
        places = tuple(sorted((*good, *found.places), key=lambda spot: spot.node))
        why = f"{', '.join(sorted(failed))} failed"
        self._commit(
            ReservationMoved(at=now, reservation=kept.id, begins_at=window.begins_at, places=_merged(places), why=why)
        )
        self._renew()
        return window._replace(spots=_merged(places))


def find_reservation(ledger: Ledger, name: str, bearer: Bearer) -> ReservationState:
    """Return a reservation by id or name. Raises `NotFound`."""
    found = ledger.reservations.find(name, bearer)
    if found is None:
        known = [of.reservation.name for of in ledger.reservations.values() if bearer.sees(of.reservation.tenant)]
        hint = near(name, known) or "`poise reserve`"
        raise NotFound(f"there is no reservation `{name}`", field="reservation", have=name, hint=hint)
    return found


def _take(
    taken: Taken, kept: Reservation, begins: Ints, chosen: Chosen, released: frozenset[int] = frozenset()
) -> None:
    """Enter the windows of a reservation."""
    if not chosen.elsewhere and not released:
        taken.take(chosen.places, begins, kept.length)
        return
    usual = [at not in chosen.elsewhere and at not in released for at in begins.tolist()]
    taken.take(chosen.places, begins[usual], kept.length)
    for begins_at in begins.tolist():
        if begins_at in chosen.elsewhere and begins_at not in released:
            taken.take(chosen.elsewhere[begins_at], _at(begins_at), kept.length)


def _at(seconds: int) -> Ints:
    return np.array([seconds], np.int64)


def _merged(places: Sequence[Spot]) -> tuple[Spot, ...]:
    """Return the places with one entry for each node."""
    on: dict[str, set[int]] = {}
    for spot in places:
        on.setdefault(spot.node, set()).update(spot.devices)
    return tuple(Spot(node, tuple(sorted(devices))) for node, devices in sorted(on.items()))


def _is_same(known: Reservation, wanted: Reservation) -> bool:
    """Return whether two reservations differ in nothing but their id and the known offsets of the time zone."""
    wanted = msgspec.structs.replace(wanted, id=known.id, shifts=known.shifts, model=_model(wanted.model))
    return known == wanted


def _model(text: str) -> str:
    """Return the catalogue's name of a model, if the text denotes one."""
    entries = models_named(text) if text else ()
    return entries[0].name if len(entries) == 1 else text
