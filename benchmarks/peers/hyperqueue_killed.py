"""HyperQueue under kill -9 of its server or of a command: server and one worker in a child, by its Python package.

python hyperqueue_killed.py FOLDER control DELAY | worker

The package cannot turn its journal on, so this is HyperQueue without it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hyperqueue import Client, Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]
from killing import COUNT, again_after_kill, command, done_in_the_end, once

RUN = Path(os.environ["TMPDIR"]).resolve()


def serve() -> None:
    cluster = LocalCluster(str(RUN / "server"))
    cluster.start_worker(WorkerConfig(cores=2))
    print(cluster.cluster.server_dir, flush=True)
    time.sleep(600)


def server() -> "tuple[subprocess.Popen[str], str]":
    """The child, and the folder by which clients find it."""
    child = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True, cwd=RUN)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def job_of(text: str) -> Job:
    job = Job()
    job.program(["/bin/sh", "-c", text], stdout=None, stderr=None)
    return job


def main() -> None:
    child, folder = server()
    client = Client(folder)
    if sys.argv[2] == "worker":
        path = RUN / "noted"
        client.submit(job_of(once(path)))
        answer: dict[str, object] = {"again": again_after_kill(path)}
    else:
        for number in range(COUNT):
            client.submit(job_of(command(RUN, number)))
        time.sleep(float(sys.argv[3]))
        child.kill()
        child.wait()
        child, _ = server()
        answer = {"done": done_in_the_end(RUN)}
    child.kill()
    print(json.dumps(answer))


if sys.argv[1] == "serve":
    serve()
else:
    main()
