"""A real Slurm on this machine: Debian's munged, slurmctld, and several slurmd that pretend to be a node each.

It keeps no accounts (`sacct` is off) and forgets ended jobs after seconds, as the strictest sites do. Its commands are
scripts in `bin`, which count how often each was called.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.living import free_port, until

DEBIAN = Path(sys.prefix) / "debian"
LIBRARIES = DEBIAN / "usr/lib/x86_64-linux-gnu"
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun", "sacct")
CPUS, MEMORY = 2, 1024
"""CPUs and MiB of each node, whatever this machine has."""

START_SECONDS = 600.0
"""Time for 1,000 nodes to start on a busy machine."""

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={run}/munge/socket
CryptoType=crypto/munge
CommunicationParameters=NoInAddrAny
SlurmctldPort={port}
PluginDir={libraries}/slurm-wlm
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool-%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={run}/completed
MinJobAge=2
KillWait=5
JobRequeue=1
ReturnToService=2
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=120 State=UP
PartitionName=short Nodes=n1 MaxTime=2 State=UP
"""


class SlurmCluster:
    """Munged, slurmctld and a slurmd for each node `n1`, `n2`, …, all on loopback."""

    def __init__(self, nodes: int) -> None:
        self.run = Path(tempfile.mkdtemp(prefix="poise-slurm-"))
        self.bin = self.run / "bin"
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{LIBRARIES}:{LIBRARIES / 'slurm-wlm'}",
            "SLURM_CONF": str(self.run / "slurm.conf"),
        }
        self._write()

    @property
    def variables(self) -> dict[str, str]:
        """With these a program finds the commands of this cluster."""
        return {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def start(self) -> None:
        files = [f"--{name}-file={self.run}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={self.run}/munge/socket", *files)
        until((self.run / "munge" / "socket").exists, "munged listens", self.messages)
        self.start_control()
        for name in self.names:
            self._start("slurmd", "-D", "-N", name, "-d", str(DEBIAN / "usr/sbin/slurmstepd-wlm"), called=name)
        idle = dict.fromkeys(self.names, "idle")
        until(lambda: self.states() == idle, "all nodes are idle", self.messages, seconds=START_SECONDS)

    def start_control(self) -> None:
        """Slurmctld, which goes on from the state that it saved."""
        self._start("slurmctld", "-D")

    def kill(self, daemon: str) -> None:
        """Slurmctld once it has saved what it knows now: it would forget jobs that have just begun."""
        state, now = self.run / "state" / "job_state", time.time()
        if daemon == "slurmctld":
            for job in self.jobs():
                self.call("scontrol", "update", f"JobId={job}", "Nice=1")  # it saves what has changed
            until(lambda: state.exists() and state.stat().st_mtime > now, "its state is saved", self.messages)
        self.daemons[daemon].kill()
        self.daemons[daemon].wait()

    def call(self, command: str, *arguments: str) -> str:
        """The output of one of Slurm's commands; it does not count as a call of the program under test."""
        done = subprocess.run(
            [str(DEBIAN / "usr/bin" / command), *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    def cancel(self) -> None:
        """All jobs, if there are any: `scancel` fails without one."""
        if jobs := self.jobs():
            self.call("scancel", *jobs)

    def states(self) -> dict[str, str]:
        try:
            lines = self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").split("\n")
        except subprocess.CalledProcessError:
            return {}
        return dict(line.split()[:2] for line in lines if line)

    def jobs(self) -> dict[str, str]:
        """The states of all jobs that have not ended, by id."""
        lines = self.call("squeue", "-h", "-o", "%i %T").split("\n")
        return dict(line.split()[:2] for line in lines if line)

    def completed(self, name: str) -> list[dict[str, str]]:
        """Return the fields of all ended jobs of this name, with an entry for each run of a requeued job."""
        file = self.run / "completed"
        lines = file.read_text().splitlines() if file.exists() else []
        jobs = [dict(field.partition("=")[::2] for field in line.split()) for line in lines]
        return [job for job in jobs if job["Name"] == name]

    def calls(self, command: str) -> int:
        """How often a command was called by its script."""
        file = self.run / f"{command}.calls"
        return len(file.read_bytes()) if file.exists() else 0

    def messages(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.run.glob("*.log")))

    def close(self) -> None:
        for daemon in reversed(self.daemons.values()):
            with contextlib.suppress(ProcessLookupError):
                daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.run, ignore_errors=True)

    def _write(self) -> None:
        for name in ("munge", "state", "bin"):
            (self.run / name).mkdir(mode=0o700)
        self.run.chmod(0o755)
        (self.run / "munge").chmod(0o755)
        key = self.run / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        host = socket.gethostname()
        ports = dict.fromkeys((free_port(),))  # distinct: of 1,000 that are drawn alone, some are drawn twice
        while len(ports) <= len(self.names):
            ports[free_port()] = None
        own, *others = ports
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory={MEMORY}"
            for name, port in zip(self.names, others, strict=True)
        ]
        conf = CONF.format(
            host=host,
            user=pwd.getpwuid(os.getuid()).pw_name,
            run=self.run,
            libraries=LIBRARIES,
            port=own,
            nodes="\n".join(nodes),
        )
        (self.run / "slurm.conf").write_text(conf)
        set_up = "\n".join(f"export {name}='{self._environment[name]}'" for name in ("LD_LIBRARY_PATH", "SLURM_CONF"))
        for command in COMMANDS:
            script = self.bin / command
            count = f"printf x >> {self.run}/{command}.calls"
            script.write_text(f'#!/bin/sh\n{count}\n{set_up}\nexec {DEBIAN}/usr/bin/{command} "$@"\n')
            script.chmod(0o755)

    def _start(self, program: str, *arguments: str, called: str = "") -> None:
        found = next(path for end in ("", "-wlm") if (path := DEBIAN / "usr/sbin" / f"{program}{end}").exists())
        name = called or program
        with (self.run / f"{name}.out.log").open("ab") as messages:
            self.daemons[name] = subprocess.Popen(
                [str(found), *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
            )


@contextlib.contextmanager
def slurm(nodes: int = 3) -> Iterator[SlurmCluster]:
    """A cluster whose nodes are idle; all of it ends with the block. Skips where Debian's packages are missing."""
    if not (DEBIAN / "usr/sbin/slurmctld-wlm").exists() or not (DEBIAN / "usr/sbin/munged").exists():
        pytest.skip("needs Slurm: `make servers` unpacks Debian's slurmctld, slurmd, slurm-client and munge")
    cluster = SlurmCluster(nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
