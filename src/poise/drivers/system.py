"""The machine itself: its clock, its identity, its load, and whether cgroups can limit memory here.

Reading is separate from parsing: functions whose names end in `_of` parse text from the kernel and are tested on
recorded text.
"""

import contextlib
import gc
import math
import os
import resource
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from poise.model.load import Load
from poise.units import MINUTE, SECOND, Instant

PATIENCE = 3
"""Maximum wall-clock seconds per second of CPU time in work that somebody waits for (`Effort`)."""

_CGROUPS = Path("/sys/fs/cgroup")


def give_way() -> None:
    """Give this process the lowest CPU priority. Linux divides a core among sessions before it considers the niceness
    of their processes (`sched(7)`, autogroups), so the process gets its own session with the same niceness. A core that
    runs only such a process counts as idle: waking tasks are put there at once.
    """
    os.nice(19)
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # it already leads a group, or there are no autogroups
        os.setsid()
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


class SystemClock:
    """A clock that continues from an instant of the log, runs while the machine sleeps, and never steps back."""

    def __init__(self, start: Instant = Instant(0)) -> None:  # noqa: B008 — a constant
        self._offset = start - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    @classmethod
    def of_the_boot(cls) -> "SystemClock":
        """Return a clock that reads CLOCK_BOOTTIME itself, which is the same for every process of the machine."""
        clock = cls()
        clock._offset = 0
        return clock

    def now(self) -> Instant:
        return Instant(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._offset)

    def wall(self) -> float:
        return time.time()


class Effort:
    """Seconds of CPU time of the calling thread since its first call, or a third of the wall-clock time since then if
    that is more, for work that waits for other processes.
    """

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def __call__(self) -> float:
        cpu, wall = time.thread_time(), time.monotonic()
        self._began = self._began or (cpu, wall)
        return max(cpu - self._began[0], (wall - self._began[1]) / PATIENCE)


def boottime() -> int:
    """Return the nanoseconds since this boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the unique id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def making_records() -> Iterator[None]:
    """Create many long-lived records: disable the cycle collector meanwhile, and exempt them from it afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_memory() -> None:
    """Call once all long-lived objects exist: the cycle collector then ignores them, and runs less often. It may have
    been disabled until then.

    Records hold no cycles, but the collector scans all of them repeatedly as their number grows, which took a quarter
    of the control plane's work. Cycles left by imports (0.3 MiB) stay: finding them takes 20 ms and more.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def open_many_files() -> None:
    """Raise the limit of open files to the hard limit. Call it first in a process with a connection for each node or
    client: the usual soft limit, 1024, is for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of commands can be limited. `parent` holds a cgroup per command; keepers live in `home`.

    If not `writable`, memory is watched instead, and `why_not` gives the reason.
    """

    version: Literal[0, 1, 2] = 0
    parent: str = ""
    home: str = ""
    writable: bool = False
    why_not: str = ""


class Mount(msgspec.Struct, frozen=True):
    """A mounted cgroup hierarchy: its version, the mounted part (`root`), and the mount point (`point`)."""

    version: Literal[1, 2]
    root: str
    point: str


def probe_cgroups(name: str) -> Cgroups:
    """Find a place for cgroups by making one, moving a process into it and removing it again.

    `name` becomes the folder for the cgroups of this node's commands. Version 1 is preferred where its memory
    controller is mounted, because a controller belongs to one hierarchy only.
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
    """Return the hierarchy with the memory controller, from `/proc/self/mountinfo`."""
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
    """Return a process's path below the mount point, from `/proc/self/cgroup`; None if it is outside."""
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(",") if mount.version == 1 else number == "0":
            if mount.root in ("/", path):
                return path if mount.root == "/" else "/"
            return path.removeprefix(mount.root) if path.startswith(mount.root + "/") else None
    return None


def memory_limit_of(text: str) -> int:
    """Return the limit in bytes that a cgroup file contains; 0 for none."""
    stripped = text.strip()
    return int(stripped) if stripped.isdigit() and int(stripped) < 2**60 else 0


