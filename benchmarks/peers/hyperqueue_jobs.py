"""One turn of HyperQueue: server and one worker with two cores in this process, as its Python package offers.

    python hyperqueue_jobs.py FOLDER separate|one-job COUNT

Its `wait_for_jobs` looks once a second. So the clock stops when a last command of lowest priority, which needs both
cores, writes to a pipe; that all others have ended well is checked after that.
"""

import json
import os
import sys
from pathlib import Path
from time import perf_counter

from hyperqueue import Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]
from hyperqueue.ffi.protocol import ResourceRequest  # type: ignore[import-not-found]

WARM = 20


def job_of(commands: int) -> Job:
    job = Job()
    for _ in range(commands):
        job.program(["/bin/true"], stdout=None, stderr=None)
    return job


def last_job(pipe: Path) -> Job:
    job = Job()
    command = ["/bin/sh", "-c", f"echo > {pipe}"]
    job.program(command, stdout=None, stderr=None, priority=-1, resources=ResourceRequest(cpus=2))
    return job


def main() -> None:
    mode, count = sys.argv[2], int(sys.argv[3])
    pipe = Path.cwd() / "pipe"
    os.mkfifo(pipe)
    cluster = LocalCluster()
    try:
        cluster.start_worker(WorkerConfig(cores=2))
        client = cluster.client()
        client.wait_for_jobs([client.submit(job_of(WARM))])
        begun = perf_counter()
        if mode == "one-job":
            submitted = [client.submit(job_of(count))]
        else:
            submitted = [client.submit(job_of(1)) for _ in range(count)]
        submitted.append(client.submit(last_job(pipe)))
        pipe.read_bytes()
        seconds = perf_counter() - begun
        client.wait_for_jobs(submitted)  # raises if a task has failed
    finally:
        cluster.stop()
    print(json.dumps({"done": count, "seconds": seconds}))


main()
