"""The node side as a pure state machine: compares the wanted with the running attempts, and assigns cores.

The control plane places attempts; the node orders them and binds cores. Launches of one shape share a pool of slots. A
launch with its own room starts before queued ones. A multi-level feedback queue orders these: higher priority classes
first, then classes of work with short runs here before those with long runs. Each second of waiting raises a launch by
one class and puts it on the first level. A slot has its own whole cores if its shape asks for whole cores. It gets the
next few short launches in advance, so that no message delays the next command.

`told` is the number of attempts of a shape that may run at once, as last sent by the control plane. As attempts end,
the number shrinks on both sides: room that the ledger has given to another shape is free here too.

An attempt that the control plane has given up runs until it is stopped, and the ledger no longer counts it. So the node
checks for itself: it opens no slot without room for it, and gives no device to two attempts. The next attempt of a task
starts only after the last one has ended.

The node sends heartbeats: at least each second while it holds work that needs it, else less often. The control plane of
a large fleet asks for fewer. Each heartbeat announces the next one, and gets a reply. If nothing is heard the
connection is considered broken, whatever its state, and the node reconnects.

Exclusive work has a lease. It runs from the sending of the last message that got a reply, because the control plane
cannot have given up the node before that. At four fifths of it the attempt is stopped. At nine tenths its keeper kills
it, without the agent if necessary. So no copy is left when the lease is over and another one may be placed elsewhere.
None is started without a connection.

The control plane suspends an idle session and resumes it later. While it is suspended, its slot holds only its memory
here too. Its cores stay bound to its slot.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from poise.kernel.steps import Steps
from poise.model.jobs import Ending, Outcome
from poise.model.load import Load, Upkeep, has_changed
from poise.model.messages import (
    MOST_TOLD,
    Acked,
    Attempt,
    Beat,
    Desired,
    DeviceFault,
    Ended,
    FromAgent,
    Heard,
    Hello,
    Idle,
    Launch,
    Limited,
    Report,
    Running,
    Sized,
    Told,
)
from poise.model.resources import WHOLE, Node, Shape, identity_of
from poise.model.times import Times
from poise.model.training import Orders
from poise.model.usage import MAX_WINDOWS, Window, is_news
from poise.units import MILLISECOND, MINUTE, SECOND

QUANTA = (100 * MILLISECOND, 10 * SECOND)
"""Run times up to which a class of work stays on the first and second level of the feedback queue."""

BOOST_AFTER = 1 * SECOND
AHEAD = 20 * MILLISECOND
"""Expected work handed to a slot in addition to the running attempt."""

HELLO = 0
"""Serial number under which a hello counts as a report."""

MAX_AHEAD = 32
STOP_AT, KILL_AT = 80, 90
"""Hundredths of its lease after which exclusive work is stopped, and killed; its grace period lies between them."""

RENEW_BY = 1 * SECOND
"""A keeper is sent a new deadline once it has moved by this much."""

SHRINK_AFTER, SHRINK_EVERY = 10 * MINUTE, MINUTE
"""Run time of an attempt before its memory limit is lowered, and the interval of attempts to do so."""

LEASE_OVER = "its lease ran out"

BY_LEAVING: tuple[Outcome, ...] = ("failed", "killed", "signal", "stopped")
"""Outcomes that a node may cause when it will soon be gone: its substrate may send signals too."""

MAX_CLASSES = 4096
"""Maximum number of classes of work with a stored level; the oldest is dropped."""


class Start(msgspec.Struct, frozen=True):
    slot: int
    launch: Launch
    cpus: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True):
    """Stop an attempt. `hung` describes the symptoms of one that hangs."""

    attempt: Attempt
    hung: str = ""


class Renew(msgspec.Struct, frozen=True):
    """The attempt may run until this instant, on the clock of this machine; then its keeper kills it. Sent before it is
    started, and again when the deadline has moved.
    """

    attempt: Attempt
    until: int


class Order(msgspec.Struct, frozen=True):
    """Send an attempt the new members of its gang."""

    attempt: Attempt
    orders: Orders


class Limit(msgspec.Struct, frozen=True):
    """The attempt has new limits: time in nanoseconds from its start, or 0; memory in bytes, or 0 if it keeps its."""

    attempt: Attempt
    time_limit: int
    memory: int = 0


class Shrink(msgspec.Struct, frozen=True):
    """Lower the memory limit of a running attempt to this many bytes, if it has never used nearly as much."""

    attempt: Attempt
    memory: int


class Pause(msgspec.Struct, frozen=True):
    """Stop the processes of an attempt (`on`), or continue them."""

    attempt: Attempt
    on: bool


class Forget(msgspec.Struct, frozen=True):
    """The endings of these attempts are durable in the log; their records can be deleted."""

    attempts: tuple[Attempt, ...]


class Say(msgspec.Struct, frozen=True):
    message: FromAgent


class Hang(msgspec.Struct, frozen=True):
    """Disconnect and reconnect, because the control plane has been silent for too long."""


class Changed(msgspec.Struct, frozen=True):
    """The executor saw attempts start and end."""

    running: tuple[Running, ...] = ()
    ended: tuple[Ended, ...] = ()


class Faulted(msgspec.Struct, frozen=True):
    """Devices of this node have failed."""

    faults: tuple[DeviceFault, ...]


class Fitness(msgspec.Struct, frozen=True):
    """Why nothing can be started here; empty if work can be started again."""

    why: str


class Leaving(msgspec.Struct, frozen=True):
    """This node will soon be gone, and why."""

    why: str


class Telling(msgspec.Struct, frozen=True):
    """New reports of attempts; empty after a check without changes. `used` is the CPU time so far, in nanoseconds, of
    attempts whose steps stand still.
    """

    told: tuple[Told, ...]
    used: Mapping[Attempt, int] = {}


class Used(msgspec.Struct, frozen=True):
    """The use of sessions has changed."""

    idle: tuple[Idle, ...]


class Connected(msgspec.Struct, frozen=True):
    """A connection to the control plane is open, or the open one needs a complete report again. `address`: the address
    of this machine if there are other machines.
    """

    address: str = ""


class Disconnected(msgspec.Struct, frozen=True):
    pass


ToExecutor = Start | Stop | Renew | Order | Limit | Shrink | Pause | Forget
Effect = ToExecutor | Say | Hang
Message = (
    Desired
    | Acked
    | Heard
    | Changed
    | Faulted
    | Fitness
    | Leaving
    | Telling
    | Used
    | Sized
    | Load
    | Upkeep
    | Window
    | Connected
    | Disconnected
)


class Slot(msgspec.Struct):
    """A slot for one running attempt, `queue[0]`. `cpus` are its own cores, if any."""

    index: int
    shape: Shape
    cpus: tuple[int, ...]
    queue: deque[Attempt]


class Sent(NamedTuple):
    """A report in flight: when it was sent, and the endings in it."""

    at: int
    ended: tuple[Attempt, ...]


class Waiting(msgspec.Struct):
    launch: Launch
    since: int


Line = tuple[bool, int, int]


class Pool(msgspec.Struct):
    """Launches of one shape. `lines` is the feedback queue, by (queued, priority, level)."""

    told: int
    slots: list[Slot]
    lines: dict[Line, deque[Waiting]]

    def waiting(self) -> int:
        return sum(len(line) for line in self.lines.values())


class NodeMachine:
    """The state of one node. First pass it the attempts of the executor (`adopt`), then messages, and call `tick` at
    `wakeup`. It returns effects, in order.
    """

    def __init__(self, node: Node, cores: Sequence[int], times: Times | None = None, *, lasting: bool = False) -> None:
        """Its work is `lasting` if it does not depend on the agent, as the Pods of a kubelet: heartbeats then become
        rare while nothing changes, as on an idle node.
        """
        self.node = node
        self._lasting = lasting
        self._times = times or Times()
        self._free_cores = sorted(cores)
        self._pools: dict[Shape, Pool] = {}
        self._launches: dict[Attempt, Launch] = {}
        self._slot_of: dict[Attempt, Slot] = {}
        self._running: dict[Attempt, Running] = {}
        self._ended: dict[Attempt, Ended] = {}
        self._levels: dict[str, int] = {}
        self._used_slots: set[int] = set()
        self._used_cpu = 0
        self._used_memory = 0
        self._device_shares: dict[int, int] = {}  # used thousandths
        self._tasks: dict[str, Attempt] = {}
        self.withheld: Container[int] = ()  # devices that exist but may not be offered; their work continues
        self._connected = False
        self._serial = 0
        self._in_flight: dict[int, Sent] = {}
        self._unsaid_running: dict[Attempt, Running] = {}
        self._unsaid_ended: dict[Attempt, Ended] = {}
        self._orders: dict[Attempt, Orders] = {}  # the latest of each attempt
        self._limits: dict[Attempt, int] = {}  # time limits other than those that attempts were launched with
        self._told: dict[Attempt, Told] = {}  # the latest of each running attempt
        self._unsaid_told: dict[Attempt, Told] = {}
        self._steps = Steps()
        self._idle: dict[Attempt, Idle] = {}  # the latest of each session
        self._unsaid_idle: dict[Attempt, Idle] = {}
        self._began: dict[Attempt, int] = {}  # when each running attempt was first seen
        self._wishes: dict[Attempt, int] = {}  # memory limits to lower to, once an attempt has run for long enough
        self._sized: dict[Attempt, Sized] = {}  # the latest of each attempt whose memory limit was lowered
        self._unsaid_sized: dict[Attempt, Sized] = {}
        self._shrink_at = 0
        self._suspended: set[Attempt] = set()
        self._faults: dict[DeviceFault, None] = {}  # not acknowledged
        self._said_faults: tuple[DeviceFault, ...] = ()
        self.until = 0  # when this node ends; 0 if it does not
        self._unfit = ""  # why nothing can be started
        self._unsaid_unfit: str | None = None
        self._leaving = ""  # why this node will soon be gone
        self._said_load: Load | None = None
        self._windows: deque[Window] = deque(maxlen=MAX_WINDOWS)  # without a connection the oldest are dropped
        self._said_window: Window | None = None
        self._upkeep: Upkeep | None = None  # goes with the next beat that has windows
        self._beats = 0
        self._pace = 0  # minimum interval between heartbeats, as the control plane asked
        self._every = self._times.heartbeat
        self._spoke = self._heard = self._held_until = 0
        self._unanswered: deque[tuple[int, int]] = deque()  # beats, and when they were sent
        self._answered = 0  # when the last answered message was sent
        self._leased: dict[Attempt, Launch] = {}
        self._told_until: dict[Attempt, int] = {}
        self._run_out: set[Attempt] = set()

    def adopt(
        self, held: Iterable[tuple[int, Launch, tuple[int, ...], Running | None]], ended: Iterable[Ended]
    ) -> None:
        """Take over the attempts in the keepers of an earlier agent, slot by slot in order."""
        for index, launch, cpus, running in held:
            pool = self._pool(launch.shape)
            slot = next((slot for slot in pool.slots if slot.index == index), None)
            if slot is None:
                slot = Slot(index, launch.shape, cpus, deque())
                pool.slots.append(slot)
                pool.told += 1
                self._used_slots.add(index)
                self._used_cpu += launch.shape.cpu
                self._used_memory += launch.shape.memory
                self._free_cores = [core for core in self._free_cores if core not in cpus]
            self._take(launch)
            self._hand(launch, slot)
            if running is not None:
                self._running[launch.attempt] = running
                self._began[launch.attempt] = -SHRINK_AFTER  # its limit may have been lowered already: ask at once
        for done in ended:
            self._ended[done.attempt] = done

    def handle(self, message: Message, now: int) -> list[Effect]:
        """Handle one message."""
        match message:
            case Changed():
                effects = self._changed(message, now)
            case Desired():
                self._heard, self._every = now, self._busy_every()
                effects = self._desired(message, now)
            case Acked():
                self._heard = now
                effects = self._acked(message.serial, now)
            case Heard():
                self._heard, self._pace = now, message.pace
                effects = self._beat_heard(message.beat, now)
            case Faulted():
                self._faults.update(dict.fromkeys(map(self._identified, message.faults)))
                effects = self._report(now)
            case Fitness():
                effects = self._fitness(message, now)
            case Leaving():
                effects = self._leave(message, now)
            case Telling():
                effects = self._tell(message, now)
            case Used():
                effects = self._note_use(message, now)
            case Sized():
                effects = self._resized(message, now)
            case Load():
                effects = self._sampled(message, now)
            case Upkeep():
                self._upkeep, effects = message, []
            case Window():
                effects = self._windowed(message, now)
            case Connected():
                effects = self._hello(message.address, now)
            case Disconnected():
                self._disconnect()
                effects = []
        if (self._launches or self._ended) and not (self._lasting and isinstance(message, Heard)):
            self._held_until = now
        return effects

    def tick(self, now: int) -> list[Effect]:
        """Handle the passing of time: expiring leases, a heartbeat that is due, or a silent connection."""
        effects = self._let_go(now)
        if not self._connected:
            return effects
        effects += self._shrink(now)
        if now >= self._silent_at():
            self._disconnect()
            return [*effects, Hang()]
        if now < self._spoke + self._every:
            return effects
        if not self._lasting and (self._launches or self._ended):
            self._every = self._busy_every()
        elif now - self._held_until >= self._times.idle_after:
            self._every = min(self._times.heartbeat_idle, 2 * self._every)
        return [*effects, self._beat(None, now)]

    def wakeup(self) -> int | None:
        """Return when to tick next if nothing happens before."""
        times = [self._spoke + self._every, self._silent_at()] if self._connected else []
        if self._answered:
            times += [self._stop_at(launch) for launch in self._leased.values() if launch.attempt not in self._run_out]
        return min(times, default=None)

    def held(self) -> int:
        """Return the number of attempts here that have not ended."""
        return len(self._launches)

    def untold(self) -> int:
        """Return the number of attempts here whose ending is not durable at the control plane."""
        return len(self._launches) + len(self._ended)

    def has_said_all(self) -> bool:
        """Return whether the control plane knows all that this node has to say about itself."""
        return self._connected and not self._in_flight and self._unsaid_unfit is None

    def listens(self) -> bool:
        """Return whether any running attempt reports its progress."""
        return bool(self._told)

    def sessions(self) -> list[Launch]:
        """Return the running attempts with an idle limit that are not suspended."""
        return [
            launch
            for attempt, launch in self._launches.items()
            if launch.idle and attempt in self._running and attempt not in self._suspended
        ]

    def standing_still(self) -> list[Attempt]:
        """Return the attempts whose CPU time the next `Telling` must include."""
        return self._steps.standing_still()

    def waiting(self) -> list[Attempt]:
        """Return attempts that have no slot yet."""
        return [attempt for attempt in self._launches if attempt not in self._slot_of]

    # --- the channel -------------------------------------------------------------------------------------------------

    def _say(self, message: FromAgent, now: int) -> Say:
        self._spoke = now
        return Say(message)

    def _beat(self, load: Load | None, now: int, *, with_windows: bool = False) -> Say:
        self._beats += 1
        self._unanswered.append((self._beats, now))
        windows, upkeep = self._take_windows() if with_windows else ((), None)
        return self._say(Beat(load=load, number=self._beats, every=self._every, windows=windows, upkeep=upkeep), now)

    def _windowed(self, window: Window, now: int) -> list[Effect]:
        """Send the first window of a minute, and later ones of it if they differ. The final one of a minute goes with
        the first of the next minute.
        """
        if self._windows and self._windows[-1].at == window.at:
            self._windows.pop()
        self._windows.append(window)
        said = self._said_window
        if not self._connected or (said is not None and said.at == window.at and not is_news(said, window)):
            return []
        return [self._beat(None, now, with_windows=True)]

    def _take_windows(self) -> tuple[tuple[Window, ...], Upkeep | None]:
        windows, upkeep = tuple(self._windows), self._upkeep
        self._said_window, self._upkeep = windows[-1], None
        self._windows.clear()
        return windows, upkeep

    def _sampled(self, load: Load, now: int) -> list[Effect]:
        """Send the load of the node if it has changed noticeably."""
        if not self._connected or not has_changed(self._said_load, load):
            return []
        self._said_load = load
        return [self._beat(load, now)]

    def _busy_every(self) -> int:
        """Return the interval between heartbeats while there is work."""
        return max(self._times.heartbeat, self._pace)

    def _silent_at(self) -> int:
        """Return the instant at which a silent control plane counts as unreachable."""
        return self._heard + self._every + self._times.dead_local

    def _disconnect(self) -> None:
        self._connected = False
        self._in_flight.clear()
        self._unanswered.clear()

    def _beat_heard(self, beat: int, now: int) -> list[Effect]:
        """Handle the answer to a heartbeat. It renews no lease before `Hello` is answered, which may stop some work."""
        sent = None
        while self._unanswered and self._unanswered[0][0] <= beat:
            sent = self._unanswered.popleft()[1]
        return [] if sent is None or HELLO in self._in_flight else self._answer(sent, now)

    def _hello(self, address: str, now: int) -> list[Effect]:
        self._connected = True
        self._heard = self._held_until = now
        self._pace, self._every = 0, self._times.heartbeat
        self._said_load = self._said_window = None
        self._serial = 0
        self._in_flight = {HELLO: Sent(now, tuple(self._ended))}
        self._unanswered.clear()
        self._unsaid_running.clear()
        self._unsaid_ended.clear()
        self._unsaid_unfit = None
        self._unsaid_told = self._told.copy()  # to be sent again, after the reply
        self._unsaid_idle = self._idle.copy()
        self._unsaid_sized = self._sized.copy()
        queued = tuple(attempt for attempt in self._launches if attempt not in self._running)
        held = {device for launch in self._launches.values() for device in launch.devices}
        self._said_faults = tuple(self._faults)
        hello = Hello(
            node=self.node,
            queued=queued,
            running=tuple(self._running.values()),
            ended=tuple(self._ended.values()),
            faults=self._said_faults,
            unfit=self._unfit,
            address=address,
            withdrawn=tuple(sorted(filter(self._is_withdrawn, held))),
            left=max(1, self.until - now) if self.until else 0,
        )
        return [self._say(hello, now)]

    def _is_withdrawn(self, device: int) -> bool:
        return device in self.withheld and all(device != of.index for of in self.node.devices)

    # --- from the control plane --------------------------------------------------------------------------------------

    def _desired(self, desired: Desired, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for ordered in desired.orders:
            effects.extend(self._order(ordered.attempt, ordered.orders))
        for limited in desired.limited:
            effects.extend(self._limit(limited))
        if desired.complete:
            wanted = {*desired.keep, *(launch.attempt for launch in desired.launches)}
            for attempt in [attempt for attempt in self._launches if attempt not in wanted]:
                effects.extend(self._stop(attempt))
            sessions = [attempt for attempt, launch in self._launches.items() if launch.idle]
            effects.extend(self._resume([attempt for attempt in sessions if attempt not in desired.suspends]))
        effects.extend(self._resume(desired.resumes))
        for attempt in desired.suspends:
            effects.extend(self._suspend(attempt))
        for attempt in desired.stops:
            effects.extend(self._stop(attempt))
        for attempt in desired.recalls:
            if attempt not in self._slot_of:
                self._hand_back(attempt)
        for launch in desired.launches:
            pool = self._pool(launch.shape)
            pool.told = launch.slots
            if launch.attempt in self._launches or launch.attempt in self._ended:
                continue
            self._take(launch)
            key = (launch.queued, launch.priority, self._levels.get(launch.kind, 0))
            line = pool.lines.setdefault(key, deque())
            line.append(Waiting(launch, now))
        if self._unfit:
            self._hand_all_back()
        effects.extend(self._fill(now))
        effects.extend(self._report(now))
        return effects

    def _order(self, attempt: Attempt, orders: Orders) -> list[Effect]:
        """Send orders to an attempt; a queued one gets them with its slot. Ignore older orders."""
        launch = self._launches.get(attempt)
        if launch is None or orders.generation <= self._orders.get(attempt, launch.orders).generation:
            return []
        self._orders[attempt] = orders
        return [Order(attempt, orders)] if attempt in self._slot_of else []

    def _limit(self, limited: Limited) -> list[Effect]:
        """Change the limits of an attempt. A queued attempt gets the new time limit when it starts."""
        attempt, launch = limited.attempt, self._launches.get(limited.attempt)
        if launch is None:
            return []
        self._limits[attempt] = limited.time_limit
        if attempt not in self._slot_of:
            return []
        self._wishes.pop(attempt, None)
        if 0 < limited.memory < launch.shape.memory:
            self._wishes[attempt] = limited.memory
        memory = limited.memory if 0 < launch.shape.memory < limited.memory else 0
        if memory and attempt not in self._suspended:
            shape = msgspec.structs.replace(launch.shape, memory=memory)
            self._launches[attempt] = msgspec.structs.replace(launch, shape=shape)
            self._reshape(attempt, shape)
        return [Limit(attempt, limited.time_limit, memory)]

    def _shrink(self, now: int) -> list[Effect]:
        """Lower the memory limits that should be lower, once a minute, of attempts that have run for long enough."""
        if now < self._shrink_at or not self._wishes:
            return []
        self._shrink_at = now + SHRINK_EVERY
        return [
            Shrink(attempt, memory)
            for attempt, memory in self._wishes.items()
            if attempt in self._running and now - self._began.setdefault(attempt, now) >= SHRINK_AFTER
        ]

    def _resized(self, sized: Sized, now: int) -> list[Effect]:
        """Record the lowered memory limit of an attempt, or that it is too low."""
        attempt, launch = sized.attempt, self._launches.get(sized.attempt)
        if launch is None or attempt not in self._slot_of:
            return []
        if not sized.short and sized.memory != launch.shape.memory and attempt not in self._suspended:
            shape = msgspec.structs.replace(launch.shape, memory=sized.memory)
            self._launches[attempt] = msgspec.structs.replace(launch, shape=shape)
            self._reshape(attempt, shape)
        if self._wishes.get(attempt) == sized.memory:
            del self._wishes[attempt]
        self._sized[attempt] = self._unsaid_sized[attempt] = sized
        return self._report(now)

    def _suspend(self, attempt: Attempt) -> list[Effect]:
        """Stop the processes of an attempt. Its slot keeps only the memory."""
        if attempt not in self._running:
            return []
        if attempt not in self._suspended:
            self._suspended.add(attempt)
            self._reshape(attempt, self._launches[attempt].shape.suspended)
            self._share_devices(attempt, -1)
        for said in (self._idle, self._unsaid_idle):
            said.pop(attempt, None)
        return [Pause(attempt, on=True)]

    def _resume(self, attempts: Iterable[Attempt]) -> list[Effect]:
        """Continue attempts. A keeper ignores it if its attempt runs: an earlier agent may have stopped that."""
        running = [attempt for attempt in attempts if attempt in self._running]
        for attempt in running:
            if attempt in self._suspended:
                self._suspended.remove(attempt)
                self._reshape(attempt, self._launches[attempt].shape)
                self._share_devices(attempt, 1)
        return [Pause(attempt, on=False) for attempt in running]

    def _reshape(self, attempt: Attempt, shape: Shape) -> None:
        """Move the slot of a running attempt to the pool of another shape, as the ledger counts it."""
        slot = self._slot_of[attempt]
        before, after = self._pool(slot.shape), self._pool(shape)
        before.slots.remove(slot)
        before.told = max(0, before.told - 1)
        after.slots.append(slot)
        after.told += 1
        self._used_cpu += shape.cpu - slot.shape.cpu
        self._used_memory += shape.memory - slot.shape.memory
        slot.shape = shape

    def _share_devices(self, attempt: Attempt, sign: int) -> None:
        launch = self._launches[attempt]
        for device in launch.devices:
            self._device_shares[device] = self._device_shares.get(device, 0) + sign * launch.shape.share

    def _acked(self, serial: int, now: int) -> list[Effect]:
        report = self._in_flight.pop(serial, None)
        if report is None:
            return []
        self._faults = {fault: None for fault in self._faults if fault not in self._said_faults}
        for attempt in report.ended:
            self._ended.pop(attempt, None)
        effects: list[Effect] = [Forget(report.ended)] if report.ended else []
        return effects + self._answer(report.at, now) + self._report(now)

    def _stop(self, attempt: Attempt) -> list[Effect]:
        """Hand back a queued attempt, or ask the executor to stop a started one."""
        self._steps.forget(attempt)
        if attempt in self._slot_of:
            return [Stop(attempt)]
        self._hand_back(attempt)
        return []

    def _hand_back(self, attempt: Attempt) -> None:
        launch = self._launches.get(attempt)
        if launch is None:
            return
        for line in self._pools[launch.shape].lines.values():
            for waiting in line:
                if waiting.launch.attempt == attempt:
                    line.remove(waiting)
                    self._end(Ended(attempt=attempt, ending=Ending(outcome="returned")))
                    return

    def _hand_all_back(self) -> None:
        for attempt in self.waiting():
            self._hand_back(attempt)

    def _identified(self, fault: DeviceFault) -> DeviceFault:
        device = next((device for device in self.node.devices if device.index == fault.index), None)
        return fault if device is None else msgspec.structs.replace(fault, id=identity_of(self.node.name, device))

    # --- from the executor -------------------------------------------------------------------------------------------

    def _changed(self, changed: Changed, now: int) -> list[Effect]:
        for running in changed.running:
            if running.attempt in self._launches:
                self._running[running.attempt] = running
                self._began.setdefault(running.attempt, now)
                self._unsaid_running[running.attempt] = running
        known: list[Attempt] = []
        for done in changed.ended:
            if done.attempt in self._launches:
                self._learn(self._launches[done.attempt].kind, done.ending)
                self._end(self._as_it_was(done))
            elif done.attempt not in self._ended:  # its keeper was killed before it recorded this
                known.append(done.attempt)
        forget: list[Effect] = [Forget(tuple(known))] if known else []
        return forget + self._fill(now) + self._report(now)

    def _fitness(self, fitness: Fitness, now: int) -> list[Effect]:
        """Record the fitness. An unfit node hands waiting launches back, so that they can start elsewhere."""
        why = self._leaving or fitness.why
        if why == self._unfit:
            return []
        self._unfit = self._unsaid_unfit = why
        if self._unfit:
            self._hand_all_back()
        return self._report(now)

    def _leave(self, leaving: Leaving, now: int) -> list[Effect]:
        """Stop all attempts and start no more. Those that do not end well by themselves are repeated elsewhere, as if
        the node were lost, but only once they have ended here.
        """
        self._leaving = leaving.why
        self._ended = {attempt: self._as_it_was(done) for attempt, done in self._ended.items()}
        effects = [effect for attempt in list(self._launches) for effect in self._stop(attempt)]
        return effects + self._fitness(Fitness(leaving.why), now)

    def _tell(self, telling: Telling, now: int) -> list[Effect]:
        for told in telling.told:
            launch = self._launches.get(told.attempt)
            if launch is None:
                continue
            self._told[told.attempt] = self._unsaid_told[told.attempt] = told
            if not launch.hang:  # else `hang` decides on its silence
                self._steps.heard(told)
        hung: list[Effect] = [Stop(attempt, note) for attempt, note in self._steps.hung(now, telling.used)]
        return hung + self._report(now)

    def _note_use(self, used: Used, now: int) -> list[Effect]:
        for idle in used.idle:
            if idle.attempt in self._running and idle.attempt not in self._suspended:
                self._idle[idle.attempt] = self._unsaid_idle[idle.attempt] = idle
        return self._report(now)

    def _end(self, done: Ended) -> None:
        attempt = done.attempt
        if attempt in self._suspended:  # its slot is full-sized again, for those that wait behind it
            self._resume([attempt])
        launch = self._launches.pop(attempt)
        self._leased.pop(attempt, None)
        self._told_until.pop(attempt, None)
        self._run_out.discard(attempt)
        self._unsaid_idle.pop(attempt, None)
        self._unsaid_sized.pop(attempt, None)
        for said in (self._orders, self._limits, self._told, self._idle):  # its last report is sent with its ending
            said.pop(attempt, None)
        for of in (self._began, self._wishes, self._sized):
            of.pop(attempt, None)
        self._running.pop(attempt, None)
        self._unsaid_running.pop(attempt, None)
        self._steps.forget(attempt)
        self._ended[attempt] = self._unsaid_ended[attempt] = done
        slot = self._slot_of.pop(attempt, None)
        if slot is not None:
            slot.queue.remove(attempt)
            for device in launch.devices:
                self._device_shares[device] -= launch.shape.share
            if self._tasks.get(attempt.task) == attempt:
                del self._tasks[attempt.task]

    def _learn(self, kind: str, ending: Ending) -> None:
        """Adjust the level of a class: one down if it ran longer than the quantum of its level, one up if shorter."""
        level = self._levels.get(kind, 0)
        if level < len(QUANTA) and ending.run > QUANTA[level]:
            self._levels[kind] = level + 1
        elif level > 0 and ending.outcome == "done" and ending.run <= QUANTA[level - 1]:
            self._levels[kind] = level - 1
        if len(self._levels) > MAX_CLASSES:
            del self._levels[next(iter(self._levels))]

    def _report(self, now: int) -> list[Effect]:
        """Send a report, one at a time: while the log writes one, the next one collects news."""
        unsaid = self._unsaid_running or self._unsaid_ended or self._unsaid_told or self._unsaid_idle or self._faults
        if not (unsaid or self._unsaid_sized or self._unsaid_unfit is not None):
            return []
        if not self._connected or self._in_flight:
            return []
        self._said_faults = tuple(self._faults)
        if self._every > self._busy_every():  # it was idle; after a report, both sides expect the next message soon
            self._heard, self._every = now, self._busy_every()
        self._serial += 1
        report = Report(
            serial=self._serial,
            running=tuple(self._unsaid_running.values()),
            ended=tuple(self._unsaid_ended.values()),
            faults=self._said_faults,
            told=tuple(self._unsaid_told.pop(attempt) for attempt in [*self._unsaid_told][:MOST_TOLD]),
            unfit=self._unsaid_unfit,
            idle=tuple(self._unsaid_idle.values()),
            sized=tuple(self._unsaid_sized.values()),
        )
        self._unsaid_sized.clear()
        self._unsaid_unfit = None
        self._unsaid_idle.clear()
        self._in_flight[self._serial] = Sent(now, tuple(self._unsaid_ended))
        self._unsaid_running.clear()
        self._unsaid_ended.clear()
        return [self._say(report, now)]

    # --- leases ------------------------------------------------------------------------------------------------------

    def _take(self, launch: Launch) -> None:
        self._launches[launch.attempt] = launch
        if launch.lease:
            self._leased[launch.attempt] = launch

    def _answer(self, sent: int, now: int) -> list[Effect]:
        """Record an answer to the message sent at `sent`: leases run from then, and work waiting for one may start."""
        self._answered = sent
        if not self._leased:
            return []
        effects: list[Effect] = [
            self._renew(launch)
            for launch in self._leased.values()
            if launch.attempt in self._slot_of
            and launch.attempt not in self._run_out
            and sent + launch.lease * KILL_AT // 100 - self._told_until.get(launch.attempt, 0) >= RENEW_BY
        ]
        return effects + self._fill(now)

    def _renew(self, launch: Launch) -> Renew:
        until = self._told_until[launch.attempt] = self._answered + launch.lease * KILL_AT // 100
        return Renew(launch.attempt, until)

    def _stop_at(self, launch: Launch) -> int:
        return self._answered + launch.lease * STOP_AT // 100

    def _let_go(self, now: int) -> list[Effect]:
        """Stop exclusive work whose lease is about to expire; hand it back if it has not started. Work of an earlier
        agent keeps its deadline until this agent gets its first answer.
        """
        if not self._answered:
            return []
        over = [
            launch.attempt
            for launch in self._leased.values()
            if launch.attempt not in self._run_out and self._stop_at(launch) <= now
        ]
        effects: list[Effect] = []
        for attempt in over:
            self._run_out.add(attempt)
            effects += self._stop(attempt)
        return effects + self._report(now)

    def _as_it_was(self, done: Ended) -> Ended:
        """Change the outcome of an attempt that was stopped because its lease expired, or that did not end well on a
        node that will soon be gone, to `lost`.
        """
        if self._leaving and done.ending.outcome in BY_LEAVING:
            note = self._leaving
        elif done.attempt in self._run_out and done.ending.outcome == "stopped":
            note = LEASE_OVER
        else:
            return done
        ending = msgspec.structs.replace(done.ending, outcome="lost", note=note)
        return msgspec.structs.replace(done, ending=ending)

    # --- slots -------------------------------------------------------------------------------------------------------

    def _pool(self, shape: Shape) -> Pool:
        pool = self._pools.get(shape)
        if pool is None:
            pool = self._pools[shape] = Pool(0, [], {})
        return pool

    def _fill(self, now: int) -> list[Effect]:
        """Fill the slots. First close empty ones, over all pools, so that their cores are free for the slots that
        open.
        """
        effects: list[Effect] = []
        for shape, pool in list(self._pools.items()):
            waiting = pool.waiting()
            alive = waiting + sum(len(slot.queue) for slot in pool.slots)
            for slot in [
                slot
                for slot in pool.slots
                if not slot.queue and (not waiting or len(pool.slots) > pool.told or not self._has_room())
            ]:
                self._close(pool, slot)
            if not alive:
                del self._pools[shape]
        for pool in self._pools.values():
            while (found := self._next(pool, now)) is not None:
                line, launch = found
                taken = self._slot_for(pool, launch.launch)
                if taken is None:
                    break
                pool.lines[line].remove(launch)
                if not pool.lines[line]:
                    del pool.lines[line]
                self._hand(launch.launch, taken)
                if launch.launch.lease:
                    effects.append(self._renew(launch.launch))
                effects.append(Start(taken.index, launch.launch, taken.cpus))
                if (orders := self._orders.get(launch.launch.attempt)) is not None:
                    effects.append(Order(launch.launch.attempt, orders))
                if (time_limit := self._limits.get(launch.launch.attempt)) is not None:
                    effects.append(Limit(launch.launch.attempt, time_limit))
        return effects

    def _next(self, pool: Pool, now: int) -> tuple[Line, Waiting] | None:
        """Return the next launch and its line. Skip launches that must wait for an older attempt."""
        order = sorted((_turn(key, line[0], now), key) for key, line in pool.lines.items() if line)
        for _, key in order:
            for waiting in pool.lines[key]:
                if not self._must_wait(waiting.launch, now):
                    return key, waiting
        return None

    def _must_wait(self, launch: Launch, now: int) -> bool:
        if launch.lease and (not self._connected or not self._answered or self._stop_at(launch) <= now):
            return True
        if launch.attempt.task in self._tasks or any(map(self._is_withdrawn, launch.devices)):
            return True
        share, most = launch.shape.share, {}
        if launch.devices and share != WHOLE:
            most = {device.index: device.share_cap for device in self.node.devices}
        return any(self._device_shares.get(device, 0) + share > most.get(device, WHOLE) for device in launch.devices)

    def _hand(self, launch: Launch, slot: Slot) -> None:
        slot.queue.append(launch.attempt)
        self._slot_of[launch.attempt] = slot
        self._tasks[launch.attempt.task] = launch.attempt
        for device in launch.devices:
            self._device_shares[device] = self._device_shares.get(device, 0) + launch.shape.share

    def _slot_for(self, pool: Pool, launch: Launch) -> Slot | None:
        """Return an empty slot, a new one if the pool may grow, or, for queued work, one with little expected work."""
        for slot in pool.slots:
            if not slot.queue:
                return slot
        if len(pool.slots) < pool.told and self._has_room(launch.shape.cpu, launch.shape.memory):
            return self._open(pool, launch.shape)
        least = min(pool.slots, key=lambda slot: len(slot.queue), default=None)
        if least is None or not launch.queued or len(least.queue) > MAX_AHEAD:
            return None
        ahead = 0
        for attempt in least.queue:
            expect = self._launches[attempt].expect
            if not expect:
                return None
            ahead += expect
        return least if ahead <= AHEAD else None

    def _has_room(self, cpu: int = 0, memory: int = 0) -> bool:
        """Return whether the node, which may have shrunk, has this much room beside its slots."""
        return self._used_cpu + cpu <= self.node.cpu and self._used_memory + memory <= self.node.memory

    def _open(self, pool: Pool, shape: Shape) -> Slot:
        index = next(index for index in range(len(self._used_slots) + 1) if index not in self._used_slots)
        cores, rest = divmod(shape.cpu, 1000)
        cpus: tuple[int, ...] = ()
        if cores and not rest and cores <= len(self._free_cores):
            cpus = tuple(self._free_cores[:cores])
            self._free_cores = self._free_cores[cores:]
        slot = Slot(index, shape, cpus, deque())
        self._used_slots.add(index)
        self._used_cpu += shape.cpu
        self._used_memory += shape.memory
        pool.slots.append(slot)
        return slot

    def _close(self, pool: Pool, slot: Slot) -> None:
        pool.slots.remove(slot)
        self._used_slots.discard(slot.index)
        self._used_cpu -= slot.shape.cpu
        self._used_memory -= slot.shape.memory
        self._free_cores = sorted([*self._free_cores, *slot.cpus])


def _turn(key: Line, head: Waiting, now: int) -> tuple[bool, int, int, int]:
    """Return the sort key of a line, earlier turns first. Each `BOOST_AFTER` of waiting raises it by one class, and to
    the first level.
    """
    queued, priority, level = key
    boosts = (now - head.since) // BOOST_AFTER
    return (queued, max(0, priority - boosts), 0 if boosts else level, head.since)
