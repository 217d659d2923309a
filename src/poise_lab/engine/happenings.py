"""Inject external events into a simulated fleet: node losses, stragglers, changes, nemesis faults, telemetry.

All events are drawn from the seed. Each kind and node has its own random stream, so adding a kind does not change the
others, and every policy is tested in the same world. Recurring events are drawn one at a time, and stop once no job is
left that they could affect.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import msgspec

from poise.engine.scenario import FaultKind, FaultSpec, Nemesis
from poise.engine.twin import Twin
from poise.model.intensity import HOUR_SECONDS, MONDAY, USUAL_RUN, Intensity, started_well
from poise.model.jobs import Outcome
from poise.model.load import Load
from poise.model.resources import WHOLE, Device, Node
from poise.model.workload import LINEAR, Arrival, Steady, Truth, Workload
from poise.model.worldfile import Losses, Restart, Stragglers, Telemetry, World
from poise.units import DAY, HOUR, SECOND, parse_duration
from poise_lab.remade import Remade

AT_DEPTH: frozenset[FaultKind] = frozenset(
    ("machine-off", "kill-task", "out-of-memory", "straggle", "fail-device", "unplug")
)
"""Fault kinds that exist at the level of attempts. The others affect messages, processes and logs, which a twin does
not have (`poise faults` injects them).
"""

PATIENCE = 1 * HOUR
AWAY = 7 * DAY
"""Time without a submission, start or end, with nothing running, after which the trial ends. `AWAY` applies while nodes
are away, because they might return.
"""

_ENDINGS: dict[FaultKind, Outcome] = {"kill-task": "killed", "out-of-memory": "oom"}


def left_out(nemeses: Sequence[Nemesis]) -> list[str]:
    """Return the names of the fault kinds that a twin cannot inject."""
    return sorted({spec.fault for nemesis in nemeses for spec in nemesis.faults} - AT_DEPTH)


GOLDEN = 0.618034
"""Multiples of it, modulo 1, spread evenly."""


def in_world(workload: Workload, world: World) -> Workload:
    """Return the workload with the restart costs and the scaling of a world, and in its cleanest hours."""
    if world.flexible and world.intensity is not None:
        workload = _in_clean_hours(workload, world.flexible, world.intensity)
    if world.restart == Restart() and world.scaling is LINEAR:
        return workload
    said = {name: value for name in Restart.__struct_fields__ if (value := getattr(world.restart, name)) is not None}
    declared = {name: said[name] for name in ("checkpoint", "restore") if name in said}

    def truth_in(truth: Truth) -> Truth:
        pace = truth.pace
        if isinstance(pace, Steady) and pace.scaling is LINEAR:
            pace = msgspec.structs.replace(pace, scaling=world.scaling)
        return msgspec.structs.replace(truth, pace=pace, **said)

    def arrival_in(arrival: Arrival) -> Arrival:
        return msgspec.structs.replace(
            arrival,
            units=tuple(msgspec.structs.replace(unit, **declared) for unit in arrival.units),
            truths={name: truth_in(truth) for name, truth in arrival.truths.items()},
        )

    arrivals = Remade(len(workload.arrivals), lambda: map(arrival_in, workload.arrivals))
    return msgspec.structs.replace(workload, arrivals=arrivals)


def _in_clean_hours(workload: Workload, flexible: int, intensity: Intensity) -> Workload:
    """Return the workload with each job's earliest start in clean hours within `flexible` of its arrival."""

    def in_clean_hours() -> Iterator[Arrival]:
        for number, arrival in enumerate(workload.arrivals):
            wall, part = arrival.at / SECOND - MONDAY * HOUR_SECONDS, number * GOLDEN % 1
            units, _ = started_well(arrival.units, flexible, intensity, wall, lambda kind: USUAL_RUN, part)
            yield msgspec.structs.replace(arrival, units=units)

    return msgspec.structs.replace(workload, arrivals=Remade(len(workload.arrivals), in_clean_hours))


