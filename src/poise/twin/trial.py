"""One trial: a workload, on a fleet, under a policy; and what became of every job."""

from collections.abc import Sequence

import msgspec

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.events import Event, Finished, JobSubmitted, Placed, Preempted, Started
from poise.model.resources import Node
from poise.model.workload import Workload
from poise.policy.suites import ClusterPolicy


class JobResult(msgspec.Struct, kw_only=True):
    """What became of a job. Instants are nanoseconds from the beginning, `started` and `ended` -1 if it never did;
    `run` is the time for which its attempts ran and `service` that times their devices, in nanoseconds.
    """

    id: str
    name: str
    kind: str
    submitted: int
    devices: int
    started: int = -1
    ended: int = -1
    outcome: str = ""
    attempts: int = 0
    preempted: int = 0
    run: int = 0
    service: int = 0


class Recorder:
    """Takes the events of a log in, and knows what became of every job."""

    def __init__(self, began: int) -> None:
        self.jobs: dict[str, JobResult] = {}
        self._began = began
        self._left: dict[str, int] = {}
        self._devices: dict[str, int] = {}

    def take(self, event: Event) -> None:
        match event:
            case JobSubmitted():
                self._submitted(event)
            case Placed():
                self.jobs[event.unit.partition(".")[0]].attempts += 1
            case Preempted():
                self.jobs[event.unit.partition(".")[0]].preempted += 1
            case Started():
                job = self.jobs[event.task.partition(".")[0]]
                if job.started < 0:
                    job.started = event.at - self._began
            case Finished():
                self._finished(event)

    def _submitted(self, event: JobSubmitted) -> None:
        job = event.job
        self.jobs[job.id] = JobResult(
            id=job.id,
            name=job.name,
            kind=job.units[0].kind,
            submitted=event.at - self._began,
            devices=max(unit.shape.gpus * len(unit.tasks) for unit in job.units),
        )
        self._left[job.id] = sum(len(unit.tasks) for unit in job.units)
        for unit in job.units:
            for task in unit.tasks:
                self._devices[f"{job.id}.{task.name}"] = unit.shape.gpus

    def _finished(self, event: Finished) -> None:
        job_id = event.task.partition(".")[0]
        job, ending = self.jobs[job_id], event.ending
        job.service += ending.run * self._devices[event.task]
        job.run = max(job.run, ending.run)
        if ending.outcome in ("stopped", "returned", "lost"):
            return
        self._left[job_id] -= 1
        job.ended, job.outcome = event.at - self._began, ending.outcome
        if job.started < 0:
            job.started = event.at - self._began - ending.run


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that is over."""

    policy: str
    jobs: tuple[JobResult, ...]
    rounds: int

    @property
    def completions(self) -> list[float]:
        """Seconds from submission to end, of the jobs that ended."""
        return [(job.ended - job.submitted) / 1e9 for job in self.jobs if job.ended >= 0]


def simulate(
    workload: Workload,
    nodes: Sequence[Node],
    policy: ClusterPolicy,
    settings: Settings | None = None,
    *,
    until: int = 0,
) -> Result:
    """Run it to its end, or `until` nanoseconds from the beginning."""
    settings = msgspec.structs.replace(settings or Settings(), throughputs=workload.throughputs)
    recorder: list[Recorder] = []
    early: list[Event] = []
    twin = Twin(policy, settings, observe=lambda event: recorder[0].take(event) if recorder else early.append(event))
    recorder.append(Recorder(twin.began))
    twin.add_nodes(nodes)
    for arrival in workload.arrivals:
        twin.arrive(arrival)
    twin.run(until or None)
    return Result(policy=policy.name, jobs=tuple(recorder[0].jobs.values()), rounds=twin.rounds)
