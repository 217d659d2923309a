"""The ledger: the one mutable object of the control plane, a pure function of the log.

Rules:

* Only `apply` changes it. It is deterministic, and reads nothing but the event and the ledger.
* `encode` gives all of the state. Every index is derived from it and can be rebuilt (`check` compares).
* Instants begin at 1. An instant of 0 means that the event has not happened.
* Loops run in an order that survives encoding (`order.py`).

The ledger consists of rooms. Each room owns a part of the state and handles the events that change it. `Ledger` makes
the rooms, gives each event to its room, builds snapshots for policies, and encodes the state.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping

import msgspec

from poise.kernel.lasting import Ends
from poise.kernel.ledger.active import Active
from poise.kernel.ledger.attempts import Attempts
from poise.kernel.ledger.budgets import Budgets
from poise.kernel.ledger.calls import Calls
from poise.kernel.ledger.cancelling import Cancelling
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.columns import Columns
from poise.kernel.ledger.cordons import Cordons
from poise.kernel.ledger.edits import Edits
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.parts import Parts
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.placements import Placements
from poise.kernel.ledger.profiles import Profiles
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.reservations import Reservations
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold
from poise.kernel.ledger.rules import RuleBook
from poise.kernel.ledger.schedules import Schedules
from poise.kernel.ledger.seats import Seats
from poise.kernel.ledger.services import Services
from poise.kernel.ledger.shares import Shares
from poise.kernel.ledger.shown import Shown
from poise.kernel.ledger.state import State, decode, encoder, queue_of_unit
from poise.kernel.ledger.tokens import Tokens
from poise.kernel.ledger.training import Training
from poise.model.events import Event, NodeJoined, SharesSet
from poise.model.jobs import Priority
from poise.model.views import Snapshot

IN_ORDER = ("backlog", "memory", "quotas", "running", "yielded")
"""Mappings of a snapshot that a policy may loop over. The others have no fixed order: use them by key."""

NO_RATES: Mapping[str, float] = {}
"""Shared empty mapping; its identity is a cache key."""


class Ledger:
    """The state of the scheduler at a revision. Build it by applying events, or from an encoded state.

    The constructor makes the rooms in order. A room gets the earlier rooms that it may see. A ledger that only follows
    a log sets `plans` to False, which skips critical paths: they are most of the work of a job with many tasks, and
    only decisions read them.
    """

    def __init__(self, state: State | None = None, *, plans: bool = True) -> None:
        self._state = state = state or State()
        changes = Changes()
        self.tokens = Tokens(state)
        self.profiles = Profiles(state)
        self.rules = RuleBook(state)
        self.services = Services(state)
        self.jobs = Jobs(state)
        self.parts = Parts(self.jobs)
        self.schedules = Schedules(state, self.jobs)
        self.active = Active(self.jobs, changes)
        self.queues = Queues(state, self.jobs, self.active, self.profiles, changes)
        self.leader = Leader(state, self.queues)
        self.nodes = Nodes(state, self.active, self.queues, changes)
        self.cordons = Cordons(state, self.active, changes)
        self.quotas = Quotas(state, self.jobs, self.active, changes)
        self.reservations = Reservations(state, self.leader, changes)
        self.shares = Shares(state, self.jobs, self.active, self.queues, self.nodes, changes)
        self.budgets = Budgets(state, self.jobs, self.active, self.nodes, self.shares)
        paths = Paths(self.profiles, self.queues, self.leader, changes, plans=plans)
        seats = Seats(self.active, self.nodes, self.quotas, self.shares, self.budgets, changes)
        self.training = Training(self.jobs, self.active, paths, changes)
        lifecycle = Lifecycle(self.jobs, self.parts, self.queues, self.leader, self.shares, paths, self.training)
        cancelling = Cancelling(self.jobs, self.active, paths, lifecycle, changes)
        edits = Edits(self.jobs, self.active, self.queues, paths, lifecycle, seats)
        calls = Calls(self.jobs, lifecycle)
        placements = Placements(self.jobs, self.active, self.queues, self.training, lifecycle, seats, changes)
        attempts = Attempts(
            self.jobs,
            self.active,
            self.nodes,
            self.profiles,
            self.queues,
            self.training,
            lifecycle,
            calls,
            seats,
            changes,
            self.leader,
        )
        self.shown = Shown(self.jobs, self.active, self.queues, self.nodes, self.quotas, self.training, changes)
        self.columns = Columns(
            self.active, self.nodes, self.cordons, self.reservations, self.leader, self.shown, changes
        )
        self._rooms: tuple[Room, ...] = (
            self.tokens,
            self.profiles,
            self.rules,
            self.services,
            self.jobs,
            self.parts,
            self.schedules,
            self.active,
            self.queues,
            self.leader,
            self.nodes,
            self.cordons,
            self.quotas,
            self.reservations,
            self.shares,
            self.budgets,
            self.training,
            lifecycle,
            cancelling,
            edits,
            calls,
            placements,
            attempts,
        )
        self._handlers: Handlers = {}
        for room in self._rooms:
            self._handlers |= room.handlers()

    # --- whole state -------------------------------------------------------------------------------------------------

    @classmethod
    def decode(cls, data: bytes, *, plans: bool = True) -> "Ledger":
        """Decode a state that `encode` or `compressed` returned."""
        return cls(decode(data), plans=plans)

    def encode(self) -> bytes:
        """Encode canonically: equal states give equal bytes."""
        return encoder.encode(self._state)

    def compressed(self) -> bytes:
        """Encode the state for a checkpoint, compressed with zlib: a long queue is repetitive, and commits wait until
        the checkpoint is written.
        """
        return zlib.compress(self.encode(), 1)

    def sealed_texts(self) -> Iterator[str]:
        """Yield the secrets that will have to be opened: of unfinished jobs and of schedules."""
        for job in self.jobs.values():
            if not job.ended:
                yield from job.sealed_texts()
        for schedule in self.schedules.values():
            yield from schedule.job.sealed_texts()

    def fork(self, jobs: Collection[str] | None = None, priorities: Mapping[str, Priority] | None = None) -> "Ledger":
        """Return an independent ledger in the same state, to which other events can be applied. It shares parts that
        nothing changes any more, and the columns until they change.

        With `jobs` it is for a forecast: it has only these, which must include all that hold resources, and arrays make
        no more parts. `priorities` replaces the priority of
        the unfinished units of a job, by its id.
        """
        state = self._state.fork(jobs)
        for job_id, priority in (priorities or {}).items():
            job = state.jobs[job_id]
            for unit in job.units:
                if not unit.over:
                    unit.spec = msgspec.structs.replace(unit.spec, priority=priority)
                    unit.queue = queue_of_unit(job, unit)
        if jobs is not None or priorities:
            state.held = {}  # its queues may be gone; the next round sets the reasons
        made = Ledger(state)
        if jobs is not None:
            made.parts.freeze()
        if not priorities:
            made.columns.fork_of(self.columns)
        return made

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def now(self) -> int:
        """Instant of the last event."""
        return self._state.now

    # --- applying ----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply one event and raise the revision by one. Meanwhile `now` is the instant of the event before."""
        if event.at < max(1, self._state.now):
            raise InvariantBroken(f"event at {event.at} after {self._state.now}: {event}")
        self._state.revision += 1
        self.shares.at(event.at)
        self.budgets.at(event.at)
        self._handlers[type(event)](event)
        if type(event) is NodeJoined:
            self.shares.recount()
        if type(event) in (NodeJoined, SharesSet):
            self.budgets.recount()
        self._state.now = event.at

    # --- what a policy sees ------------------------------------------------------------------------------------------

    def snapshot(
        self, now: int, seed: int = 0, throughputs: Mapping[str, float] | None = None, triggers: tuple[str, ...] = ()
    ) -> Snapshot:
        """Return an immutable view. Its cost grows with the changes and with the shown units, not with the size of the
        state.
        """
        fleet = self.columns.fleet().copy()
        ends = self.ends(now)
        return Snapshot(
            revision=self._state.revision,
            now=now,
            candidates=ends.candidates(self.shown.waiting(now, everything=self.leader.fixed)),
            fleet=fleet,
            backlog=self.queues.backlog(),
            profiles=self.profiles.shown(),
            throughputs=NO_RATES if throughputs is None else throughputs,
            speedups=dict(self.training.speedups),
            elastic=ends.residents(self.shown.elastic(), self.tenant_of),
            stragglers=self.shown.stragglers(),
            phased=self.shown.phased(),
            yielded=dict(sorted(self.queues.yielded.items())),
            quotas=self.quotas.left(),
            running=self.active.by_shape(),
            shares=self.shares.view(now),
            memory=self.leader.memory,
            triggers=triggers,
            seed=seed,
        )

    def tenant_of(self, unit_id: str) -> str:
        """Return the tenant of a unit."""
        return self.jobs[self.jobs.units[unit_id].job].tenant

    def ends(self, now: int) -> Ends:
        """Return the limits on placements from the ends of nodes and from reservations."""
        return Ends(self.columns.room().ends, self.reservations.booked(now), self.profiles, now)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check every invariant, for tests and simulation. Raises `InvariantBroken` for the first that fails."""
        encoded = self.encode()
        again = Ledger.decode(encoded)
        hold(again.encode() == encoded, "the state does not survive encoding")
        for room, anew in zip(self._rooms, again._rooms, strict=True):
            room.check(anew)
        mine, theirs = self.snapshot(self.now), again.snapshot(self.now)
        hold(mine == theirs, "a policy would see something else after a restart")
        forked = self.fork()
        hold(forked.encode() == encoded, "a fork is in another state")
        hold(forked.snapshot(self.now) == mine, "a policy would see something else in a fork")
        for field in IN_ORDER:
            here, there = list(getattr(mine, field).items()), list(getattr(theirs, field).items())
            hold(here == there, f"a policy would see {field} in another order after a restart: {here} is not {there}")
