"""The clock, the boot id, and what kernels say about cgroups."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from poise.drivers.system import (
    Effort,
    HostMeter,
    Mount,
    PowerMeter,
    ProcessMeter,
    SystemClock,
    boot_id,
    busy_of,
    cpu_quota,
    disks_of,
    inactive_file_of,
    load1_of,
    memory_limit,
    memory_limit_of,
    memory_used_of,
    mount_of,
    own_cgroup_of,
    probe_cgroups,
    process_of,
    quota_of,
    settle_memory,
    speed_of,
    traffic_of,
)
from poise.ports import Clock
from poise.units import SECOND, Instant

V1 = """\
24 1 254:0 / / rw - ext4 /dev/vda rw
30 29 0:26 / /sys/fs/cgroup/unified rw,relatime shared:10 - cgroup2 cgroup2 rw
31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:11 - cgroup cgroup rw,cpu,cpuacct
32 29 0:28 / /sys/fs/cgroup/memory rw,relatime shared:12 - cgroup cgroup rw,memory
"""
V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
DOCKER = "812 801 0:28 /docker/4f1 /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"


def test_as_many_files_as_may_be_are_open_whatever_the_shell_says() -> None:
    program = (
        "import poise.drivers.system as s, resource as r; s.open_many_files(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    hard = 1000
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -Sn 100 && ulimit -Hn {hard} && exec "$@"', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(hard)] * 2


def test_the_clock_continues_and_never_steps_back() -> None:
    clock: Clock = SystemClock(Instant(5_000_000_000))
    first = clock.now()
    assert 5_000_000_000 <= first < 6_000_000_000
    assert clock.now() >= first
    assert abs(clock.wall() - time.time()) < 5


def test_the_boot_has_a_name() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36


def test_the_memory_controller_is_found() -> None:
    assert mount_of(V1) == Mount(1, "/", "/sys/fs/cgroup/memory")
    assert mount_of(V2) == Mount(2, "/", "/sys/fs/cgroup")
    assert mount_of(DOCKER) == Mount(1, "/docker/4f1", "/sys/fs/cgroup/memory")
    assert mount_of("") is None
    assert mount_of("garbage\n1 2 3 - x\n") is None


def test_the_own_cgroup_is_found_below_the_mount() -> None:
    v1 = "9:name=systemd:/\n4:memory:/user/a:b\n0::/\n"
    assert own_cgroup_of(v1, Mount(1, "/", "/m")) == "/user/a:b"
    assert own_cgroup_of("0::/user.slice/session-1.scope\n", Mount(2, "/", "/m")) == "/user.slice/session-1.scope"
    assert own_cgroup_of("4:memory:/docker/4f1\n", Mount(1, "/docker/4f1", "/m")) == "/"
    assert own_cgroup_of("4:memory:/docker/4f1/x\n", Mount(1, "/docker/4f1", "/m")) == "/x"
    assert own_cgroup_of("4:memory:/other\n", Mount(1, "/docker/4f1", "/m")) is None
    assert own_cgroup_of("", Mount(1, "/", "/m")) is None


@pytest.mark.parametrize(
    ("text", "limit"), [("max\n", 0), ("9223372036854771712\n", 0), ("1073741824\n", 1 << 30), ("", 0), ("x", 0)]
)
def test_memory_limits(text: str, limit: int) -> None:
    assert memory_limit_of(text) == limit


@pytest.mark.parametrize(
    ("text", "milli"),
    [("max 100000\n", 0), ("150000 100000\n", 1500), ("-1 100000", 0), ("50000 100000", 500), ("", 0), ("1 0", 0)],
)
def test_quotas(text: str, milli: int) -> None:
    assert quota_of(text) == milli


def test_this_machine_answers() -> None:
    assert memory_limit() >= 0
    assert cpu_quota() >= 0


def test_the_probe_says_where_or_why_not() -> None:
    found = probe_cgroups(f"test-{os.getpid()}")
    if found.writable:
        assert Path(found.parent).is_dir()
        assert not [path for path in Path(found.parent).iterdir() if path.is_dir()]
        Path(found.parent).rmdir()
    else:
        assert found.why_not


# --- how busy it is --------------------------------------------------------------------------------------------------

STAT = """\
cpu  711887 29 161599 2556454 3665 0 1350 1094 0 0
cpu0 100 10 20 5000 300 1 2 3 50 0
cpu1 200 0 30 5000 0 0 0 0 0 0
cpu12 9 9 9 9 9 9 9 9 9 9
intr 12345
"""
DISKS = """\
   7       0 loop0 9 0 9 9 9 0 9 9 0 999 9
 259       0 nvme0n1 120 0 960 31 88 12 800 44 0 2500 75
   8      16 sdb 1 2 3
