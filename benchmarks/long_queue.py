"""Measure the cost of a long queue for the control plane: its ledger alone, without a process or a disk.

    python benchmarks/long_queue.py [--jobs 100000] [--live | --churn [--tasks 100]] [--json]

Jobs that cannot run are submitted, all of one kind as in a stream. The benchmark then measures a restart with them, and
the turns of the control plane's loop while they wait: the longest turn limits its response time. All times are CPU of
this process. With `--live`, a whole Poise is used instead, and times are those of a client: the latency of `whoami`
during the stream and with the queue, the time until the control plane leads again after `kill -9`, and the time to
cancel all jobs. With `--churn`, the jobs run and end: the figures are the memory of the control plane with a full
history, and the latency of `whoami` during 35 submissions a second; `--tasks` sets the number of tasks per job of the
stream. Both use a separate client process.
"""

import argparse
import contextlib
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import thread_time

import harness
import psutil
from harness import NO_OP, Figure, say

from poise.client import Client
from poise.config import Home
from poise.control.api.jobs import CANCELLED_AT_ONCE
from poise.drivers.lock import holder
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Append, CancelJobs, Checkpoint, Decide, Decided, Durable, Effect, FromNode, Submit
from poise.model.events import Event, decode_event, encode_event
from poise.model.messages import Hello
from poise.model.resources import Node
from poise.model.spec import compile_spec
from poise.policy.suites import policy_named
from poise.units import MILLISECOND, SECOND

NODE = Node(name="n1", incarnation="1", cpu=2_000, memory=2**36)


class Long:
    """A controller with a long queue; `records` is its log, `turns` the duration of each of its turns."""

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
        """Run a turn like the host: all messages, then time; an inline policy answers in the same turn."""
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
        if is_due:  # encoded off the loop, so it is not part of a turn
            begun = thread_time()
            self.state = self.controller.ledger.revision, self.controller.ledger.encode()
            self.saving += thread_time() - begun

    def write(self, events: Sequence[Event]) -> None:
        self.records += map(encode_event, events)


def submit(jobs: int, at_once: int = 64) -> Long:
    """Submit the jobs: two run, the others wait."""
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


SLEEP = {"run": ["sleep", "3600"], "resources": {"cpu": 1}}
CHURN_EACH, CHURN_SECONDS, CHURN_RATE = 1_000, 60, 35


def measure_live(jobs: int) -> list[Figure]:
    with harness.own_fleet() as fleet:
        with asking(fleet.home) as beside_the_stream:
            begun = time.perf_counter()
            receipts = list(fleet.client.submit_stream(SLEEP for _ in range(jobs)))
            submitted = time.perf_counter() - begun
        if refused := [receipt.error.message for receipt in receipts if receipt.error is not None]:
            raise RuntimeError(refused[0])
        with asking(fleet.home) as beside_the_queue:
            time.sleep(10)
        memory = resident(fleet)
        killed = holder(fleet.home.lock)
        os.kill(killed, signal.SIGKILL)
        begun = time.perf_counter()
        while (pid := holder(fleet.home.lock)) in (0, killed) or not harness.ready(fleet.home, pid):
            time.sleep(0.02)
        restart = time.perf_counter() - begun
        restart_cpu = sum(psutil.Process(pid).cpu_times()[:2])
        with asking(fleet.home) as beside_cancelling:
            begun = time.perf_counter()
            fleet.client.cancel_all()
            cancelled = time.perf_counter() - begun
        begun = time.perf_counter()
        poise = str(Path(sys.executable).parent / "poise")
        subprocess.run([poise, "down", "--cancel"], env=harness.environ_of(fleet.home), check=True)
        down = time.perf_counter() - begun
    name = f"{jobs:,} jobs wait, live: "
    return [
        Figure(name=name + "submitted", unit="s", values=[submitted]),
        *whoami(name, "beside the stream", beside_the_stream),
        *whoami(name, "beside the queue", beside_the_queue, limit=50),
        Figure(name=name + "resident", unit="MB", values=[memory]),
        Figure(name=name + "leads again after kill -9", unit="s", values=[restart], limit=3),
        Figure(name=name + "CPU of that", unit="s", values=[restart_cpu]),
        Figure(name=name + "all cancelled", unit="s", values=[cancelled], limit=2),
        *whoami(name, "beside cancelling", beside_cancelling, limit=50),
        Figure(name=name + "down --cancel after that", unit="s", values=[down]),
    ]


