"""Ray under kill -9 of its head (the process that knows the jobs) or of a worker, on loopback.

python ray_killed.py FOLDER control DELAY | worker
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DISABLE_IMPORT_WARNING="1",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_JOB_START_TIMEOUT_SECONDS="120",
)
import ray
from killing import COUNT, again_after_kill, command, done_in_the_end, until
from ray.job_submission import JobSubmissionClient

RUN = Path(os.environ["TMPDIR"]).resolve()
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def head(port: int, dashboard: int) -> "subprocess.Popen[bytes]":
    options = ["--head", "--block", f"--node-ip-address={LOOPBACK}", f"--port={port}", "--num-cpus=2"]
    options += [f"--dashboard-host={LOOPBACK}", f"--dashboard-port={dashboard}", f"--temp-dir={RUN}"]
    options += ["--object-store-memory=200000000"]
    with (RUN / "head.out").open("ab") as out:
        program = [str(Path(sys.executable).with_name("ray")), "start", *options]
        return subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def client(dashboard: int) -> JobSubmissionClient:
    found: list[JobSubmissionClient] = []

    def answers() -> bool:
        with contextlib.suppress(Exception):
            found.append(JobSubmissionClient(f"http://{LOOPBACK}:{dashboard}"))
            found[-1].list_jobs()
            return True
        return False

    until(answers, "the head")
    return found[-1]


def servers() -> list[int]:
    """The head's own server: the one that has our folder among its arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
            if arguments[0].endswith(b"gcs_server") and any(os.fsencode(RUN) in each for each in arguments):
                found.append(int(entry.name))
    return found


def control(delay: float) -> int:
    ports = free_port(), free_port()
    first = head(*ports)
    submitter = client(ports[1])
    for number in range(COUNT):
        submitter.submit_job(entrypoint=command(RUN, number), entrypoint_num_cpus=1)
    time.sleep(delay)
    for pid in servers():
        os.kill(pid, signal.SIGKILL)
    first.wait()  # with its head gone, the node ends by itself
    head(*ports)
    client(ports[1])
    return done_in_the_end(RUN)


def worker() -> float | None:
    path = RUN / "noted"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        _temp_dir=str(RUN),
        object_store_memory=200 * 2**20,
        _node_ip_address=LOOPBACK,
    )

    @ray.remote  # type: ignore[untyped-decorator]
    def note_and_stay() -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)

    kept = note_and_stay.remote()
    seconds = again_after_kill(path)
    del kept
    ray.shutdown()
    return seconds


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        answer = {"again": worker()} if sys.argv[2] == "worker" else {"done": control(float(sys.argv[3]))}
    print(json.dumps(answer))


main()
