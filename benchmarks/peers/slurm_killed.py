"""Slurm under kill -9 of slurmctld or of a command: munged, slurmctld and slurmd of our own, one node of two CPUs.

python slurm_killed.py FOLDER control DELAY | worker
"""

import json
import os
import sys
import time
from pathlib import Path

from killing import COUNT, again_after_kill, command, done_in_the_end, once
from slurm_jobs import Cluster, running


def script(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    return str(path)


def main() -> None:
    run = Path(os.environ["TMPDIR"]).resolve()
    cluster = Cluster(Path(sys.argv[1]).resolve(), run)
    options = ("--parsable", "--output=/dev/null", "--ntasks=1", "--requeue", f"--chdir={run}")
    answer: dict[str, object]
    with running(cluster) as daemons:
        if sys.argv[2] == "worker":
            path = run / "noted"
            cluster.call("sbatch", *options, script(run, "once", once(path)))
            answer = {"again": again_after_kill(path)}
        else:
            for number in range(COUNT):
                cluster.call("sbatch", *options, script(run, f"command-{number}", command(run, number)))
            time.sleep(float(sys.argv[3]))
            daemons["slurmctld"].kill()
            daemons["slurmctld"].wait()
            daemons["slurmctld"] = cluster.start("slurmctld", "-D")
            answer = {"done": done_in_the_end(run)}
    print(json.dumps(answer))


main()
