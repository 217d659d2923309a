"""Ray's dashboard after so many tasks: two CPUs on loopback. Runs a task a second until its input ends. Its processes
are those whose command matches `ray[-./]dashboard`.

python ray_dashboard.py FOLDER TASKS
"""

import contextlib
import json
import os
import select
import sys

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DISABLE_IMPORT_WARNING="1", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
import ray


def same(value: int) -> int:
    return value


def main() -> None:
    tasks = int(sys.argv[2])
    with contextlib.redirect_stdout(sys.stderr):
        context = ray.init(
            num_cpus=2,
            include_dashboard=True,
            dashboard_host="127.0.0.1",
            dashboard_port=0,
            logging_level="ERROR",
            _temp_dir=os.environ["TMPDIR"],
            object_store_memory=200 * 2**20,
            _node_ip_address="127.0.0.1",
        )
        task = ray.remote(same)
        ray.get([task.remote(value) for value in range(tasks)])
        job = ray.get_runtime_context().get_job_id()
    url = f"http://{context.dashboard_url}/#/jobs/{job}"
    print(json.dumps({"url": url, "served_by": "ray[-./]dashboard", "version": ray.__version__}), flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        ray.get(task.remote(0))
    ray.shutdown()


if __name__ == "__main__":
    main()
