"""The interfaces to the outside world. State machines in `kernel/` use none directly: shells pass them messages.

`drivers/` implements each interface; the fault simulator replaces them with simulated ones.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from poise.kernel import node
from poise.model.messages import Attempt, Ended, FromAgent, Launch, Running, ToNode
from poise.model.resources import Node
from poise.model.training import Orders
from poise.units import Instant

if TYPE_CHECKING:  # what an agent does not need, and slow to import
    from poise.model.decisions import Plan
    from poise.model.events import Event
    from poise.model.observed import Observed
    from poise.model.reports.demand import Demand, DemandReport, Quote
    from poise.model.reports.status import Request
    from poise.model.views import Snapshot


class Clock(Protocol):
    """`now` is monotonic and also counts during suspend; `wall` is for display only."""

    def now(self) -> Instant: ...
    def wall(self) -> float: ...


class StoredCheckpoint(NamedTuple):
    """A ledger's encoded state as of `revision`."""

    revision: int
    state: bytes


class Store(Protocol):
    """The durable log: revisions 1, 2, 3 … one event each, appended in order by one writer.

    `append` returns at once with the revision of the last event; `on_durable(revision)` follows once every event up to
    it would survive a power cut, `on_failed(error)` if it could not be written (then nothing after the last durable
    revision is kept, and appends are refused until `recover`). Both are called on the owner's thread.
    """

    on_durable: Callable[[int], None]
    on_failed: Callable[[Exception], None]

    def append(self, events: "Sequence[Event]", *, expected: int) -> int: ...
    def durable(self) -> int: ...
    def read(self, after: int = 0, limit: int = 0) -> "Iterator[tuple[int, Event]]": ...
    def checkpoint(self, revision: int, state: bytes) -> None: ...
    def latest_checkpoint(self) -> StoredCheckpoint | None: ...
    def written_by(self) -> str: ...
    def recover(self) -> bool: ...
    def close(self) -> None: ...


class Held(NamedTuple):
    """An attempt that a slot of the executor holds: running when `running` is set, else waiting its turn."""

    slot: int
    launch: Launch
    cpus: tuple[int, ...]
    running: Running | None


class Observation(NamedTuple):
    """The actual state of a node: the attempts in its slots, and the endings that are not yet forgotten."""

    held: tuple[Held, ...]
    ended: tuple[Ended, ...]


class Executor(Protocol):
    """Runs attempts on this node. A slot runs one at a time, in the order of `start`; slots are numbered from 0.

    `start` is idempotent per attempt. `stop` ends a running attempt (SIGTERM, grace, SIGKILL) and hands back one that
    has not started; both answer through `on_change`. A running attempt that is stopped with `hung`, a description of
    the symptoms, has the outcome `hung`. `renew` sets, before `start` and again later, the instant at which the attempt
    is killed, even if the caller has exited; its outcome is then `lost`. `order` sends a started attempt the new
    members of its gang; `limit` changes its time limit. `shrink` lowers its memory limit if it has never used nearly as
    much. `pause` stops the processes of an attempt, or continues them.
    `forget` confirms that an ending is durable elsewhere.
    """

    on_change: Callable[[Sequence[Running], Sequence[Ended]], None]

    def start(self, slot: int, launch: Launch, cpus: tuple[int, ...]) -> None: ...
    def stop(self, attempt: Attempt, hung: str = "") -> None: ...
    def renew(self, attempt: Attempt, until: int) -> None: ...
    def order(self, attempt: Attempt, orders: Orders) -> None: ...
    def limit(self, attempt: Attempt, time_limit: int, memory: int) -> None: ...
    def shrink(self, attempt: Attempt, memory: int) -> None: ...
    def pause(self, attempt: Attempt, *, on: bool) -> None: ...
    def forget(self, attempts: Sequence[Attempt]) -> None: ...


