"""Counts the CPU time and the writes of a session's processes, from /proc."""

import contextlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from poise.drivers.keeper import cpu_of, family, read_file

DEVICE_FILES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri/render")
"""Prefixes of the files of accelerators. A process that has one open may have memory on the device."""


class Work(NamedTuple):
    """CPU time in nanoseconds and bytes written, including input from disks; whether a process waits for a disk, and
    whether one has a device open.
    """

    cpu: int = 0
    written: int = 0
    waits: bool = False
    has_device: bool = False


def work_of(keeper: int) -> Work:
    """Return what all processes below a keeper have done so far. Processes of other users count only by CPU time if
    this process may not read more.
    """
    pids = list(family(keeper))
    return Work(
        cpu=cpu_of(pids),
        written=sum(map(_written, pids)),
        waits=any(map(_waits, pids)),
        has_device=any(name.startswith(DEVICE_FILES) for name in _open_files(pids)),
    )


def _written(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        amounts = dict(line.split(b": ") for line in read_file(f"/proc/{pid}/io").splitlines())
        return int(amounts.get(b"wchar", 0)) + int(amounts.get(b"read_bytes", 0))
    return 0


def _waits(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] == [b"D"]
    return False


def _open_files(pids: Iterable[int]) -> Iterable[str]:
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208 — text paths
                with contextlib.suppress(OSError):
                    yield os.readlink(f"{folder}/{name}")  # noqa: PTH115 — as above
