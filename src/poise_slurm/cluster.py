"""Slurm as a substrate: each node of an allocation of this user is a machine.

Poise requests allocations when work waits, and gives them back when nothing runs on them. Each is tagged, and recorded
before it is submitted: after a crash between `sbatch` and its record, the tag identifies it in the next list, and an
allocation in no list was never submitted. Pilots report their start and end in files; Poise asks Slurm only for the
rest, in one call for all allocations, at most twice a minute.
"""

import contextlib
import logging
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.drivers.delays import Delay, Delays
from poise.errors import Fault
from poise.model.reports.demand import Demand, DemandReport, Opening, Quote
from poise.model.reports.status import Request
from poise.ports import Contact, Machine, Pilot
from poise.units import SECOND
from poise_slurm import commands
from poise_slurm.allocations import Allocation, Orders, State, known_allocations, new_allocation
from poise_slurm.commands import TAG, WAITS, Job, Kind, Turns
from poise_slurm.settings import Settings
from poise_slurm.shapes import Refused, Shape, Standing, kind_for, may_run, needed, slots_in, slots_of, wanted

KINDS_SECONDS = 600.0
"""Interval between queries for the partitions."""

WAITING = 16
"""Maximum number of allocations that wait in Slurm at a time. On a full cluster, most of the time until work has ended
is the time that they wait, so they wait beside each other.
"""

SETTLED_SECONDS = 1.0
"""Wait before an allocation is requested for new work, which may still fit on existing ones."""

UNLISTED_SECONDS = 90.0
"""Age after which an unlisted request counts as never submitted: `sbatch` has ended by then."""