def carry_out(effect: node.ToExecutor, executor: Executor) -> None:
    """Pass an effect of the node's state machine to its executor."""
    match effect:
        case node.Start():
            executor.start(effect.slot, effect.launch, effect.cpus)
        case node.Stop():
            executor.stop(effect.attempt, effect.hung)
        case node.Renew():
            executor.renew(effect.attempt, effect.until)
        case node.Order():
            executor.order(effect.attempt, effect.orders)
        case node.Limit():
            executor.limit(effect.attempt, effect.time_limit, effect.memory)
        case node.Shrink():
            executor.shrink(effect.attempt, effect.memory)
        case node.Pause():
            executor.pause(effect.attempt, on=effect.on)
        case node.Forget():
            executor.forget(effect.attempts)


class Connection(Protocol):
    """The control plane's side of a node's connection. Both functions return at once. Messages arrive in order,
    or the connection ends.
    """

    def send(self, message: ToNode, /) -> None: ...
    def close(self) -> None: ...


class NodePort(Protocol):
    """The control plane's interface for nodes: agents that connect, the fault simulator's machines, and the nodes of
    the twin.

    A node sends `Hello` on each connection: its resources, and all attempts that it holds. The answer is a complete
    `Desired` state. Then each side sends changes. A `Report` is answered by `Acked` when it is durable, and a `Beat` by
    `Heard` at once. Every message is idempotent by attempt and may arrive twice. A node that offers less than its work
    uses keeps the work; nothing is placed there until it fits.
    """

    def accepted(self) -> int:
        """The number of a connection that was just made; later ones have higher numbers."""
        ...

    def connect(self, node: Node, number: int, connection: Connection, /, by: str = "") -> bool:
        """A node has said hello with the token `by`. Return False if it has a newer connection. Raises `Conflict`."""
        ...

    def hear(self, node: str, connection: Connection, message: FromAgent, /, by: str = "") -> None:
        """Process a message of a node, including `Hello`. Messages on older connections are ignored."""
        ...

    def disconnect(self, node: str, connection: Connection, /) -> None:
        """Record that a node has disconnected. It is lost only if it does not reconnect in time."""
        ...


class Observer(Protocol):
    """Receives the actions of a control plane in order, on its own thread, so it can neither slow nor break a round.
    Its exceptions are logged, and it continues. If it is too slow, the newest observations are dropped.
    """

    def observe(self, observed: "Observed", /) -> None: ...


class Decider(Protocol):
    """Runs a policy on a snapshot. It calls `answer` exactly once, immediately or later, on the owner's thread, always
    with a plan: if the policy fails, a safe policy decides, and the plan is marked `failed`.
    """

    def decide(self, view: "Snapshot", answer: "Callable[[Plan], None]", /) -> None: ...
    def close(self) -> None: ...


class Machine(NamedTuple):
    """A machine of a substrate: its `id` there, and its `name` as a node.

    `size` is its total and `free` its free resources: amounts by the substrate's own names. `spare`: enough is free for
    a new pilot to be worthwhile. `leaving`: the substrate is draining the machine.
    """

    id: str
    name: str
    size: Mapping[str, float]
    free: Mapping[str, float]
    spare: bool = False
    leaving: bool = False


class Pilot(NamedTuple):
    """An agent that a substrate runs, with the resources that the substrate holds for it: the name of its node, and the
    id of its machine.
    """

    node: str
    machine: str


class Contact(NamedTuple):
    """How an agent reaches its control plane: one address, or several with one leader; and the token of a node."""

    address: str
    token: str