def quota_of(text: str) -> int:
    """Return milli-CPU from `cpu.max` (`200000 100000`), or from a quota and a period joined by a blank; 0 for none."""
    quota, _, period = text.strip().partition(" ")
    if not quota.isdigit() or not period.strip().isdigit() or int(period) == 0:
        return 0
    return int(quota) * 1000 // int(period)


def memory_limit() -> int:
    """Return the smallest memory limit of this process's cgroup and its ancestors, in bytes; 0 for none."""
    return min((limit for limit, _ in _memory_limits()), default=0)


def free_memory() -> int:
    """Return the bytes that this process could allocate without swapping, within the limits of its cgroups."""
    free = _amounts_of(_read("/proc/meminfo")).get("MemAvailable", 0)
    return max(0, min([free, *(limit - _memory_held(place) for limit, place in _memory_limits())]))


def cpu_quota() -> int:
    """Return the smallest CPU quota of this process's cgroup and its ancestors, in milli-CPU; 0 for none."""
    return min((quota for quota, _ in _cpu_quotas()), default=0)


def _memory_limits() -> list[tuple[int, Path]]:
    """Return the limits in bytes with their cgroups."""
    found = mount_of(_read("/proc/self/mountinfo"))
    own = own_cgroup_of(_read("/proc/self/cgroup"), found) if found else None
    if found is None or own is None:
        return []
    name = "memory.limit_in_bytes" if found.version == 1 else "memory.max"
    point = Path(found.point)
    places = _upwards(point / own.lstrip("/"), point)
    return [(limit, place) for place in places if (limit := memory_limit_of(_read(place / name)))]


def _memory_held(place: Path) -> int:
    """Return the bytes of a cgroup that it cannot reclaim."""
    used = _read(place / "memory.current") or _read(place / "memory.usage_in_bytes")
    return int(used or 0) - inactive_file_of(_read(place / "memory.stat"))


def _cpu_quotas() -> list[tuple[int, Path]]:
    """Return the quotas in milli-CPU with their cgroups."""
    quotas = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for point in _CGROUPS, _CGROUPS / controllers, _CGROUPS / "cpu", _CGROUPS / "unified":
            for place in _upwards(point / path.lstrip("/"), point):
                period = f"{_read(place / 'cpu.cfs_quota_us').strip()} {_read(place / 'cpu.cfs_period_us').strip()}"
                quotas += [(quota_of(_read(place / "cpu.max")), place), (quota_of(period), place)]
    return [(quota, place) for quota, place in quotas if quota]


# --- how busy it is --------------------------------------------------------------------------------------------------

MAX_PROCESSES = 10_000
"""Maximum number of processes of a node's commands per sample."""

_TICK = SECOND // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Counts(NamedTuple):
    """Monotonic counters, and the time at which they were read, in nanoseconds.

    `cpu` is in nanoseconds of one core, `disks` in busy nanoseconds per disk, `links` in bytes received and sent per
    interface.
    """

    at: int
    cpu: int
    disks: dict[str, int]
    links: dict[str, tuple[int, int]]


