"""One turn of Slurm: our own munged, slurmctld and slurmd on loopback, one node of two CPUs, one `sbatch` per command.

python slurm_jobs.py FOLDER separate COUNT
"""

import contextlib
import json
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

LIBRARIES = "usr/lib/x86_64-linux-gnu"
START_SECONDS = 30.0
CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={run}/munge/socket
CryptoType=crypto/munge
CommunicationParameters=NoInAddrAny
SlurmctldPort={port}
SlurmdPort={node_port}
PluginDir={root}/{libraries}/slurm-wlm
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,default_queue_depth=1000,bf_interval=30
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=300
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=bench Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    def __init__(self, root: Path, run: Path) -> None:
        self.root, self.run = root, run
        self.env = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{root / LIBRARIES}:{root / LIBRARIES / 'slurm-wlm'}",
            "SLURM_CONF": str(run / "slurm.conf"),
        }

    def program(self, name: str) -> str:
        """Debian calls the daemons of Slurm `…-wlm`."""
        places = [self.root / "usr" / folder / f"{name}{end}" for folder in ("bin", "sbin") for end in ("", "-wlm")]
        found = next((str(place) for place in places if place.exists()), None)
        if found is None:
            raise SystemExit(f"{name} is not in {self.root}")
        return found

    def call(self, name: str, *arguments: str) -> str:
        command = [self.program(name), *arguments]
        return subprocess.run(command, env=self.env, check=True, capture_output=True, text=True, timeout=60).stdout

    def start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.run / f"{name}.out").open("wb") as out:
            return subprocess.Popen(
                [self.program(name), *arguments], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )


@contextlib.contextmanager
def running(cluster: Cluster) -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
    """Its daemons by name, while they run."""
    run = cluster.run
    for name in ("munge", "state", "spool"):
        (run / name).mkdir(mode=0o700)
    (run / "munge").chmod(0o755)
    key = run / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(128))
    ports = [free_port(), free_port()]
    values = {"host": socket.gethostname(), "user": pwd.getpwuid(os.getuid()).pw_name, "run": run, "root": cluster.root}
    conf = CONF.format(**values, libraries=LIBRARIES, port=ports[0], node_port=ports[1])
    (run / "slurm.conf").write_text(conf)
    files = [f"--{name}-file={run}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons: dict[str, subprocess.Popen[bytes]] = {}
    try:
        daemons["munged"] = cluster.start("munged", "--foreground", "--force", f"--socket={run}/munge/socket", *files)
        until(lambda: (run / "munge" / "socket").exists(), "munged")
        daemons["slurmctld"] = cluster.start("slurmctld", "-D", "-c")
        daemons["slurmd"] = cluster.start("slurmd", "-D", "-d", cluster.program("slurmstepd"))
        until(lambda: "idle" in cluster.call("sinfo", "-h", "-o", "%T"), "the node")
        yield daemons
    finally:
        for daemon in reversed(daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()


def until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.CalledProcessError):
            if ready():
                return
        time.sleep(0.1)
    raise SystemExit(f"{what} does not come up")


def free_port() -> int:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> None:
    count = int(sys.argv[3])
    run = Path(os.environ["TMPDIR"]).resolve()
    script = run / "true.sh"
    script.write_text("#!/bin/true\n")
    cluster = Cluster(Path(sys.argv[1]).resolve(), run)
    with running(cluster):
        submit(cluster, script, 1)
        begun = perf_counter()
        submitted = submit(cluster, script, count)
        seconds = perf_counter() - begun
        done = sum("JobState=COMPLETED" in cluster.call("scontrol", "show", "job", job) for job in submitted)
    print(json.dumps({"done": done, "seconds": seconds}))


def submit(cluster: Cluster, script: Path, count: int) -> list[str]:
    """Submit one by one, and wait until none is left."""
    options = ("--parsable", "--output=/dev/null", "--ntasks=1", f"--chdir={cluster.run}")
    jobs = [cluster.call("sbatch", *options, str(script)).strip() for _ in range(count)]
    while cluster.call("squeue", "-h").strip():
        time.sleep(0.05)
    return jobs


if __name__ == "__main__":
    main()
