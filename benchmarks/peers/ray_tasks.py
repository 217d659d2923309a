"""One turn of Ray tasks: two CPUs on loopback, calls submitted one by one, all results awaited; then `imap` of its
pool.

python ray_tasks.py CALLS ITEMS
"""

import contextlib
import json
import os
import sys
from time import perf_counter

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DISABLE_IMPORT_WARNING="1", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
import ray
from ray.util.multiprocessing import Pool


def same(value: int) -> int:
    return value


def main() -> None:
    calls, items = int(sys.argv[1]), int(sys.argv[2])
    with contextlib.redirect_stdout(sys.stderr):
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level="ERROR",
            _temp_dir=os.environ["TMPDIR"],
            object_store_memory=200 * 2**20,
            _node_ip_address="127.0.0.1",
        )
        task = ray.remote(same)
        ray.get([task.remote(value) for value in range(100)])
        begun = perf_counter()
        total = sum(ray.get([task.remote(value) for value in range(calls)]))
        singly = perf_counter() - begun
        with Pool(2) as pool:
            pool.map(same, range(100))
            begun = perf_counter()
            mapped = sum(pool.imap(same, range(items), chunksize=1000))
            seconds = perf_counter() - begun
        ray.shutdown()
    if total != calls * (calls - 1) // 2 or mapped != items * (items - 1) // 2:
        raise SystemExit("the results do not add up")
    print(json.dumps({"singly": calls / singly, "imap, 1,000 a message": items / seconds}))


if __name__ == "__main__":
    main()
