"""`poise demo`: a graph of real work, run whole, run again under kill -9, and beside the baseline policies."""

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from poise import demo as workload
from poise.cli.render import print_json
from poise.cli.submit import read_spec
from poise.cli.up import _stop
from poise.client import Client
from poise.config import Home
from poise.control.start import ensure_up
from poise.drivers.lock import holder
from poise.errors import InputError
from poise.model.reports import JobReport, TaskReport
from poise.units import SECOND, format_duration

BASELINES = ("static", "round-robin", "fifo")
POLL_SECONDS = 0.2
BAR = 28
BETWEEN_KILLS = 1.5
LIMIT_SECONDS = 170.0
FILE_WIDTH = 150
"""Columns when the output is no terminal."""

STYLES = {"done": "green", "running": "cyan", "failed": "red", "recovering": "yellow", "stopping": "yellow"}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of the graph. `killed` says what was killed, in order; times in seconds."""

    policy: str
    killed: tuple[str, ...]
    makespan: float
    device_use: float
    tasks: tuple[dict[str, Any], ...]
    results: dict[str, Any]
    report: JobReport


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.option("--keep", is_flag=True, help="Keep the folders of the runs, and say where they are.")
def demo(as_json: bool, keep: bool) -> int:
    """Run real work: handwritten digits → six models → the best one reads the rest.

    First undisturbed; then again while one of its processes, the agent and the control plane are killed with kill -9,
    which must end with the same results; then under the policies static, round-robin and fifo, for comparison.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise InputError("the demo's work needs scikit-learn", hint="pip install 'poise[demo]'")
    console, out = Console(stderr=True), Console()
    if not out.is_terminal:
        out.width = FILE_WIDTH
    runs = []
    for policy, disturb in (("poise", False), ("poise", True), *((name, False) for name in BASELINES)):
        title = f"{policy}, with kill -9" if disturb else policy
        with _place(keep, console) as folder:
            runs.append(_run(policy, disturb, folder, console))
        if not as_json and policy == "poise":
            out.print(task_table(runs[-1], title), "")
    same = all(run.results == runs[0].results for run in runs)
    whole = all(run.report.exit_code == 0 for run in runs)
    if as_json:
        print_json({"runs": [_public(run) for run in runs], "results_equal": same})
    else:
        out.print(comparison(runs), _verdict(runs, same))
    return 0 if same and whole else 2


def _public(run: Run) -> dict[str, Any]:
    fields = {name: getattr(run, name) for name in run.__struct_fields__ if name != "report"}
    fields["killed"] = list(run.killed)
    return fields


