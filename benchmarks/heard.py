"""Run an ordinary control plane that records its nodes' messages, the times of their arrival, and its conclusions.

    python benchmarks/heard.py NOTES HOME [options of the control plane …]

Messages are recorded where the controller receives them, with the instant by which it measures silence.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import harness
import msgspec

from poise.client import Client
from poise.config import Home
from poise.control.start import ensure_up
from poise.drivers.lock import holder
from poise.drivers.system import boottime
from poise.model.fleetfile import DeclaredFleet
from poise.model.messages import Beat, FromAgent
from poise.model.resources import DECLARED, Node
from poise.units import SECOND

GIB = 2**30
UP_SECONDS = 60.0

Kind = Literal["word", "suspected", "lost", "late"]


class Note(msgspec.Struct, frozen=True, array_like=True):
    """One record. `at` is on the boot clock. For a message: its kind; the next one is due within `every`. `late`: the
    nanoseconds by which the loop woke after its alarm.
    """

    at: int
    kind: Kind
    node: str = ""
    every: int = SECOND
    late: int = 0
    frame: bytes = b""


def main() -> int:
    """Run in place of `python -m poise.control`."""
    from poise.control import __main__ as control
    from poise.engine.host import Host
    from poise.kernel.controller import Controller
    from poise.kernel.messages import FromNode
    from poise.model.events import Event, NodeLost, NodeSuspected

    notes, sys.argv = Path(sys.argv[1]), [sys.argv[0], *sys.argv[2:]]
    encode, shift = msgspec.msgpack.Encoder().encode, [0]
    handle, commit, turn = Controller.handle, Controller._commit, Host._turn
    with notes.open("wb", buffering=2**20) as file:

        def note(one: Note) -> None:
            packed = encode(one)
            file.write(len(packed).to_bytes(4, "big") + packed)

        def handled(self: Controller, message: Any, now: int) -> Any:
            if isinstance(message, FromNode):
                said: FromAgent = message.message
                every = said.every if isinstance(said, Beat) else SECOND
                note(Note(now + shift[0], "word", message.node, every, frame=encode((0, said))))
            return handle(self, message, now)

        def committed(self: Controller, event: Event) -> None:
            if isinstance(event, NodeSuspected | NodeLost):
                kind: Kind = "suspected" if isinstance(event, NodeSuspected) else "lost"
                note(Note(event.at + shift[0], kind, event.name))
            commit(self, event)

        def turned(self: Host) -> None:
            now = self.clock.now()
            shift[0] = boottime() - now
            if self._due is not None and now > self._due:
                note(Note(now + shift[0], "late", late=now - self._due))
            turn(self)

        Controller.handle, Controller._commit, Host._turn = handled, committed, turned  # type: ignore[method-assign]
        return control.main()


def read(notes: Path) -> list[Note]:
    """Return all records of a control plane that has ended."""
    data, found, place = notes.read_bytes(), [], 0
    decode = msgspec.msgpack.Decoder(Note).decode
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        found.append(decode(data[place + 4 : place + 4 + size]))
        place += 4 + size
    return found


class Heard:
    """A declared fleet of small nodes on this machine, whose control plane records messages."""

    def __init__(self, home: Home, client: Client, control: "subprocess.Popen[bytes]", names: Sequence[str]) -> None:
        self.home = home
        self.client = client
        self.control = control
        self.names = names

    def end(self) -> list[Note]:
        """Stop all jobs, whose commands would outlive their fleet, and this control plane; return its records."""
        self.end_jobs()
        self.control.terminate()
        self.control.wait(harness.STOP_SECONDS)
        return read(notes_of(self.home))

    def end_jobs(self) -> None:
        for job in self.client.jobs():
            if job.exit_code is None:
                self.client.cancel(job.id)
        until(lambda: not self.client.status().unfinished, "all jobs have ended")

    def agents(self) -> list[int]:
        """Return the processes of the nodes' agents."""
        return [holder(self.home.nodes / name / "lock") for name in self.names]


@contextlib.contextmanager
def fleet(nodes: int, *options: str) -> Iterator[Heard]:
    """Run such a fleet."""
    with harness.own_home() as home:
        home.root.mkdir(parents=True)
        names = [f"n{number:03}" for number in range(nodes)]
        declared = DeclaredFleet(
            name="heard",
            nodes=tuple(
                Node(name=name, incarnation="", cpu=2000, memory=4 * GIB, labels=DECLARED.copy()) for name in names
            ),
        )
        home.fleet.write_bytes(msgspec.json.encode(declared))
        with (home.root / "heard.log").open("ab") as messages:
            process = subprocess.Popen(
                [sys.executable, __file__, str(notes_of(home)), str(home.root), "--port", "0", *options],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
            )
        try:
            until(lambda: harness.ready(home, process.pid), "the control plane answers")
            with contextlib.closing(ensure_up(home)) as client:
                until(lambda: sum(node.status == "up" for node in client.nodes()) == nodes, "all nodes are up")
                heard = Heard(home, client, process, names)
                try:
                    yield heard
                finally:
                    if process.poll() is None:
                        heard.end_jobs()
        finally:
            process.kill()
            process.wait()


def notes_of(home: Home) -> Path:
    return home.root.parent / "notes"


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + UP_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {UP_SECONDS:.0f} s: {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    raise SystemExit(main())
