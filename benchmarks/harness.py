"""Shared parts of the benchmarks: temporary state directories, the floor, medians with ranges, and process cleanup.

Every benchmark is pinned to two cores, so that "2 slots" means the same on every machine. Each measured system is
started for its turn and stopped after it, so that no idle system disturbs a measurement.
"""

import contextlib
import json
import math
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from poise.client import Client
from poise.config import Endpoint, Home
from poise.control.start import ensure_up
from poise.drivers.lock import holder

SLOTS = 2
NO_OP = {"run": ["/bin/true"]}
START_SECONDS = 20.0
STOP_SECONDS = 20.0
OTHERS_SECONDS = 0.5
POLL_SHORTEST, POLL_LONGEST = 0.002, 0.2

Unit = Literal["s", "ms", "/s", "x", "%", "MB", ""]


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured quantity: a value per round. `limit` is the target: at most, or at least when `larger` is better."""

    name: str
    unit: Unit
    values: list[float]
    limit: float | None = None
    larger: bool = False
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Return whether the median meets the target; None without a target or without values."""
        if self.limit is None or not self.values:
            return None
        return self.median >= self.limit if self.larger else self.median <= self.limit


# --- figures ---------------------------------------------------------------------------------------------------------


def ratio(name: str, ours: Sequence[float], floor: Sequence[float], *, limit: float | None = None) -> Figure:
    """Return the ratio of each round: a disturbance of a whole round slows both sides."""
    values = [own / base for own, base in zip(ours, floor, strict=True)]
    return Figure(name=name, unit="x", values=values, limit=limit)


def rate(name: str, count: int, seconds: Sequence[float], *, limit: float | None = None) -> Figure:
    return Figure(name=name, unit="/s", values=[count / each for each in seconds], limit=limit, larger=True)


def absent(name: str, why: str) -> Figure:
    return Figure(name=name, unit="/s", values=[], note=f"absent: {why}")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def table(figures: Sequence[Figure]) -> str:
    """Format one line per figure: median, range, target, and whether it is met."""
    return columns([("figure", "median", "range", "target", ""), *(_row(figure) for figure in figures)])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    target = "" if figure.limit is None else f"{'≥' if figure.larger else '≤'} {number(figure.limit)} {figure.unit}"
    verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
    if not figure.values:
        return figure.name, "-", "", target, figure.note
    span = f"[{number(min(figure.values))} .. {number(max(figure.values))}]"
    return figure.name, f"{number(figure.median)} {figure.unit}", span, target, f"{verdict}  {figure.note}".strip()


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# --- a benchmark as a program ----------------------------------------------------------------------------------------


def program(
    measure: Callable[[], list[Figure]], *, as_json: bool, show: Callable[[Sequence[Figure]], str] | None = None
) -> int:
    """Measure, print with `show` or as a table, and stop all started processes, also on Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    two_cores()
    try:
        figures = measure()
    except KeyboardInterrupt:
        say("interrupted; all that was started has been ended")
        return 130
    print(json.dumps(as_builtins(figures), indent=2) if as_json else (show or table)(figures))
    return 0


def as_builtins(figures: Sequence[Figure]) -> list[dict[str, object]]:
    """Return each figure with its median and verdict, for JSON."""
    return [
        {**msgspec.to_builtins(figure), "median": figure.median if figure.values else None, "met": figure.met}
        for figure in figures
    ]


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SLOTS])


def other_work() -> float:
    """Return the CPU use of the machine while the benchmark idles, in percent of a core."""
    return psutil.cpu_percent(interval=OTHERS_SECONDS) * (psutil.cpu_count() or 1)


def floor(count: int) -> float:
    """Return the seconds of the bare spawn loop."""
    command = [sys.executable, "-S", str(Path(__file__).with_name("floor.py")), str(count)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# --- a temporary fleet -----------------------------------------------------------------------------------------------


class Fleet:
    """A control plane and an agent in a temporary state directory."""

    def __init__(self, home: Home, client: Client) -> None:
        self.home = home
        self.client = client

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of Poise by their role."""
        found = {
            "control plane": [holder(self.home.lock)],
            "agent": [holder(self.home.node / "lock")],
            "supervisor": [holder(self.home.supervisor)],
            "keeper": [
                process.pid
                for process in psutil.process_iter()
                if str(self.home.node) in (line := _command_line(process)) and "keeper.py" in line
            ],
        }
        return {name: [psutil.Process(pid) for pid in pids] for name, pids in found.items()}

    def submit(self, count: int, work: dict[str, Any] = NO_OP) -> None:
        """Submit no-op jobs through one connection, with a line and a durable receipt for each."""
        receipts = 0
        for receipt in self.client.submit_stream(work for _ in range(count)):
            if receipt.error is not None:
                raise RuntimeError(receipt.error.message)
            receipts += 1
        if receipts != count:
            raise RuntimeError(f"{count} jobs were submitted, {receipts} acknowledged")

    def until_idle(self, count: int, begun: float) -> None:
        """Wait until the end of `count` jobs is durable. Poll rarely while many jobs are left, so that polling costs
        nothing.
        """
        while (left := self.client.status().unfinished) > 0:
            passed = time.perf_counter() - begun
            expected = passed * left / max(1, count - left)
            time.sleep(min(POLL_LONGEST, max(POLL_SHORTEST, min(expected / 4, passed / 10))))

    def check(self, count: int) -> None:
        """Raise unless every job succeeded: otherwise the figures are meaningless."""
        jobs = self.client.jobs(everything=True)
        good = sum(job.exit_code == 0 for job in jobs)
        if good != count or len(jobs) != count:
            raise RuntimeError(f"{count} jobs were submitted, {len(jobs)} are known and {good} ended well")