PAUSES = (15.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds until `sbatch` is retried after a failure, growing with each failure."""

END_SECONDS = 20.0
ANSWER_SECONDS = 3.0
LOOK_SECONDS = 0.1
CHANGED_SECONDS = 30.0
"""Smallest change of an allocation's end time in Slurm that is reported to its pilots."""

IDLE_GUESS, QUEUE_GUESS = 15.0, 600.0
"""Assumed delays of an allocation in seconds, until one has started: with idle nodes in its partition, and without."""

_log = logging.getLogger("poise.slurm")


class _Rank(NamedTuple):
    """A node of an allocation that has a pilot."""

    allocation: Allocation
    rank: int
    run: int
    state: State

    def orders(self) -> Orders | None:
        return self.allocation.orders(self.rank, self.run)

    def order(self, orders: Orders) -> None:
        self.allocation.order(self.rank, self.run, orders)

    def end(self) -> None:
        """Mark the pilot as ended, and order it to leave if it still runs."""
        if (orders := self.orders()) is not None:
            self.order(msgspec.structs.replace(orders, leave=True))
        self.allocation.say(self.rank, self.run, msgspec.structs.replace(self.state, ended=True))


class _Room(NamedTuple):
    """An allocation that is there or requested, the seconds that it has left, the delay until it is free, and whether
    it `waits` in Slurm.
    """

    shape: Shape
    left: int
    delay: Delay
    waits: bool


class SlurmCluster:
    """The allocations of one home. `folder` is on a filesystem that the nodes share; `now` returns seconds since 1970,
    and `ticks` is a monotonic clock.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `Fault` if Slurm does not answer."""
        self._settings, self._now = settings, now
        self._folder = folder / "allocations"
        self._turns = Turns(ticks)
        self._turns.take()
        self._kinds: list[Kind] = commands.partitions()
        self._kinds_at = now()
        self._listed_at = 0.0  # time of the latest list; 0 before the first
        self._settled: float | None = None  # when work began to wait
        self._failed, self._again_at, self._why = 0, 0.0, ""
        self._idle: dict[str, float] = {}  # idle machines, and since when
        self._unwanted: set[str] = set()
        self._refused: list[Refused] = []
        self._waiting: list[Job] = []  # as of Slurm's latest list
        self._away = ""  # why Slurm does not answer
        self._busy: Mapping[str, int] = {}
        self._unused: dict[str, float] = {}  # waiting allocations that no work needs, and since when
        self._delays = Delays(folder / "delays.json")
        self._begun = {one.tag for one in known_allocations(self._folder) if one.states()}

    # --- state -------------------------------------------------------------------------------------------------------

    def address(self) -> str:
        """Return the address that this machine uses to reach others; nothing is sent."""
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
                return str(probe.getsockname()[0])
            except OSError:
                return socket.getfqdn()

    def machines(self) -> list[Machine]:
        found = []
        for identity, one in self._ranks().items():
            state, orders = one.state, one.orders()
            size = {"cpu": float(state.cpus), "gpu": float(len(state.devices))}
            free = size if orders is None else {}
            found.append(Machine(identity, state.host, size, free, leaving=self._is_leaving(identity, one)))
        return found

    def pilots(self) -> list[Pilot]:
        orders = {identity: one.orders() for identity, one in self._ranks().items()}
        return [Pilot(of.node, identity) for identity, of in orders.items() if of is not None and not of.leave]

    def waiting(self) -> list[Mapping[str, float]]:
        """Slurm itself serves other users, so nothing is lent to them here."""
        return []

    # --- requests ----------------------------------------------------------------------------------------------------

    def quote(self, work: Sequence[Demand]) -> list[Quote]:
        there = self._there() if work else []
        room = 0 if self._away or self._now() < self._again_at else self._settings.nodes
        room = max(0, room - sum(one.shape.nodes for one in there))
        return [self._quote_for(one, there, room) for one in work]

    def _there(self) -> list[_Room]:
        """Return the allocations that have started, and those that Slurm is known to have."""
        ranks, now = self._ranks(), self._now()
        listed = {job.tag: job for job in self._waiting}
        found = []
        for one in known_allocations(self._folder):
            mine = {identity: rank for identity, rank in ranks.items() if rank.allocation.tag == one.tag}
            if (asked := one.asked()) is None or any(self._is_leaving(*rank) for rank in mine.items()):
                continue
            shape = asked.shape
            if mine:
                orders = [rank.orders() for rank in mine.values()]
                busy = max((self._busy.get(of.node, 0) for of in orders if of is not None), default=0)
                left = min(rank.state.until for rank in mine.values()) - now
                found.append(_Room(shape, int(left) - busy // SECOND, Delay(busy, busy), waits=False))
            elif not one.states() and not self._away:
                delay = self._delay_of(shape.partition, now - asked.at, listed.get(one.tag))
                found.append(_Room(shape, shape.minutes * 60, delay, waits=True))
        return found

    def _quote_for(self, work: Demand, there: Sequence[_Room], room: int) -> Quote:
        openings = [
            Opening(slots=slots, delay=one.delay.expected, late=one.delay.late, asked=True)
            for one in (there if may_run(work) else ())
            if one.left >= needed(work, self._settings) and (slots := slots_in(work, one.shape))
        ]
        kind = kind_for(work, self._kinds, self._settings)
        if isinstance(kind, str):
            return Quote(key=work.key, openings=tuple(openings), why=kind)
        if slots := slots_of(work, kind) * min(room, kind.nodes):
            before = [one.delay for one in there if one.waits and one.shape.partition == kind.partition]
            new = max([self._delay_of(kind.partition), *before])  # it starts after those
            openings.append(Opening(slots=slots, delay=new.expected, late=new.late))
        why = self._away or self._why or f"all of its {self._settings.nodes} nodes are in use"
        return Quote(key=work.key, openings=tuple(openings), why="" if openings else why)

    def _delay_of(self, partition: str, waited: float = 0.0, job: Job | None = None) -> Delay:
        """Return the delay of an allocation: Slurm's own estimate if there is one, else that of the latest ones."""
        learned = self._delays.of(partition, self._guess(partition), waited)
        left = round((job.start - self._now()) * SECOND) if job is not None and job.start else 0
        return Delay(left, max(left, learned.late)) if left > 0 else learned

    def _guess(self, partition: str) -> float:
        idle = any(kind.idle for kind in self._kinds if kind.partition == partition)
        return IDLE_GUESS if idle else QUEUE_GUESS

    def want(self, demand: DemandReport) -> list[Request]:
        self._busy = demand.busy
        self._learn()
        self._request(demand)
        return self._unmet() if demand.waits else []

    def _unmet(self) -> list[Request]:
        """Report what the waiting work cannot get, or not yet."""
        found = [
            Request(text=f"no allocation for {_count(one.demand.tasks, 'task')}: {one.why}", refused=True)
            for one in self._refused
        ]
        if self._now() < self._again_at:
            found.append(Request(text=self._why, refused=True))
        listed = {job.tag: job for job in self._waiting}
        for one in known_allocations(self._folder):
            asked, job = one.asked(), listed.get(one.tag)
            if asked is not None and one.job() and not one.states():
                nodes = f"{_count(asked.shape.nodes, 'node')} of {asked.shape.partition}"
                state = f"{job.state.lower()}, {job.reason}" if job is not None else "submitted"
                found.append(Request(text=f"job {one.job()}, {nodes}: {state}", starts=job.start if job else 0))
        return found

    def _learn(self) -> None:
        """Record the delays of allocations that have started since the last round."""
        for one in known_allocations(self._folder):
            if one.tag not in self._begun and one.states() and (asked := one.asked()) is not None:
                self._begun.add(one.tag)
                self._delays.add(asked.shape.partition, self._now() - asked.at)

    def _request(self, demand: DemandReport) -> None:
        self._look()
        self._withdraw(demand.waits)
        ranks = self._ranks()
        self._mark_idle(ranks, demand.busy)
        self._failed = 0 if ranks else self._failed
        now = self._now()
        if not demand.waits:
            self._settled, self._refused = None, []
            return
        if self._settled is None:
            self._settled = now
        if now - self._settled < SETTLED_SECONDS or now < self._again_at or not self._listed():
            return
        standing, waiting = self._standing(ranks, demand.busy)
        shapes, refused = wanted(demand.waits, self._kinds, standing, self._settings)
        for one in refused if refused != self._refused else ():
            _log.warning("no allocation for %s: %s", _count(one.demand.tasks, "task"), one.why)
        self._refused = refused
        for shape in shapes[: max(0, WAITING - waiting)]:
            if not self._ask(shape):
                return

    def _withdraw(self, waits: Sequence[Demand]) -> None:
        """Cancel allocations that have not started and that no work has needed for `idle` seconds."""
        now, before, self._unused = self._now(), self._unused, {}
        for one in known_allocations(self._folder):
            asked = one.asked()
            if asked is None or not one.job() or one.states():
                continue
            if not any(slots_in(work, asked.shape) for work in waits):
                self._unused[one.tag] = before.get(one.tag, now)
                if now - self._unused[one.tag] > self._settings.idle:
                    _log.info("job %s is cancelled: no work waits for it", one.job())
                    partition = asked.shape.partition
                    self._delays.give_up(partition, self._guess(partition), before[one.tag] - asked.at)
                    self._cancel(one)

    def _ask(self, shape: Shape) -> bool:
        """Submit an allocation; return whether that succeeded."""
        drain = self._settings.drain
        made = new_allocation(self._folder, shape, self._now(), drain)
        try:
            made.set_job(commands.submit(_script(made, shape), _options(made, shape, self._settings)))
        except Fault as error:
            self._pause(f"{error}: {error.record.have}")  # it may have been submitted: the next list shows it
            return False
        _log.info("asked for %s as job %s", shape, made.job())
        return True

    def _pause(self, why: str) -> None:
        """Stop requesting for a while, with growing pauses until a pilot starts."""
        pause = PAUSES[min(self._failed, len(PAUSES) - 1)]
        self._failed, self._again_at = self._failed + 1, self._now() + pause
        self._why = f"{why}; Poise asks again {pause:g} s later"
        _log.warning(self._why)

    def _standing(self, ranks: Mapping[str, _Rank], busy: Mapping[str, int]) -> tuple[list[Standing], int]:
        """Return the current and requested allocations, and how many of them wait."""
        found, waiting = [], 0
        for one in known_allocations(self._folder):
            asked = one.asked()
            if asked is None:
                continue
            mine = {identity: rank for identity, rank in ranks.items() if rank.allocation.tag == one.tag}
            if not mine:
                if not one.states():  # otherwise it has ended or is requeued, which may take long
                    waiting += 1
                    found.append(Standing(asked.shape, asked.shape.minutes * 60))
                continue
            if any(self._is_leaving(identity, rank) for identity, rank in mine.items()):
                continue
            orders = [rank.orders() for rank in mine.values()]
            busy_for = max((busy.get(of.node, 0) for of in orders if of is not None), default=0)
            left = min(rank.state.until for rank in mine.values()) - self._now()
            found.append(Standing(asked.shape, int(left), busy_for // SECOND))
        return found, waiting

    def _mark_idle(self, ranks: Mapping[str, _Rank], busy: Mapping[str, int]) -> None:
        """Mark allocations that have been idle for too long as unwanted. Their nodes are then drained, so that no work
        arrives while they are given back.
        """
        now, idle = self._now(), {}
        for identity, one in ranks.items():
            orders = one.orders()
            if orders is not None and orders.node not in busy and one.state.begun:
                idle[identity] = self._idle.get(identity, now)
        self._idle = idle
        by_allocation: dict[str, list[str]] = {}
        for identity, one in ranks.items():
            by_allocation.setdefault(one.allocation.tag, []).append(identity)
        for identities in by_allocation.values():
            if all(now - idle.get(identity, now) > self._settings.idle for identity in identities):
                self._unwanted.update(identities)
        self._unwanted &= ranks.keys()

    def _is_leaving(self, identity: str, one: _Rank) -> bool:
        left = one.state.until - self._now()
        drain = self._settings.drain
        sooner = one.state.warned and left > 2 * drain + 60  # Slurm ends it early for a reason of its own
        return identity in self._unwanted or left < drain or sooner

    # --- status from Slurm -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """List all allocations in Slurm, if there are any and the rate limit allows it."""
        known = list(known_allocations(self._folder))
        if not known or not self._turns.take():
            return
        now = self._now()
        try:
            if now - self._kinds_at > KINDS_SECONDS:
                self._kinds, self._kinds_at = commands.partitions(), now
                return
            before = {one.tag: _pilots_of(one) for one in known}
            jobs = {job.tag: job for job in commands.queue()}
        except Fault as error:  # slurmctld is away: allocations continue to run without it
            _log.warning("%s: %s", error, error.record.have)
            self._away = f"{error}: {error.record.have}"
            return
        self._away = ""
        self._listed_at = now
        self._waiting = [job for job in jobs.values() if job.state in WAITS]
        for one in known:
            self._compare(one, jobs.get(one.tag), before[one.tag], now)

    def _compare(self, one: Allocation, job: Job | None, before: Sequence[_Rank], now: float) -> None:
        """Compare an allocation with Slurm's list; `before` are the pilots that had started before the list."""
        asked = one.asked()
        if job is None:
            if asked is None or one.job() or now - asked.at > UNLISTED_SECONDS:
                if one.job() and not one.states():
                    self._pause(f"job {one.job()} has ended, and no pilot has begun: {one.said()}")
                _log.info("the allocation %s has ended", one.job() or one.tag)
                one.forget()
            return
        if one.job() != job.id:  # the process that submitted it was killed
            one.set_job(job.id)
        for pilot in before:
            orders, until = pilot.orders(), now + job.left
            if job.state in WAITS and not pilot.state.ended:  # requeued, or slurmctld has forgotten that it ran
                pilot.end()
            elif job.left and orders is not None and abs(until - orders.until) > CHANGED_SECONDS:
                pilot.order(msgspec.structs.replace(orders, until=until))

    def _listed(self) -> bool:
        """Whether all allocations are known, so that nothing is requested twice."""
        return self._listed_at > 0 or not any(not one.job() for one in known_allocations(self._folder))

    def _ranks(self) -> dict[str, _Rank]:
        """Return the nodes of allocations whose pilots have started and not ended, by machine id."""
        found = {}
        for one in known_allocations(self._folder):
            for pilot in _pilots_of(one):
                if not pilot.state.ended and pilot.state.until > self._now():
                    found[f"{one.tag[:12]}-{pilot.rank}-{pilot.run}"] = pilot
        return found

    # --- pilots ------------------------------------------------------------------------------------------------------

    def start(self, machine: Machine, node: str, contact: Contact) -> None:
        one = self._ranks().get(machine.id)
        if one is not None:
            one.order(Orders(node=node, contact=contact, until=one.state.until))

    def has_begun(self, pilot: Pilot) -> bool:
        one = self._ranks().get(pilot.machine)
        return one is not None and one.state.begun

    def tell(self, pilot: Pilot, contact: Contact) -> None:
        self._order(pilot, lambda orders: msgspec.structs.replace(orders, contact=contact))

    def restart(self, pilot: Pilot) -> None:
        self._order(pilot, lambda orders: msgspec.structs.replace(orders, restarts=orders.restarts + 1))

    def answering(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        for pilot in pilots:
            self._order(pilot, lambda orders: msgspec.structs.replace(orders, asks=orders.asks + 1))
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            answered = [pilot for pilot in pilots if self._has_answered(pilot)]
            if len(answered) == len(pilots) or time.monotonic() > until:
                return answered
            time.sleep(LOOK_SECONDS)

    def _has_answered(self, pilot: Pilot) -> bool:
        one = self._ranks().get(pilot.machine)
        orders = one.orders() if one is not None else None
        return one is not None and orders is not None and one.state.answers == orders.asks

    def release(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        for pilot in pilots:
            self._order(pilot, lambda orders: msgspec.structs.replace(orders, released=orders.released + 1))
        until = time.monotonic() + END_SECONDS
        while True:
            ranks = self._ranks()
            ended = [pilot for pilot in pilots if pilot.machine not in ranks]
            left = [ranks[pilot.machine] for pilot in pilots if pilot.machine in ranks]
            if not any(_owes(one) for one in left) or time.monotonic() > until:
                return ended
            time.sleep(LOOK_SECONDS)

    def remove(self, pilot: Pilot) -> None:
        """Remove a pilot. The pilot may hang, so Slurm ends the allocation if no other node of it is in use."""
        one = self._ranks().get(pilot.machine)
        if one is None:
            return
        one.end()
        if not any(of.allocation.tag == one.allocation.tag for of in self._ranks().values()):
            self._cancel(one.allocation)

    def sweep(self, machines: Sequence[Machine]) -> bool:
        """Nothing outlives an allocation."""
        return True

    def stop(self) -> None:
        """Cancel the allocations that wait, and those that are unused."""
        for one in known_allocations(self._folder):
            self._cancel(one)

    def _cancel(self, one: Allocation) -> None:
        if job := one.job():
            with contextlib.suppress(Fault):  # slurmctld is away; the pilot ends by its orders
                commands.cancel(job)
        one.forget()

    def _order(self, pilot: Pilot, change: Callable[[Orders], Orders]) -> None:
        one = self._ranks().get(pilot.machine)
        orders = one.orders() if one is not None else None
        if one is not None and orders is not None:
            one.order(change(orders))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _pilots_of(one: Allocation) -> list[_Rank]:
    return [_Rank(one, rank, run, state) for rank, (run, state) in one.states().items()]


def _owes(one: _Rank) -> bool:
    """Whether a pilot has not yet answered the order to end."""
    orders = one.orders()
    return orders is not None and one.state.kept < orders.released


def _script(made: Allocation, shape: Shape) -> str:
    """Return a script that starts a pilot on each node. It contains no secret: other users may read job scripts."""
    pilot = shlex.join([sys.executable, "-m", "poise_slurm.pilot", str(made.folder)])
    size = f"--nodes={shape.nodes} --ntasks={shape.nodes} --ntasks-per-node=1 --cpus-per-task={shape.cpus}"
    each = f"srun --overlap --kill-on-bad-exit=0 {size} "
    return f"#!/bin/sh\nexec {each if shape.nodes > 1 else ''}{pilot}\n"


def _options(made: Allocation, shape: Shape, settings: Settings) -> list[str]:
    to_shell = "B:" if shape.nodes == 1 else ""
    options = [
        "--job-name=poise",
        f"--comment={TAG}{made.tag}",
        f"--partition={shape.partition}",
        f"--nodes={shape.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={shape.cpus}",
        f"--time={shape.minutes}",
        f"--signal={to_shell}USR1@{settings.drain}",
        f"--output={made.folder}/pilot.log",
        "--open-mode=append",
        *settings.options,
    ]
    options += [f"--mem={shape.memory}M"] if shape.memory else []
    return options + ([f"--gres=gpu:{shape.gpus}"] if shape.gpus else [])


__all__ = ["SlurmCluster"]