class HostMeter:
    """The load of the part of the machine that this process may use: its cores, or a cgroup with a quota or limit.

    `cpu` in milli-CPU and `memory` in bytes are the node's offer. `network` is its capacity in bits per second; 0 means
    the speed that its interfaces report.
    """

    def __init__(self, cpu: int, memory: int, network: int = 0) -> None:
        self._cpu = max(cpu, 1)
        self._memory = max(memory, 1)
        self._network = network
        self._cores = os.sched_getaffinity(0)
        place = _tightest(_cpu_quotas(), len(self._cores) * 1000)
        self._cpu_place = place if place and _cgroup_cpu(place) else None
        self._memory_place = _tightest(_memory_limits(), memory + 1)
        self._last: Counts | None = None

    def sample(self) -> Load | None:
        """Return the load since the last sample; None at the first."""
        now, last = self._counts(), self._last
        self._last = now
        if last is None or now.at <= last.at:
            return None
        elapsed = now.at - last.at
        return Load(
            cpu=_share(now.cpu - last.cpu, elapsed * self._cpu // 1000),
            load1=load1_of(_read("/proc/loadavg")) // (os.cpu_count() or 1),
            memory=_share(self._memory_used(), self._memory),
            disk=max(
                (_share(busy - last.disks.get(name, busy), elapsed) for name, busy in now.disks.items()), default=0
            ),
            network=max((self._link_use(name, now, last) for name in now.links), default=0),
        )

    def _counts(self) -> Counts:
        cpu = _cgroup_cpu(self._cpu_place) if self._cpu_place else busy_of(_read("/proc/stat"), self._cores)
        return Counts(time.monotonic_ns(), cpu, disks_of(_read("/proc/diskstats")), traffic_of(_read("/proc/net/dev")))

    def _memory_used(self) -> int:
        place = self._memory_place
        if place is None:
            return memory_used_of(_read("/proc/meminfo"))
        return _memory_held(place)

    def _link_use(self, name: str, now: Counts, last: Counts) -> int:
        """Return the use of the busier of its two directions."""
        speed = self._network or speed_of(_read(f"/sys/class/net/{name}/speed"))
        before = last.links.get(name, now.links[name])
        most = max(after - earlier for after, earlier in zip(now.links[name], before, strict=True))
        return _share(8 * most * SECOND, (now.at - last.at) * speed) if speed else 0


class PowerMeter:
    """Power of this machine's processors, from their energy counters (RAPL), where these are readable."""

    def __init__(self, folder: Path = Path("/sys/class/powercap")) -> None:
        found = sorted(folder.glob("intel-rapl:[0-9]*"))
        self._packages = [one for one in found if one.name.count(":") == 1]  # subdomains are included in their packages
        self._last: tuple[int, dict[str, int]] | None = None

    def sample(self) -> int | None:
        """Return milliwatts since the last sample; None at the first, and if nothing is reported."""
        read = {one.name: _read(one / "energy_uj").strip() for one in self._packages}
        counted = {name: int(text) for name, text in read.items() if text.isdigit()}
        now, last = (time.monotonic_ns(), counted), self._last
        self._last = now
        if last is None or not counted or now[0] <= last[0]:
            return None
        used = [counted[name] - last[1][name] for name in counted if name in last[1]]
        if not used or min(used) < 0:  # a counter has begun anew
            return None
        return round(sum(used) * SECOND / 1000 / (now[0] - last[0]))


class ProcessMeter:
    """The load of a node's commands, for a node that offers more or less than its machine has.

    `cpu` in milli-CPU and `memory` in bytes are the node's offer. The run queue is counted as in the kernel: threads
    that run or wait for a CPU or a disk, as an exponential mean over one minute. Memory is resident memory, with shared
    pages counted for each process. Disk load is the machine's; network load is unknown.
    """

    def __init__(self, cpu: int, memory: int) -> None:
        self._cpu = max(cpu, 1)
        self._memory = max(memory, 1)
        self._host = HostMeter(cpu, memory)
        self._queue = 0.0
        self._last: tuple[int, int] | None = None

    def sample(self, roots: Iterable[int], ended: int) -> Load | None:
        """Return the load since the last sample; None at the first. `roots` are the process ids of the running
        commands; `ended` is the CPU time in nanoseconds of all ended ones.
        """
        host = self._host.sample()
        used, memory, threads = ended, 0, 0
        for process in tree(roots):
            used, memory, threads = used + process.cpu, memory + process.memory, threads + process.queued
        now, last = (time.monotonic_ns(), used), self._last
        self._last = now
        if last is None or host is None or now[0] <= last[0]:
            return None
        elapsed = now[0] - last[0]
        kept = math.exp(-elapsed / MINUTE)
        self._queue = self._queue * kept + threads * (1 - kept)
        return Load(
            cpu=_share(used - last[1], elapsed * self._cpu // 1000),
            load1=round(self._queue * 1_000_000 / self._cpu),
            memory=_share(memory, self._memory),
            disk=host.disk,
        )


class Process(NamedTuple):
    """CPU time in nanoseconds including ended children, resident bytes, and threads in the run queue."""

    cpu: int
    memory: int
    queued: int


def busy_of(stat: str, cores: Collection[int]) -> int:
    """Return the busy nanoseconds of these cores, from `/proc/stat`. User time already includes guest time."""
    busy = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _, _, interrupts, soft, *stolen = map(int, fields[:8])
            busy += user + nice + system + interrupts + soft + sum(stolen)
    return busy * _TICK


def load1_of(loadavg: str) -> int:
    """Return the 1-minute load in thousandths, from `/proc/loadavg`."""
    first = loadavg.partition(" ")[0]
    return round(float(first) * 1000) if first else 0


def memory_used_of(meminfo: str) -> int:
    """Return the bytes that could not be allocated without swapping, from `/proc/meminfo`."""
    amounts = _amounts_of(meminfo)
    return amounts.get("MemTotal", 0) - amounts.get("MemAvailable", 0)


def _amounts_of(meminfo: str) -> dict[str, int]:
    return {
        name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in meminfo.splitlines())
    }


def inactive_file_of(stat: str) -> int:
    """Return the bytes of reclaimable file cache of a cgroup, from `memory.stat` (`total_` in version 1)."""
    amounts = dict(line.partition(" ")[::2] for line in stat.splitlines())
    return int(amounts.get("total_inactive_file") or amounts.get("inactive_file") or 0)


def disks_of(diskstats: str) -> dict[str, int]:
    """Return the busy nanoseconds of each disk, from `/proc/diskstats`, except for RAM and loop devices."""
    busy = {}
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) > 12 and not fields[2].startswith(("loop", "ram", "zram")):
            busy[fields[2]] = int(fields[12]) * 1_000_000
    return busy


