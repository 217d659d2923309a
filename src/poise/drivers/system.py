"""The machine itself: its clock, its identity, and whether memory can be limited by cgroups here.

Reading is kept apart from understanding: functions that end in `_of` take text that a kernel wrote and are tested on
recorded text.
"""

import contextlib
import gc
import os
import subprocess
import time
from pathlib import Path
from typing import Literal

import msgspec

from poise.units import Instant

_CGROUPS = Path("/sys/fs/cgroup")


class SystemClock:
    """A clock that continues from an instant of the log, goes on while the machine sleeps, and never steps back."""

    def __init__(self, start: Instant = Instant(0)) -> None:  # noqa: B008 — a constant
        self._offset = start - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def now(self) -> Instant:
        return Instant(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._offset)

    def wall(self) -> float:
        return time.time()


def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def settle_memory() -> None:
    """Call once what lives long has been made: the collector of cycles then leaves it alone, and looks less often.

    Records hold no cycles, but the collector walks all of them again and again as their number grows: a quarter of the
    control plane's work before this.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of commands can be limited. `parent` holds a cgroup per command, `home` is where keepers live.

    Not `writable`: memory is watched instead, and `why_not` says so in words.
    """

    version: Literal[0, 1, 2] = 0
    parent: str = ""
    home: str = ""
    writable: bool = False
    why_not: str = ""


class Mount(msgspec.Struct, frozen=True):
    """A mounted cgroup hierarchy: its version, which part of it is mounted (`root`), and where (`point`)."""

    version: Literal[1, 2]
    root: str
    point: str


def probe_cgroups(name: str) -> Cgroups:
    """Finds a place for cgroups by making one, moving a process into it and removing it again.

    `name` becomes the folder in which the cgroups of this node's commands are made. Version 1 is preferred where its
    memory controller is mounted, because a controller is in one hierarchy only.
    """
    membership = _read("/proc/self/cgroup")
    found = mount_of(_read("/proc/self/mountinfo"))
    if found is None:
        return Cgroups(why_not="no memory controller is mounted")
    own = own_cgroup_of(membership, found)
    if own is None:
        return Cgroups(version=found.version, why_not="this process is in a cgroup that is not visible here")
    home = Path(found.point) / own.lstrip("/")
    why_not = "no cgroup of this process may be written"
    for place in _upwards(home, Path(found.point)):
        parent = place / f"poise-{name}"
        try:
            _prepare(parent, found.version)
        except OSError as error:
            why_not = f"`{error.filename or parent}`: {error.strerror}"
            continue
        return Cgroups(version=found.version, parent=str(parent), home=str(home), writable=True)
    return Cgroups(version=found.version, home=str(home), why_not=why_not)


def mount_of(mountinfo: str) -> Mount | None:
    """The hierarchy with the memory controller, out of `/proc/self/mountinfo`."""
    unified = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup" and "memory" in kind[2].split(","):
            return Mount(1, fields[3], fields[4])
        if kind[0] == "cgroup2" and unified is None:
            unified = Mount(2, fields[3], fields[4])
    return unified


def own_cgroup_of(membership: str, mount: Mount) -> str | None:
    """The path of a process below the mount point, out of `/proc/self/cgroup`; None if it lies outside."""
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(",") if mount.version == 1 else number == "0":
            if mount.root in ("/", path):
                return path if mount.root == "/" else "/"
            return path.removeprefix(mount.root) if path.startswith(mount.root + "/") else None
    return None


def memory_limit_of(text: str) -> int:
    """The limit that a cgroup file states in bytes; 0 for none."""
    stripped = text.strip()
    return int(stripped) if stripped.isdigit() and int(stripped) < 2**60 else 0


def quota_of(text: str) -> int:
    """Milli-CPU out of `cpu.max` (`200000 100000`), or of a quota and a period joined by a blank; 0 for none."""
    quota, _, period = text.strip().partition(" ")
    if not quota.isdigit() or not period.strip().isdigit() or int(period) == 0:
        return 0
    return int(quota) * 1000 // int(period)


def memory_limit() -> int:
    """The smallest memory limit of this process's cgroup and those above it, in bytes; 0 for none."""
    found = mount_of(_read("/proc/self/mountinfo"))
    own = own_cgroup_of(_read("/proc/self/cgroup"), found) if found else None
    if found is None or own is None:
        return 0
    name = "memory.limit_in_bytes" if found.version == 1 else "memory.max"
    point = Path(found.point)
    limits = [memory_limit_of(_read(place / name)) for place in _upwards(point / own.lstrip("/"), point)]
    return min((limit for limit in limits if limit), default=0)


def cpu_quota() -> int:
    """The smallest CPU quota of this process's cgroup and those above it, in milli-CPU; 0 for none."""
    quotas = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for point in _CGROUPS, _CGROUPS / controllers, _CGROUPS / "cpu", _CGROUPS / "unified":
            for place in _upwards(point / path.lstrip("/"), point):
                period = f"{_read(place / 'cpu.cfs_quota_us').strip()} {_read(place / 'cpu.cfs_period_us').strip()}"
                quotas += [quota_of(_read(place / "cpu.max")), quota_of(period)]
    return min((quota for quota in quotas if quota), default=0)


def _upwards(place: Path, top: Path) -> list[Path]:
    return [one for one in (place, *place.parents) if one == top or top in one.parents]


def _prepare(parent: Path, version: int) -> None:
    """Makes the folder, and tries it out with a process that does nothing."""
    made = not parent.exists()
    parent.mkdir(exist_ok=True)
    try:
        if version == 2:
            if "memory" not in (parent / "cgroup.controllers").read_text().split():
                (parent.parent / "cgroup.subtree_control").write_text("+memory")
            (parent / "cgroup.subtree_control").write_text("+memory")
        _try_out(parent / f"probe.{os.getpid()}", version)
    except OSError:
        if made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _try_out(leaf: Path, version: int) -> None:
    leaf.mkdir()
    try:
        (leaf / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(str(1 << 30))
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as idle:
            (leaf / "cgroup.procs").write_text(str(idle.pid))
            if idle.stdin is not None:
                idle.stdin.close()
    finally:
        for _ in range(100):
            try:
                leaf.rmdir()
                break
            except OSError:
                time.sleep(0.002)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