class Substrate(Protocol):
    """Machines of another system, such as Ray. Poise runs one pilot on each; its node offers what the pilot holds.

    One thread calls it, and a call may take seconds. `start`, `tell` and `restart` return before they are done. Pilots
    outlive the process that started them, and so do the commands of their nodes. `agent.pilots` decides which pilots
    there are.
    """

    def address(self) -> str:
        """The address of this machine, as the machines of the substrate reach it."""
        ...

    def machines(self) -> Sequence[Machine]:
        """All machines. If one is missing it is lost, with everything on it."""
        ...

    def pilots(self) -> Collection[Pilot]:
        """All pilots of this home, also those that have not begun, and those of an earlier process."""
        ...

    def waiting(self) -> Sequence[Mapping[str, float]]:
        """Requests of other users that wait: what each needs of one machine, by the names of `Machine.size`. A machine
        fits a request if it has all of these amounts; a label that a request demands is an amount of 1.
        """
        ...

    def start(self, machine: Machine, node: str, contact: Contact) -> None:
        """Start a pilot that holds the resources of a machine that are free when it starts. It restarts its agent
        whenever the agent exits, until the pilot is released.
        """
        ...

    def has_begun(self, pilot: Pilot) -> bool:
        """Return whether the pilot has been allocated its resources; until then it is queued."""
        ...

    def tell(self, pilot: Pilot, contact: Contact) -> None:
        """Send the current contact to a pilot that was started earlier."""
        ...

    def restart(self, pilot: Pilot) -> None:
        """Kill the agent of a pilot, even if it hangs, and start a new one."""
        ...

    def answering(self, pilots: Sequence[Pilot]) -> Collection[Pilot]:
        """Query the pilots in parallel and return those that answer within a few seconds."""
        ...

    def release(self, pilots: Sequence[Pilot]) -> Collection[Pilot]:
        """Stop these agents in parallel and release their pilots' resources, except where commands of the node run.
        Return the released pilots.
        """
        ...

    def remove(self, pilot: Pilot) -> None:
        """Remove a pilot at once, without its agent's consent. Commands of its node may keep running."""
        ...

    def sweep(self, machines: Sequence[Machine]) -> bool:
        """Kill the processes that removed pilots have left on these machines. Return whether none is left."""
        ...

    def stop(self) -> None:
        """Stop everything that `connect` has started. No pilot of this home may be left by then."""
        ...


@runtime_checkable
class GrowingSubstrate(Substrate, Protocol):
    """A substrate that provides machines on request, such as Slurm. Its driver has a function `grows`."""

    def quote(self, work: "Sequence[Demand]") -> "Sequence[Quote]":
        """Return the room for each kind of waiting work: on machines that exist or are requested, and on machines that
        could be requested. The control plane compares it with the room of other substrates.
        """
        ...

    def want(self, demand: "DemandReport") -> "Sequence[Request]":
        """Request machines for this substrate's share of the waiting work, and mark unneeded ones as `leaving`. Return
        the unmet requests and the impossible ones, for `poise doctor` and `poise explain`.
        """
        ...


@runtime_checkable
class PlacingSubstrate(Protocol):
    """A substrate whose own machines are nodes of the control plane, without agents: it runs there what the control
    plane places, such as the Pods of others.
    """

    def work(self, home: str, over: Callable[[], bool], tell: "Callable[[Sequence[Request]], None]") -> None:
        """Speak for all nodes to the control plane of a home, by its folder, until `over` returns true. `tell` takes
        what waits outside of the control plane.
        """
        ...


class Handed(NamedTuple):
    """A job accepted by another scheduler: its id there, its expected start in that scheduler's format, its nodes and
    its partition (each empty if unknown), and the command that shows its status.
    """

    job: str
    starts: str
    nodes: str
    partition: str
    status: str


class SubstrateDriver(Protocol):
    """Finds substrates of one kind; a module or an object. `argument` is the part of `--on NAME:ARGUMENT` after the
    colon, or empty. The command line loads it too, so slow imports belong in `connect`.
    """

    def check(self, argument: str) -> None:
        """Raise `InputError` if this kind cannot be used here, for example if a package is missing."""
        ...

    def is_local(self, argument: str) -> bool:
        """Return whether all its machines are this one; the control plane then listens on loopback only."""
        ...

    def connect(self, argument: str, home: str, folder: str) -> Substrate | PlacingSubstrate:
        """Connect to a substrate. `home` tells the pilots of this home from those of others; `folder` is a path for
        files of the driver. Raises `PoiseError` with a hint if it cannot: `poise up` and `poise doctor` show that.

        SIGTERM raises `SystemExit` meanwhile. A driver whose libraries have threads blocks it before it loads them; it
        is unblocked later.
        """
        ...