def interference(sharing: float) -> Callable[[int, int], float]:
    """Return a function of a task's share of a device and of the share held by others, both in thousandths. It returns
    the factor by which work slows down: 1 + `sharing` if others hold all the rest.
    """
    return lambda share, others: 1.0 + sharing * others / max(1, WHOLE - share)


class Happenings:
    """Injects events into a twin until no job is left for them to affect. `over` takes a number of nanoseconds and
    returns whether all jobs have ended or nothing has happened to them for that long. `returned` is the last instant at
    which a node or a device came back; unless `awaited`, none will come back later.
    """

    def __init__(
        self,
        twin: Twin,
        nodes: Sequence[Node],
        world: World,
        nemeses: Sequence[Nemesis],
        seed: int,
        *,
        over: Callable[[int], bool],
    ) -> None:
        self.returned = 0
        self._away = self._awaited = 0
        self._over = over
        self._twin = twin
        self._nodes = {node.name: node for node in nodes}
        self._offered = dict(self._nodes)
        self._out: dict[str, int] = {}
        self._slow: dict[str, list[float]] = {}
        self._seed = seed
        self._begin(world, nemeses)

    def present(self) -> list[Node]:
        """Return the initial nodes: all nodes except those whose first change is to join."""
        return [node for node in self._nodes.values() if not self._out.get(node.name)]

    @property
    def awaited(self) -> bool:
        """Return whether a node or a device that is away will return."""
        return self._awaited > 0

    def _begin(self, world: World, nemeses: Sequence[Nemesis]) -> None:
        first: dict[str, bool] = {}
        for change in world.changes:
            first.setdefault(change.node, change.there)
            if change.there:
                self._return_in(change.at, partial(self._back, change.node))
            else:
                self._twin.timeline.call_at(change.at, self._gone, change.node)
        self._out = {name: 1 for name, there in first.items() if there}
        self._away = len(self._out)
        for name in sorted(self._nodes):
            if world.losses is not None:
                self._again(f"loss {name}", world.losses.mtbf, partial(self._lose, name, world.losses))
            if world.stragglers is not None and world.stragglers.share:
                gap = int(world.stragglers.lasts * (1 - world.stragglers.share) / world.stragglers.share)
                self._again(f"straggler {name}", gap, partial(self._straggle, name, world.stragglers))
            if world.telemetry is not None:
                self._tell_load(name, Random(f"{self._seed} load {name}"), world.telemetry)
        for nemesis in nemeses:
            for number, spec in enumerate(nemesis.faults):
                if spec.fault in AT_DEPTH:
                    every, name = parse_duration(spec.every), f"{nemesis.name} {number}"
                    self._again(name, every, partial(self._befall, spec))

    # --- again and again ---------------------------------------------------------------------------------------------

    def _again(self, name: str, every: int, happen: Callable[[Random], int]) -> None:
        """Schedule a recurring event with exponential gaps of mean `every`. `happen` returns the duration of the event;
        the next gap begins when the event ends.
        """
        draw = Random(f"{self._seed} {name}")

        def come() -> None:
            if not self._is_over():
                lasts = happen(draw)
                self._twin.timeline.call_in(lasts + _some(draw, every), come)

        self._twin.timeline.call_in(_some(draw, every), come)

    def _straggle(self, name: str, stragglers: Stragglers, draw: Random) -> int:
        return self._slow_down(name, stragglers.factor, _some(draw, stragglers.lasts))

    def _is_over(self) -> bool:
        return self._over(AWAY if self._away else PATIENCE)

    def _lose(self, name: str, losses: Losses, draw: Random) -> int:
        lasts = _some(draw, losses.mttr)
        self._gone(name, losses.detected)
        self._return_in(lasts, partial(self._back, name))
        return lasts

    def _gone(self, name: str, detected: int = 0) -> None:
        """Take a node away. A node can be away for several reasons at once."""
        self._out[name] = self._out.get(name, 0) + 1
        if self._out[name] == 1:
            self._away += 1
            self._twin.lose(name, self._twin.now, detected_after=detected)

    def _back(self, name: str) -> None:
        if self._out.get(name, 0) > 1:
            self._out[name] -= 1
        elif self._out.pop(name, 0):
            self._away -= 1
            self._twin.add_nodes([self._offered[name]], self._twin.now)

    def _slow_down(self, name: str, factor: float, lasts: int) -> int:
        """Slow a node down for `lasts` nanoseconds. Concurrent slowdowns multiply."""
        factors = self._slow.setdefault(name, [])
        factors.append(factor)
        self._tell_slow(name)

        def end() -> None:
            factors.remove(factor)
            self._tell_slow(name)

        self._twin.timeline.call_in(lasts, end)
        return lasts

    def _tell_slow(self, name: str) -> None:
        product = 1.0
        for factor in self._slow[name]:
            product *= factor
        self._twin.slow(name, self._twin.now, product)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _befall(self, spec: FaultSpec, draw: Random) -> int:
        """Inject one fault on a random node. The next fault does not wait for this one to end."""
        name = draw.choice(sorted(self._nodes))
        lasts = _some(draw, parse_duration(spec.lasts))
        chance = draw.randrange(2**32)
        if spec.fault == "machine-off":
            self._gone(name)
            self._return_in(lasts, partial(self._back, name))
        elif spec.fault == "straggle":
            self._slow_down(name, max(1.0, spec.amount), lasts)
        elif spec.fault in _ENDINGS:
            self._twin.end_one(name, chance, _ENDINGS[spec.fault])
        elif self._offered[name].devices:
            device = self._offered[name].devices[chance % len(self._offered[name].devices)].index
            if spec.fault == "fail-device":
                self._twin.fail_device(name, device, lasts)
                self._return_in(lasts, lambda: None)  # the twin reopens the device itself
            else:
                self._unplug(name, device, lasts)
        return 0

    def _unplug(self, name: str, index: int, lasts: int) -> None:
        node = self._offered[name]
        gone = [device for device in node.devices if device.index == index]
        self._offer(name, [device for device in node.devices if device.index != index])
        self._return_in(lasts, lambda: self._offer(name, [*self._offered[name].devices, *gone]))

    def _return_in(self, lasts: int, come: Callable[[], None]) -> None:
        """Call `come` after `lasts` nanoseconds, for a node or a device that is away or has not joined yet."""
        self._awaited += 1

        def back() -> None:
            self._awaited -= 1
            self.returned = self._twin.now
            come()

        self._twin.timeline.call_in(lasts, back)

    def _offer(self, name: str, devices: Sequence[Device]) -> None:
        """Change the devices of a node, and report the change to the twin."""
        ordered = tuple(sorted(devices, key=lambda device: device.index))
        self._offered[name] = msgspec.structs.replace(self._offered[name], devices=ordered)
        if not self._out.get(name):
            self._twin.change(self._offered[name])

    # --- telemetry ---------------------------------------------------------------------------------------------------

    def _tell_load(self, name: str, draw: Random, telemetry: Telemetry) -> None:
        """Report the load of a node at intervals: the fraction of its cores that is held, with noise and a delay."""

        def tell() -> None:
            if self._is_over():
                return
            state = self._twin.ledger.nodes.get(name)
            if state is not None and not self._out.get(name):
                noisy = draw.gauss(1.0, telemetry.noise)
                cpu = round(min(1.0, max(0.0, state.used_cpu / max(1, state.node.cpu) * noisy)) * 1000)
                self._twin.tell_load(name, self._twin.now + telemetry.delay, Load(cpu=cpu, load1=cpu))
            self._twin.timeline.call_in(telemetry.every, tell)

        self._twin.timeline.call_in(telemetry.every, tell)


def _some(draw: Random, mean: int) -> int:
    """Return an exponentially distributed duration with this mean, in nanoseconds; at least one millisecond."""
    return max(SECOND // 1000, round(draw.expovariate(1.0) * mean))
