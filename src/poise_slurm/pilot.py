"""`python -m poise_slurm.pilot FOLDER`: the pilot on one node of an allocation.

It reports its host, waits for orders, and keeps an agent alive accordingly. Nothing of it outlives the allocation: when
Slurm ends the allocation, the pilot also ends the commands of its node, since commands outside a cgroup would keep
running beside the machine's next user. The agent reports how each of them ended: none that ended well is repeated, and
none begins elsewhere before it has ended here. At its start the pilot ends what an earlier one left on the machine
because it was killed.
"""

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from poise.drivers.devices import Part
from poise.drivers.lock import is_held, take_lock
from poise.drivers.piloting import AgentKeeper, retire
from poise.errors import Denied
from poise.model.resources import ALLOCATED
from poise_slurm.allocations import Allocation, Asked, Orders, State
from poise_slurm.shapes import MIB, PILOT_MEMORY

LOOK_SECONDS = 0.5
ALONE_SECONDS = 600.0
"""A pilot without orders for this long ends: there is no control plane with work for it."""

LEAVE_SECONDS = 15.0
"""Time for the commands of an ending allocation to stop and be reported: half of Slurm's usual `KillWait`."""

EARLY_SECONDS = 5.0
"""Slurm's clock for an allocation starts before its pilot does."""

HIDDEN = ("SLURM", "SBATCH_", "SRUN_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PMI")
"""Variables of the allocation that commands must not see."""


def devices_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that Slurm has allocated, by the driver's numbers or names for this process.
    `CUDA_VISIBLE_DEVICES` comes first: where a cgroup hides the other devices, Slurm's numbers differ from the
    driver's.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if name in environ:
            found: list[str] = []
            for part in environ[name].split(","):
                first, dash, last = part.partition("-")
                if dash and first.isdigit() and last.isdigit():
                    found += map(str, range(int(first), int(last) + 1))
                elif part and part != "NoDevFiles":
                    found.append(part)
            return tuple(found)
    return ()


def memory_in(environ: Mapping[str, str], cpus: int) -> int:
    """Return the MiB that Slurm has allocated on this node; 0 if it does not count memory."""
    if each := environ.get("SLURM_MEM_PER_CPU"):
        return int(each) * cpus
    return int(environ.get("SLURM_MEM_PER_NODE", "0"))


class Pilot:
    """The pilot of rank `rank` in the run `run` of an allocation."""

    def __init__(self, allocation: Allocation, environ: Mapping[str, str], asked: Asked) -> None:
        self._allocation, self._drain = allocation, asked.drain
        self._rank, self._run = int(environ.get("SLURM_PROCID", "0")), int(environ.get("SLURM_RESTART_COUNT", "0"))
        cpus = int(environ.get("SLURM_CPUS_ON_NODE", "1"))
        ends = environ.get("SLURM_JOB_END_TIME", "")
        self._state = State(
            host=environ.get("SLURMD_NODENAME") or socket.gethostname(),
            job=environ.get("SLURM_JOB_ID", ""),
            cpus=cpus,
            memory=memory_in(environ, cpus),
            devices=devices_in(environ),
            until=float(ends) if ends else time.time() + asked.shape.minutes * 60 - EARLY_SECONDS,
        )
        self.root = own_folder() / f"{allocation.tag[:12]}-{self._rank}-{self._run}"
        self._agent: AgentKeeper | None = None
        self._followed: Orders | None = None

    def run(self, signals: "queue.SimpleQueue[int]") -> None:
        """Run until the orders or Slurm end the pilot."""
        self._share_checkpoints()
        self._say()
        alone_since = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                match signals.get(timeout=LOOK_SECONDS):
                    case signal.SIGUSR1:
                        self._state = msgspec.structs.replace(self._state, warned=True)
                        self._say()
                    case _:
                        break
            orders = self._allocation.orders(self._rank, self._run)
            if orders is None:
                if self._allocation.asked() is None or time.monotonic() - alone_since > ALONE_SECONDS:
                    break
                continue
            alone_since = time.monotonic()
            if orders != self._followed and self._follow(orders):
                break
        self._end()

    def _follow(self, orders: Orders) -> bool:
        """Follow new orders; return whether the pilot must end."""
        before, self._followed = self._followed, orders
        if orders.leave:
            return True
        if self._agent is None or before is None:
            self._agent = AgentKeeper(self.root, orders.node, self._part(orders), orders.contact, HIDDEN)
        else:
            if before.until != orders.until:
                self._agent.offer(self._part(orders))
            if before.contact != orders.contact:
                self._agent.tell(orders.contact)
            if orders.restarts > before.restarts:
                self._agent.begin_anew()
        if orders.released > self._state.kept:
            if self._agent.end():
                return True
            self._state = msgspec.structs.replace(self._state, kept=orders.released)
        self._state = msgspec.structs.replace(self._state, begun=True, answers=orders.asks, until=orders.until)
        self._say()
        return False

    def _part(self, orders: Orders) -> Part:
        state = self._state
        memory = max(MIB, (state.memory - PILOT_MEMORY) * MIB) if state.memory else sys.maxsize
        labels, until = {ALLOCATED: state.job}, orders.until - self._drain
        return Part(cpu=state.cpus * 1000, memory=memory, devices=state.devices, labels=labels, until=until)

    def _end(self) -> None:
        """End the work of the node; then report the end, and remove what is left."""
        if self._agent is not None:
            self._agent.leave("its allocation has ended", LEAVE_SECONDS)
        self._state = msgspec.structs.replace(self._state, ended=True)
        self._say()
        _remove(self.root)

    def _share_checkpoints(self) -> None:
        """Link checkpoints to the shared folder: the node's folder is deleted with the allocation."""
        shared = self._allocation.folder.parents[2] / "checkpoints"
        shared.mkdir(mode=0o700, exist_ok=True)
        if not (self.root / "checkpoints").exists():
            (self.root / "checkpoints").symlink_to(shared)

    def _say(self) -> None:
        with contextlib.suppress(OSError):  # the folder is gone, and so is its reader
            self._allocation.say(self._rank, self._run, self._state)


def own_folder() -> Path:
    """Return this user's folder on this machine; raises `Denied` if it belongs to somebody else."""
    folder = Path(tempfile.gettempdir()) / f"poise-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise Denied(
            "the folder belongs to somebody else", field=str(folder), hint="set TMPDIR to a folder of your own"
        )
    return folder


@contextlib.contextmanager
def alone_in(root: Path) -> Iterator[None]:
    """Hold the lock of a pilot's folder; first end what dead pilots have left beside it."""
    with contextlib.ExitStack() as held:
        with take_lock(root.parent / "lock", "pilot that begins"):  # no folder is visible before its lock is held
            held.enter_context(take_lock(root / "pilot", "pilot"))
            folders = [path for path in root.parent.iterdir() if path.is_dir() and path != root]
            left = [path for path in folders if not is_held(path / "pilot")]
        for path in left:
            _remove(path)
        yield


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        retire(folder)
    shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path) -> None:
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.put(number))
    os.umask(0o077)
    allocation = Allocation(folder)
    asked = allocation.asked()
    if asked is None:  # unknown: submitted by a process that was killed, and forgotten since
        return
    pilot = Pilot(allocation, os.environ, asked)
    with alone_in(pilot.root):
        pilot.run(signals)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
