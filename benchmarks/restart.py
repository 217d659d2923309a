"""Measure the time until a control plane is ready again with a long log.

    python benchmarks/restart.py [--events 100000] [--repeats 5] [--json]

The log is made by the real controller and the real store; only the node is a fake, which reports every command as ended
when it is told to launch it. One log has the usual ledger checkpoints of the control plane, the other has none. Each
control plane is killed with SIGKILL, and the next is timed from the start of its process to its first answer.
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Callable

import harness
import uvloop
from harness import Figure, say

from poise import __version__
from poise.config import Home
from poise.control.decider import InlineDecider
from poise.control.plane import Plane
from poise.drivers.sqlite import SqliteStore
from poise.drivers.system import SystemClock, boot_id
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Message, Submit
from poise.model.events import Event, decode_event, encode_event
from poise.model.jobs import Ending
from poise.model.messages import Desired, Ended, Hello, Report, ToNode
from poise.model.resources import Node
from poise.model.spec import Compiled, compile_spec
from poise.policy.suites import policy_named

TARGET_SECONDS = 3.0
POLICY = "poise"
EVENTS_PER_JOB = 3
IN_FLIGHT = 2000
NODE = Node(name="made-up", incarnation="1", cpu=64_000, memory=2**36)
STATES = ("with checkpoints", "without a checkpoint")


class WithoutCheckpoints(SqliteStore[Event]):
    """The same store without ledger checkpoints."""

    def checkpoint(self, revision: int, state: bytes) -> None:
        """Discard the checkpoint."""


class MadeUpNode:
    """The channel of a fake node on which every command takes a millisecond of virtual time, and no real time."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._serial = 0

    def join(self) -> None:
        self._plane.connect(NODE, self._plane.accepted(), self)
        self._plane.hear(NODE.name, self, Hello(node=NODE))

    def send(self, message: ToNode) -> None:
        if isinstance(message, Desired) and message.launches:
            self._serial += 1
            ending = Ending(outcome="done", run=1_000_000, cpu=1_000_000)
            ended = tuple(Ended(attempt=launch.attempt, ending=ending) for launch in message.launches)
            self._plane.hear(NODE.name, self, Report(serial=self._serial, ended=ended))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


async def make_log(home: Home, events: int, kind: type[SqliteStore[Event]]) -> None:
    """Submit and run jobs until the log has `events` events."""
    loop = asyncio.get_running_loop()
    home.root.mkdir(parents=True)
    store = kind(home.log, encode_event, decode_event, call_soon=loop.call_soon_threadsafe, written_by=__version__)
    clock = SystemClock()
    controller = Controller(Ledger(), Settings(policy=POLICY, version=__version__))
    plane = Plane(controller, store, clock, InlineDecider(policy_named(POLICY)))
    plane.begin(boot=boot_id(), boottime=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    MadeUpNode(plane).join()
    compiled = compile_spec(harness.NO_OP, wall=clock.wall())
    while plane.ledger.revision < events:
        left = (events - plane.ledger.revision - EVENTS_PER_JOB * plane.ledger.jobs.unfinished()) // EVENTS_PER_JOB
        wanted = min(IN_FLIGHT - plane.ledger.jobs.unfinished(), max(1, left))
        await asyncio.gather(*(plane.request(_submission(compiled)) for _ in range(wanted)))
        await asyncio.sleep(0.001)
    while plane.ledger.jobs.unfinished():
        await plane.settled()
        await asyncio.sleep(0.001)
    await plane.settled()
    store.close()


def _submission(compiled: Compiled) -> Callable[[int], Message]:
    return lambda request: Submit(request, compiled)


def measure(events: int, repeats: int) -> list[Figure]:
    seconds: dict[str, list[float]] = {state: [] for state in (*STATES, "empty")}
    with harness.own_home() as parent:
        homes = {state: Home(parent.root / state.replace(" ", "-")) for state in seconds}
        tails = {}
        for state, kind in zip(STATES, (SqliteStore[Event], WithoutCheckpoints), strict=True):
            uvloop.run(make_log(homes[state], events, kind))
            tails[state] = _tail(homes[state])
            say(f"made the log {state}: {tails[state]}")
        for number in range(repeats):
            shutil.rmtree(homes["empty"].root, ignore_errors=True)
            homes["empty"].root.mkdir()
            for state, home in homes.items():
                with harness.control_plane(home) as ready_after:
                    seconds[state].append(ready_after)
            say(f"round {number + 1}: " + ", ".join(f"{state} {each[-1]:.2f} s" for state, each in seconds.items()))
    figures = [Figure(name="no events, ready", unit="s", values=seconds["empty"])]
    for state in STATES:
        name = f"{events:,} events {state}, ready"
        figures.append(Figure(name=name, unit="s", values=seconds[state], limit=TARGET_SECONDS, note=tails[state]))
    return figures


def _tail(home: Home) -> str:
    reader = SqliteStore.open_read_only(home.log, decode_event)
    try:
        last, checkpoint = reader.last_revision(), reader.latest_checkpoint()
        return f"{last - (checkpoint.revision if checkpoint else 0):,} of {last:,} events to apply"
    finally:
        reader.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="how soon a control plane is ready again when its log is long")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.events, options.repeats), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
