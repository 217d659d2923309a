"""Run HyperQueue on Slurm: its server, its workers in allocations, and a reimplemented automatic allocator.

    python hyperqueue_slurm.py run CAMPAIGN BACKLOG WORKERS MINUTES NODES IDLE [OPTION OF SBATCH ...]
    python hyperqueue_slurm.py worker SERVER IDLE

The server and the workers are HyperQueue's own, from its Python package. The package lacks the program `hq` and the
allocator, so three parts are reimplemented:

* The allocator, after `crates/hyperqueue/src/server/autoalloc` of version 0.27. It checks every `TICK` seconds. It acts
  after a submission, after a worker has connected or ended, or `LATEST` seconds after the last action. Then it submits
  the allocations that are missing for the unfinished tasks, with at most BACKLOG in the queue of Slurm, WORKERS in
  each, and NODES workers in total. HyperQueue solves a linear program for the number of useful workers. For tasks of
  one CPU each, this is the number of tasks divided by the CPUs of a worker. * The connection of a worker: it starts its
  own server, which stays unused, and reads the address of the real one. * The idle timeout: a worker ends after IDLE
  seconds without a child.

CAMPAIGN is a file with one command for `/bin/sh` in each line. Each command appends a line to the file `ended` beside
it.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hyperqueue import Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]

TICK, LATEST = 5.0, 30.0
LOOK_SECONDS = 0.1
ACCESS = "hq-current/access.json"


class Allocator:
    """The allocations of one queue."""

    def __init__(self, folder: Path, backlog: int, workers: int, minutes: int, nodes: int, idle: int) -> None:
        self._folder, self._idle = folder, idle
        self._backlog, self._workers, self._minutes, self._nodes = backlog, workers, minutes, nodes
        self._asked: dict[str, int] = {}  # workers of each allocation
        self._cpus = 0  # CPUs of a worker; 0 until one has connected

    def workers(self) -> "dict[str, list[bool]]":
        """Return the workers that have connected, by allocation, and whether each is alive."""
        found: dict[str, list[bool]] = {}
        for path in self._folder.glob("worker-*-*"):
            with path.open() as file:
                self._cpus = self._cpus or int(file.read() or 0)
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    alive = False
                except OSError:
                    alive = True
            found.setdefault(path.name.split("-")[1], []).append(alive)
        return found

    def submit(self, left: int, options: "list[str]") -> None:
        """Submit the allocations that are missing for `left` tasks."""
        known = self.workers()
        queued = [count for job, count in self._asked.items() if job not in known]
        active = sum(queued) + sum(sum(workers) for workers in known.values())
        room = self._nodes - active
        useful = min(self._backlog * self._workers, -(-left // max(1, self._cpus)))
        missing = useful - sum(queued)
        for _ in range(self._backlog - len(queued)):
            count = min(self._workers, missing, room)
            if count <= 0:
                return
            self._asked[self._sbatch(count, options)] = count
            missing, room = missing - count, room - count

    def _sbatch(self, count: int, options: "list[str]") -> str:
        worker = f"{sys.executable} {__file__} worker {self._folder} {self._idle}"
        srun = f"srun --overlap --nodes={count} --ntasks={count} " if count > 1 else ""
        command = ["sbatch", "--parsable", "--job-name=hq", f"--nodes={count}", f"--time={self._minutes}", *options]
        script = f"#!/bin/sh\nexec {srun}{worker}\n"
        return subprocess.run(command, input=script, text=True, capture_output=True, check=True).stdout.strip()

    def end(self) -> None:
        """Cancel the allocations that have not started. The others end when their workers are idle."""
        known = self.workers()
        if waiting := [job for job in self._asked if job not in known]:
            subprocess.run(["scancel", *waiting], check=True)


def run(campaign: Path, backlog: int, workers: int, minutes: int, nodes: int, idle: int, options: "list[str]") -> None:
    lines, ended = campaign.read_text().splitlines(), campaign.with_name("ended")
    folder = Path(tempfile.mkdtemp(prefix="server-", dir=campaign.parent))
    cluster = LocalCluster(str(folder))
    try:
        client, allocator = cluster.client(), Allocator(folder, backlog, workers, minutes, nodes, idle)
        job = Job()
        begun = time.monotonic()
        for line in lines:
            job.program(["/bin/sh", "-c", line], stdout=None, stderr=None)
        client.submit(job)
        known: dict[str, list[bool]] | None = None
        tick = acted = 0.0
        while (left := len(lines) - count(ended)) > 0:
            now = time.monotonic()
            if now - tick >= TICK:
                tick = now
                if (seen := allocator.workers()) != known or now - acted >= LATEST:
                    known, acted = seen, now
                    allocator.submit(left, options)
            time.sleep(LOOK_SECONDS)
        seconds = time.monotonic() - begun
        allocator.end()
        while any(any(alive) for alive in allocator.workers().values()):
            time.sleep(LOOK_SECONDS)
    finally:
        cluster.stop()
    print(json.dumps({"seconds": seconds}))


def count(ended: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return ended.read_bytes().count(b"\n")
    return 0


def worker(server: Path, idle: float) -> None:
    cpus = int(os.environ["SLURM_CPUS_ON_NODE"])
    own = Path(tempfile.mkdtemp(prefix="worker-"))
    cluster = LocalCluster(str(own))
    (own / ACCESS).write_bytes((server / ACCESS).read_bytes())
    cluster.start_worker(WorkerConfig(cores=cpus))
    with (server / f"worker-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_PROCID']}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(cpus))
        file.flush()
        last = time.monotonic()
        while time.monotonic() - last < idle:
            if any(path.read_text() for path in Path("/proc/self/task").glob("*/children")):
                last = time.monotonic()
            time.sleep(LOOK_SECONDS)
        os._exit(0)


if sys.argv[1] == "worker":
    worker(Path(sys.argv[2]), float(sys.argv[3]))
else:
    numbers = [int(word) for word in sys.argv[3:8]]
    run(Path(sys.argv[2]), numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], sys.argv[8:])
