"""Checks whether this machine and a home are fit for Poise: the part of `poise doctor` outside the control plane.

The checks leave nothing behind: a file is written into the home and removed, a cgroup is made and removed. Each check
reports what it found; a problem comes with its consequence and a fix.
"""

import ctypes
import importlib.util
import os
import platform
import pwd
import resource
import shlex
import stat
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import poise
from poise import __version__
from poise.config import Home
from poise.drivers.accounts import lacking
from poise.drivers.devices import Inventory, declared_devices
from poise.drivers.keeper import punch
from poise.drivers.owner import USERS
from poise.drivers.probes import Answer
from poise.drivers.security import read_token
from poise.drivers.system import probe_cgroups
from poise.drivers.vault import Vault
from poise.drivers.wheel import PACKAGES
from poise.errors import PoiseError
from poise.errors import extra as install
from poise.model.figures import sources_of
from poise.model.reports.nodes import Check
from poise.model.resources import Node
from poise.units import format_bytes, format_cpu

LEAST_FREE = 64 * 2**20
"""Minimum free bytes; with less, a log fails soon."""

LITTLE_FREE = 2**30

SLOW_SYNC = 0.02
"""Seconds of an `fsync` above which it delays every acknowledgement noticeably."""

LEAST_FILES = 1024
LEAST_PROCESSES = 512

REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre", "glusterfs"})
"""File systems that other machines can write to: locks and syncs may not be reliable there."""

EXTRAS = (
    ("aiohttp", "serve", "serves models over HTTP"),
    ("cryptography", "listen", "lets other machines in, by TLS"),
    ("cryptography", "secrets", "seals the secrets of jobs"),
    ("pynvml", "nvidia", "finds NVIDIA devices"),
    ("sklearn", "demo", "runs `poise demo`"),
    ("highspy", "lp", "solves what the policies `max-min`, `finish-time-fair` and `min-makespan` ask"),
    ("redis", "redis", "shares kept answers between gateways"),
    ("asyncpg", "postgres", "keeps the log in a database that several control planes share"),
    ("aiohttp", "etcd", "keeps the log in etcd"),
    ("ray", "ray", "takes the machines of a Ray cluster as nodes"),
)
"""Module, extra, and its purpose."""

DEVICE_FILES = {"NVML": "/proc/driver/nvidia", "npu-smi": "/dev/davinci_manager", "amd-smi": "/dev/kfd"}
"""Files that exist when a kernel driver is loaded, by the probe that should then find devices."""

_TIME_ERROR = 5
"""Return value of `adjtimex` while no service synchronizes the clock."""


def examine(home: Home) -> Iterator[Check]:
    """Yield all checks, starting with those most likely to explain a machine that does not work."""
    yield from software()
    if home.elsewhere is None:  # another owner's home is for its owner to check
        yield from folder(home)
        yield from exposed(home)
    with tempfile.TemporaryDirectory() as elsewhere:  # checking must not create a missing home
        inventory = Inventory("this machine", home if home.root.is_dir() else Home(Path(elsewhere)))
        node = inventory.look()
    yield from machine(node)
    for answer in inventory.answers:
        yield probe(answer)
    yield from devices(home, node)
    yield from extras()


