"""The clock, the boot id, and what kernels say about cgroups."""

import os
import time
from pathlib import Path

import pytest

from poise.drivers.system import (
    Mount,
    SystemClock,
    boot_id,
    cpu_quota,
    memory_limit,
    memory_limit_of,
    mount_of,
    own_cgroup_of,
    probe_cgroups,
    quota_of,
)
from poise.ports import Clock
from poise.units import Instant

V1 = """\
24 1 254:0 / / rw - ext4 /dev/vda rw
30 29 0:26 / /sys/fs/cgroup/unified rw,relatime shared:10 - cgroup2 cgroup2 rw
31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:11 - cgroup cgroup rw,cpu,cpuacct
32 29 0:28 / /sys/fs/cgroup/memory rw,relatime shared:12 - cgroup cgroup rw,memory
"""
V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
DOCKER = "812 801 0:28 /docker/4f1 /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"


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
