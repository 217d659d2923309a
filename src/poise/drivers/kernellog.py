"""Reads errors of NVIDIA devices from the kernel log, where the driver reports them even without NVML.

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
        """Yield the records since the last read that the kernel's buffer still has."""
        for _ in range(MOST_RECORDS if self._file >= 0 else 0):
            try:
                record = os.read(self._file, MOST_RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten before they were read: continue
                    continue
                return
            if not record:
                return
            yield record.decode(errors="replace")

    def _names(self) -> dict[str, str]:
        """Return the driver's names (UUIDs) of devices by address."""
        found = {}
        for path in self._driver.glob("*/information"):
            with contextlib.suppress(OSError):
                if uuid := _UUID.search(path.read_text(errors="replace")):
                    found[_place(path.parent.name)] = uuid[1]
        return found


def _place(address: str) -> str:
    """Return an address without its function, which the kernel leaves out.

    >>> _place("0000:3B:00.0"), _place("0000:3b:00")
    ('0000:3b:00', '0000:3b:00')
    """
    return address.partition(".")[0].lower()
