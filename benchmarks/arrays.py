"""Measure an array of very many tasks: submission, memory, tasks per second, and the start with its log.

    python benchmarks/arrays.py [--tasks 100000] [--repeats 3] [--json]

The control plane that gets the array is a process of its own. The array is run by the real controller, the real store
and the real policy; only the node is a fake, which reports every command as ended when it is told to launch it. The
start is timed with the log of an array of which half is done.
"""

import argparse
import asyncio
import sys
import time

import harness
import msgspec
import psutil
import uvloop
from harness import Figure, say
from restart import MadeUpNode

from poise import __version__
from poise.client import Client
from poise.config import Home
from poise.control.decider import InlineDecider
from poise.control.plane import Plane
from poise.drivers.lock import holder
from poise.drivers.sqlite import SqliteStore
from poise.drivers.system import SystemClock, boot_id
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Submit
from poise.model.events import Event, decode_event, encode_event
from poise.model.messages import Desired, ToNode
from poise.model.spec import compile_spec
from poise.policy.suites import policy_named

SUBMIT_SECONDS, START_SECONDS = 2.0, 3.0
POLICY = "poise"
MOST_AS_UNITS = 10_000
"""Parts of the largest job whose parts all exist from its submission on."""


class UntilSomeAreDone(MadeUpNode):
    """A fake node that ends so many commands, and no more."""

    def __init__(self, plane: Plane, count: int) -> None:
        super().__init__(plane)
        self._left = count

    def send(self, message: ToNode) -> None:
        if isinstance(message, Desired) and message.launches:
            message = msgspec.structs.replace(message, launches=message.launches[: self._left])
            self._left -= len(message.launches)
        super().send(message)


def array(tasks: int) -> dict[str, object]:
    return {"run": ["/bin/true", "{n}"], "sweep": {"n": f"1..{tasks}"}}


def submitted(home: Home, tasks: int) -> tuple[float, float]:
    """Return the seconds until an array is acknowledged, and by how many bytes its control plane grows."""
    with harness.control_plane(home):
        control = psutil.Process(holder(home.lock) or 0)
        client = Client(home)
        client.status()
        before, began = control.memory_info().rss, time.monotonic()
        client.submit(array(tasks))
        seconds = time.monotonic() - began
        client.jobs()
        return seconds, control.memory_info().rss - before


async def run(home: Home, tasks: int, until: int) -> float:
    """Run an array until so many tasks are done; return the seconds from its submission."""
    loop = asyncio.get_running_loop()
    home.root.mkdir(parents=True)
    store = SqliteStore[Event](
        home.log, encode_event, decode_event, call_soon=loop.call_soon_threadsafe, written_by=__version__
    )
    clock = SystemClock()
    controller = Controller(Ledger(), Settings(policy=POLICY, version=__version__))
    plane = Plane(controller, store, clock, InlineDecider(policy_named(POLICY)))
    plane.begin(boot=boot_id(), boottime=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    UntilSomeAreDone(plane, until).join()
    compiled = compile_spec(array(tasks), wall=clock.wall())
    began = time.monotonic()
    job = str(await plane.request(lambda request: Submit(request, compiled)))
    while plane.ledger.jobs[job].unit_counts().get("done", 0) < until:
        await plane.settled()
        await asyncio.sleep(0.01)
    seconds, revision = time.monotonic() - began, 0
    while plane.ledger.revision > revision:  # the last rounds
        revision = plane.ledger.revision
        await asyncio.sleep(0.3)
        await plane.settled()
    store.close()
    return seconds


def measure(tasks: int, repeats: int) -> list[Figure]:
    submits, grown, before, rates, starts = [], [], [], [], []
    with harness.own_home() as parent:
        for number in range(repeats):
            homes = [Home(parent.root / f"{name}-{number}") for name in ("submitted", "as-units", "run", "half")]
            for home in homes[:2]:
                home.root.mkdir(parents=True)
            seconds, bytes_ = submitted(homes[0], tasks)
            submits.append(seconds)
            grown.append(bytes_ / 1e6)
            before.append(submitted(homes[1], MOST_AS_UNITS)[1] / 1e6)
            rates.append(tasks / uvloop.run(run(homes[2], tasks, tasks)))
            uvloop.run(run(homes[3], tasks, tasks // 2))
            with harness.control_plane(homes[3]) as ready_after:
                starts.append(ready_after)
            say(f"round {number + 1}: {submits[-1]:.2f} s, {grown[-1]:.1f} MB, {rates[-1]:.0f}/s, {starts[-1]:.2f} s")
    of = f"an array of {tasks:,} tasks"
    return [
        Figure(name=f"{of}: acknowledged", unit="s", values=submits, limit=SUBMIT_SECONDS),
        Figure(name=f"{of}: growth of the control plane", unit="MB", values=grown),
        Figure(name=f"{MOST_AS_UNITS:,} tasks that all exist: growth of the control plane", unit="MB", values=before),
        Figure(name=f"{of}: tasks done, without real commands", unit="/s", values=rates, larger=True),
        Figure(name=f"{of}, half done: control plane ready", unit="s", values=starts, limit=START_SECONDS),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="an array of very many tasks")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.tasks, options.repeats), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
