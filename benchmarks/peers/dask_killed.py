"""Dask distributed under kill -9 of its scheduler or of a worker: both on loopback, in processes of their own.

python dask_killed.py FOLDER control DELAY | worker
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from distributed import Client  # type: ignore[import-not-found]
from killing import COUNT, again_after_kill, command, done_in_the_end

RUN = Path(os.environ["TMPDIR"]).resolve()
CLI = "distributed.cli.dask_"


def start(name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (RUN / f"{name}.out").open("ab") as out:
        program = [sys.executable, "-m", CLI + name, *arguments, "--no-dashboard"]
        return subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def scheduler(port: int) -> "subprocess.Popen[bytes]":
    return start("scheduler", "--host", "127.0.0.1", "--port", str(port))


def workers(port: int, count: int) -> None:
    options = ("--nthreads", str(2 // count), "--local-directory", str(RUN))
    for _ in range(count):
        start("worker", f"tcp://127.0.0.1:{port}", *options)


def shell(text: str) -> None:
    subprocess.run(["/bin/sh", "-c", text], check=True)


def note_and_stay(path: str) -> None:
    """In the worker's own process, since that is who is killed."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)


def main() -> None:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    mode = sys.argv[2]
    first = scheduler(port)
    workers(port, 1 if mode == "control" else 2)
    client = Client(f"tcp://127.0.0.1:{port}", timeout=60)
    client.wait_for_workers(1 if mode == "control" else 2, timeout=60)
    if mode == "worker":
        path = RUN / "noted"
        kept = client.submit(note_and_stay, str(path), pure=False)
        print(json.dumps({"again": again_after_kill(path)}))
        kept.cancel()
        return
    kept = [client.submit(shell, command(RUN, number), pure=False) for number in range(COUNT)]
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) < COUNT:
        time.sleep(0.01)
    time.sleep(float(sys.argv[3]))
    first.kill()
    first.wait()
    scheduler(port)
    workers(port, 1)
    print(json.dumps({"done": done_in_the_end(RUN)}))
    del kept  # what nobody wants any more, Dask forgets


main()
