"""The dashboard of Dask distributed after so many tasks: a scheduler and two workers on loopback. Runs a task a second
until its input ends.

python dask_dashboard.py FOLDER TASKS
"""

import json
import os
import select
import sys

import distributed  # type: ignore[import-not-found]
from distributed import Client, LocalCluster


def same(value: int) -> int:
    return value


def main() -> None:
    tasks = int(sys.argv[2])
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=os.environ["TMPDIR"],
        ) as cluster,
        Client(cluster) as client,
    ):
        kept = client.map(same, range(tasks), pure=False)
        client.gather(kept)
        # the scheduler, which serves the dashboard as well, is in this process
        mine, version = "dask_dashboard.py", distributed.__version__
        told = {"url": cluster.dashboard_link, "served_by": mine, "version": version}
        print(json.dumps(told), flush=True)
        number = tasks
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            client.submit(same, number, pure=False).result()
            number += 1


if __name__ == "__main__":
    main()
