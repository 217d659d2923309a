"""One turn of the Ray Jobs API: a head of two CPUs on loopback, jobs submitted one by one, polled until all have ended.

python ray_jobs.py FOLDER separate COUNT
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import time
from time import perf_counter

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DISABLE_IMPORT_WARNING="1",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_JOB_START_TIMEOUT_SECONDS="120",
)
import ray
from ray.job_submission import JobStatus, JobSubmissionClient

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.05


def free_port() -> int:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def main() -> None:
    count = int(sys.argv[3])
    port = free_port()
    with contextlib.redirect_stdout(sys.stderr):
        ray.init(
            num_cpus=2,
            include_dashboard=True,
            dashboard_host=LOOPBACK,
            dashboard_port=port,
            logging_level="ERROR",
            _temp_dir=os.environ["TMPDIR"],
            object_store_memory=200 * 2**20,
            _node_ip_address=LOOPBACK,
        )
        try:
            client = JobSubmissionClient(f"http://{LOOPBACK}:{port}")
            finish(client, [client.submit_job(entrypoint="/bin/true")])  # the first one starts what jobs need
            begun = perf_counter()
            jobs = [client.submit_job(entrypoint="/bin/true", entrypoint_num_cpus=1) for _ in range(count)]
            done = finish(client, jobs)
            seconds = perf_counter() - begun
        finally:
            ray.shutdown()
    print(json.dumps({"done": done, "seconds": seconds}))


def finish(client: JobSubmissionClient, jobs: list[str]) -> int:
    """Wait until all have ended; how many have ended well."""
    left, done = list(jobs), 0
    while left:
        status = client.get_job_status(left[0])
        if status.is_terminal():
            done += status == JobStatus.SUCCEEDED
            left.pop(0)
        else:
            time.sleep(POLL_SECONDS)
    return done


main()