def measure_churn(jobs: int, tasks: int) -> list[Figure]:
    """Run `jobs` tasks as streams of `CHURN_EACH` tasks, then submit one by one at `CHURN_RATE`."""
    at_once = max(1, CHURN_EACH // tasks)
    work = NO_OP if tasks == 1 else {**NO_OP, "parts": tasks}
    with harness.own_fleet() as fleet:
        sizes = [resident(fleet)]
        for done in range(0, jobs, at_once):
            begun, count = time.perf_counter(), min(at_once, jobs - done)
            fleet.submit(count, work)
            fleet.until_idle(count, begun)
            sizes.append(resident(fleet))
            if len(sizes) % 5 == 1:
                say(f"{done + count:,} jobs have run: {sizes[-1]:.0f} MB")
        with asking(fleet.home) as beside:
            begun = time.perf_counter()
            for number in range(CHURN_SECONDS * CHURN_RATE):
                time.sleep(max(0.0, begun + number / CHURN_RATE - time.perf_counter()))
                fleet.client.submit(NO_OP)
        after = resident(fleet)
    name = f"{jobs:,} jobs have run, live: " if tasks == 1 else f"{jobs:,} jobs of {tasks} tasks have run, live: "
    return [
        Figure(name="resident before", unit="MB", values=sizes[:1]),
        Figure(name=name + "resident, at most", unit="MB", values=[max(sizes)], limit=120),
        *whoami(name, f"beside {CHURN_RATE} submissions a second", beside, limit=20),
        Figure(name=name + f"resident after {CHURN_SECONDS} s of them", unit="MB", values=[after], limit=120),
    ]


def resident(fleet: harness.Fleet) -> float:
    """Return the resident megabytes of the control plane."""
    return float(fleet.processes()["control plane"][0].memory_info().rss / 1e6)


def whoami(name: str, beside: str, took: Sequence[float], limit: float | None = None) -> list[Figure]:
    """Return the figures of `whoami`; `took` and the `limit` of P99 are in milliseconds."""
    return [
        Figure(
            name=f"{name}whoami {beside}, {text}",
            unit="ms",
            values=[harness.percentile(took, percent)],
            limit=limit if percent == 99 else None,
        )
        for text, percent in (("P50", 50), ("P99", 99), ("longest", 100))
    ]


@contextlib.contextmanager
def asking(home: Home) -> Iterator[list[float]]:
    """Call `whoami` from a separate process within the context; yields the list of its latencies in milliseconds."""
    took: list[float] = []
    command = [sys.executable, __file__, "--ask", str(home.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asker:
        if asker.stdout is None or not asker.stdout.readline():
            raise RuntimeError("nobody asks")
        try:
            yield took
        finally:
            told, _ = asker.communicate()
            took += map(float, told.split())


def ask(root: Path) -> int:
    """Call `whoami` until the input ends; then print the latency of each call."""
    took: list[float] = []
    with Client(Home(root)) as client:
        client.whoami()
        print("begins", flush=True)
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            begun = time.perf_counter()
            client.whoami()
            took.append(1e3 * (time.perf_counter() - begun))
    print(*took)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="what a long queue costs the control plane")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--live", action="store_true", help="a whole Poise, with the times of a client")
    parser.add_argument("--churn", action="store_true", help="the same, with jobs that run and end")
    parser.add_argument("--tasks", type=int, default=1, help="tasks of each job, with --churn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        return ask(options.ask)
    if options.churn:
        return harness.program(lambda: measure_churn(options.jobs, options.tasks), as_json=options.json)
    measured = measure_live if options.live else measure
    return harness.program(lambda: measured(options.jobs), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
