"""The faults of a simulated fleet: each function starts one kind of fault and returns a function that ends it.

A fault without a target (no task runs, no device exists) returns None and is not counted.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from poise.engine.disk import SYNC_DELAY
from poise.engine.network import DOWN, UP
from poise.engine.scenario import FaultKind, Incident
from poise.engine.timeline import Process
from poise.model.messages import Attempt
from poise.units import MILLISECOND, SECOND

if TYPE_CHECKING:
    from poise.engine.simulation import Simulation

Undo = Callable[[], None]
Begin = Callable[["Simulation", Incident, Random], Undo | None]


def nothing() -> None:
    """Do nothing: this fault needs no undoing."""


def _kill_task(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    return _end_one(simulation, incident, random, "killed")


def _out_of_memory(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    return _end_one(simulation, incident, random, "oom")


def _end_one(simulation: "Simulation", incident: Incident, random: Random, outcome: Any) -> Undo | None:
    executor = simulation.machines[incident.node].executor
    running = executor.running()
    if not running:
        return None
    executor.kill(random.choice(running), outcome)
    return nothing


def _kill_keeper(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    executor = simulation.machines[incident.node].executor
    if not executor.slots:
        return None
    executor.bury(random.choice(sorted(executor.slots)))
    return nothing


def _kill_agent(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    simulation.machines[incident.node].agent.kill()
    return nothing


def _kill_control(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    simulation.home.control.process.kill()
    return nothing


def _die_at_a_door(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    if simulation.home.host is None:
        return None
    simulation.home.control.die_in = random.randint(1, 30)
    return nothing


def _control_away(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    simulation.home.keep_off(True)
    return lambda: simulation.home.keep_off(False)


def _power_cut(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Cut the power of the control plane's machine: unsynced data may be lost, and the machine reboots."""
    simulation.catch_up()
    simulation.home.kill()
    simulation.disk.lose_power(random)
    simulation.home.boot += 1
    return nothing