@contextlib.contextmanager
def _place(keep: bool, console: Console) -> Iterator[Path]:
    """A folder for one run; a run that fails keeps it."""
    folder = Path(tempfile.mkdtemp(prefix="poise-demo-"))
    try:
        yield folder
    except BaseException:
        console.print(f"kept for a look: {folder}")
        raise
    if keep:
        console.print(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _run(policy: str, disturb: bool, folder: Path, console: Console) -> Run:
    """One pass of the graph in a home of its own."""
    home = Home(folder / "home")
    work = folder / "work"
    work.mkdir()
    client = ensure_up(home, "--policy", policy, "--port", "0")
    try:
        nodes = _node_joined(client)
        job = client.submit(_graph(work))
        killer = Killer(home, job) if disturb else None
        if killer is not None:
            killer.start()
        report = _watch(client, job, policy, killer, console)
        if killer is not None:
            killer.join()
        cpus = sum(node.cpu for node in nodes) / 1000
        return _summary(policy, report, tuple(killer.killed) if killer else (), cpus)
    finally:
        client.close()
        _stop(home.supervisor, home.lock, home.node / "lock")


def _graph(work: Path) -> dict[str, Any]:
    scripts = Path(workload.__file__).parent
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    spec = read_spec(scripts / "digits.yaml", {**os.environ, "PATH": path, "POISE_DEMO": str(scripts)})
    return spec | {"folder": str(work)}


def _node_joined(client: Client) -> list[Any]:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        nodes = client.nodes()
        if nodes:
            return nodes
        time.sleep(0.05)
    raise TimeoutError("the agent of this machine does not join")


# --- killing ---------------------------------------------------------------------------------------------------------


class Killer(threading.Thread):
    """kill -9 of one running task, the agent and the control plane, a moment apart. Says what it did."""

    def __init__(self, home: Home, job: str) -> None:
        super().__init__(daemon=True)
        self.killed: list[str] = []
        self._home = home
        self._job = job

    def run(self) -> None:
        task, pid = self._training()
        self._kill(task, pid)
        time.sleep(BETWEEN_KILLS)
        self._kill("agent", holder(self._home.node / "lock"))
        time.sleep(BETWEEN_KILLS)
        self._kill("control plane", holder(self._home.lock))

    def _kill(self, name: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed.append(name)

    def _training(self) -> tuple[str, int]:
        """A training task that runs now, and its process."""
        client = Client(self._home)
        for record in client.events(after=0):
            event = msgspec.json.decode(record)["event"]
            if event["type"] == "started" and ".train-" in event["task"] and "[" not in event["task"]:
                time.sleep(0.3)  # into its work, not only its start
                return event["task"].partition(".")[2], int(event["pid"])
        raise RuntimeError("no training task has started")


# --- watching --------------------------------------------------------------------------------------------------------


def _watch(client: Client, job: str, policy: str, killer: Killer | None, console: Console) -> JobReport:
    """Follow a job to its end: a live table in a terminal, else a line for each change."""
    show = _live(console, policy, killer) if console.is_terminal else _lines(console, policy, killer)
    deadline = time.monotonic() + LIMIT_SECONDS
    with show as update:
        while True:
            report = client.job(job)
            update(report)
            if report.exit_code is not None:
                return report
            if time.monotonic() > deadline:
                raise TimeoutError(f"the graph is not done after {LIMIT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def _live(console: Console, policy: str, killer: Killer | None) -> Iterator[Callable[[JobReport], None]]:
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def update(report: JobReport) -> None:
            killed = f"  killed -9: {', '.join(killer.killed)}" if killer and killer.killed else ""
            run = _summary(policy, report, (), 0)
            live.update(Group(Text(f"policy {policy}{killed}", style="bold"), task_table(run, policy)), refresh=True)

        yield update


@contextlib.contextmanager
def _lines(console: Console, policy: str, killer: Killer | None) -> Iterator[Callable[[JobReport], None]]:
    before: dict[str, tuple[str, int]] = {}
    told: list[str] = []

    def update(report: JobReport) -> None:
        for name in (killer.killed if killer else ())[len(told) :]:
            told.append(name)
            console.print(f"{policy}: kill -9 {name}")
        for task in report.tasks:
            if before.get(task.name) != (task.status, task.epoch):
                before[task.name] = (task.status, task.epoch)
                if task.status in ("running", "done", "failed", "recovering"):
                    console.print(
                        f"{policy}: {task.name} {task.status}" + (f", epoch {task.epoch}" if task.epoch > 1 else "")
                    )

    yield update


# --- results ---------------------------------------------------------------------------------------------------------


def _summary(policy: str, report: JobReport, killed: tuple[str, ...], cpus: float) -> Run:
    makespan = report.elapsed / SECOND
    busy = sum(task.cpu for task in report.tasks) / SECOND
    by_name = {task.name: task for task in report.tasks}
    chosen, answers = by_name["pick"].result or {}, by_name["infer"].result or {}
    return Run(
        policy=policy,
        killed=killed,
        makespan=round(makespan, 3),
        device_use=round(busy / (makespan * cpus), 4) if cpus else 0.0,
        tasks=tuple(_task(task, report) for task in report.tasks),
        results={**chosen, **answers},
        report=report,
    )


def _task(task: TaskReport, report: JobReport) -> dict[str, Any]:
    return {
        "name": task.name,
        "status": task.status,
        "node": task.node,
        "cpus": list(task.cpus),
        "epoch": task.epoch,
        "start": round(max(0.0, task.started - report.submitted), 3) if task.started else None,
        "wait": round(task.wait / SECOND, 3),
        "run": round(task.run / SECOND, 3),
        "cpu": round(task.cpu / SECOND, 3),
        "priority": task.priority,
        "critical": task.critical,
        "why": task.why,
        "attempts": [f"epoch {attempt.epoch}: {attempt.outcome}" for attempt in task.attempts],
    }


def task_table(run: Run, title: str) -> Table:
    """What ran where and when, and why it was placed there."""
    killed = f" · killed -9: {', '.join(run.killed)}" if run.killed else ""
    table = Table(title=f"{title}{killed}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("task", "status", "core"):
        table.add_column(name, no_wrap=True)
    for name in ("epoch", "waited", "ran"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"{'0 s':<{BAR - 7}}{run.makespan:>5.1f} s", no_wrap=True, min_width=BAR)
    table.add_column("why there", overflow="fold")
    for task in run.tasks:
        style = STYLES.get(task["status"], "dim")
        epoch = Text(str(task["epoch"] or "-"), style="bold yellow" if task["epoch"] > 1 else "")
        table.add_row(
            Text(task["name"], style="bold" if task["critical"] else ""),
            Text(task["status"], style=style),
            ",".join(map(str, task["cpus"])) or "-",
            epoch,
            format_duration(int(task["wait"] * SECOND)) if task["start"] is not None or task["wait"] else "-",
            format_duration(int(task["run"] * SECOND)) if task["start"] is not None else "-",
            _bar(task, run.makespan, style),
            task["why"],
        )
    return table


def _bar(task: dict[str, Any], makespan: float, style: str) -> Text:
    """The task's place on the run's time line."""
    if task["start"] is None or not makespan:
        return Text("·" * BAR, style="dim")
    begin = min(BAR - 1, int(task["start"] / makespan * BAR))
    length = max(1, min(BAR - begin, round(task["run"] / makespan * BAR)))
    bar = Text("·" * begin, style="dim")
    bar.append("█" * length, style=style)
    bar.append("·" * (BAR - begin - length), style="dim")
    return bar


def comparison(runs: list[Run]) -> Table:
    """The runs side by side."""
    table = Table(title="side by side", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for name in ("makespan", "mean wait", "device use", "attempts", "test accuracy"):
        table.add_column(name, justify="right")
    table.add_column("results")
    for run in runs:
        waits = [task["wait"] for task in run.tasks]
        same = run.results == runs[0].results
        table.add_row(
            f"{run.policy}, with kill -9" if run.killed else run.policy,
            f"{run.makespan:.1f} s",
            f"{sum(waits) / len(waits):.2f} s",
            f"{run.device_use:.0%}",
            str(sum(1 + len(task["attempts"]) for task in run.tasks)),
            f"{run.results.get('test_accuracy', 0):.4f}",
            Text("same" if same else "DIFFERENT", style="green" if same else "bold red"),
        )
    return table


def _verdict(runs: list[Run], same: bool) -> Text:
    killed = next(run for run in runs if run.killed)
    again = [f"{task['name']} (epoch {task['epoch']})" for task in killed.tasks if task["epoch"] > 1]
    text = f"\nKilled -9: {', '.join(killed.killed)}. Run again: {', '.join(again)}. "
    return Text(text + ("Every run ended with the same results." if same else "The results differ."))
