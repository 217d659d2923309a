"""A machine with its agent: the real node machine on a simulated executor, clock and network.

The executor is the ground truth of which attempts run here, and since when. Like keepers, it continues without the
agent, and ends with the machine. A command is `work SECONDS`; a copy runs for that time, multiplied by the slowdown of
the machine. Its ending is drawn from the seed and the attempt, so it does not depend on when the copy runs.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Protocol

import msgspec

from poise.engine.network import End, Network
from poise.engine.timeline import Process, SimulatedClock, Timeline, Timer
from poise.kernel import node as machine
from poise.kernel.node import NodeMachine
from poise.model.jobs import Ending, Outcome
from poise.model.messages import Attempt, DeviceFault, Ended, Launch, Running, Told
from poise.model.resources import Device, Node
from poise.model.times import Times
from poise.model.training import Orders, Training
from poise.ports import Held, Observation, carry_out
from poise.units import MILLISECOND, SECOND

START_TAKES = 2 * MILLISECOND
RECONNECT = (0.05, 1.0)
LOOK_EVERY = 5.0
LOOK_AT_STEPS = Times().sample / SECOND

STEP = 100 * MILLISECOND
"""Duration of a step of simulated training."""

RESIZES = "resizes"
"""The command of work that follows the orders of its gang; `work` does not."""


class Copy(msgspec.Struct, eq=False):
    """One attempt in a slot; it runs once `since` is set. `deaf`: it ignores SIGTERM. A member of a gang that follows
    `orders` has `left` nanoseconds to run as of `as_of`, at the current size of the gang. `says` is its last report, if
    any. It makes no progress from the instant `hung` on (-1: it has not hung).
    """

    launch: Launch
    cpus: tuple[int, ...]
    ends: Outcome
    left: int
    deaf: bool
    orders: Orders
    since: int = -1
    as_of: int = 0
    timer: Timer | None = None
    stopping: bool = False
    hung: int = -1
    says: Told | None = None


class Watcher(Protocol):
    """Receives the ground truth and checks it."""

    def started(self, node: str, launch: Launch, cpus: tuple[int, ...]) -> None: ...
    def ended(self, node: str, launch: Launch, ending: Ending) -> None: ...
    def ordered(self, node: str, launch: Launch, orders: Orders) -> None: ...
    def offers(self, node: Node) -> None: ...


class SimulatedExecutor:
    """The `Executor` port, and methods with which a test injects faults."""

    def __init__(self, name: str, keepers: Process, seed: int, watcher: Watcher) -> None:
        self.on_change: Callable[[Sequence[Running], Sequence[Ended]], None] = lambda _, __: None
        self.on_told: Callable[[Told], None] = lambda _: None
        self.slow = 1.0
        self.slots: dict[int, deque[Copy]] = {}
        self.copies: dict[Attempt, tuple[int, Copy]] = {}
        self.evidence: dict[Attempt, Ended] = {}
        self._until: dict[Attempt, int] = {}
        self._name = name
        self._keepers = keepers
        self._seed = seed
        self._watcher = watcher
        self._pids = 0

    # the port

    def start(self, slot: int, launch: Launch, cpus: tuple[int, ...]) -> None:
        if launch.attempt in self.copies or launch.attempt in self.evidence:
            return
        random = Random(f"{self._seed}/{launch.attempt}")
        copy = Copy(
            launch,
            cpus,
            ends=random.choices(("done", "failed", "killed", "signal", "oom"), (90, 4, 2, 2, 2))[0],
            left=int(float(launch.argv[-1].split()[-1]) * SECOND * random.uniform(0.8, 1.2)),
            deaf=random.random() < 0.1,
            orders=launch.orders,
        )
        self.copies[launch.attempt] = (slot, copy)
        line = self.slots.setdefault(slot, deque())
        line.append(copy)
        if len(line) == 1:
            self._keepers.call_later(START_TAKES / SECOND, self._begin, slot)

    def stop(self, attempt: Attempt, hung: str = "") -> None:
        found = self.copies.get(attempt)
        if found is None or found[1].stopping:
            return
        slot, copy = found
        copy.stopping = True
        if copy.since < 0:
            self._keepers.call_soon(self._end, slot, copy, Ending(outcome="returned"))
            return
        takes = copy.launch.grace if copy.deaf else min(copy.launch.grace, 50 * MILLISECOND)
        self._cancel(copy)
        outcome = "hung" if hung else "stopped"
        copy.timer = self._keepers.call_later(takes / SECOND, self._end_running, slot, copy, outcome, hung)

    def renew(self, attempt: Attempt, until: int) -> None:
        """Extend a lease. The keeper enforces it, so that it holds without an agent."""
        self._until[attempt] = until
        self._keepers.timeline.call_at(until, self._lease_over, attempt, process=self._keepers)

    def order(self, attempt: Attempt, orders: Orders) -> None:
        """Continue an attempt at the speed of its gang's new size. Some members that must leave do so at once."""
        found = self.copies.get(attempt)
        if found is None:
            return
        slot, copy = found
        if orders == copy.orders:  # a restarted agent sends the orders again
            return
        before, copy.orders = copy.orders, orders
        self._watcher.ordered(self._name, copy.launch, orders)
        if orders.rank >= 0 and not copy.stopping and copy.hung < 0:
            self._come_to(copy)
            copy.left = copy.left * before.world // orders.world
            if copy.since >= 0:
                self._foresee(slot, copy)
        elif orders.rank < 0 and copy.since >= 0 and Random(f"leaves {attempt}").random() < 0.5:
            self._keepers.call_soon(self._leave, attempt)

    def shrink(self, attempt: Attempt, memory: int) -> None:
        """Memory is not simulated: no limit is lowered."""

    def limit(self, attempt: Attempt, time_limit: int, memory: int) -> None:
        """Change the time limit of an attempt, which the keeper enforces. Memory is not simulated."""
        found = self.copies.get(attempt)
        if found is None:
            return
        slot, copy = found
        copy.launch = msgspec.structs.replace(copy.launch, time_limit=time_limit)
        if copy.since >= 0 and not copy.stopping and copy.hung < 0:
            self._come_to(copy)
            self._foresee(slot, copy)

    def pause(self, attempt: Attempt, *, on: bool) -> None:
        """No simulated attempt has an idle limit."""

    def telling(self) -> list[Told]:
        """Return the reports of the running attempts."""
        return [copy.says for _, copy in self.copies.values() if copy.says is not None]

    def watches(self, attempt: Attempt) -> bool:
        """Return whether the node kills this attempt if it hangs: its job sets no `hang`, and it has reported steps."""
        copy = self.copies[attempt][1]
        return copy.says is not None and not copy.launch.hang

    def cpu_used(self, attempts: Iterable[Attempt]) -> dict[Attempt, int]:
        """Return the CPU time of the running attempts in nanoseconds: the whole time until now or until they hung."""
        now = self._keepers.timeline.now
        found = {attempt: self.copies[attempt][1] for attempt in attempts if attempt in self.copies}
        return {attempt: (now if one.hung < 0 else one.hung) - one.since for attempt, one in found.items()}

    def forget(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self.evidence.pop(attempt, None)

    def observe(self) -> Observation:
        """Return the copies of each slot in order, and the endings that are not acknowledged yet."""
        held = tuple(
            Held(slot, copy.launch, copy.cpus, self._running(copy) if copy.since >= 0 else None)
            for slot, line in sorted(self.slots.items())
            for copy in line
        )
        return Observation(held, tuple(self.evidence.values()))

    # faults

    def kill(self, attempt: Attempt, outcome: Outcome, note: str = "") -> None:
        """End the command of a running copy now."""
        slot, copy = self.copies[attempt]
        self._cancel(copy)
        self._end_running(slot, copy, outcome, note)

    def hang(self, attempt: Attempt) -> None:
        """Stop the progress of an attempt for ever. Its keeper kills it if its job sets a `hang`, its node if it has
        reported steps; otherwise it runs until it is stopped.
        """
        slot, copy = self.copies[attempt]
        if copy.stopping:
            return
        copy.hung = self._keepers.timeline.now
        self._cancel(copy)
        within = self._limit_left(copy)
        if copy.launch.hang and not 0 < within < copy.launch.hang:  # its keeper notices
            copy.timer = self._keepers.call_later(copy.launch.hang / SECOND, self._end_running, slot, copy, "hung")
        elif within:
            copy.timer = self._keepers.call_later(within / SECOND, self._end_running, slot, copy, "timeout")

    def bury(self, slot: int) -> None:
        """Kill the keeper of a slot; its attempts are lost."""
        for copy in list(self.slots.get(slot, ())):
            self._cancel(copy)
            if copy.since >= 0:
                self._end_running(slot, copy, "lost", "its keeper was killed")
            else:
                self._end(slot, copy, Ending(outcome="returned", note="its keeper was killed"))

    def power_off(self) -> None:
        """End all copies and delete all traces of them."""
        for _, copy in self.copies.values():
            self._cancel(copy)
            if copy.since >= 0:
                self._watcher.ended(self._name, copy.launch, Ending(outcome="lost"))
        self.slots.clear()
        self.copies.clear()
        self.evidence.clear()
        self._until.clear()

    def running(self) -> list[Attempt]:
        return [attempt for attempt, (_, copy) in self.copies.items() if copy.since >= 0]

    # --- internals ---------------------------------------------------------------------------------------------------

    def _lease_over(self, attempt: Attempt) -> None:
        found = self.copies.get(attempt)
        if found is None or self._until[attempt] > self._keepers.timeline.now:
            return
        slot, copy = found
        self._cancel(copy)
        if copy.since >= 0:
            self._end_running(slot, copy, "lost", "its lease ran out")
        else:
            self._end(slot, copy, Ending(outcome="returned", note="its lease ran out"))

    def _running(self, copy: Copy) -> Running:
        return Running(attempt=copy.launch.attempt, pid=1, cpus=copy.cpus)

    def _begin(self, slot: int) -> None:
        line = self.slots.get(slot)
        if not line or line[0].since >= 0 or line[0].stopping:
            return
        copy = line[0]
        copy.since = copy.as_of = self._keepers.timeline.now
        self._watcher.started(self._name, copy.launch, copy.cpus)
        copy.left = int(copy.left * self.slow)
        self._foresee(slot, copy)
        self.on_change((self._running(copy),), ())
        if copy.launch.argv[-1].startswith(RESIZES):
            random = Random(f"tells {self._seed}/{copy.launch.attempt}")
            self._keepers.call_later(random.random(), self._tell, copy.launch.attempt)

    def _tell(self, attempt: Attempt) -> None:
        """Report that the attempt follows orders, and the time of its steps; from now on missing steps are noticed."""
        found = self.copies.get(attempt)
        if found is not None and found[1].hung < 0:
            training = Training(step=0, resizes=True, step_time=STEP)
            found[1].says = Told(attempt=attempt, training=training)
            self.on_told(found[1].says)

    def _come_to(self, copy: Copy) -> None:
        """Update the remaining run time of a copy to the current instant."""
        if copy.since >= 0:
            now = self._keepers.timeline.now
            copy.left, copy.as_of = max(0, copy.left - (now - copy.as_of)), now

    def _foresee(self, slot: int, copy: Copy) -> None:
        """Schedule the end of a copy: when its work is done, or at its time limit."""
        self._cancel(copy)
        left, ends, within = copy.left, copy.ends, self._limit_left(copy)
        if 0 < within < left:
            left, ends = within, "timeout"
        copy.timer = self._keepers.call_later(left / SECOND, self._end_running, slot, copy, ends)

    def _limit_left(self, copy: Copy) -> int:
        """Nanoseconds until its time limit, at least 1; 0 where it has none."""
        if not copy.launch.time_limit:
            return 0
        return max(1, copy.since + copy.launch.time_limit - self._keepers.timeline.now)

    def _leave(self, attempt: Attempt) -> None:
        found = self.copies.get(attempt)
        if found is not None and found[1].since >= 0:
            self._cancel(found[1])
            self._end_running(*found, "done")

    def _end_running(self, slot: int, copy: Copy, outcome: Outcome, note: str = "") -> None:
        run = self._keepers.timeline.now - copy.since
        self._end(slot, copy, Ending(outcome=outcome, code=int(outcome == "failed"), run=run, note=note))

    def _end(self, slot: int, copy: Copy, ending: Ending) -> None:
        attempt = copy.launch.attempt
        if self.copies.pop(attempt, None) is None:
            return
        self._until.pop(attempt, None)
        if copy.since >= 0:
            self._watcher.ended(self._name, copy.launch, ending)
        line = self.slots[slot]
        line.remove(copy)
        if line:
            self._keepers.call_later(START_TAKES / SECOND, self._begin, slot)
        else:
            del self.slots[slot]
        ended = self.evidence[attempt] = Ended(attempt=attempt, ending=ending)
        self.on_change((), (ended,))

    def _cancel(self, copy: Copy) -> None:
        if copy.timer is not None:
            copy.timer.cancel()
            copy.timer = None


class SimulatedMachine:
    """One node: power, devices, executor, and an agent that is restarted when it ends."""

    def __init__(
        self,
        timeline: Timeline,
        node: Node,
        network: Network,
        listener: "Callable[[], Listener]",
        seed: int,
        watcher: Watcher,
    ) -> None:
        """`listener` returns the process to dial."""
        self.timeline = timeline
        self.node = node
        self.keepers = Process(timeline, f"keepers of {node.name}")
        self.agent = Process(timeline, f"agent of {node.name}")
        self.executor = SimulatedExecutor(node.name, self.keepers, seed, watcher)
        self.on = False
        self.machine: NodeMachine | None = None
        self._watching: Timer | None = None
        self._network = network
        self._listener = listener
        self._boots = 0
        self._channel: End | None = None
        self._pause = RECONNECT[0]
        self._timer: Timer | None = None
        self._watcher = watcher
        self._whole = self._taken_in = node
        self._part = 1.0
        self.devices = node.devices  # installed devices, whether offered or not
        self.agent.on_kill = self._agent_gone
        self._clock = SimulatedClock(self.agent)

    @property
    def name(self) -> str:
        return self.node.name

    # --- power -------------------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Boot the machine. Everything that ran before is gone, and the node gets a new incarnation."""
        if not self.on:
            self.on = True
            self._boots += 1
            self.node = msgspec.structs.replace(self.node, incarnation=f"{self._boots}-{self.node.name}")
            self.keepers.start()
            self.start_agent()

    def power_off(self) -> None:
        if self.on:
            self.on = False
            self.executor.power_off()
            self.agent.kill()
            self.keepers.kill()

    def change_devices(self, devices: tuple[Device, ...]) -> None:
        """Add, remove or replace devices; attempts on a removed device end."""
        left = {(device.index, device.uuid) for device in devices}
        gone = {device.index for device in self.devices if (device.index, device.uuid) not in left}
        for attempt in self.executor.running():
            if gone.intersection(self.executor.copies[attempt][1].launch.devices):
                self.executor.kill(attempt, "failed", "its device has gone")
        self.devices = devices
        self.offer(self._part)

    def offer(self, part: float) -> None:
        """Offer this fraction of the CPUs, memory and devices from now on. The agent notices it at its next probe."""
        self._part = part
        cpu, memory = int(self._whole.cpu * part), int(self._whole.memory * part)
        devices = tuple(device for device in self.devices if device.index < part * len(self._whole.devices))
        self.node = msgspec.structs.replace(self.node, cpu=cpu, memory=memory, devices=devices)
        self._tell_offer()

    def _take_in(self) -> None:
        """Record that the agent has probed the machine. Attempts handed to the executor earlier may still start."""
        self._taken_in = self.node
        if self.machine is not None:
            self.machine.withheld = {device.index for device in self.devices}
        self.timeline.call_in(2 * START_TAKES, self._tell_offer)

    def _tell_offer(self) -> None:
        """Report the resources that may be in use here: the maximum of the current offer and the agent's last probe."""
        cpu, memory = max(self.node.cpu, self._taken_in.cpu), max(self.node.memory, self._taken_in.memory)
        self._watcher.offers(msgspec.structs.replace(self.node, cpu=cpu, memory=memory))

    def fail_device(self, index: int) -> bool:
        """Report a failed device from the driver; without an agent the report is lost. Attempts on the device hang."""
        if self.machine is None:
            return False
        for attempt in self.executor.running():
            if index in self.executor.copies[attempt][1].launch.devices:
                self.executor.hang(attempt)
        self._feed(machine.Faulted((DeviceFault(index=index, code="XID 79", text="has fallen off the bus"),)))
        return True

    # --- the agent ---------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        if not self.on or self.agent.alive:
            return
        self.agent.start()
        self.machine = NodeMachine(self.node, range(self._whole.cpu // 1000))
        self._take_in()
        held, ended = self.executor.observe()
        self.machine.adopt(held, ended)
        self.executor.on_change = self._changed
        self.executor.on_told = self._told
        for told in self.executor.telling():
            self._told(told)
        self._pause = RECONNECT[0]
        self._dial()
        self.agent.call_later(LOOK_EVERY, self._look)

    def _agent_gone(self) -> None:
        self.machine = self._watching = None
        self.executor.on_change = lambda _, __: None
        self.executor.on_told = lambda _: None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.timeline.call_in(SECOND // 2, self.start_agent)  # its supervisor restarts it

    def _look(self) -> None:
        if self.machine is not None and self.machine.node != self.node:
            self.machine.node = self.node
            self._take_in()
            if self._channel is not None:
                self._feed(machine.Connected())
        self.agent.call_later(LOOK_EVERY, self._look)

    def _dial(self) -> None:
        listener = self._listener()
        opened = partial(self._opened, listener)
        self._network.dial(self.name, self.agent, listener.process, opened, self._later)

    def _later(self) -> None:
        self.agent.call_later(self._pause, self._dial)
        self._pause = min(RECONNECT[1], self._pause * 2)

    def _opened(self, listener: "Listener", near: End, far: End) -> None:
        if far.is_gone() or not listener.accept(far):
            self._later()
            return
        self._pause = RECONNECT[0]
        self._channel = near
        near.on_message = self._feed
        near.on_close = self._closed
        self._feed(machine.Connected())

    def _closed(self) -> None:
        self._channel = None
        self._feed(machine.Disconnected())
        self._later()

    def _changed(self, running: Sequence[Running], ended: Sequence[Ended]) -> None:
        """Deliver changes to the agent in a later turn, as keepers do over a socket."""
        self.agent.call_soon(self._feed, machine.Changed(tuple(running), tuple(ended)))

    def _told(self, told: Told) -> None:
        self.agent.call_soon(self._feed, machine.Telling((told,)))
        if self._watching is None:
            self._watching = self.agent.call_later(LOOK_AT_STEPS, self._watch_steps)

    def _watch_steps(self) -> None:
        """Check the progress of attempts periodically while any of them has reported steps."""
        self._watching = None
        if self.machine is not None and self.machine.listens():
            self._feed(machine.Telling((), self.executor.cpu_used(self.machine.standing_still())))
            self._watching = self.agent.call_later(LOOK_AT_STEPS, self._watch_steps)

    def _feed(self, message: machine.Message) -> None:
        if self.machine is not None:
            self._perform(self.machine.handle(message, self._clock.now()))

    def _tick(self) -> None:
        if self.machine is not None:
            self._perform(self.machine.tick(self._clock.now()))

    def _perform(self, effects: Sequence[machine.Effect]) -> None:
        for effect in effects:
            match effect:
                case machine.Say():
                    if self._channel is not None:
                        self._channel.send(effect.message)
                case machine.Hang():
                    if self._channel is not None:
                        self._channel.close()
                        self._closed()
                case _:
                    carry_out(effect, self.executor)
        if self._timer is not None:
            self._timer.cancel()
        due = self.machine.wakeup() if self.machine is not None else None
        self._timer = (
            None if due is None else self.agent.call_later(max(0, due - self._clock.now()) / SECOND, self._tick)
        )


class Listener(Protocol):
    """The process to which nodes connect; it may refuse a connection."""

    process: Process

    def accept(self, channel: End) -> bool: ...
