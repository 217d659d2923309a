"""The live part of `poise demo`: a scenario on four declared devices, run by real processes.

A service answers a steady load, elastic training uses every idle device, and an urgent job with a deadline needs two of
them. Then a worker, an agent and the control plane are killed with kill -9. The devices are declared and their speeds
emulated (`fleet.yaml`); processes, sockets, kills, latencies and results are real. The same scripts first run by hand,
without Poise: training and the urgent job must end with the same results.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from poise.client import Client
from poise.config import Home
from poise.control.start import kept_environment
from poise.dashboard.recording import Recording
from poise.decoding import json_decoder
from poise.drivers.lock import holder
from poise.drivers.yamlfile import load_kind
from poise.errors import PoiseError
from poise.model.history import RunReport
from poise.model.reports.jobs import JobReport, TaskReport
from poise.units import SECOND, format_duration
from poise_lab.demo.serving import Clients

SCRIPTS = Path(__file__).parent
FLEET = SCRIPTS / "fleet.yaml"

DEVICES = ("fast 0", "fast 1", "slow 0", "slow 1")
"""The devices of `fleet.yaml`: node and index."""

LEFT_BY_SERVICE = 3
"""Number of devices available to training."""

DEADLINE = 12.0
"""Deadline of the urgent job in seconds, as in `urgent.yaml`."""

OBJECTIVE = 0.25
"""Latency objective in seconds, as in `service.yaml`."""

KEPT = 0.99
"""Fraction of all questions that must be answered within the objective."""

QUESTIONS_PER_SECOND = 20
ANSWER_SECONDS = 5.0
"""Timeout of a question, in seconds."""

TICK_SECONDS = 0.2
LIMIT_SECONDS = 150.0
BEFORE_URGENT = 3.0
BETWEEN_KILLS = 1.5
REPLACED_SECONDS = 8.0
"""Maximum time to wait for the replacement of a killed worker before the next kill."""

GROWN_SECONDS = 10.0
"""Maximum time to wait for training to grow to all idle devices."""

HOLDING = ("placed", "running", "stopping", "recovering")
"""Statuses of tasks that hold devices."""

Kind = Literal["", "service", "training", "urgent", "kill"]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the scenario; `at` is in seconds from the beginning."""

    at: float
    text: str
    kind: Kind = ""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of the display: which job held which device at each sample so far, the events, and the current
    `status`. `link` opens the dashboard once.
    """

    at: float
    held: tuple[tuple[float, Mapping[str, str]], ...]
    moments: tuple[Moment, ...]
    status: str = ""
    link: str = ""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the service, in seconds. Refused and failed questions do not count as in time."""

    objective: float
    asked: int
    answered: int
    in_time: int
    p50: float
    p99: float
    kept: bool


