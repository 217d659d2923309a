"""Reads the kernel log: errors of NVIDIA devices, which the driver reports there even without NVML, and cgroups whose
memory ran out.

    NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.

The driver's folder in `/proc` maps addresses to devices. Nothing is reported if the log is not readable
(`dmesg_restrict` without CAP_SYSLOG) or the driver is not loaded. Records from before the first read are skipped,
because a device may have been reset since.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from poise.drivers.nvidia import CRITICAL
from poise.model.messages import DeviceFault

LOG, DRIVER = Path("/dev/kmsg"), Path("/proc/driver/nvidia/gpus")

MOST_RECORDS, MOST_RECORD = 1_000, 8192
"""Maximum number of records per read, and bytes of one; the kernel truncates records itself."""

WHOLE_BUFFER = 200_000
"""Maximum number of records to search; the largest buffer of the kernel holds fewer."""

_XID = re.compile(r"^[^;\n]*;NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): *(\d{1,3})\b", re.MULTILINE)
"""The match must begin the message, because text that the kernel quotes may contain anything."""

_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)


class KernelLog:
    """Reads kernel log messages written from now on. Call `close` when done."""

    def __init__(self, log: Path = LOG, driver: Path = DRIVER) -> None:
        self._driver = driver
        self._file = -1
        if driver.is_dir():
            with contextlib.suppress(OSError):
                self._file = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._file, 0, os.SEEK_END)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def faults(self, indices: Mapping[str, int]) -> list[DeviceFault]:
        """Return devices, identified by their driver's names, that have failed since the last call."""
        found = [(xid[1], int(xid[2])) for record in self._records() for xid in _XID.finditer(record)]
        if not found:
            return []
        names = self._names()
        return [
            DeviceFault(index=indices[name], code=f"XID {code}", text=CRITICAL[code])
            for name, code in dict.fromkeys((names.get(_place(address), ""), code) for address, code in found)
            if code in CRITICAL and name in indices
        ]

    def _records(self) -> Iterator[str]:
        return _records(self._file, MOST_RECORDS) if self._file >= 0 else iter(())

    def _names(self) -> dict[str, str]:
        """Return the driver's names (UUIDs) of devices by address."""
        found = {}
        for path in self._driver.glob("*/information"):
            with contextlib.suppress(OSError):
                if uuid := _UUID.search(path.read_text(errors="replace")):
                    found[_place(path.parent.name)] = uuid[1]
        return found


def ran_out_of_memory(cgroup: str, log: Path = LOG) -> bool:
    """Return whether the kernel has ended a process because the memory of this cgroup ran out, as far as its buffer
    goes back; `cgroup` is the last part of the path.
    """
    killed = re.compile(rf"^[^;\n]*;oom-kill:[^\n]*?,oom_memcg=[^,\n]*/{re.escape(cgroup)}[,/]", re.MULTILINE)
    with contextlib.suppress(OSError):
        file = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return any(killed.search(record) for record in _records(file, WHOLE_BUFFER))
        finally:
            os.close(file)
    return False


def _records(file: int, most: int) -> Iterator[str]:
    """Yield the records since the last read that the kernel's buffer still has."""
    for _ in range(most):
        try:
            record = os.read(file, MOST_RECORD)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EPIPE:  # records were overwritten before they were read: continue
                continue
            return
        if not record:
            return
        yield record.decode(errors="replace")


def _place(address: str) -> str:
    """Return an address without its function, which the kernel leaves out.

    >>> _place("0000:3B:00.0"), _place("0000:3b:00")
    ('0000:3b:00', '0000:3b:00')
    """
    return address.partition(".")[0].lower()