"""
INTERFACES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 89240944  240898    0    0    0     0          0         0 89240944  240898    0    0    0     0       0          0
  eth0: 627133235   16260    0    0    0     0          0         0  1043309    9592    0    0    0     0       0          0
"""  # noqa: E501 — as the kernel writes it
TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_recorded_counters_are_understood() -> None:
    assert busy_of(STAT, {0, 1}) == (100 + 10 + 20 + 1 + 2 + 3 + 200 + 30) * TICK
    assert busy_of("", {0}) == 0
    assert load1_of("0.27 0.60 0.54 1/88 26815\n") == 270
    assert memory_used_of("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n") == 600 << 10
    assert inactive_file_of("cache 9\ninactive_file 5\ntotal_cache 9\ntotal_inactive_file 7\n") == 7
    assert inactive_file_of("anon 1\ninactive_file 5\n") == 5
    assert disks_of(DISKS) == {"nvme0n1": 2_500_000_000}
    assert traffic_of(INTERFACES) == {"eth0": (627133235, 1043309)}
    assert (speed_of("10000\n"), speed_of("-1\n"), speed_of("")) == (10**10, 0, 0)
    assert process_of("7 (a) b) R 1 7 7 0 -1 4 1 2 3 4 50 20 8 2 20 0 3 0") == (80 * TICK, "R")


@contextmanager
def burning() -> Iterator[int]:
    """A shell whose child keeps one core busy."""
    shell = subprocess.Popen(["/bin/sh", "-c", f"{sys.executable} -c 'while True: pass'; true"], start_new_session=True)
    try:
        yield shell.pid
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


def test_the_host_is_measured_between_two_samples() -> None:
    meter = HostMeter(len(os.sched_getaffinity(0)) * 1000, 1 << 30)
    assert meter.sample() is None
    with burning():
        time.sleep(0.3)
        load = meter.sample()
    assert load is not None
    assert load.cpu > 100
    assert 0 < load.memory <= 1000
    assert 0 <= load.disk <= 1000


def test_a_declared_node_is_as_busy_as_its_commands_make_it() -> None:
    meter = ProcessMeter(cpu=4000, memory=64 << 30)
    with burning() as pid:
        time.sleep(0.1)
        assert meter.sample([pid], ended=0) is None
        time.sleep(0.5)
        load = meter.sample([pid], ended=0)
        assert load is not None
        assert 0 < load.cpu <= 300, "one core of four, whatever the machine has"
        assert load.load1 > 0
        assert load.network == 0
    time.sleep(0.1)
    idle = meter.sample([], ended=0)
    assert idle is not None
    assert (idle.cpu, idle.memory) == (0, 0)


def test_commands_that_ended_between_two_samples_are_counted() -> None:
    meter = ProcessMeter(cpu=1000, memory=1 << 30)
    meter.sample([], ended=0)
    time.sleep(0.1)
    load = meter.sample([], ended=50_000_000)
    assert load is not None
    assert 100 < load.cpu <= 500


def test_a_process_that_has_gone_counts_for_nothing() -> None:
    meter = ProcessMeter(cpu=1000, memory=1 << 30)
    meter.sample([2**22 - 1], ended=0)
    time.sleep(0.01)
    assert meter.sample([2**22 - 1], ended=0) is not None


def test_power_is_the_energy_that_the_packages_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages and a part of one, which is counted there already; in two seconds 3 J and 1 J."""
    moments = iter((0, 2 * SECOND, 4 * SECOND, 6 * SECOND))
    monkeypatch.setattr("poise.drivers.system.time.monotonic_ns", lambda: next(moments))

    def count(**micro_joules: int) -> None:
        for name, energy in micro_joules.items():
            folder = tmp_path / f"intel-rapl:{name[1:].replace('_', ':')}"
            folder.mkdir(exist_ok=True)
            (folder / "energy_uj").write_text(f"{energy}\n")

    count(p0=1_000_000, p1=0, p0_0=0)
    meter = PowerMeter(tmp_path)
    assert meter.sample() is None
    count(p0=4_000_000, p1=1_000_000, p0_0=9_000_000)
    assert meter.sample() == 2000
    count(p0=0)
    assert meter.sample() is None, "a counter has begun anew"
    assert PowerMeter(tmp_path / "none").sample() is None


def test_effort_is_cpu_time_or_a_third_of_the_time_that_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, wall = iter((5.0, 5.5, 5.5)), iter((100.0, 100.6, 106.0))
    monkeypatch.setattr(time, "thread_time", lambda: next(cpu))
    monkeypatch.setattr(time, "monotonic", lambda: next(wall))
    effort = Effort()
    assert [effort(), effort(), effort()] == [0.0, 0.5, 2.0]


def test_a_process_that_has_settled_collects_cycles_again_and_leaves_what_it_made_before_alone() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.disable()
    try:
        settle_memory()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.enable()
        gc.set_threshold(*before)
        gc.unfreeze()


def test_what_gives_way_does_so_to_other_sessions_too() -> None:
    """The niceness of a process alone counts within its session only, where Linux shares cores among sessions."""
    program = """import os
from pathlib import Path
from poise.drivers.system import give_way
give_way()
group = Path("/proc/self/autogroup")
told = group.read_text().split() if group.exists() else []
print(os.getpriority(os.PRIO_PROCESS, 0), *told[-1:])
print(os.sched_getscheduler(0) == os.SCHED_IDLE)"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"19", "True"}
