"""Compare Poise with HyperQueue on a real Slurm: a campaign of 10,000 mixed tasks in pilots.

    python benchmarks/slurm_hyperqueue.py [--tasks 10000] [--nodes 16] [--rounds 1] [--json]
    python benchmarks/slurm_hyperqueue.py --classes           # the tasks name their class, as `poise submit --class`
    python benchmarks/slurm_hyperqueue.py --others 1000       # 1,000 nodes, with the jobs of other users
    python benchmarks/slurm_hyperqueue.py --faults            # Poise alone; cancels allocations and kills slurmctld

One machine acts as nodes of two CPUs each (Debian's Slurm 22.05, a slurmd for each). A task is a shell that sleeps,
and writes a line before and after. Of ten tasks, seven sleep for 0.05 s, two for 0.5 s and one for 2 s. The makespan is
the time from the first submission until the last line. Both systems may hold `--nodes` nodes, and release idle ones
after 10 s.

Each task has its own command line, so Poise takes each for a class of its own. With `--classes`, the tasks name a class
for each of the three times.

*HyperQueue* has its own server and workers, and a reimplemented allocator (`peers/hyperqueue_slurm.py`). Each of
`QUEUES` first runs a tenth of the campaign. The first one within `ALIKE` times the shortest time then runs all of it: a
tenth is too short to show the cost of allocations of one minute. `--queue 16,1,10` selects one without these trials.
*Poise* chooses its allocations itself.

With `--others NODES`, jobs of another account keep the cluster full. They are drawn by seed from the Philly trace:
eight nodes for each GPU of the trace, a twentieth of the duration, at most ten minutes. Their time limits are one to
four times as long; these factors are invented, since the trace has no limits. Each node is a slurmd, because Debian's
emulator of Slurm does not start: its slurmctld is built for front ends, but its shared library is not.

With `--faults`, every few seconds the benchmark cancels an allocation, requeues an allocation, or kills slurmctld and
starts it again. Allocations last one minute, so they also end by their limit. A task notes its
epoch, and holds a lock while anything of it runs: a second copy that runs at the same time finds the lock held. In
every other ten, the tasks are exclusive.
"""

import argparse
import csv
import gzip
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import peers
from harness import Figure, absent, program, ratio, say
from slurm_campaign import SLEEPS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

IDLE = 10
TURN_SECONDS = 1800.0
TRACE = Path("../shared/data/philly/philly.csv.gz")
STATUS = ("squeue", "sinfo", "scontrol", "sacct")


class Queue(NamedTuple):
    """Options of `hq alloc add slurm`: `backlog`, `max-workers-per-alloc`, `time-limit` in minutes."""

    backlog: int
    workers: int
    minutes: int


def queue_of(text: str) -> Queue:
    backlog, workers, minutes = map(int, text.split(","))
    return Queue(backlog, workers, minutes)


QUEUES = (Queue(1, 1, 10), Queue(4, 1, 10), Queue(16, 1, 10), Queue(16, 1, 1), Queue(4, 4, 10))
ALIKE = 1.1


class Turn(NamedTuple):
    """A campaign: its makespan, the CPU seconds and the number of its allocations, the calls of `sbatch`, the status
    calls per started minute, and the numbers of tasks that never ended, ended more than once, or began more than once;
    and those of which two copies ran at the same time, `exclusive` or not.
    """

    seconds: float
    cpu_seconds: float
    allocations: int
    asked: int
    status: float
    lost: int
    twice: int
    again: int
    together: int
    exclusive_together: int


class Campaign:
    """The tasks of one turn; each records its start and end. With `locked`, each holds a lock while anything of it
    runs, and notes if it finds it held.
    """

    def __init__(self, folder: Path, tasks: int, locked: bool = False) -> None:
        self.folder, self.tasks, self.locked = Path(tempfile.mkdtemp(dir=folder)), tasks, locked
        self.file, *notes = (self.folder / name for name in ("commands", "begun", "ended", "together"))
        self._begun, self._ended, self._together = notes
        for note in notes:
            note.touch()
        lines = (self._line(number, SLEEPS[number % len(SLEEPS)]) for number in range(tasks))
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def _line(self, number: int, seconds: str) -> str:
        if not self.locked:
            return f"echo {number} >> {self._begun}; sleep {seconds} && echo {number} >> {self._ended}"
        note = f'echo {number} "$POISE_EPOCH" >>'
        lock = f"exec 9>> {self.folder}/{number}.lock; flock -n 9 || {note} {self._together}"
        return f"{lock}; {note} {self._begun}; sleep {seconds} && {note} {self._ended}"

    def is_exclusive(self, number: int) -> bool:
        return self.locked and number // len(SLEEPS) % 2 == 1

    def ended(self) -> Counter[str]:
        return _noted(self._ended)

    def begun(self) -> Counter[str]:
        return _noted(self._begun)

    def together(self) -> Counter[str]:
        return _noted(self._together)


