"""Check whether Poise can run on a Slurm cluster, for `poise doctor --on slurm`, with two status calls."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from poise.drivers.checkup import REMOTE
from poise.errors import Fault
from poise.model.reports.nodes import Check
from poise.units import SECOND, format_duration
from poise_slurm import commands
from poise_slurm.commands import UNLIMITED, Kind
from poise_slurm.settings import Settings
from poise_slurm.shapes import UNCOUNTED

SHARED = REMOTE | {"gpfs", "beegfs", "beegfs_nodev", "panfs", "orangefs", "afs", "wekafs", "fuse.gpfs"}


def checks(settings: Settings, folder: Path) -> Iterator[Check]:
    """Check the controller, each partition, the shared folder, and the allocations of this user."""
    try:
        kinds, jobs = commands.partitions(), commands.queue()
    except Fault as error:
        yield Check("slurmctld", "fail", f"{error}: {error.record.have}", error.record.hint)
        return
    yield Check("slurmctld", "ok", f"answers; {len({kind.partition for kind in kinds})} partitions are up")
    for name in settings.partitions:
        if all(kind.partition != name for kind in kinds):
            known = ",".join(sorted({kind.partition for kind in kinds}))
            yield Check(f"partition {name}", "fail", "is not there, or is not up", f"poise up --on slurm:{known}")
    for kind in kinds:
        if not settings.partitions or kind.partition in settings.partitions:
            yield Check(f"partition {kind.partition}", "ok", _described(kind, settings))
    yield _folder(folder)
    for job in jobs:
        start = f", expected to start in {_duration(job.start - time.time())}" if job.start > time.time() else ""
        waits = f"{job.state.lower()}, {job.reason}{start}"
        yield Check(f"job {job.id}", "ok", f"{job.partition}: {f'{_duration(job.left)} left' if job.left else waits}")


def _described(kind: Kind, settings: Settings) -> str:
    gpus = f", {kind.gpus} GPUs" if kind.gpus else ""
    memory = f"{kind.memory} MiB" if kind.memory > UNCOUNTED else "memory that the site does not count"
    limit = "without limit" if kind.limit >= UNLIMITED else f"for at most {_duration(min(kind.limit, settings.time))}"
    return f"{kind.nodes} nodes of {kind.cpus} CPUs, {memory}{gpus}; {kind.idle} are idle; {limit}"


def _folder(folder: Path) -> Check:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    mounts = [(Path(of.mountpoint), of.fstype) for of in psutil.disk_partitions(all=True)]
    mounts = [(at, kind) for at, kind in mounts if there.resolve().is_relative_to(at)]
    kind = max(mounts, key=lambda mount: len(mount[0].parts))[1] if mounts else "unknown"
    if kind in SHARED:
        return Check("shared folder", "ok", f"{there} is on {kind}")
    return Check(
        "shared folder",
        "warn",
        f"{there} is on {kind}: the nodes must see the same files there",
        "set POISE_HOME to a folder that all nodes see",
    )


def _duration(seconds: float) -> str:
    return format_duration(round(seconds) * SECOND)
