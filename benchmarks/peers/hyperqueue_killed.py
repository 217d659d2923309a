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
from killing import COUNT, again_after_kill, command, done_in_the_end, once, until

RUN = Path(os.environ["TMPDIR"]).resolve()


def serve(told: Path) -> None:
    cluster = LocalCluster(str(RUN / "server"))
    cluster.start_worker(WorkerConfig(cores=2))
    told.write_text(str(cluster.cluster.server_dir))
    time.sleep(600)


def server(number: int) -> "tuple[subprocess.Popen[bytes], str]":
    """The child, and the folder by which clients find it."""
    told = RUN / f"server-{number}"
    with (RUN / "server.out").open("ab") as out:
        child = subprocess.Popen([sys.executable, __file__, "serve", str(told)], stdout=out, stderr=out, cwd=RUN)
    until(lambda: told.exists() and told.read_text(), "the server")
    return child, told.read_text()


def job_of(text: str) -> Job:
    job = Job()
    job.program(["/bin/sh", "-c", text], stdout=None, stderr=None)
    return job


def main() -> None:
    first, folder = server(1)
    client = Client(folder)
    if sys.argv[2] == "worker":
        path = RUN / "noted"
        client.submit(job_of(once(path)))
        print(json.dumps({"again": again_after_kill(path)}))
        return
    for number in range(COUNT):
        client.submit(job_of(command(RUN, number)))
    time.sleep(float(sys.argv[3]))
    first.kill()
    first.wait()
    server(2)
    print(json.dumps({"done": done_in_the_end(RUN)}))


if sys.argv[1] == "serve":
    serve(Path(sys.argv[2]))
else:
    main()