def _noted(file: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in file.read_text().splitlines())


def measured(cluster: Any, name: str, campaign: Campaign, run: Callable[[], float]) -> Turn:
    """Run a campaign, wait until its allocations (jobs of this name) have ended, and return the figures."""
    from system.living import until

    before, since = [cluster.calls(command) for command in ("sbatch", *STATUS)], len(cluster.completed(name))
    begun = time.monotonic()
    seconds = run()
    until(lambda: not held(cluster, name), "its allocations have ended", cluster.messages, seconds=TURN_SECONDS)
    minutes = (time.monotonic() - begun) / 60
    asked, *status = (cluster.calls(command) - was for command, was in zip(("sbatch", *STATUS), before, strict=True))
    jobs = cluster.completed(name)[since:]
    ended, together = campaign.ended(), campaign.together()
    turn = Turn(
        seconds=seconds,
        cpu_seconds=sum(map(cpu_seconds, jobs)),
        allocations=len({job["JobId"] for job in jobs}),
        asked=asked,
        status=sum(status) / math.ceil(minutes),
        lost=campaign.tasks - len(ended),
        twice=sum(count > 1 for count in ended.values()),
        again=sum(count > 1 for count in campaign.begun().values()),
        together=len(together),
        exclusive_together=sum(campaign.is_exclusive(int(number)) for number in together),
    )
    say(f"{name}: {turn}")
    return turn


def held(cluster: Any, name: str) -> list[str]:
    return [str(job) for job in cluster.call("squeue", "-h", "-n", name, "-o", "%i").split()]


def cpu_seconds(job: dict[str, str]) -> float:
    begun, ended = (datetime.fromisoformat(job[field]) for field in ("StartTime", "EndTime"))
    return (ended - begun).total_seconds() * int(job["ProcCnt"])


