"""What befalls a world: each kind of fault begins here, and gives back what ends it.

A fault that meets nobody (no task runs, no device is there) gives back nothing, and does not count.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from poise.engine.disk import SYNC_DELAY
from poise.engine.network import DOWN, UP
from poise.engine.scenario import Fault, FaultKind
from poise.engine.timeline import Process
from poise.model.messages import Attempt
from poise.units import MILLISECOND, SECOND

if TYPE_CHECKING:
    from poise.engine.world import World

End = Callable[[], None]
Begin = Callable[["World", Fault, Random], End | None]


def nothing() -> None:
    """There is nothing to undo."""


def _kill_task(world: "World", fault: Fault, random: Random) -> End | None:
    return _end_one(world, fault, random, "killed")


def _out_of_memory(world: "World", fault: Fault, random: Random) -> End | None:
    return _end_one(world, fault, random, "oom")


def _end_one(world: "World", fault: Fault, random: Random, outcome: Any) -> End | None:
    executor = world.machines[fault.node].executor
    running = executor.running()
    if not running:
        return None
    executor.kill(random.choice(running), outcome)
    return nothing


def _kill_keeper(world: "World", fault: Fault, random: Random) -> End | None:
    executor = world.machines[fault.node].executor
    if not executor.slots:
        return None
    executor.bury(random.choice(sorted(executor.slots)))
    return nothing


def _kill_agent(world: "World", fault: Fault, random: Random) -> End | None:
    world.machines[fault.node].agent.kill()
    return nothing


def _kill_control(world: "World", fault: Fault, random: Random) -> End | None:
    world.home.control.process.kill()
    return nothing


def _die_at_a_door(world: "World", fault: Fault, random: Random) -> End | None:
    if world.home.host is None:
        return None
    world.home.control.die_in = random.randint(1, 30)
    return nothing


def _control_away(world: "World", fault: Fault, random: Random) -> End | None:
    world.home.keep_off(True)
    return lambda: world.home.keep_off(False)


def _power_cut(world: "World", fault: Fault, random: Random) -> End | None:
    """The machine of the control plane: what was not synced may be gone, and the boot is another."""
    world.catch_up()
    world.home.kill()
    world.disk.lose_power(random)
    world.home.boot += 1
    return nothing


def _machine_off(world: "World", fault: Fault, random: Random) -> End | None:
    machine = world.machines[fault.node]
    if not machine.on:
        return None
    machine.power_off()
    return machine.power_on


def _cut(world: "World", fault: Fault, random: Random) -> End | None:
    ways = (UP, DOWN) if fault.way == "both" else (fault.way,)
    return _cut_off(world, fault.node, ways)


def _cut_off(world: "World", node: str, ways: Sequence[str]) -> End:
    for way in ways:
        world.network.cut_off(node, way, True)

    def end() -> None:
        for way in ways:
            world.network.cut_off(node, way, False)

    return end


def _flap(world: "World", fault: Fault, random: Random) -> End | None:
    """Cut and open again, each for up to two seconds."""
    over = False
    ends: list[End] = []

    def turn() -> None:
        if ends:
            ends.pop()()
        elif not over:
            ends.append(_cut_off(world, fault.node, (UP, DOWN)))
        if not over:
            world.timeline.call_in(random.randrange(100 * MILLISECOND, 2 * SECOND), turn)

    def end() -> None:
        nonlocal over
        over = True
        if ends:
            ends.pop()()

    turn()
    return end


def _swizzle(world: "World", fault: Fault, random: Random) -> End | None:
    """Nodes are cut off one after the other, and come back one after the other in another order."""
    names = sorted(world.machines)
    random.shuffle(names)
    off: dict[str, End] = {}
    over = False

    def cut(name: str) -> None:
        if not over and name not in off:
            off[name] = _cut_off(world, name, (UP, DOWN))

    def back(name: str) -> None:
        if name in off:
            off.pop(name)()

    step = max(1, fault.lasts // (2 * len(names)))
    for number, name in enumerate(names):
        world.timeline.call_in(number * step, cut, name)
    random.shuffle(names)
    for number, name in enumerate(names):
        world.timeline.call_in(fault.lasts // 2 + number * step, back, name)

    def end() -> None:
        nonlocal over
        over = True
        for name in list(off):
            back(name)

    return end


def _hold(world: "World", name: str, value: Any, apply: Callable[[list[Any]], None]) -> End:
    """Faults of one kind may overlap: what holds follows from all that last, and is ordinary again after the last."""
    values = world.lasting.setdefault(name, [])
    values.append(value)
    apply(values)

    def end() -> None:
        values.remove(value)
        apply(values)

    return end


def _network(name: str, unit: int = 1) -> Begin:
    """The worst of what lasts, of a property of the network."""

    def begin(world: "World", fault: Fault, random: Random) -> End | None:
        network = world.network
        kind = type(getattr(network, name))
        return _hold(
            world, name, fault.amount * unit, lambda values: setattr(network, name, kind(max(values, default=0)))
        )

    return begin


def _overtaking(world: "World", fault: Fault, random: Random) -> End | None:
    return _hold(world, "overtaking", True, lambda values: setattr(world.network, "overtaking", bool(values)))


def _disk_full(world: "World", fault: Fault, random: Random) -> End | None:
    return _hold(world, "full", True, lambda values: setattr(world.disk, "full", bool(values)))


def _slow_disk(world: "World", fault: Fault, random: Random) -> End | None:
    delay = int(fault.amount * SECOND)
    return _hold(world, "slow", delay, lambda of: setattr(world.disk, "sync_delay", max(of, default=SYNC_DELAY)))


def _flip_a_bit(world: "World", fault: Fault, random: Random) -> End | None:
    """In the log as it lies there; found when it is read again."""
    world.catch_up()
    if world.disk.damaged or not world.disk.flip_bit(random):
        return None
    world.home.control.process.kill()
    return nothing


def _wall_clock(world: "World", fault: Fault, random: Random) -> End | None:
    world.home.set_clock(random.choice((-1, 1)) * fault.amount)
    return nothing


def _pause_control(world: "World", fault: Fault, random: Random) -> End | None:
    return _pause(world, world.home.control.process, fault)


def _pause_agent(world: "World", fault: Fault, random: Random) -> End | None:
    return _pause(world, world.machines[fault.node].agent, fault)


def _pause(world: "World", process: Process, fault: Fault) -> End | None:
    """It goes on by itself; or at once, when all faults end."""
    if not process.alive:
        return None
    process.pause(fault.lasts)

    def end() -> None:
        if world.timeline.now >= world.scenario.heals:
            process.end_pauses()

    return end


def _hang(world: "World", fault: Fault, random: Random) -> End | None:
    """One task gets on no more, until its user notices."""
    executor = world.machines[fault.node].executor
    running = executor.running()
    if not running:
        return None
    watched = [attempt for attempt in running if executor.copies[attempt][1].launch.hang]
    attempt: Attempt = random.choice(watched or running)
    executor.hang(attempt)

    def end() -> None:
        if attempt in executor.copies and not executor.copies[attempt][1].stopping:
            executor.kill(attempt, "killed", "its user gave up on it")

    return end


def _straggle(world: "World", fault: Fault, random: Random) -> End | None:
    """What begins there takes longer by a factor."""
    executor = world.machines[fault.node].executor
    return _hold(world, f"slow {fault.node}", fault.amount, lambda of: setattr(executor, "slow", max(of, default=1.0)))


def _fail_device(world: "World", fault: Fault, random: Random) -> End | None:
    """Its driver gives it up; a person opens it again when all is over."""
    machine = world.machines[fault.node]
    if not machine.node.devices:
        return None
    device = random.choice(machine.node.devices).index
    return nothing if machine.fail_device(device) else None


def _unplug(world: "World", fault: Fault, random: Random) -> End | None:
    machine = world.machines[fault.node]
    if not machine.node.devices:
        return None
    gone = machine.node.devices[-1]
    machine.change_devices(machine.node.devices[:-1])
    world.judge.offers(machine.node)

    def end() -> None:
        left = [device for device in machine.node.devices if device.index != gone.index]
        machine.change_devices(tuple(sorted((*left, gone), key=lambda device: device.index)))
        world.judge.offers(machine.node)

    return end


def _replug(world: "World", fault: Fault, random: Random) -> End | None:
    """The same index, another device."""
    machine = world.machines[fault.node]
    devices = machine.node.devices
    if not devices:
        return None
    other = msgspec.structs.replace(devices[-1], uuid=f"{devices[-1].uuid}'")
    machine.change_devices((*devices[:-1], other))
    world.judge.offers(machine.node)
    return nothing


def _policy(fault_of_it: str) -> Begin:
    def begin(world: "World", fault: Fault, random: Random) -> End | None:
        def say(values: list[Any]) -> None:
            world.home.policy_fault = values[-1] if values else ""

        return _hold(world, "policy", fault_of_it, say)

    return begin


def _second_control(world: "World", fault: Fault, random: Random) -> End | None:
    """The file of the lock is removed, and another one starts beside the one that lives."""
    if world.home.host is None:
        return None
    world.home.lose_lock()
    return nothing


FAULTS: dict[FaultKind, Begin] = {
    "kill-task": _kill_task,
    "kill-keeper": _kill_keeper,
    "kill-agent": _kill_agent,
    "kill-control": _kill_control,
    "die-at-a-door": _die_at_a_door,
    "control-away": _control_away,
    "power-cut": _power_cut,
    "machine-off": _machine_off,
    "cut": _cut,
    "flap": _flap,
    "swizzle": _swizzle,
    "lose-messages": _network("loss"),
    "double-messages": _network("doubled"),
    "late-messages": _network("late", SECOND),
    "overtaking-messages": _overtaking,
    "disk-full": _disk_full,
    "slow-disk": _slow_disk,
    "flip-a-bit": _flip_a_bit,
    "wall-clock": _wall_clock,
    "pause-control": _pause_control,
    "pause-agent": _pause_agent,
    "out-of-memory": _out_of_memory,
    "hang": _hang,
    "straggle": _straggle,
    "fail-device": _fail_device,
    "unplug": _unplug,
    "replug": _replug,
    "policy-raises": _policy("raise"),
    "policy-loops": _policy("loop"),
    "policy-lies": _policy("lie"),
    "policy-is-slow": _policy("slow"),
    "second-control": _second_control,
}