class Urgent(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the urgent job, in seconds from its submission. `same`: its result equals that of the run by hand."""

    deadline: float
    waited: float
    took: float
    met: bool
    same: bool


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """Result of training: its worker counts in order, and the minimum of them after it started."""

    workers: tuple[int, ...]
    fewest: int
    took: float
    accuracy: float
    weights: str
    same: bool


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the live part. `use` is the fraction of the devices that was held during training. `restarted` names
    tasks that were restarted although only an agent or the control plane was killed. `dashboard` is a saved page of the
    dashboard.
    """

    seconds: float
    service: Served
    urgent: Urgent
    training: Trained
    killed: tuple[str, ...]
    restarted: tuple[str, ...]
    use: float
    scene: Scene
    report: RunReport
    dashboard: str

    @property
    def kept(self) -> bool:
        """Return whether every promise was kept."""
        promises = self.urgent.met, self.urgent.same, self.service.kept, self.training.same, self.training.fewest > 0
        return all(promises) and not self.restarted


Show = Callable[[Scene], None]


def run(folder: Path, show: Show) -> Live:
    """Run the whole scenario in `folder`. Raises `TimeoutError` if an expected event does not occur."""
    stage = Stage(folder, show)
    stage.say("by hand: the same scripts run without Poise first, for the results to compare with")
    expected = by_hand(stage.work)
    stage.poise("up", "--fleet", str(FLEET), "--port", "0", "--dashboard")
    try:
        recording = stage.watch()
        stage.say("up: 2 fast and 2 slow devices; they are declared, and their speeds are emulated")
        with served(stage) as asker:
            stage.play(asker)
            asker.stop()  # after all answers have arrived: an open question is not late yet
            service = asker.outcome()
            kept = stage.kept(recording)
        report = json_decoder(RunReport).decode(stage.poise("report", "--json"))
    finally:
        stage.client.close()
        stage.poise("down", "--cancel")
    return stage.outcome(service, expected, report, kept)


# --- by hand ---


def by_hand(work: Path) -> dict[str, Any]:
    """Prepare the images and run the scripts without Poise; return the results of training and of the urgent job by job
    name.
    """
    environ = kept_environment()  # a job's environment: BLAS variables change the last bits of a result
    found = {}
    for script, name in (("prepare", "images"), ("elastic", "training"), ("label", "urgent")):
        done = subprocess.run(  # noqa: S603 — our own program
            [sys.executable, str(SCRIPTS / f"{script}.py")],
            cwd=work,
            env=environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- the service and its clients ---


@contextmanager
def served(stage: "Stage") -> "Iterator[Asker]":
    """Run the service inside the context, with a steady load from its first answer on."""
    command = [sys.executable, "-m", "poise.cli.main", "serve", str(SCRIPTS / "service.yaml"), "--port", "0", "--json"]
    with subprocess.Popen(  # noqa: S603 — our own program
        command, env=stage.environ(), cwd=stage.work, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as gateway:
        try:
            host, port = _address(gateway)
            asker = Asker(host, port, stage.work / "digits.npz")
            asker.start()
            stage.until(lambda: asker.answered > 0, "the first answer of the service")
            rate = f"{QUESTIONS_PER_SECOND} questions a second"
            stage.say(f"service: answers {rate} on a slow device; P99 objective {1000 * OBJECTIVE:.0f} ms", "service")
            yield asker
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait()


def _address(gateway: subprocess.Popen[bytes]) -> tuple[str, int]:
    """Return the address that the service reports."""
    said = b""
    while gateway.stdout is not None and not said.rstrip().endswith(b"}"):
        line = gateway.stdout.readline()
        if not line:
            raise RuntimeError("the service did not start")
        said += line
    host, _, port = json.loads(said)["url"].rpartition("/")[2].partition(":")
    return host, int(port)


class Asker(threading.Thread):
    """Sends questions to the service at a steady rate, independent of earlier answers. Questions before the first
    answer do not count, because the service is still starting.
    """

    def __init__(self, host: str, port: int, images: Path) -> None:
        super().__init__(daemon=True)
        with np.load(images) as file:
            pixels = file["test_images"][:200].astype(float) * 16 / 255
        self._bodies = [json.dumps(image.round(1).tolist()).encode() for image in pixels]
        self._host, self._port = host, port
        self._over = threading.Event()
        self._took: list[float] = []
        self._asked = 0

    @property
    def answered(self) -> int:
        return len(self._took)

    def run(self) -> None:
        asyncio.run(self._ask())

    def stop(self) -> None:
        self._over.set()
        self.join()

    def outcome(self) -> Served:
        took, asked = sorted(self._took), self._asked
        in_time = sum(one <= OBJECTIVE for one in took)
        return Served(
            objective=OBJECTIVE,
            asked=asked,
            answered=len(took),
            in_time=in_time,
            p50=round(quantile(took, 0.5), 4),
            p99=round(quantile(took, 0.99), 4),
            kept=in_time >= KEPT * asked > 0,
        )

    async def _ask(self) -> None:
        clients, draw = Clients(self._host, self._port), random.Random(0)  # noqa: S311 — a load, no secret
        while not self._over.is_set() and not await self._one(clients, self._bodies[0]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        asking: set[asyncio.Task[bool]] = set()
        self._took, self._asked = [], 0
        due = time.perf_counter()
        while not self._over.is_set():
            task = asyncio.create_task(self._one(clients, draw.choice(self._bodies)))
            asking.add(task)
            task.add_done_callback(asking.discard)
            due += 1 / QUESTIONS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.gather(*asking)
        clients.close()

    async def _one(self, clients: Clients, body: bytes) -> bool:
        """Send one question; return whether it was answered."""
        self._asked += 1
        began = time.perf_counter()
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ANSWER_SECONDS):
                if await clients.ask(body) == 200:
                    self._took.append(time.perf_counter() - began)
                    return True
        return False


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the nearest-rank value; 0 if there are no values."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


# --- the scenario ---


class Stage:
    """Poise and the jobs of the scenario: starts them, polls them, and reports changes."""

    def __init__(self, folder: Path, show: Show) -> None:
        self.home, self.work = Home(folder / "home"), folder / "work"
        self.work.mkdir()
        self.client = Client(self.home)
        self._show = show
        self._asker: Asker | None = None
        self._began = time.monotonic()
        self._moments: list[Moment] = []
        self._held: list[tuple[float, dict[str, str]]] = []
        self._jobs: dict[str, JobReport] = {}
        self._workers: list[int] = []
        self._killed: list[str] = []
        self._restarted: list[str] = []
        self._link = ""

    @property
    def at(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, text: str, kind: Kind = "") -> None:
        self._moments.append(Moment(at=round(self.at, 1), text=text, kind=kind))
        self._show(self._scene())

    def poise(self, *arguments: str) -> bytes:
        """Run a command as a user would; return what it prints. Raises `CalledProcessError`."""
        command = [sys.executable, "-m", "poise.cli.main", *arguments]
        done = subprocess.run(command, env=self.environ(), capture_output=True, check=False)  # noqa: S603 — our own
        if done.returncode:
            sys.stderr.write(done.stderr.decode(errors="replace"))
            done.check_returncode()
        return done.stdout

    def environ(self) -> dict[str, str]:
        """Return the environment of a user with this state directory."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("POISE_")}
        return own | {"POISE_HOME": str(self.home.root)}

    def watch(self) -> Recording:
        """Start recording the dashboard, and create a link for viewers."""
        first, self._link = (json.loads(self.poise("dashboard", "--json"))["link"] for _ in range(2))
        return Recording(first)

    def kept(self, recording: Recording) -> str:
        """Return the dashboard page with the recorded data."""
        return recording.page("poise demo", (job.id for job in self.client.jobs()), ("fast", "slow"))

    def play(self, asker: Asker) -> None:
        """Run the scenario from the start of training to its end."""
        self._asker = asker
        self._submit("training")
        self._await_all_devices()
        self._rest(BEFORE_URGENT)
        self._submit("urgent")
        self.say(f"urgent: submitted, needs both fast devices, deadline in {DEADLINE:.0f} s", "urgent")
        self.until(lambda: self._is_over("urgent"), "the end of the urgent job")
        self._await_all_devices()
        self._rest(BETWEEN_KILLS)
        self._kill_worker()
        self._kill_agent("fast")
        self._kill_control_plane()
        self.until(lambda: self._is_over("training"), "the end of training")

    def until(self, happened: Callable[[], bool], what: str, limit: float = LIMIT_SECONDS) -> None:
        """Poll until the event has happened. Raises `TimeoutError` that names it."""
        deadline = self.at + limit
        while not happened():
            if self.at > deadline:
                raise TimeoutError(f"waited {limit:.0f} s for {what}")
            time.sleep(TICK_SECONDS)
            self._look()

    def _rest(self, seconds: float) -> None:
        """Poll for `seconds`."""
        end = self.at + seconds
        self.until(lambda: self.at >= end, "time to pass")

    def _await_all_devices(self) -> None:
        """Poll until training has every remaining device, or until the time limit: the scenario reports the number it
        has.
        """
        self.until(lambda: self._count > 0 or self._is_over("training"), "training to start")
        with suppress(TimeoutError):
            self.until(lambda: self._count == LEFT_BY_SERVICE or self._is_over("training"), "", limit=GROWN_SECONDS)

    def _submit(self, name: str) -> None:
        spec = load_kind(SCRIPTS / f"{name}.yaml", "job")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        spec["env"] |= {"PATH": path, "POISE_DEMO": str(SCRIPTS)}
        self.client.submit(spec | {"folder": str(self.work)})

    # --- killing ---

    def _kill_worker(self) -> None:
        """Kill a training worker on a fast device, and wait until a new process has replaced it."""
        there = [task for task in self._tasks("training") if task.pid]
        if not there:
            return
        first = min(there, key=lambda task: (task.node, task.epoch, task.name))
        known = {task.pid for task in there}
        self._kill(first.pid or 0, "a training worker")
        since = self.at

        def replaced() -> bool:
            new = [task for task in self._tasks("training") if task.status == "running" and task.pid not in known]
            return bool(new) or self._is_over("training")

        with suppress(TimeoutError):
            self.until(replaced, "another worker", limit=REPLACED_SECONDS)
            self.say(f"  the others kept running; a new worker started after {self.at - since:.1f} s", "kill")
        self._rest(BETWEEN_KILLS)

    def _kill_agent(self, node: str) -> None:
        """Kill the agent of a node, and wait until it is back."""
        lock, before = self.home.nodes / node / "lock", self._processes()
        pid = holder(lock)
        self._kill(pid, f"the agent of node {node}")
        self._await_back("the agent", lock, pid, before)

    def _kill_control_plane(self) -> None:
        """Kill the control plane, and wait until it answers again."""
        before, pid = self._processes(), holder(self.home.lock)
        self._kill(pid, "the control plane")
        self._await_back("the control plane", self.home.lock, pid, before)

    def _kill(self, pid: int, who: str) -> None:
        os.kill(pid, signal.SIGKILL)
        self._killed.append(who)
        self.say(f"kill -9: {who}", "kill")

    def _await_back(self, who: str, lock: Path, pid: int, before: Mapping[str, int]) -> None:
        since = self.at
        self.until(lambda: _held_by_another(lock, pid) and self._all_up(), f"{who} to be back")
        took = self.at - since
        self._rest(BETWEEN_KILLS)
        now = self._processes()
        again = [name for name, process in now.items() if before.get(name, process) != process]
        self._restarted += again
        went = f"restarted: {', '.join(again)}" if again else "no process of a job was restarted"
        self.say(f"  {who} was back after {took:.1f} s; {went}", "kill")

    # --- polling ---

    @property
    def _count(self) -> int:
        """Return the number of running training workers, including those whose agent is away."""
        return sum(task.status in ("running", "recovering") for task in self._tasks("training"))

    def _all_up(self) -> bool:
        with suppress(PoiseError):
            return all(node.status == "up" for node in self.client.nodes())
        return False

    def _tasks(self, job: str) -> tuple[TaskReport, ...]:
        return self._jobs[job].tasks if job in self._jobs else ()

    def _is_over(self, job: str) -> bool:
        return job in self._jobs and self._jobs[job].exit_code is not None

    def _processes(self) -> dict[str, int]:
        """Return the process ID of every running task, by task."""
        self._look()
        return {task.task: task.pid for job in self._jobs for task in self._tasks(job) if task.pid}

    def _look(self) -> None:
        """Fetch the state of all jobs, and report changes."""
        was = dict(self._jobs)
        with suppress(PoiseError):  # the control plane was killed and is not back yet
            for report in self.client.jobs():
                name = "service" if report.name.startswith("service") else report.name
                if name not in self._jobs or self._jobs[name].exit_code is None:
                    self._jobs[name] = self.client.job(report.id)
        held = {
            f"{task.node} {device}": name
            for name in self._jobs
            for task in self._tasks(name)
            if task.status in HOLDING
            for device in task.devices
        }
        self._held.append((round(self.at, 2), held))
        self._tell(was)
        self._show(self._scene())

    def _tell(self, was: Mapping[str, JobReport]) -> None:
        """Report changes of the urgent job and of training."""
        urgent, old = self._jobs.get("urgent"), was.get("urgent")
        started = urgent is not None and _has_started(urgent) and not (old and _has_started(old))
        if urgent is not None and urgent.exit_code is not None and (old is None or old.exit_code is None):
            left = DEADLINE - urgent.elapsed / SECOND
            when = f"{left:.1f} s before its deadline" if left >= 0 else f"{-left:.1f} s LATE"
            self.say(f"urgent: done, {when}", "urgent")
        self._tell_training(was.get("training"))
        if urgent is not None and started:
            after = format_duration(round(_waited(urgent) * SECOND))
            self.say(f"urgent: runs on both fast devices, {after} after it was submitted", "urgent")

    def _tell_training(self, old: JobReport | None) -> None:
        count, known = self._count, (self._workers or [0])[-1]
        if self._is_over("training"):
            if old is None or old.exit_code is None:
                self.say(f"training: done, {count_steps(self._jobs['training'])}", "training")
        elif count != known and not any(task.status in ("placed", "done") for task in self._tasks("training")):
            if not known:
                text = "starts with"
            elif count > known:
                text = "grows to"
            else:
                text = "continues with" if self._killed else "gives way and continues with"
            self._workers.append(count)
            self.say(f"training: {text} {_workers(count)}", "training")

    def _scene(self) -> Scene:
        status = []
        if self._asker is not None:
            served = self._asker.outcome()
            status.append(f"service: {served.answered} answers, P99 {1000 * served.p99:.0f} ms")
        if "training" in self._jobs and not self._is_over("training"):
            status.append(f"training: {_workers(self._count)}, {count_steps(self._jobs['training'])}")
        return Scene(
            at=round(self.at, 1),
            held=tuple(self._held),
            moments=tuple(self._moments),
            status="   ".join(status),
            link=self._link,
        )

    def outcome(self, service: Served, expected: Mapping[str, Any], report: RunReport, dashboard: str) -> Live:
        """Return the results of the live part."""
        training, urgent = self._jobs["training"], self._jobs["urgent"]
        trained, labelled = _result(training), _result(urgent)
        took = urgent.elapsed / SECOND
        there = [held for _, held in self._held if "training" in held.values()]
        return Live(
            seconds=round(self.at, 1),
            service=service,
            urgent=Urgent(
                deadline=DEADLINE,
                waited=round(_waited(urgent), 2),
                took=round(took, 2),
                met=urgent.exit_code == 0 and took <= DEADLINE,
                same=labelled == expected["urgent"],
            ),
            training=Trained(
                workers=tuple(self._workers),
                fewest=min(self._workers, default=0),
                took=round(training.elapsed / SECOND, 1),
                accuracy=trained.get("test_accuracy", 0.0),
                weights=trained.get("weights", ""),
                same=trained == expected["training"],
            ),
            killed=tuple(self._killed),
            restarted=tuple(self._restarted),
            use=round(sum(map(len, there)) / (len(DEVICES) * max(1, len(there))), 3),
            scene=self._scene(),
            report=report,
            dashboard=dashboard,
        )


def count_steps(job: JobReport) -> str:
    """Return the progress of training as text."""
    said = job.training[0].said if job.training else None
    if job.exit_code is not None:
        return f"{_result(job).get('steps', 0)} steps"
    return f"step {said.step}" if said is not None else "no step yet"


def _held_by_another(lock: Path, pid: int) -> bool:
    with suppress(OSError, ValueError):
        return holder(lock) not in (0, pid)
    return False


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count != 1 else ''}"


def _has_started(job: JobReport) -> bool:
    return any(task.status in ("running", "done") for task in job.tasks)


def _waited(job: JobReport) -> float:
    """Return the seconds from submission until the last task of the job started."""
    started = [task.started for task in job.tasks if task.started]
    return max(started, default=job.submitted) - job.submitted


def _result(job: JobReport) -> dict[str, Any]:
    return next((task.result for task in job.tasks if isinstance(task.result, dict)), {})