def traffic_of(interfaces: str) -> dict[str, tuple[int, int]]:
    """Return the bytes that each interface received and sent, from `/proc/net/dev`."""
    traffic = {}
    for line in interfaces.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 16 and name.strip() != "lo":
            traffic[name.strip()] = (int(fields[0]), int(fields[8]))
    return traffic


def speed_of(text: str) -> int:
    """Return bits per second from an interface's `speed`; 0 if it reports none."""
    return int(text) * 1_000_000 if text.strip().isdigit() else 0


def process_of(stat: str) -> tuple[int, str]:
    """Return the CPU time in nanoseconds, including ended children, and the state, from `/proc/PID/stat`."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK, fields[0]


def tree(roots: Iterable[int]) -> Iterator[Process]:
    """Yield these processes, if they still run, and all their descendants."""
    waiting = list(roots)
    for _ in range(MAX_PROCESSES):
        if not waiting:
            return
        pid = waiting.pop()
        queued = 0
        try:
            cpu, _ = process_of(_read(f"/proc/{pid}/stat"))
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 — text paths, every second
                queued += process_of(_read(f"/proc/{pid}/task/{thread}/stat"))[1] in "RD"
                waiting += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
            memory = int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE
        except (OSError, IndexError):
            continue  # it has ended meanwhile
        yield Process(cpu, memory, queued)


def cpu_used(roots: Iterable[int]) -> int:
    """Return the CPU time in nanoseconds so far of these processes and all their descendants."""
    return sum(process.cpu for process in tree(roots))


def _tightest(places: list[tuple[int, Path]], offered: int) -> Path | None:
    """Return the most limited cgroup, if its limit is below the offer without it."""
    least = min(places, default=None)
    return least[1] if least is not None and least[0] < offered else None


def _cgroup_cpu(place: Path) -> int:
    """Return the nanoseconds of CPU that a cgroup has used."""
    version2 = dict(line.partition(" ")[::2] for line in _read(place / "cpu.stat").splitlines())
    if "usage_usec" in version2:
        return int(version2["usage_usec"]) * 1000
    return int(_read(place / "cpuacct.usage") or 0)


def _share(part: int, whole: int) -> int:
    """Return a part in thousandths of the whole, clamped to [0, 1000]."""
    return min(1000, max(0, part * 1000 // whole)) if whole else 0


def _upwards(place: Path, top: Path) -> list[Path]:
    return [one for one in (place, *place.parents) if one == top or top in one.parents]


def _prepare(parent: Path, version: int) -> None:
    """Make the folder, and test it with an idle process."""
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
