"""What a long queue costs the control plane: its ledger by itself, without a process or a disk.

    python benchmarks/long_queue.py [--jobs 100000] [--json]

Jobs that may not run are submitted, all of one kind as in a stream; then what a restart does with them, and what takes
the loop of the control plane while they wait: the longest turn decides how soon anything else is answered. All times
are of this process's CPU.
"""

import argparse
import gc
import resource
import sys
from collections.abc import Callable, Sequence
from time import thread_time

import harness
from harness import NO_OP, Figure, say

from poise.control.api import CANCELLED_AT_ONCE
from poise.kernel.controller import (
    Append,
    CancelJobs,
    Checkpoint,
    Controller,
    Decide,
    Decided,
    Durable,
    Effect,
    FromNode,
    Settings,
    Submit,
)
from poise.kernel.ledger import Ledger
from poise.model.events import Event, decode_event, encode_event
from poise.model.messages import Hello
from poise.model.resources import Node
from poise.model.spec import compile_spec
from poise.policy.suites import policy_named
from poise.units import MILLISECOND, SECOND

NODE = Node(name="n1", incarnation="1", cpu=2_000, memory=2**36)


class Long:
    """A controller with a long queue; `records` is its log, `turns` how long each of its turns has taken."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.controller = Controller(ledger or Ledger(), Settings(policy="poise", checkpoint_every=20_000))
        self.policy = policy_named("poise")
        self.now = self.controller.ledger.now + SECOND
        self.records: list[bytes] = []
        self.state: tuple[int, bytes] = (0, b"")
        self.turns: list[float] = []
        self.saving = 0.0
        self.perform(self.controller.begin(self.now, boot="b", boottime=1, wall=1.0))

    def turn(self, *messages: object) -> None:
        """As the host does it: all messages, then time; an inline policy answers in the same turn."""
        self.now += MILLISECOND
        begun, self.saving = thread_time(), 0.0
        effects: list[Effect] = []
        for message in messages:
            effects.extend(self.controller.handle(message, self.now))  # type: ignore[arg-type]
        effects.extend(self.controller.tick(self.now))
        self.perform(effects)
        self.turns.append(thread_time() - begun - self.saving)

    def perform(self, effects: Sequence[Effect]) -> None:
        is_due = False
        for effect in effects:
            if isinstance(effect, Append):
                self.write(effect.events)
                self.perform(self.controller.handle(Durable(self.controller.ledger.revision), self.now))
            elif isinstance(effect, Checkpoint):
                is_due = True
            elif isinstance(effect, Decide):
                plan = self.policy.decide(effect.view)
                self.perform(self.controller.handle(Decided(plan, effect.view), self.now))
        if is_due:  # encoded beside the loop, so that it is no part of a turn
            begun = thread_time()
            self.state = self.controller.ledger.revision, self.controller.ledger.encode()
            self.saving += thread_time() - begun

    def write(self, events: Sequence[Event]) -> None:
        self.records += map(encode_event, events)


def submit(jobs: int, at_once: int = 64) -> Long:
    """Two run, the others wait."""
    long = Long()
    long.turn(FromNode("n1", Hello(node=NODE)))
    compiled = compile_spec(NO_OP, wall=1.0)
    for first in range(0, jobs, at_once):
        long.turn(*(Submit(first + number, compiled) for number in range(min(at_once, jobs - first))))
    return long


def timed(act: Callable[[], object]) -> float:
    gc.collect()
    begun = thread_time()
    act()
    return thread_time() - begun


def reload(long: Long) -> Ledger:
    revision, state = long.state
    ledger = Ledger.decode(state) if state else Ledger()
    for record in long.records[revision:]:
        ledger.apply(decode_event(record))
    return ledger


def cancel(long: Long, at_once: int = CANCELLED_AT_ONCE) -> None:
    jobs = [job.id for job in long.controller.ledger.jobs.values()]
    for first in range(0, len(jobs), at_once):
        long.turn(CancelJobs(first, tuple(jobs[first : first + at_once])))


def measure(jobs: int) -> list[Figure]:
    begun = thread_time()
    long = submit(jobs)
    submitted = thread_time() - begun
    longest = max(long.turns) * 1e3
    loaded: list[Ledger] = []
    restart = timed(lambda: loaded.append(reload(long)))
    ledger = loaded.pop()
    encode = timed(ledger.encode)
    decode = timed(lambda: Ledger.decode(ledger.encode())) - encode
    size = len(ledger.encode()) / 2**20
    say(f"state of {size:.1f} MiB, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    long.turns.clear()
    cancelled = timed(lambda: cancel(long))
    name = f"{jobs:,} jobs wait: "
    return [
        Figure(name=name + "submitted, a job", unit="ms", values=[1e3 * submitted / jobs]),
        Figure(name=name + "longest turn meanwhile", unit="ms", values=[longest]),
        Figure(name=name + "loaded from the log", unit="s", values=[restart]),
        Figure(name=name + "state encoded", unit="s", values=[encode]),
        Figure(name=name + "state decoded", unit="s", values=[decode]),
        Figure(name=name + "all cancelled", unit="s", values=[cancelled]),
        Figure(name=name + "longest turn meanwhile", unit="ms", values=[max(long.turns) * 1e3]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="what a long queue costs the control plane")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measure(options.jobs), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
