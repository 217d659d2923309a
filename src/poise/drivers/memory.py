"""How much memory this process holds, has held, and may still have, as Linux tells."""

import contextlib
import re
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident() -> int:
    """Bytes that this process holds; 0 where that is not told."""
    return _marked("VmRSS")


def peak() -> int:
    """The most bytes that it has held since `forget_peak`."""
    return _marked("VmHWM")


def forget_peak() -> None:
    """The most is what it holds now (proc_pid_clear_refs(5))."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _marked(mark: str) -> int:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{mark}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return 1024 * int(found[1]) if found else 0
    return 0


__all__ = ["forget_peak", "peak", "resident"]
