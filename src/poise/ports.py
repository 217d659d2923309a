"""The only doors to the world. Machines in `kernel/` never open one; shells pass them what comes through.

`drivers/` makes each door real; the fault simulator puts simulated ones in the same place.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from poise.kernel import node
from poise.model.decisions import Plan
from poise.model.events import Event
from poise.model.messages import Attempt, Ended, Launch, Running
from poise.model.observed import Observed
from poise.model.training import Orders
from poise.units import Instant

if TYPE_CHECKING:  # views bring numpy, which an agent can do without
    from poise.model.views import Snapshot


class Clock(Protocol):
    """`now` never steps back and goes on while the machine sleeps; `wall` is for people only."""

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

    def append(self, events: Sequence[Event], *, expected: int) -> int: ...
    def durable(self) -> int: ...
    def read(self, after: int = 0, limit: int = 0) -> Iterator[tuple[int, Event]]: ...
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
    """The truth on a node: what its slots hold, and what has ended and was not yet forgotten."""

    held: tuple[Held, ...]
    ended: tuple[Ended, ...]


class Executor(Protocol):
    """Runs attempts on this node. A slot runs one at a time, in the order of `start`; slots are numbered from 0.

    `start` is idempotent per attempt. `stop` ends a running attempt (SIGTERM, grace, SIGKILL) and hands back one that
    has not started; both answer through `on_change`. The outcome of a running one that is stopped with `hung`, which
    says what was seen of it, is `hung`. `renew` says, before `start` and again later, at which instant the
    attempt is to be killed, even if whoever said so has ended; its outcome is `lost` then. `order` tells one that was
    started who belongs to its gang from now on, `limit` gives one another time limit. `forget` says that an ending is
    durable elsewhere.
    """

    on_change: Callable[[Sequence[Running], Sequence[Ended]], None]

    def start(self, slot: int, launch: Launch, cpus: tuple[int, ...]) -> None: ...
    def stop(self, attempt: Attempt, hung: str = "") -> None: ...
    def renew(self, attempt: Attempt, until: int) -> None: ...
    def order(self, attempt: Attempt, orders: Orders) -> None: ...
    def limit(self, attempt: Attempt, time_limit: int) -> None: ...
    def forget(self, attempts: Sequence[Attempt]) -> None: ...


def carry_out(effect: node.ToExecutor, executor: Executor) -> None:
    """Hand over to an executor what the machine of its node asks of it."""
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
            executor.limit(effect.attempt, effect.time_limit)
        case node.Forget():
            executor.forget(effect.attempts)


class Observer(Protocol):
    """Is told what a control plane does, in order, on a thread of its own: it can neither slow nor break a round. What
    it raises is logged, and it is told the rest; of what it is too slow for, the newest is left out.
    """

    def observe(self, observed: Observed, /) -> None: ...


class Decider(Protocol):
    """Runs a policy on a snapshot. `answer` is called once, at once or later, on the owner's thread, and always with a
    plan: when the policy fails, a safe one decides, and the plan says so (`failed`).
    """

    def decide(self, view: "Snapshot", answer: Callable[[Plan], None], /) -> None: ...
    def close(self) -> None: ...