def software() -> Iterator[Check]:
    """Check Poise, Python, kernel and clock."""
    yield Check("poise", "ok", f"{__version__}, Python {platform.python_version()} ({sys.executable})")
    yield byte_code([Path(poise.__file__).parents[1] / name for name in PACKAGES])
    yield Check("kernel", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    buffer = ctypes.create_string_buffer(512)  # `struct timex` is smaller; zeros only read
    unkept = ctypes.CDLL(None).adjtimex(buffer) == _TIME_ERROR
    text = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if unkept:
        yield Check(
            "clock", "warn", f"{text}; nothing keeps it right, and deadlines with a date go by it",
            "start a time service, such as `systemctl enable --now systemd-timesyncd`",
        )  # fmt: skip
    else:
        yield Check("clock", "ok", text)


def byte_code(packages: Sequence[Path]) -> Check:
    """Check that Python's modules are compiled, or can be cached: otherwise each process compiles them again."""
    sources = [source for package in packages for source in package.rglob("*.py")]
    compiled = sum(map(_is_compiled, sources))
    text = f"{compiled} of {len(sources)} modules are compiled"
    if compiled == len(sources) or (not sys.dont_write_bytecode and all(os.access(one, os.W_OK) for one in packages)):
        return Check("byte code", "ok", text)
    text += "; each process compiles those that it imports of the others, which doubles the time of most commands"
    return Check("byte code", "warn", text, shlex.join([sys.executable, "-m", "compileall", "-q", *map(str, packages)]))


def _is_compiled(source: Path) -> bool:
    """Return whether there is byte code of exactly this file."""
    state = source.stat()
    try:
        with Path(importlib.util.cache_from_source(str(source))).open("rb") as file:
            magic, flags, changed, size = struct.unpack("<4sLLL", file.read(16))
    except (OSError, struct.error):
        return False
    same = (changed, size) == (int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF)
    return magic == importlib.util.MAGIC_NUMBER and (same or flags != 0)  # with flags, validity depends on the content


def folder(home: Home) -> Iterator[Check]:
    """Check the home and its file system."""
    root = home.root
    if not root.exists():
        yield Check("home", "ok", f"{root} is not there yet; the first command that needs it makes it")
        root = next(parent for parent in root.parents if parent.exists())
    else:
        mode = stat.S_IMODE(root.stat().st_mode)
        if root.stat().st_uid != os.geteuid():
            yield Check(
                "home", "fail", f"{root} belongs to user {root.stat().st_uid}", "set POISE_HOME to a folder of your own"
            )
        elif mode & 0o077:
            yield Check("home", "warn", f"{root} may be entered by others (mode {mode:03o})", f"chmod 700 {root}")
        else:
            yield Check("home", "ok", f"{root}, for its owner only")
    kind = file_system_of(root, _read("/proc/self/mountinfo"))
    room = os.statvfs(root)
    free = room.f_bavail * room.f_frsize
    text = f"{format_bytes(free)} free, {kind or 'unknown file system'}"
    if free < LEAST_FREE:
        yield Check("disk", "fail", f"{text}: the log cannot be kept", f"make room under {root}, or set POISE_HOME")
    elif free < LITTLE_FREE:
        yield Check("disk", "warn", f"{text}: logs of commands need more", f"make room under {root}")
    elif kind in REMOTE:
        yield Check(
            "disk",
            "warn",
            f"{text}: locks and syncs of a shared file system are not to be relied on",
            "set POISE_HOME to a local disk",
        )
    else:
        yield Check("disk", "ok", text)
    yield from _writing(root)


def exposed(home: Home) -> Iterator[Check]:
    """Check who could read the token, the keys of secrets and the socket. Bound addresses are checked where a control
    plane runs.
    """
    if not home.token.exists():
        yield Check("token", "ok", "none yet; `poise up` makes one")
    else:
        try:
            read_token(home)
            yield Check("token", "ok", "readable by its owner only")
        except PoiseError as error:
            yield Check("token", "fail", str(error), error.record.hint)
    try:
        if keys := Vault.of(home).keys():
            yield Check("secrets", "ok", f"{len(keys)} keys, readable by their owner only; {keys[0].id} seals")
    except PoiseError as error:
        yield Check("secrets", "fail", str(error), error.record.hint)
    if home.socket.exists():
        mode = stat.S_IMODE(home.socket.stat().st_mode)
        if mode & 0o077:
            yield Check("socket", "fail", f"others may write to it (mode {mode:03o})", f"chmod 600 {home.socket}")
        else:
            yield Check("socket", "ok", f"{home.socket}, for its owner only")


def machine(node: Node) -> Iterator[Check]:
    """Check the resources for commands, and whether limits are enforced."""
    yield Check("cpu, memory", "ok", f"{format_cpu(node.cpu)} CPU, {format_bytes(node.memory)}")
    cgroups = probe_cgroups(f"doctor-{os.getpid()}")
    if cgroups.parent:
        _remove(Path(cgroups.parent))
    if cgroups.writable:
        yield Check("cgroups", "ok", f"version {cgroups.version}: memory is limited by the kernel")
    else:
        yield Check(
            "cgroups", "warn", f"memory is watched, not limited by the kernel: {cgroups.why_not}",
            "run under `systemd-run --user --scope -p Delegate=yes`, or as root",
        )  # fmt: skip
    yield users()
    if resource.getrlimit(resource.RLIMIT_RTTIME)[1] == resource.RLIM_INFINITY:
        yield Check("left-overs", "ok", "processes of a killed keeper are found by a mark that they inherit")
    else:
        yield Check(
            "left-overs", "warn", "a process that leaves its session and clears its environment outlives its keeper",
            "remove the limit `rttime` from /etc/security/limits.conf, or LimitRTTIME= from the unit",
        )  # fmt: skip
    for name, limit, least, flag in (
        ("open files", resource.RLIMIT_NOFILE, LEAST_FILES, "-n"),
        ("processes", resource.RLIMIT_NPROC, LEAST_PROCESSES, "-u"),
    ):
        soft = resource.getrlimit(limit)[0]
        unbounded = soft == resource.RLIM_INFINITY
        text = "without limit" if unbounded else f"at most {soft}"
        if unbounded or soft >= least:
            yield Check(name, "ok", text)
        else:
            yield Check(name, "warn", f"{text}: many commands at once need more", f"ulimit {flag} {least}")


def users() -> Check:
    """Check whether commands can run as the accounts of their owners."""
    if os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid()).pw_name
        return Check("users", "ok", f"commands of all users run as {me}: only an agent that runs as root changes users")
    missing = lacking()
    if any(line.startswith(USERS) for line in missing):
        text = f"commands of all users run as root: {missing[-1].partition(': ')[2]}"
        return Check("users", "warn", text, "run the agent outside of a container, or with CAP_SETUID and CAP_SETGID")
    if missing:
        text = f"commands run as the accounts of their tokens, without {'; '.join(missing)}"
        return Check("users", "warn", text, "run the agent with CAP_SYS_ADMIN, on Linux 5.8 or newer")
    return Check("users", "ok", "commands run as the accounts of their tokens; each sees its own processes and /tmp")


