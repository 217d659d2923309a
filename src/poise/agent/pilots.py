"""Decides which pilots run on the machines of a substrate: one on each, unless others need the machine.

A pilot holds the free resources of its machine, and its node offers them. So Poise never uses resources of others,
others do not get those of Poise, and a gang needs no reservation. When others wait for resources of a machine on which
Poise runs nothing, its pilot is released. Once they have them, another pilot starts with the remaining resources. When
all machines that they could use are busy, the preemptible work on one of them is preempted. A machine with more free
resources than its pilot holds gets another pilot in the same way.

The machines of the substrate are compared with the nodes of Poise periodically. A node whose machine is missing or was
given back is given up at once; waiting for missed heartbeats would take ten seconds longer. If the machine of a lost
node still exists, it gets a new agent, or a new pilot if the pilot does not answer. A node whose machine leaves is
drained, and its pilot is released once nothing runs there, so that the substrate need not wait.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from poise.client import Client
from poise.decoding import json_decoder
from poise.drivers.whole import write_whole
from poise.errors import NotFound, PoiseError, Unreachable
from poise.model.reports.demand import Demand, DemandReport, Quote
from poise.model.reports.status import Request
from poise.model.resources import SUBSTRATE, Labels
from poise.ports import Contact, GrowingSubstrate, Machine, Pilot, Substrate

BEGIN_SECONDS = 20.0
"""A pilot that has not begun by then found fewer free resources than expected, and is started again."""

LEND_SECONDS = 30.0
"""Time for which a machine that was given back is left to others, and the minimum time between two such releases."""

PREEMPT_SECONDS = 5.0
"""Time for which others wait for a busy machine before its work is preempted."""

COMPARE_SECONDS = 5.0
"""Interval of checks for nodes that were given up."""

AGAIN_SECONDS = 30.0
"""Minimum time between two new agents of a node that was given up."""

CLOSED = ("drained", "emptying")
"""Status of drained nodes. The keeper of the agents reopens only those that it drained itself."""

_log = logging.getLogger("poise.substrate")


class Nodes:
    """The control plane's nodes, and its work for a substrate. A file keeps the nodes that this process drained, with
    the ids of their machines, so that this process or its successor can reopen them.

    `substrate` is the name of the cluster in its home, and `driver` the name that its driver uses.
    """

    def __init__(self, client: Client, substrate: str, driver: str, file: Path) -> None:
        self._client = client
        self._substrate, self._driver = substrate, driver
        self._file = file
        self.emptied: dict[str, str] = json_decoder(dict[str, str]).decode(file.read_bytes()) if file.exists() else {}

    def idle(self) -> set[str]:
        return {node.name for node in self._client.nodes() if not node.running and not node.queued}

    def share(self, quotes: Sequence[Quote]) -> DemandReport:
        report = self._client.share(self._substrate, quotes)
        waits, kinds = map(self._known_to_driver, report.waits), map(self._known_to_driver, report.kinds)
        return msgspec.structs.replace(report, waits=tuple(waits), kinds=tuple(kinds))

    def _known_to_driver(self, work: Demand) -> Demand:
        """Return the work with the names of the cluster and of its driver swapped where it requires a substrate: the
        driver knows its machines only by its own name.
        """
        names = {self._substrate: self._driver, self._driver: self._substrate}

        def exchanged(labels: Labels) -> Labels:
            return tuple(
                (name, tuple(names.get(value, value) for value in values) if name == SUBSTRATE else values)
                for name, values in labels
            )

        where = work.shape.where
        where = msgspec.structs.replace(
            where, labels=exchanged(where.labels), without_labels=exchanged(where.without_labels)
        )
        return msgspec.structs.replace(work, shape=msgspec.structs.replace(work.shape, where=where))

    def lost(self) -> set[str]:
        return {node.name for node in self._client.nodes() if node.status == "lost"}

    def gone(self, *names: str) -> None:
        with contextlib.suppress(NotFound):  # none of them has ever joined
            self._client.give_up(*names)

    def gone_but(self, there: Collection[str]) -> None:
        """Give up the nodes of this substrate, except these."""
        nodes = (node for node in self._client.nodes() if node.labels.get(SUBSTRATE) == self._substrate)
        if gone := [node.name for node in nodes if node.status != "lost" and node.name not in there]:
            self.gone(*gone)

    def lend(self, machines: Mapping[str, str]) -> str:
        before = self.emptied
        by_people = {node.name for node in self._client.nodes() if node.status in CLOSED}
        open_ones = {name: machine for name, machine in machines.items() if name not in by_people}
        with self._kept_unless_refused({**before, **open_ones}):
            lent = self._client.lend(*machines)
        self._keep({**before, **{name: machine for name, machine in machines.items() if name == lent}})
        return lent

    def empty(self, leaving: Mapping[str, str]) -> None:
        for node in self._client.nodes():
            if node.name in leaving and node.status in ("up", "suspect", "unfit", "drained"):
                opened = {} if node.status in CLOSED else {node.name: leaving[node.name]}
                with self._kept_unless_refused({**self.emptied, **opened}):
                    self._client.drain(node.name, moves=True)

    def open_but(self, leaving: Mapping[str, str]) -> None:
        """Open the nodes that were drained, unless the same machine is still leaving."""
        back = {name for name, machine in self.emptied.items() if leaving.get(name) != machine}
        if not back:
            return
        for node in self._client.nodes():
            if node.name in back:
                self._client.drain(node.name, on=False)
        self._keep({name: machine for name, machine in self.emptied.items() if name not in back})

    @contextlib.contextmanager
    def _kept_unless_refused(self, emptied: dict[str, str]) -> Iterator[None]:
        """Save the drained nodes before draining: if this process is killed then, the next one reopens them. Keep them
        also if the control plane does not answer, since the nodes may be drained; after a refusal none is.
        """
        before = self.emptied
        self._keep(emptied)
        try:
            yield
        except Unreachable:
            raise
        except PoiseError:
            self._keep(before)
            raise

    def _keep(self, emptied: dict[str, str]) -> None:
        write_whole(self._file, msgspec.json.encode(emptied))
        self.emptied = emptied


class Pilots:
    """The pilots of one home on one substrate. The names of its nodes begin with `prefix`, since machines of other
    substrates may have the same names. `now` returns monotonic seconds.
    """

    def __init__(
        self,
        substrate: Substrate,
        nodes: Nodes,
        contact: Contact,
        now: Callable[[], float] = time.monotonic,
        prefix: str = "",
    ) -> None:
        self._substrate = substrate
        self._nodes = nodes
        self._contact = contact
        self._now = now
        self._prefix = prefix
        self._begun = False
        self._kinds: Sequence[Demand] = ()  # all waiting work, as last reported
        self._known: set[Pilot] = set()
        self._beginning: dict[Pilot, float] = {}  # deadline by which each must have begun
        self._given_back: dict[str, float] = {}  # machines, with the time
        self._waited_for: float | None = None  # start of the others' wait for busy machines
        self._lending: set[Pilot] = set()  # released once their work has been preempted
        self._compared = -math.inf
        self._restarted: dict[Pilot, float] = {}

    def keep(self) -> Sequence[Request]:
        """Keep a pilot on every available machine, and none for those that left. Return the result of `want`."""
        unmet: Sequence[Request] = ()
        if isinstance(self._substrate, GrowingSubstrate):
            if not self._begun:  # machines that ended while no keeper ran
                self._nodes.gone_but({pilot.node for pilot in self._substrate.pilots()})
                self._begun = True
            unmet = self._substrate.want(self._share_of(self._substrate))
        machines = {machine.id: machine for machine in self._machines()}
        pilots = self._still_there(machines)
        requests = [] if self._are_beginning() else self._substrate.waiting()
        leaving = self._leaving(pilots, machines)
        self._let_go(leaving)
        staying = sorted(pilots - leaving)
        self._share(staying, machines, requests)
        self._hear_from_all(staying)
        taken, held = {pilot.node for pilot in pilots}, {pilot.machine for pilot in pilots}
        for identity, machine in sorted(machines.items()):
            theirs = any(fits(of, machine.free) for of in requests) and not self._has_had_time(machine)
            if identity in held or machine.leaving or theirs:
                continue
            name = machine.name if machine.name not in taken else f"{machine.name}-{identity[:6]}"
            taken.add(name)
            self._start(machine, name)
        return unmet

    def open_again(self) -> None:
        """Reopen nodes that were drained here and whose machines stay. No other process knows which were open."""
        if self._nodes.emptied:
            machines = {machine.id: machine for machine in self._machines()}
            leaving = self._leaving(self._substrate.pilots(), machines)
            self._nodes.open_but({pilot.node: pilot.machine for pilot in leaving})

    def end(self) -> bool:
        """Release all pilots except those whose commands still run. Return whether none is left."""
        machines, pilots = self._machines(), sorted(self._substrate.pilots())
        held = {pilot.machine for pilot in pilots}
        ended = self._substrate.release(pilots)
        return self._substrate.sweep([one for one in machines if one.id not in held]) and len(ended) == len(pilots)

    def _machines(self) -> list[Machine]:
        """Return the machines, with the names of their nodes."""
        return [machine._replace(name=f"{self._prefix}{machine.name}") for machine in self._substrate.machines()]

    def _share_of(self, substrate: GrowingSubstrate) -> DemandReport:
        """Send quotes for all waiting work, and return the share of this substrate."""
        quoted = {work.key for work in self._kinds}
        share = self._nodes.share(substrate.quote(self._kinds))
        self._kinds = share.kinds
        if any(work.key not in quoted for work in self._kinds):
            share = self._nodes.share(substrate.quote(self._kinds))
        return share

    def _still_there(self, machines: dict[str, Machine]) -> set[Pilot]:
        """Return the pilots whose machines exist, and remove the others. Remove replaced machines from `machines`."""
        pilots, names = set(self._substrate.pilots()), {machine.name for machine in machines.values()}
        left = sorted(pilot for pilot in pilots | self._known if pilot.machine not in machines)
        # a machine that replaced one reports its work itself
        if gone := [pilot.node for pilot in left if pilot.node not in names]:
            self._nodes.gone(*gone)
        for pilot in left:
            _log.info("%s: its machine has left", pilot.node)
            self._remove(pilot)
        pilots.difference_update(left)
        for pilot in sorted(pilots - self._known):
            self._substrate.tell(pilot, self._contact)
            _log.info("%s is kept from here", pilot.node)
            self._known.add(pilot)
        for pilot in sorted(pilots):
            if self._is_replaced(pilot, machines, pilots):
                _log.info("%s: its machine has left, and another came in its place", pilot.node)
                self._remove(pilot)
                pilots.remove(pilot)
                del machines[pilot.machine]
        return pilots

    def _is_replaced(self, pilot: Pilot, machines: Mapping[str, Machine], pilots: Iterable[Pilot]) -> bool:
        """Return whether this pilot does not answer and another machine has its name: the substrate may take long to
        notice that a machine is gone.
        """
        held, name = {of.machine for of in pilots}, machines[pilot.machine].name
        same = [of for of in machines.values() if of.name == name and of.id not in held]
        return bool(same) and pilot not in self._beginning and pilot not in self._substrate.answering([pilot])

    def _leaving(self, pilots: Iterable[Pilot], machines: Mapping[str, Machine]) -> set[Pilot]:
        """Return the pilots that have begun and whose machines are lent, or drained by the substrate."""
        return {
            pilot
            for pilot in pilots
            if pilot in self._lending or (pilot.machine in machines and machines[pilot.machine].leaving)
        } - self._beginning.keys()

    def _let_go(self, leaving: Iterable[Pilot]) -> None:
        """Drain the nodes of leaving machines, and release the pilots of those that are idle."""
        if not leaving:
            return
        self._nodes.empty({pilot.node: pilot.machine for pilot in leaving})
        idle, lent = self._nodes.idle(), set(self._lending)
        for pilot in self._release(sorted(pilot for pilot in leaving if pilot.node in idle)):
            if pilot in lent:
                _log.info("%s is given back: others wait for it", pilot.node)
                self._given_back[pilot.machine] = self._now()
            else:
                _log.info("%s is given back: its machine leaves", pilot.node)
            self._nodes.gone(pilot.node)

    def _share(
        self, staying: Sequence[Pilot], machines: Mapping[str, Machine], requests: Sequence[Mapping[str, float]]
    ) -> None:
        """Give back one idle machine if others wait for it, or if more of it is free. If others have waited for busy
        machines, preempt the work on one of them.
        """
        busy: list[Pilot] = []
        for pilot in staying:
            machine = machines[pilot.machine]
            wanted = [of for of in requests if fits(of, machine.size) and not fits(of, machine.free)]
            more = machine.spare and not requests
            if not (wanted or more) or self._beginning or not self._has_had_time(machine):
                continue
            if pilot.node in self._nodes.idle():
                _log.info("%s is given back: %s", pilot.node, wanted or "more of it is free")
                self._given_back[machine.id] = self._now()
                if self._release([pilot]):
                    self._nodes.gone(pilot.node)
                return
            if wanted:
                busy.append(pilot)
        self._ask_back(busy)

    def _ask_back(self, busy: Sequence[Pilot]) -> None:
        """Preempt the work on one of these machines once others have waited long enough."""
        if not busy or self._lending:
            self._waited_for = None
            return
        now = self._now()
        if self._waited_for is None:
            self._waited_for = now
        elif now - self._waited_for > PREEMPT_SECONDS:
            self._waited_for = now  # if nothing may be preempted, the next request waits as long
            lent = self._nodes.lend({pilot.node: pilot.machine for pilot in busy})
            self._lending |= {pilot for pilot in busy if pilot.node == lent}

    def _hear_from_all(self, staying: Sequence[Pilot]) -> None:
        """Start new agents for nodes that Poise has given up but the substrate has not. If a pilot does not answer
        then, remove it; its machine gets another one.
        """
        now = self._now()
        due = [pilot for pilot, at in self._restarted.items() if now - at > AGAIN_SECONDS]
        for pilot in due:
            del self._restarted[pilot]
        if asked := [pilot for pilot in due if pilot in staying]:
            answering = self._substrate.answering(asked)
            for pilot in asked:
                if pilot not in answering:
                    _log.info("%s does not answer", pilot.node)
                    self._remove(pilot)
        if now - self._compared < COMPARE_SECONDS:
            return
        self._compared = now
        lost = self._nodes.lost()
        for pilot in staying:
            if pilot.node in lost and pilot in self._known and pilot not in {**self._restarted, **self._beginning}:
                _log.info("%s is not heard, and gets another agent", pilot.node)
                self._substrate.restart(pilot)
                self._restarted[pilot] = now

    def _has_had_time(self, machine: Machine) -> bool:
        """Return whether a machine was given back long enough ago to be taken or given back again."""
        return self._now() - self._given_back.get(machine.id, -math.inf) > LEND_SECONDS

    def _start(self, machine: Machine, node: str) -> None:
        pilot = Pilot(node, machine.id)
        self._substrate.start(machine, node, self._contact)
        self._known.add(pilot)
        self._beginning[pilot] = self._now() + BEGIN_SECONDS

    def _are_beginning(self) -> bool:
        """Return whether a pilot has yet to begin. Remove one whose deadline has passed, because others took its
        resources."""
        for pilot, until in list(self._beginning.items()):
            if self._substrate.has_begun(pilot):
                del self._beginning[pilot]
            elif self._now() > until:
                _log.info("%s has not begun: there is less free than there was", pilot.node)
                self._remove(pilot)
        return bool(self._beginning)

    def _release(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        """Release pilots, and return those that have ended."""
        ended = sorted(self._substrate.release(pilots)) if pilots else []
        for pilot in ended:
            self._forget(pilot)
        return ended

    def _remove(self, pilot: Pilot) -> None:
        self._forget(pilot)
        self._substrate.remove(pilot)

    def _forget(self, pilot: Pilot) -> None:
        self._known.discard(pilot)
        self._lending.discard(pilot)
        self._beginning.pop(pilot, None)


def fits(request: Mapping[str, float], room: Mapping[str, float]) -> bool:
    """Return whether a machine with this room has everything that a request needs."""
    return all(amount <= room.get(of, 0.0) for of, amount in request.items())
