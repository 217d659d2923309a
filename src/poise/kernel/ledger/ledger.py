"""The ledger: the one mutable object of the control plane, a pure function of the log.

Rules it keeps:

* `apply` is the only way to change it, is deterministic, and never looks at anything but the event and itself.
* What `encode` gives is the whole truth; every index beside it is derived and can be rebuilt (`check` compares).
* Instants begin at 1: an instant of 0 means that it has not happened.
* What is looped over has an order that survives encoding (`order.py`).

It consists of rooms, each of which owns a part of the state, with the events that change it. This class makes them,
hands each event to the room whose it is, shows a policy what they hold, and encodes it all.
"""

import zlib
from collections.abc import Collection, Mapping

import msgspec

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.attempts import Attempts
from poise.kernel.ledger.calls import Calls
from poise.kernel.ledger.cancelling import Cancelling
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.columns import Columns
from poise.kernel.ledger.cordons import Cordons
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.leader import Leader
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.paths import Paths
from poise.kernel.ledger.placements import Placements
from poise.kernel.ledger.profiles import Profiles
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.room import Handlers, InvariantBroken, Room, hold
from poise.kernel.ledger.seats import Seats
from poise.kernel.ledger.shown import Shown
from poise.kernel.ledger.state import State, decode, encoder, queue_of
from poise.kernel.ledger.tokens import Tokens
from poise.kernel.ledger.training import Training
from poise.model.events import Event
from poise.model.jobs import Priority
from poise.model.views import Snapshot

IN_ORDER = ("backlog", "memory", "quotas", "running", "yielded")
"""Maps of a view that a policy may loop over. The others are for look-ups by key, and have no fixed order."""

NO_RATES: Mapping[str, float] = {}
"""Always the same: what was worked out with these rates is found by it."""


class Ledger:
    """Jobs, nodes and what holds what, as of a revision. Build it by applying events, or from an encoded state.

    The rooms are made in order, each with those before it that it may see.
    """

    def __init__(self, state: State | None = None) -> None:
        self._state = state = state or State()
        changes = Changes()
        self.tokens = Tokens(state)
        self.profiles = Profiles(state)
        self.jobs = Jobs(state)
        self.active = Active(self.jobs, changes)
        self.queues = Queues(state, self.jobs, self.active, changes)
        self.leader = Leader(state, self.queues)
        self.nodes = Nodes(state, self.active, self.queues, changes)
        self.cordons = Cordons(state, self.active, changes)
        self.quotas = Quotas(state, self.jobs, self.active, changes)
        paths = Paths(self.profiles, self.queues, changes)
        seats = Seats(self.active, self.nodes, self.quotas, changes)
        self.training = Training(self.jobs, self.active, paths, changes)
        lifecycle = Lifecycle(self.jobs, self.queues, self.leader, paths, self.training)
        cancelling = Cancelling(self.jobs, self.active, paths, lifecycle, changes)
        calls = Calls(self.jobs, lifecycle)
        placements = Placements(self.jobs, self.active, self.queues, self.training, seats, changes)
        attempts = Attempts(
            self.jobs,
            self.active,
            self.nodes,
            self.profiles,
            self.training,
            lifecycle,
            calls,
            seats,
            changes,
        )
        self.shown = Shown(self.jobs, self.active, self.queues, self.nodes, self.quotas, self.training, changes)
        self.columns = Columns(self.active, self.nodes, self.cordons, self.leader, self.shown, changes)
        self._rooms: tuple[Room, ...] = (
            self.tokens,
            self.profiles,
            self.jobs,
            self.active,
            self.queues,
            self.leader,
            self.nodes,
            self.cordons,
            self.quotas,
            self.training,
            lifecycle,
            cancelling,
            calls,
            placements,
            attempts,
        )
        self._handlers: Handlers = {}
        for room in self._rooms:
            self._handlers |= room.handlers()

    # --- whole state -------------------------------------------------------------------------------------------------

    @classmethod
    def decode(cls, data: bytes) -> "Ledger":
        """From what `encode` or `compressed` gave."""
        return cls(decode(data))

    def encode(self) -> bytes:
        """Canonical: equal states give equal bytes."""
        return encoder.encode(self._state)

    def compressed(self) -> bytes:
        """The same for a checkpoint: a long queue repeats itself, and the log can take in nothing else while it is
        written.
        """
        return zlib.compress(self.encode(), 1)

    def keeping(self, jobs: Collection[str], priorities: Mapping[str, Priority] | None = None) -> "Ledger":
        """A copy that knows these jobs only, some of them with other `priorities` of what is not over. What holds room
        has to be among them.
        """
        state = decode(self.encode())
        state.jobs = {job_id: job for job_id, job in state.jobs.items() if job_id in jobs}
        state.finished = [job_id for job_id in state.finished if job_id in state.jobs]
        for job_id, priority in (priorities or {}).items():
            job = state.jobs[job_id]
            for unit in job.units:
                if not unit.over:
                    unit.spec = msgspec.structs.replace(unit.spec, priority=priority)
                    unit.queue = queue_of(job, unit.spec) + (f"/{unit.id}" if unit.barred else "")
        state.held = {}  # of queues that may not be there any more; reasons are told anew
        return Ledger(state)

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def now(self) -> int:
        """The instant of the last event."""
        return self._state.now

    # --- applying ----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take in one event; the revision grows by one. Until then `now` is the instant of the one before."""
        if event.at < max(1, self._state.now):
            raise InvariantBroken(f"event at {event.at} after {self._state.now}: {event}")
        self._state.revision += 1
        self._handlers[type(event)](event)
        self._state.now = event.at

    # --- what a policy sees ------------------------------------------------------------------------------------------

    def snapshot(
        self, now: int, seed: int = 0, throughputs: Mapping[str, float] | None = None, triggers: tuple[str, ...] = ()
    ) -> Snapshot:
        """An immutable view; costs in proportion to what changed and what is shown, not to what there is."""
        return Snapshot(
            revision=self._state.revision,
            now=now,
            candidates=tuple(self.shown.waiting(now, everything=self.leader.fixed)),
            fleet=self.columns.fleet().copy(),
            backlog=self.queues.backlog(),
            profiles=self.profiles.shown(),
            throughputs=NO_RATES if throughputs is None else throughputs,
            speedups=dict(self.training.speedups),
            elastic=self.shown.elastic(),
            stragglers=self.shown.stragglers(),
            phased=self.shown.phased(),
            yielded=dict(sorted(self.queues.yielded.items())),
            quotas=self.quotas.left(),
            running=self.active.by_shape(),
            memory=self.leader.memory,
            triggers=triggers,
            seed=seed,
        )

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant; raises `InvariantBroken` naming the first that does not hold. For tests and simulation."""
        encoded = self.encode()
        again = Ledger.decode(encoded)
        hold(again.encode() == encoded, "the state does not survive encoding")
        for room, anew in zip(self._rooms, again._rooms, strict=True):
            room.check(anew)
        mine, theirs = self.snapshot(self.now), again.snapshot(self.now)
        hold(mine == theirs, "a policy would see something else after a restart")
        for field in IN_ORDER:
            here, there = list(getattr(mine, field).items()), list(getattr(theirs, field).items())
            hold(here == there, f"a policy would see {field} in another order after a restart: {here} is not {there}")
