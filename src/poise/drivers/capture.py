"""Takes a capture of the task in whose environment it runs, and writes it to standard output. Run as a file:

    python -I -S capture.py KIND SECONDS

`stacks` and `dump` use py-spy on the task's Python processes. For `torch` it leaves a request beside the task's
training report; the training session reads it between two steps, and writes a trace there.

Standard library only: the environment belongs to the task. An error is one JSON value on standard error, with exit code
3. The command ends with the task, and when it has no reader.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

FAILED = 3
TAKEN_UP_WITHIN = 15.0
"""Seconds within which a training session must accept a request; its steps may take long."""

WRITTEN_WITHIN = 120.0
"""Seconds within which a trace must be written after its duration."""

LOOK_SECONDS = 0.05
CHUNK = 64 << 10
WISH, TAKEN, TRACE = ".wish", ".taken", ".trace.json.gz"
"""Suffixes of files beside the report: the request, the accepted request, and the trace."""


class Failed(Exception):
    """A capture failed: the reason and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def main(arguments: list[str]) -> int:
    kind, seconds = arguments[0], float(arguments[1])
    try:
        if kind == "torch":
            by_torch(os.environ.get("POISE_REPORT", ""), seconds)
        else:
            by_py_spy(kind, seconds)
    except Failed as failed:
        json.dump({"message": str(failed), "hint": failed.hint}, sys.stderr)
        return FAILED
    return 0


def by_py_spy(kind: str, seconds: float) -> None:
    program = shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy")  # noqa: PTH120
    if program is None:
        raise Failed("py-spy is not installed on the node", f"`{sys.executable} -m pip install py-spy` there")
    roots = python_roots()
    if not roots:
        raise Failed("no Python process runs in the task", "`poise exec JOB -- ps -ef` lists its processes")
    if kind == "dump":
        for pid in roots:
            sys.stdout.buffer.write(told(program, "dump", pid) + b"\n")
    else:
        handle, path = tempfile.mkstemp(suffix=".svg")
        try:
            how = ("--duration", str(max(1, round(seconds))), "--format", "flamegraph", "--output", path)
            told(program, "record", roots[0], *how)
            with os.fdopen(handle, "rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        finally:
            os.unlink(path)  # noqa: PTH108
    sys.stdout.buffer.flush()


def told(program: str, what: str, pid: int, *how: str) -> bytes:
    """Return py-spy's output about a process and its descendants."""
    command = [program, what, "--pid", str(pid), "--subprocesses", *how]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        raise Failed(*explained(done.stderr.decode("utf-8", "replace")))
    return done.stdout


def explained(said: str) -> tuple[str, str]:
    """Return a readable form of py-spy's error, and a hint."""
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it ended without a word")
    if "ermission" in said or "ptrace" in said:
        return f"py-spy may not read the process: {last}", "`sudo sysctl kernel.yama.ptrace_scope=0` on the node"
    return f"py-spy has failed: {last}", "`poise capture JOB --dump`, or again"


def python_roots() -> list[int]:
    """Return the task's Python processes that no other of them has started, sorted by process id."""
    own, parents = os.environ.get("POISE_RESULT", ""), {}
    mark = f"POISE_RESULT={own}".encode()
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit() or is_ours(pid := int(entry)):
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if mark not in file.read().split(b"\0"):
                    continue
            if is_python(pid):
                parents[pid] = parent_of(pid)
    return sorted(pid for pid, parent in parents.items() if parent not in parents)


def is_ours(pid: int) -> bool:
    """Return whether it is this program, or belongs to its session."""
    try:
        return os.getsid(pid) == os.getsid(0)
    except OSError:
        return True


def is_python(pid: int) -> bool:
    name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115, PTH119
    if name.startswith(("python", "pypy")):
        return True
    with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
        return b"libpython3" in file.read()


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        return int(file.read().rpartition(b")")[2].split()[1])


def by_torch(report: str, seconds: float) -> None:
    if not report:
        raise Failed("the task runs in no training session of Poise", "`poise capture JOB`, which needs none")
    wish, taken, trace = (report + ending for ending in (WISH, TAKEN, TRACE))
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(trace)  # noqa: PTH108
        with open(f"{wish}.new", "w") as file:  # noqa: PTH123
            json.dump({"seconds": seconds}, file)
        os.replace(f"{wish}.new", wish)  # noqa: PTH105
        if not there_within(taken, TAKEN_UP_WITHIN):
            hint = "`poise capture JOB`, which needs none"
            raise Failed("no training session of Poise responded; it may be waiting, or the task has none", hint)
        if not there_within(trace, seconds + WRITTEN_WITHIN):
            raise Failed("the training session wrote no trace: its steps may take long", "`--for` a longer time")
        with open(trace, "rb") as file:  # noqa: PTH123
            while data := file.read(CHUNK):
                sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if not os.path.getsize(trace):  # noqa: PTH202
            raise Failed("the profiler of PyTorch has failed", "`poise logs JOB` has what it said")
    finally:
        for path in (wish, taken, trace):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108


def there_within(path: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):  # noqa: PTH110
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