def with_hyperqueue(cluster: Any, queue: Queue, nodes: int, tasks: int) -> Turn:
    campaign = Campaign(cluster.run, tasks)
    numbers = [str(number) for number in (*queue, nodes, IDLE)]
    script = str(peers.SCRIPTS / "hyperqueue_slurm.py")
    command = [peers.python_of(peers.FOLDER.resolve(), peers.PEERS["hyperqueue"]), script, "run", str(campaign.file)]
    options = ["--partition=main", "--exclusive", "--output=/dev/null"]

    def run() -> float:
        done = subprocess.run(
            [*command, *numbers, *options],
            env={**os.environ, **cluster.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
            timeout=TURN_SECONDS,
        )
        seconds: float = json.loads(done.stdout.splitlines()[-1])["seconds"]
        return seconds

    say(f"HyperQueue, {queue}, {tasks} tasks")
    return measured(cluster, "hq", campaign, run)


def with_poise(on: Any, tasks: int, during: AbstractContextManager[None] | None = None, classes: bool = False) -> Turn:
    from system.living import until

    campaign, client = Campaign(on.cluster.run, tasks, locked=during is not None), on.living.client()

    def run() -> float:
        begun = time.monotonic()
        specs = (
            {
                "run": ["/bin/sh", "-c", line],
                "resources": {"cpu": 1},
                "expect": f"{SLEEPS[number % len(SLEEPS)]}s",
                "lease": "exclusive" if campaign.is_exclusive(number) else "fenced",
                **({"class": f"sleep-{SLEEPS[number % len(SLEEPS)]}"} if classes else {}),
            }
            for number, line in enumerate(campaign.file.read_text().splitlines())
        )
        with during or nullcontext():
            for receipt in client.submit_stream(specs):
                if receipt.error is not None:
                    raise RuntimeError(receipt.error.message)
            until(lambda: len(campaign.ended()) == tasks, "all have ended", on.messages, seconds=TURN_SECONDS)
            seconds = time.monotonic() - begun
        until(lambda: not client.status().unfinished, "Poise knows it", on.messages)
        return seconds

    return measured(on.cluster, "poise", campaign, run)


# --- jobs of other users ---------------------------------------------------------------------------------------------

ACCOUNT = "65534"  # nobody
WAITING = 50
NODES_OF_GPU, SHORTER, SHORTEST, LONGEST = 8, 20, 5, 600
FILL_SECONDS = 30.0


def jobs_of_others(nodes: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """Yield the nodes, the seconds and the time limit in minutes of each job."""
    with gzip.open(TRACE, "rt") as file:
        rows = [(int(row["num_gpus"]), float(row["duration"])) for row in csv.DictReader(file)]
    draw = random.Random(seed)
    while True:
        gpus, duration = draw.choice(rows)
        seconds = min(LONGEST, max(SHORTEST, round(duration / SHORTER)))
        yield min(nodes // 2, gpus * NODES_OF_GPU), seconds, -(-round(seconds * draw.uniform(1, 4)) // 60)


@contextmanager
def others(cluster: Any, nodes: int, seed: int) -> Iterator[None]:
    """Keep the cluster full with jobs of another account."""
    from system.living import until

    stop = threading.Event()

    def feed() -> None:
        jobs = jobs_of_others(nodes, seed)
        while not stop.wait(1.0):
            waiting = cluster.call("squeue", "-h", "-n", "others", "-t", "PD", "-o", "%i").split()
            for count, seconds, minutes in itertools.islice(jobs, max(0, WAITING - len(waiting))):
                options = ("--job-name=others", f"--uid={ACCOUNT}", "--chdir=/", "--output=/dev/null", "--exclusive")
                shape = (f"--nodes={count}", f"--time={minutes}", "--wrap", f"exec sleep {seconds}")
                cluster.call("sbatch", *options, *shape)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        time.sleep(FILL_SECONDS)
        yield
        if not feeder.is_alive():
            raise RuntimeError("the jobs of others could not be submitted")
    finally:
        stop.set()
        feeder.join()
        cluster.call("scancel", "--name=others")
        until(lambda: not held(cluster, "others"), "their jobs have ended", cluster.messages, seconds=600)


# --- faults ----------------------------------------------------------------------------------------------------------

BETWEEN, AWAY = 8.0, 10.0


@contextmanager
def faults(cluster: Any, counts: Counter[str]) -> Iterator[None]:
    """Until the block ends, cancel an allocation, requeue one, or kill slurmctld for `AWAY` seconds, in turn."""
    from system.living import until

    stop = threading.Event()

    def cause() -> None:
        for kind in itertools.cycle(("scancel", "requeue", "slurmctld")):
            if stop.wait(BETWEEN):
                return
            with suppress(subprocess.CalledProcessError):  # the allocation has ended by itself
                if running := cluster.call("squeue", "-h", "-n", "poise", "-t", "R", "-o", "%i").split():
                    once(kind, running[0])
                    counts[kind] += 1

    def once(kind: str, job: str) -> None:
        if kind == "scancel":
            cluster.call("scancel", job)
        elif kind == "requeue":
            cluster.call("scontrol", "requeue", job)
            until(lambda: job not in active(), "it is requeued", cluster.messages)
            cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm waits for two minutes
        else:
            cluster.kill("slurmctld")
            time.sleep(AWAY)
            cluster.start_control()
            until(cluster.states, "slurmctld answers", cluster.messages)

    def active() -> list[str]:
        return str(cluster.call("squeue", "-h", "-n", "poise", "-t", "R,CG", "-o", "%i")).split()

    causing = threading.Thread(target=cause)
    causing.start()
    try:
        yield
    finally:
        stop.set()
        causing.join()


# --- the program -----------------------------------------------------------------------------------------------------


@contextmanager
def poise_on(count: int, settings: str) -> Iterator[Any]:
    """Start a Slurm cluster of `count` nodes, and Poise on it."""
    from system.living import Living
    from system.onslurm import OnSlurm
    from system.slurm_cluster import slurm

    with slurm(count) as cluster:
        living = Living()
        try:
            on = OnSlurm(cluster, living)
            on.up(settings)
            yield on
        finally:
            living.destroy()


def measure(tasks: int, nodes: int, rounds: int, busy: int, classes: bool, only: Queue | None) -> list[Figure]:
    pairs: list[tuple[Turn, Turn]] = []
    with poise_on(busy or nodes, f"slurm:main,nodes={nodes},idle={IDLE}") as on:
        for seed in range(rounds):

            def turn(run: Callable[[], Turn], seed: int = seed) -> Turn:
                if not busy:
                    return run()
                with others(on.cluster, busy, seed):
                    return run()

            tried = QUEUES if only is None else ()
            trials = {queue: turn(partial(with_hyperqueue, on.cluster, queue, nodes, tasks // 10)) for queue in tried}
            shortest = min((trial.seconds for trial in trials.values()), default=0.0)
            best = only or next(queue for queue, trial in trials.items() if trial.seconds <= ALIKE * shortest)
            theirs = turn(partial(with_hyperqueue, on.cluster, best, nodes, tasks))
            pairs.append((turn(lambda: with_poise(on, tasks, classes=classes)), theirs))
    ours, hyperqueue = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    where = f"{busy} nodes with jobs of others" if busy else f"{nodes} idle nodes"
    return [
        Figure(name=f"{tasks} mixed tasks, {where}, HyperQueue", unit="s", values=[one.seconds for one in hyperqueue]),
        Figure(name="the same, Poise", unit="s", values=[one.seconds for one in ours]),
        ratio(
            "makespan, Poise / HyperQueue",
            [one.seconds for one in ours],
            [one.seconds for one in hyperqueue],
            limit=0.8,
        ),
        ratio(
            "CPU hours, Poise / HyperQueue",
            [one.cpu_seconds for one in ours],
            [one.cpu_seconds for one in hyperqueue],
            limit=1.0,
        ),
        *counted(ours),
    ]


def counted(turns: list[Turn]) -> list[Figure]:
    return [
        Figure(name="allocations of Poise", unit="", values=[float(one.allocations) for one in turns]),
        Figure(
            name="`sbatch` calls per allocation",
            unit="x",
            values=[one.asked / one.allocations for one in turns],
            limit=1.0,
        ),
        Figure(name="status calls per minute", unit="", values=[one.status for one in turns], limit=2.0),
        Figure(name="tasks lost", unit="", values=[float(one.lost) for one in turns], limit=0.0),
        Figure(name="tasks that ended twice", unit="", values=[float(one.twice) for one in turns], limit=0.0),
        Figure(name="tasks that began again", unit="", values=[float(one.again) for one in turns]),
    ]


def measure_faults(tasks: int, nodes: int) -> list[Figure]:
    counts: Counter[str] = Counter()
    with poise_on(nodes, f"slurm:main,nodes={nodes},idle={IDLE},time=1m,drain=10s") as on:
        turn = with_poise(on, tasks, faults(on.cluster, counts))
        walltime = sum(job["JobState"] == "TIMEOUT" for job in on.cluster.completed("poise"))
    happened = [Figure(name=f"{kind}, times", unit="", values=[float(count)]) for kind, count in counts.items()]
    return [
        *happened,
        Figure(name="ended by the limit", unit="", values=[float(walltime)]),
        *counted([turn]),
        Figure(name="tasks that ran twice at the same time", unit="", values=[float(turn.together)]),
        Figure(name="exclusive ones among them", unit="", values=[float(turn.exclusive_together)], limit=0.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a campaign under Poise and HyperQueue on Slurm")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--queue", type=queue_of, metavar="BACKLOG,WORKERS,MINUTES")
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--others", type=int, default=0, metavar="NODES")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def run() -> list[Figure]:
        from system.slurm_cluster import DEBIAN

        if not (DEBIAN / "usr/sbin/slurmctld-wlm").exists():
            return [absent("a campaign on Slurm", "`make servers` unpacks Slurm")]
        if options.faults:
            return measure_faults(options.tasks, options.nodes)
        return measure(options.tasks, options.nodes, options.rounds, options.others, options.classes, options.queue)

    return program(run, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