def probe(answer: Answer) -> Check:
    """Report what one probe found, or why it found nothing, with a warning if that is unexpected."""
    name, finding = answer.probe.name, answer.finding
    if finding.devices and not finding.failed:
        driver = f", driver {finding.driver}" if finding.driver else ""
        models = ", ".join(device.model or device.kind for device in finding.devices)
        return Check(name, "ok", f"{len(finding.devices)} found: {models}{driver}")
    there = DEVICE_FILES.get(name, "")
    if finding.failed:
        return Check(name, "warn", finding.why_none, answer.probe.hint)
    if there and Path(there).exists():
        return Check(name, "warn", f"{finding.why_none}, though `{there}` is there", answer.probe.hint)
    return Check(name, "ok", f"none: {finding.why_none}")


def devices(home: Home, node: Node) -> Iterator[Check]:
    """Check the declared facts about devices, and the measurements."""
    if home.devices.exists():
        try:
            unused = declared_devices(home).unused(node.devices)
        except PoiseError as error:
            for one in error.record.all():
                yield Check("devices.yaml", "fail", f"{one.message} ({one.field})", one.hint)
        else:
            if unused:
                yield Check(
                    "devices.yaml", "warn", f"{', '.join(unused)}: no device here is meant", f"edit {home.devices}"
                )
            else:
                yield Check("devices.yaml", "ok", "read")
    measured = [one.index for one in node.devices if "measured" in sources_of(one).values()]
    if node.devices and len(measured) < len(node.devices):
        yield Check("measured", "ok", f"{len(measured)} of {len(node.devices)} devices", "poise bench-devices")
    elif "measured" in node.sources.values() or measured:
        yield Check("measured", "ok", "what is here")
    else:
        yield Check("measured", "ok", "nothing yet", "poise bench-devices")


def extras() -> Iterator[Check]:
    """List optional packages."""
    for module, extra, gives in EXTRAS:
        there = importlib.util.find_spec(module) is not None
        text = f"`{extra}` is {'' if there else 'not '}installed; it {gives}"
        yield Check("extra", "ok", text, "" if there else install(extra))


def file_system_of(path: Path, mountinfo: str) -> str:
    """Return a path's file system type, from `/proc/self/mountinfo`; "" if it is unknown."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        if (str(path) + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _writing(root: Path) -> Iterator[Check]:
    """Check that files can be written, synced quickly, and freed in part."""
    block = bytes(4096)
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            seconds = []
            for _ in range(5):
                file.write(block)
                file.flush()
                began = time.perf_counter()
                os.fsync(file.fileno())
                seconds.append(time.perf_counter() - began)
            punched = punch(file.fileno(), 0, len(block))
    except OSError as error:
        yield Check("writing", "fail", f"{root}: {error.strerror}", f"ls -ld {root}; df -h {root}")
        return
    middle = statistics.median(seconds)
    text = f"a write is durable after {middle * 1000:.1f} ms"
    if middle > SLOW_SYNC:
        yield Check("writing", "warn", f"{text}: every acknowledgement waits for it", "set POISE_HOME to a faster disk")
    else:
        yield Check("writing", "ok", text)
    if punched:
        yield Check("long logs", "ok", "the oldest part of a long log can be given back")
    else:
        yield Check(
            "long logs", "warn", "this file system gives no part of a file back: long logs keep their space",
            "set POISE_HOME to ext4, xfs, btrfs or tmpfs",
        )  # fmt: skip


def _remove(cgroup: Path) -> None:
    try:
        cgroup.rmdir()
    except OSError:
        return  # it holds commands of others


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