def _machine_off(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    machine = simulation.machines[incident.node]
    if not machine.on:
        return None
    machine.power_off()
    return machine.power_on


def _cut(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    ways = (UP, DOWN) if incident.way == "both" else (incident.way,)
    return _cut_off(simulation, incident.node, ways)


def _cut_off(simulation: "Simulation", node: str, ways: Sequence[str]) -> Undo:
    for way in ways:
        simulation.network.cut_off(node, way, True)

    def undo() -> None:
        for way in ways:
            simulation.network.cut_off(node, way, False)

    return undo


def _flap(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Cut the connection and restore it repeatedly, each for up to two seconds."""
    over = False
    undos: list[Undo] = []

    def turn() -> None:
        if undos:
            undos.pop()()
        elif not over:
            undos.append(_cut_off(simulation, incident.node, (UP, DOWN)))
        if not over:
            simulation.timeline.call_in(random.randrange(100 * MILLISECOND, 2 * SECOND), turn)

    def undo() -> None:
        nonlocal over
        over = True
        if undos:
            undos.pop()()

    turn()
    return undo


def _swizzle(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Cut nodes off one after the other, and restore them one after the other in another order."""
    names = sorted(simulation.machines)
    random.shuffle(names)
    off: dict[str, Undo] = {}
    over = False

    def cut(name: str) -> None:
        if not over and name not in off:
            off[name] = _cut_off(simulation, name, (UP, DOWN))

    def back(name: str) -> None:
        if name in off:
            off.pop(name)()

    step = max(1, incident.lasts // (2 * len(names)))
    for number, name in enumerate(names):
        simulation.timeline.call_in(number * step, cut, name)
    random.shuffle(names)
    for number, name in enumerate(names):
        simulation.timeline.call_in(incident.lasts // 2 + number * step, back, name)

    def undo() -> None:
        nonlocal over
        over = True
        for name in list(off):
            back(name)

    return undo


def _hold(simulation: "Simulation", name: str, value: Any, apply: Callable[[list[Any]], None]) -> Undo:
    """Apply overlapping faults of one kind: `apply` gets the values of all active ones, and an empty list after the
    last.
    """
    values = simulation.lasting.setdefault(name, [])
    values.append(value)
    apply(values)

    def undo() -> None:
        values.remove(value)
        apply(values)

    return undo


def _network(name: str, unit: int = 1) -> Begin:
    """Return a fault that sets a property of the network to the worst of its active values."""

    def begin(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
        network = simulation.network
        kind = type(getattr(network, name))
        return _hold(
            simulation,
            name,
            incident.amount * unit,
            lambda values: setattr(network, name, kind(max(values, default=0))),
        )

    return begin


def _overtaking(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    return _hold(simulation, "overtaking", True, lambda values: setattr(simulation.network, "overtaking", bool(values)))


def _disk_full(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    return _hold(simulation, "full", True, lambda values: setattr(simulation.disk, "full", bool(values)))


def _slow_disk(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    delay = int(incident.amount * SECOND)
    return _hold(
        simulation, "slow", delay, lambda of: setattr(simulation.disk, "sync_delay", max(of, default=SYNC_DELAY))
    )


def _flip_a_bit(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Flip a bit of a stored record in the log; it is found when the log is read again."""
    simulation.catch_up()
    if simulation.disk.damaged or not simulation.disk.flip_bit(random):
        return None
    simulation.home.control.process.kill()
    return nothing


def _wall_clock(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    simulation.home.set_clock(random.choice((-1, 1)) * incident.amount)
    return nothing


def _pause_control(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    return _pause(simulation, simulation.home.control.process, incident)


def _pause_agent(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    return _pause(simulation, simulation.machines[incident.node].agent, incident)


def _pause(simulation: "Simulation", process: Process, incident: Incident) -> Undo | None:
    """Pause a process for the duration of the incident, or until all faults end."""
    if not process.alive:
        return None
    process.pause(incident.lasts)

    def undo() -> None:
        if simulation.timeline.now >= simulation.scenario.heals:
            process.end_pauses()

    return undo


def _hang(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Hang one task, until its node notices that steps are missing, or its user gives up."""
    executor = simulation.machines[incident.node].executor
    running = executor.running()
    if not running:
        return None
    watched = [attempt for attempt in running if executor.copies[attempt][1].launch.hang]
    attempt: Attempt = random.choice(watched or running)
    executor.hang(attempt)

    def undo() -> None:
        if attempt in executor.copies and not executor.copies[attempt][1].stopping and not executor.watches(attempt):
            executor.kill(attempt, "killed", "its user gave up on it")

    return undo


def _straggle(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Slow down attempts that start on the node by a factor."""
    executor = simulation.machines[incident.node].executor
    return _hold(
        simulation, f"slow {incident.node}", incident.amount, lambda of: setattr(executor, "slow", max(of, default=1.0))
    )


def _fail_device(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Fail a device, as its driver reports; an operator reopens it after all faults have ended."""
    machine = simulation.machines[incident.node]
    if not machine.node.devices:
        return None
    device = random.choice(machine.node.devices).index
    return nothing if machine.fail_device(device) else None


def _unplug(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    machine = simulation.machines[incident.node]
    if not machine.devices:
        return None
    gone = machine.devices[-1]
    machine.change_devices(machine.devices[:-1])

    def undo() -> None:
        left = [device for device in machine.devices if device.index != gone.index]
        machine.change_devices(tuple(sorted((*left, gone), key=lambda device: device.index)))

    return undo


def _replug(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Replace a device with another one of the same index."""
    machine = simulation.machines[incident.node]
    devices = machine.devices
    if not devices:
        return None
    other = msgspec.structs.replace(devices[-1], uuid=f"{devices[-1].uuid}'")
    machine.change_devices((*devices[:-1], other))
    return nothing


def _shrink(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Make the node offer only a fraction of its CPUs, memory and devices, or none of them."""
    machine = simulation.machines[incident.node]
    left = random.choice((0.0, 0.25, 0.5))
    return _hold(simulation, f"room of {incident.node}", left, lambda of: machine.offer(min(of, default=1.0)))


def _policy(fault_of_it: str) -> Begin:
    def begin(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
        def say(values: list[Any]) -> None:
            simulation.home.policy_fault = values[-1] if values else ""

        return _hold(simulation, "policy", fault_of_it, say)

    return begin


def _second_control(simulation: "Simulation", incident: Incident, random: Random) -> Undo | None:
    """Remove the lock's file, and start another control plane beside the living one."""
    if simulation.home.host is None:
        return None
    simulation.home.lose_lock()
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
    "shrink": _shrink,
    "policy-raises": _policy("raise"),
    "policy-loops": _policy("loop"),
    "policy-lies": _policy("lie"),
    "policy-is-slow": _policy("slow"),
    "second-control": _second_control,
}
