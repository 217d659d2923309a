"""What befalls a simulated fleet beside its work: losses, slow nodes, changes, faults of a nemesis, telemetry.

Everything is drawn from the seed, each kind and node from a stream of its own, so that one kind more changes nothing of
the others and every policy meets the same world. What comes again and again is drawn as it comes, and ends once nothing
is left that it could befall.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from poise.engine.scenario import FaultKind, FaultSpec, Nemesis
from poise.engine.twin import Twin
from poise.model.jobs import Outcome
from poise.model.load import Load
from poise.model.resources import WHOLE, Device, Node
from poise.model.workload import LINEAR, Steady, Truth, Workload
from poise.model.worldfile import Losses, Restart, Stragglers, Telemetry, World
from poise.units import DAY, HOUR, SECOND, parse_duration

AT_DEPTH: frozenset[FaultKind] = frozenset(
    ("machine-off", "kill-task", "out-of-memory", "straggle", "fail-device", "unplug")
)
"""Kinds of faults that there are at the depth of attempts; the others befall messages, processes and logs, of which a
twin has none (`poise faults` does)."""

PATIENCE = 1 * HOUR
AWAY = 7 * DAY
"""Nothing was submitted, has begun or ended for so long, and nothing runs: nothing more will happen; nor if nodes are
away that might be back, in the end."""

_ENDINGS: dict[FaultKind, Outcome] = {"kill-task": "killed", "out-of-memory": "oom"}


def left_out(nemeses: Sequence[Nemesis]) -> list[str]:
    """The kinds of faults that a twin cannot have, by name."""
    return sorted({spec.fault for nemesis in nemeses for spec in nemesis.faults} - AT_DEPTH)


def in_world(workload: Workload, world: World) -> Workload:
    """The same work, at the costs and with the scaling of a world."""
    if world.restart == Restart() and world.scaling is LINEAR:
        return workload
    said = {name: value for name in Restart.__struct_fields__ if (value := getattr(world.restart, name)) is not None}
    declared = {name: said[name] for name in ("checkpoint", "restore") if name in said}

    def truth_in(truth: Truth) -> Truth:
        pace = truth.pace
        if isinstance(pace, Steady) and pace.scaling is LINEAR:
            pace = msgspec.structs.replace(pace, scaling=world.scaling)
        return msgspec.structs.replace(truth, pace=pace, **said)

    arrivals = tuple(
        msgspec.structs.replace(
            arrival,
            units=tuple(msgspec.structs.replace(unit, **declared) for unit in arrival.units),
            truths={name: truth_in(truth) for name, truth in arrival.truths.items()},
        )
        for arrival in workload.arrivals
    )
    return msgspec.structs.replace(workload, arrivals=arrivals)


def interference(sharing: float) -> Callable[[int, int], float]:
    """By what factor work takes longer, by its share of a device and what others hold of it, in thousandths: all of
    `sharing` more where they hold all the rest.
    """
    return lambda share, others: 1.0 + sharing * others / max(1, WHOLE - share)


class Happenings:
    """Lets things happen in a twin, until there is nothing left for them to befall: `over` tells
    whether all jobs are over, or nothing has happened to them for so many nanoseconds. `returned` is when something
    that was away was back last; nothing more will be where not `awaited`.
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
        """The nodes that are there from the beginning: all but those that a change lets join first."""
        return [node for node in self._nodes.values() if not self._out.get(node.name)]

    @property
    def awaited(self) -> bool:
        """Whether a node or a device that is away will be back."""
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
        """Let it happen so often on the mean, at exponential distances. `happen` tells how long it lasts; only then
        does the time to the next begin.
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
        """A node may be away for several reasons at once."""
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
        """What makes it slow at once multiplies."""
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
        """One fault, on a node that is drawn; when the next one comes does not depend on how long it lasts."""
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
                self._return_in(lasts, lambda: None)  # the twin opens it again itself
            else:
                self._unplug(name, device, lasts)
        return 0

    def _unplug(self, name: str, index: int, lasts: int) -> None:
        node = self._offered[name]
        gone = [device for device in node.devices if device.index == index]
        self._offer(name, [device for device in node.devices if device.index != index])
        self._return_in(lasts, lambda: self._offer(name, [*self._offered[name].devices, *gone]))

    def _return_in(self, lasts: int, come: Callable[[], None]) -> None:
        """What is away, or is not there yet, will be there after so long."""
        self._awaited += 1

        def back() -> None:
            self._awaited -= 1
            self.returned = self._twin.now
            come()

        self._twin.timeline.call_in(lasts, back)

    def _offer(self, name: str, devices: Sequence[Device]) -> None:
        """The node has these devices from now on, and says so."""
        ordered = tuple(sorted(devices, key=lambda device: device.index))
        self._offered[name] = msgspec.structs.replace(self._offered[name], devices=ordered)
        if not self._out.get(name):
            self._twin.change(self._offered[name])

    # --- telemetry ---------------------------------------------------------------------------------------------------

    def _tell_load(self, name: str, draw: Random, telemetry: Telemetry) -> None:
        """What it says of itself: how much of its cores is held, with noise, and a while later."""

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
    """Exponential, of this mean, in nanoseconds; a millisecond at least."""
    return max(SECOND // 1000, round(draw.expovariate(1.0) * mean))
