"""Controller and node machines coupled by channels that break: the smallest whole system, on a clock in memory.

A channel is two queues of numbered frames. What is in them is delivered in order, when the test says so; it is lost
when the channel breaks, and the test may lose or double a frame. The executor is a fake: a slot runs what it was handed
first, an attempt ends when the test says so, or at its deadline.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from poise.errors import StoreFull
from poise.kernel import node as node_side
from poise.kernel.controller import Controller, Settings
from poise.kernel.frames import Broken, Frames
from poise.kernel.ledger import Ledger, UnitState, attempt_of
from poise.kernel.messages import (
    Append,
    AppendFailed,
    Decide,
    Decided,
    Durable,
    Effect,
    FromNode,
    Gone,
    Hang,
    Message,
    Recovered,
    Reply,
    Send,
    Submit,
    TryRecover,
)
from poise.kernel.node import NodeMachine
from poise.model.events import Event
from poise.model.jobs import Ending, Outcome
from poise.model.messages import Attempt, Ended, FromAgent, Hello, Launch, Running, ToAgent
from poise.model.resources import Node
from poise.model.spec import compile_spec
from poise.policy.suites import policy_named
from poise.testing import WALL, replay
from poise.units import SECOND


class Slots:
    """A fake executor that outlives its agent: what the slots hold, and endings that were not forgotten."""

    def __init__(self) -> None:
        self.held: dict[int, deque[tuple[Launch, tuple[int, ...]]]] = {}
        self.ended: dict[Attempt, Ended] = {}
        self.ran: list[Attempt] = []
        self.stopping: set[Attempt] = set()
        self.until: dict[Attempt, int] = {}

    def running(self) -> dict[Attempt, Launch]:
        return {queue[0][0].attempt: queue[0][0] for queue in self.held.values() if queue}

    def start(self, slot: int, launch: Launch, cpus: tuple[int, ...]) -> None:
        queue = self.held.setdefault(slot, deque())
        queue.append((launch, cpus))
        if len(queue) == 1:
            self._run(launch)

    def stop(self, attempt: Attempt) -> Ended | None:
        """What has not started is handed back at once; what runs ends when the test says so."""
        for queue in self.held.values():
            for position, (launch, _) in enumerate(queue):
                if launch.attempt == attempt and position:
                    del queue[position]
                    return self._keep(attempt, Ending(outcome="returned"))
        if attempt in self.running():
            self.stopping.add(attempt)
        return None

    def end(self, attempt: Attempt, outcome: Outcome, run: int) -> Ended:
        for queue in self.held.values():
            if queue and queue[0][0].attempt == attempt:
                queue.popleft()
                if queue:
                    self._run(queue[0][0])
        return self._keep(attempt, Ending(outcome="stopped" if attempt in self.stopping else outcome, run=run))

    def past_deadline(self, now: int) -> list[Ended]:
        """What has reached its deadline ends, as its keeper sees to; what waits behind is not begun."""
        ended: list[Ended] = []
        for queue in self.held.values():
            for launch, cpus in list(queue)[1:]:
                if self.until.get(launch.attempt, now + 1) <= now:
                    queue.remove((launch, cpus))
                    ended.append(self._keep(launch.attempt, Ending(outcome="returned")))
        late = [attempt for attempt in self.running() if self.until.get(attempt, now + 1) <= now]
        return ended + [self.end(attempt, "lost", 0) for attempt in late]

    def _run(self, launch: Launch) -> None:
        assert launch.attempt not in self.ran, f"{launch.attempt} runs twice"
        self.ran.append(launch.attempt)

    def _keep(self, attempt: Attempt, ending: Ending) -> Ended:
        self.ended[attempt] = Ended(attempt=attempt, ending=ending)
        return self.ended[attempt]


class Site:
    """One node: its machine, its slots, and its channel's two queues."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.slots = Slots()
        self.up: deque[tuple[int, FromAgent]] = deque()
        self.down: deque[tuple[int, ToAgent]] = deque()
        self.near, self.far = Frames(), Frames()
        self.connected = False
        self.announced = False
        self.hung = False
        self.machine = self._machine()

    def restart_agent(self) -> None:
        """The agent is killed and started again; its keepers go on."""
        self.up.clear()
        self.down.clear()
        self.connected = self.announced = False
        self.machine = self._machine()

    def reboot(self, incarnation: str) -> None:
        """Every process is gone, and all that was known of them."""
        self.node = Node(
            name=self.node.name, incarnation=incarnation, cpu=self.node.cpu, memory=self.node.memory,
            devices=self.node.devices,
        )  # fmt: skip
        ran = self.slots.ran
        self.slots = Slots()
        self.slots.ran = ran
        self.restart_agent()

    def _machine(self) -> NodeMachine:
        machine = NodeMachine(self.node, range(self.node.cpu // 1000))
        running = self.slots.running()
        held = [
            (slot, launch, cpus, Running(attempt=launch.attempt, pid=1) if launch.attempt in running else None)
            for slot, queue in self.slots.held.items()
            for launch, cpus in queue
        ]
        machine.adopt(held, list(self.slots.ended.values()))
        return machine

    def feed(self, message: node_side.Message, now: int) -> None:
        before = set(self.slots.running())
        self._perform(self.machine.handle(message, now), now, before)

    def tick(self, now: int) -> None:
        before = set(self.slots.running())
        if ended := self.slots.past_deadline(now):
            began = [Running(attempt=at, pid=1) for at in self.slots.running() if at not in before]
            self.feed(node_side.Changed(tuple(began), tuple(ended)), now)
        self._perform(self.machine.tick(now), now, set(self.slots.running()))

    def _perform(self, effects: Sequence[node_side.Effect], now: int, before: set[Attempt]) -> None:
        changed: list[Ended] = []
        for effect in effects:
            match effect:
                case node_side.Start():
                    self.slots.start(effect.slot, effect.launch, effect.cpus)
                case node_side.Stop():
                    ended = self.slots.stop(effect.attempt)
                    changed += [ended] if ended else []
                case node_side.Forget():
                    for attempt in effect.attempts:
                        self.slots.ended.pop(attempt, None)
                case node_side.Say():
                    if self.connected:
                        self.up.append((self.near.number(), effect.message))
                case node_side.Renew():
                    self.slots.until[effect.attempt] = effect.until
                case node_side.Hang():
                    self.hung = True
        began = [Running(attempt=attempt, pid=1) for attempt in self.slots.running() if attempt not in before]
        if began or changed:
            self.feed(node_side.Changed(tuple(began), tuple(changed)), now)

    def end(self, attempt: Attempt, outcome: Outcome, run: int, now: int) -> None:
        before = set(self.slots.running())
        ended = self.slots.end(attempt, outcome, run)
        began = [Running(attempt=at, pid=1) for at in self.slots.running() if at not in before]
        self.feed(node_side.Changed(tuple(began), (ended,)), now)


class Fleet:
    """One control plane with a slow disk, and its sites."""

    def __init__(self, nodes: list[Node], policy: str = "poise") -> None:
        self.now = SECOND
        self.sites = {node.name: Site(node) for node in nodes}
        self.log: list[Event] = []
        self.durable = 0
        self.full = False
        self.acknowledged: list[str] = []
        self._policy = policy_named(policy)
        self._requests = 0
        self.controller = Controller(Ledger(), Settings(policy=policy))
        self._begin()

    @property
    def ledger(self) -> Ledger:
        return self.controller.ledger

    def _begin(self) -> None:
        self._perform(self.controller.begin(self.now, boot="b", boottime=self.now, wall=WALL))

    # --- what the test does ------------------------------------------------------------------------------------------

    def submit(self, document: dict[str, object]) -> None:
        self._requests += 1
        self.say(Submit(self._requests, compile_spec(document, wall=WALL)))

    def say(self, message: Message) -> None:
        self._perform(self.controller.handle(message, self.now))

    def tick(self, duration: int) -> None:
        self.now += duration
        for site in self.sites.values():
            site.tick(self.now)
            if site.hung:
                site.hung = False
                self.break_channel(site)
        self._perform(self.controller.tick(self.now))

    def sync(self) -> None:
        """The disk has written all it was given; or it is full, and has not."""
        if self.full and self.durable < len(self.log):
            del self.log[self.durable :]
            self.say(AppendFailed(replay(self.log), StoreFull("full")))
        elif self.durable < len(self.log):
            self.durable = len(self.log)
            self.say(Durable(self.durable))

    def crash(self) -> None:
        """The control plane is killed: what was not durable never happened."""
        del self.log[self.durable :]
        for site in self.sites.values():
            self.break_channel(site)
        self.controller = Controller(replay(self.log), self.controller.settings)
        self._begin()

    def connect(self, site: Site) -> None:
        if not site.connected:
            site.connected = True
            site.near, site.far = Frames(), Frames()
            site.feed(node_side.Connected(), self.now)

    def break_channel(self, site: Site, *, noticed: bool = True) -> None:
        """What is on the way is lost. The control plane may learn of it only by what comes next."""
        if not site.connected:
            return
        site.connected = False
        site.up.clear()
        site.down.clear()
        site.feed(node_side.Disconnected(), self.now)
        if noticed and site.announced:
            self.say(Gone(site.node.name))
        site.announced = False

    def deliver_up(self, site: Site) -> None:
        if site.up:
            serial, message = site.up.popleft()
            if self._is_new(site, site.far, serial):
                site.announced = site.announced or isinstance(message, Hello)
                self.say(FromNode(site.node.name, message))

    def deliver_down(self, site: Site) -> None:
        if site.down:
            serial, message = site.down.popleft()
            if self._is_new(site, site.near, serial):
                site.feed(message, self.now)

    def _is_new(self, site: Site, frames: Frames, serial: int) -> bool:
        """Whoever meets a gap hangs up."""
        try:
            return frames.hears(serial)
        except Broken:
            self.break_channel(site)
            return False

    def run_dry(self) -> None:
        """Everything on the way arrives, and is written."""
        for _ in range(1_000):
            busy = [site for site in self.sites.values() if site.up or site.down]
            if not busy and self.durable == len(self.log):
                return
            for site in busy:
                self.deliver_up(site)
                self.deliver_down(site)
            self.sync()
        raise AssertionError("the fleet talks for ever")

    def heal(self) -> None:
        """Faults stop. What runs ends well, until every job is over."""
        self.full = False
        for _ in range(400):
            for site in self.sites.values():
                self.connect(site)
            self.run_dry()
            for site in self.sites.values():
                for attempt in list(site.slots.running()):
                    site.end(attempt, "done", SECOND // 100, self.now)
            self.run_dry()
            self.tick(SECOND // 2)
            self.run_dry()
            if all(job.ended for job in self.ledger.jobs.values()) and not self._held():
                return
        raise AssertionError(f"not over: {[unit.id for unit in self._unfinished()]}, held: {self._held()}")

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.ledger.check()
        exclusive: set[str] = set()
        for site in self.sites.values():
            running = site.slots.running().values()
            assert sum(launch.shape.cpu for launch in running) <= site.node.cpu
            assert sum(launch.shape.memory for launch in running) <= site.node.memory
            devices = [device for launch in running for device in launch.devices]
            assert len(devices) == len(set(devices)), f"a device of {site.node.name} is used twice"
            tasks = [launch.attempt.task for launch in running]
            assert len(tasks) == len(set(tasks)), f"two attempts of one task run on {site.node.name}"
            for launch in running:
                if launch.lease:
                    assert launch.attempt.task not in exclusive, f"two copies of {launch.attempt.task} run"
                    exclusive.add(launch.attempt.task)
            self._check_told(site)
        for job_id in self.acknowledged:
            assert job_id in self.ledger.jobs, f"{job_id} was acknowledged and is lost"

    def _check_told(self, site: Site) -> None:
        """Of what the ledger knows to be here, no more runs than its pools have slots."""
        state = self.ledger.nodes.get(site.node.name)
        if state is None or state.node.incarnation != site.node.incarnation:
            return
        allowed = {
            attempt_of(unit, index) for unit, index in self.ledger.active.on(site.node.name) if not unit.stopping
        }
        counts: dict[str, int] = {}
        for attempt, launch in site.slots.running().items():
            if attempt in allowed:
                counts[launch.shape.key()] = counts.get(launch.shape.key(), 0) + 1
        for key, count in counts.items():
            assert count <= state.pools[key].slots, f"{count} of {key} run on {site.node.name}"

    def _held(self) -> list[Attempt]:
        return [attempt for site in self.sites.values() for attempt in site.slots.running()]

    def _unfinished(self) -> Iterator[UnitState]:
        for job in self.ledger.jobs.values():
            yield from (unit for unit in job.units if not unit.over)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            match effect:
                case Append():
                    assert effect.expected == len(self.log)
                    self.log.extend(effect.events)
                case Decide():
                    waiting.extend(
                        self.controller.handle(Decided(self._policy.decide(effect.view), effect.view), self.now)
                    )
                case Send():
                    site = self.sites[effect.node]
                    if site.connected and site.announced:
                        site.down.append((site.far.number(), effect.message))
                case Hang():
                    site = self.sites[effect.node]
                    self.break_channel(site, noticed=False)
                    waiting.extend(self.controller.handle(Gone(effect.node), self.now))
                case Reply():
                    if effect.error is None and effect.request <= self._requests:
                        self.acknowledged.append(effect.value)
                case TryRecover():
                    if not self.full:
                        waiting.extend(self.controller.handle(Recovered(), self.now))
                case _:
                    pass