@contextlib.contextmanager
def own_home() -> Iterator[Home]:
    """Provide a state directory in a temporary folder; stop all of its processes at the end."""
    with tempfile.TemporaryDirectory(prefix="poise-bench-", ignore_cleanup_errors=True) as name:
        home = Home(Path(name).resolve() / "home")
        mark = new_mark()
        before = dict(os.environ)
        os.environ.update(mark)
        try:
            yield home
        finally:
            with uninterrupted():
                os.environ.clear()
                os.environ.update(before)
                _end_home(home)
                end_marked(mark, str(home.root))


def environ_of(home: Home) -> dict[str, str]:
    """Return an environment in which the command line uses this state directory."""
    return {**os.environ, "POISE_HOME": str(home.root)}


@contextlib.contextmanager
def own_fleet(*options: str, warm: int = 0) -> Iterator[Fleet]:
    """Run a fleet in a temporary state directory until its node is ready. `warm` commands run first, because keepers
    start on demand. `options` are those of `poise up`.
    """
    with own_home() as home:
        client = ensure_up(home, "--port", "0", *options)
        with contextlib.closing(client):
            fleet = Fleet(home, client)
            deadline = time.monotonic() + START_SECONDS
            while not client.nodes():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no node has joined within {START_SECONDS:.0f} s")
                time.sleep(0.02)
            fleet.submit(warm)
            fleet.until_idle(warm, time.perf_counter())
            yield fleet


@contextlib.contextmanager
def control_plane(home: Home) -> Iterator[float]:
    """Run a control plane alone, and kill it at the end. Yields the seconds from its start to its first answer."""
    begun = time.perf_counter()
    with (home.root / "poise.log").open("ab") as messages:
        process = subprocess.Popen(
            [sys.executable, "-m", "poise.control", str(home.root), "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
        )
    try:
        while not ready(home, process.pid):
            if process.poll() is not None or time.perf_counter() - begun > 10 * START_SECONDS:
                raise RuntimeError(home.messages.read_text()[-2000:])
            time.sleep(0.002)
        yield time.perf_counter() - begun
    finally:
        process.kill()
        process.wait()


def ready(home: Home, pid: int) -> bool:
    """Return whether this process has published its endpoint and answers."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        if msgspec.json.decode(home.endpoint.read_bytes(), type=Endpoint).pid == pid:
            with contextlib.closing(Client(home, patience=5.0)) as client:
                return client.status().accepting
    return False


def _end_home(home: Home) -> None:
    """Stop the processes in order, the supervisor first so that it restarts nothing."""
    deadline = time.monotonic() + STOP_SECONDS
    for lock in (home.supervisor, home.lock, home.node / "lock"):
        asked = 0
        while (pid := holder(lock)) != 0 and time.monotonic() < deadline:
            if pid != asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                asked = pid
            time.sleep(0.01)


# --- process cleanup -------------------------------------------------------------------------------------------------


def new_mark() -> dict[str, str]:
    """Return an environment variable that marks started processes, so that they can be found again."""
    return {"POISE_BENCH_MARK": secrets.token_hex(8)}


def end_marked(mark: Mapping[str, str], folder: str) -> None:
    """Kill, by their process IDs, the processes that carry the mark or name the folder."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        found = [process for process in psutil.process_iter() if _is_ours(process, mark, folder)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not found:
            return
        time.sleep(0.02)
    raise RuntimeError(f"processes that do not end: {', '.join(str(process.pid) for process in found)}")


def _is_ours(process: psutil.Process, mark: Mapping[str, str], folder: str) -> bool:
    with contextlib.suppress(psutil.Error):
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        if folder in _command_line(process):
            return True
        environ = process.environ()
        return all(environ.get(name) == value for name, value in mark.items())
    return False


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM within the context, so that cleanup finishes."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
