"""A substrate in one file: `poise up --on processes:3` makes three machines of this one, with one CPU and 1 GiB each.

A pilot is a process of its own, in a folder of its own. `touch HOME/processes/process-1/leave` drains its machine, as
an administrator of a cluster would.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from poise.drivers.devices import Part
from poise.drivers.lock import holder, take_lock
from poise.drivers.piloting import AgentKeeper, dismiss
from poise.errors import InputError
from poise.ports import Contact, Machine, Pilot

CPU, MEMORY = 1000, 2**30
STOP_SECONDS = 15.0
ORDERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


# --- what `--on` finds ------------------------------------------------------------------------------------------------


def check(argument: str) -> None:
    if not argument.isdecimal() or not 1 <= int(argument) <= 64:
        have, hint = f"processes:{argument}", "`poise up --on processes:3`"
        raise InputError("needs a number of machines", field="--on", need="1 to 64", have=have, hint=hint)


def is_local(argument: str) -> bool:
    return True


def connect(argument: str, home: str, folder: str) -> "Processes":
    return Processes(int(argument), Path(folder))


# --- the port ---------------------------------------------------------------------------------------------------------


class Processes:
    """So many machines. A pilot holds the lock of its folder; nobody else is here, so nothing waits."""

    def __init__(self, count: int, folder: Path) -> None:
        self._names = [f"process-{number}" for number in range(1, count + 1)]
        self._folder = folder
        self._starting: dict[str, subprocess.Popen[bytes]] = {}

    def address(self) -> str:
        return "127.0.0.1"

    def machines(self) -> Sequence[Machine]:
        held = {pilot.machine for pilot in self.pilots()}
        size = {"cpu": CPU / 1000}
        return [
            Machine(name, name, size, {} if name in held else size, leaving=(self._folder / name / "leave").exists())
            for name in self._names
        ]

    def pilots(self) -> Sequence[Pilot]:
        known = {path.parent.name for path in self._folder.glob("*/pilot")} | self._starting.keys()
        return [Pilot(name, name) for name in sorted(known) if self._process(name)]

    def waiting(self) -> Sequence[Mapping[str, float]]:
        return []

    def start(self, machine: Machine, node: str, contact: Contact) -> None:
        root = self._folder / node
        root.mkdir(mode=0o700, exist_ok=True)
        self._write(node, contact)
        with (root / "poise.log").open("ab") as messages:
            self._starting[node] = subprocess.Popen(  # noqa: S603 — this file
                [sys.executable, __file__, str(root)],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )

    def has_begun(self, pilot: Pilot) -> bool:
        return bool(holder(self._folder / pilot.node / "pilot"))

    def tell(self, pilot: Pilot, contact: Contact) -> None:
        self._write(pilot.node, contact)
        self._signal(pilot, signal.SIGHUP)

    def restart(self, pilot: Pilot) -> None:
        self._signal(pilot, signal.SIGUSR1)

    def answering(self, pilots: Sequence[Pilot]) -> Sequence[Pilot]:
        return [pilot for pilot in pilots if self._process(pilot.node)]

    def release(self, pilots: Sequence[Pilot]) -> Sequence[Pilot]:
        for pilot in pilots:
            self._signal(pilot, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self.answering(pilots) and time.monotonic() < until:
            time.sleep(0.05)
        left = self.answering(pilots)
        return [pilot for pilot in pilots if pilot not in left]

    def remove(self, pilot: Pilot) -> None:
        self._signal(pilot, signal.SIGKILL)

    def sweep(self, machines: Sequence[Machine]) -> bool:
        left = [machine for machine in machines if not dismiss(self._folder / machine.name, machine.name)]
        return not left

    def stop(self) -> None:
        """Nothing was started but pilots."""

    def _write(self, node: str, contact: Contact) -> None:
        (self._folder / node / "contact.json").write_bytes(msgspec.json.encode(contact))

    def _process(self, node: str) -> int:
        """The process of a pilot, 0 if there is none. It takes its lock some time after it was started."""
        starting = self._starting.get(node)
        alive = starting is not None and starting.poll() is None
        return holder(self._folder / node / "pilot") or (starting.pid if alive and starting is not None else 0)

    def _signal(self, pilot: Pilot, number: signal.Signals) -> None:
        if process := self._process(pilot.node):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process, number)


# --- the pilot --------------------------------------------------------------------------------------------------------


def main(root: Path) -> None:
    """Keep an agent alive until SIGTERM comes while nothing runs."""
    orders: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in ORDERS:
        signal.signal(number, lambda number, _: orders.put(number))
    with take_lock(root / "pilot", "pilot"):
        agent = AgentKeeper(root, root.name, Part(cpu=CPU, memory=MEMORY), _contact(root))
        while True:
            match orders.get():
                case signal.SIGHUP:
                    agent.tell(_contact(root))
                case signal.SIGUSR1:
                    agent.begin_anew()
                case _ if agent.end():
                    return


def _contact(root: Path) -> Contact:
    return msgspec.json.decode((root / "contact.json").read_bytes(), type=Contact)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
