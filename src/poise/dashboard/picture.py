"""The state that a browser shows, and its changes: records by part and key. Pure.

    picture = Picture()
    picture.nodes_are(client.nodes())
    picture.delta()             # {"nodes": {"n1": NodeCell(…)}}
    picture.delta()             # {}: nothing has changed since

Records contain no value that changes by time alone: no "for 3 s", but a start instant. So a fleet at rest sends
nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from poise.model.reports.jobs import JobReport
from poise.model.reports.nodes import NodeReport
from poise.model.reports.status import ChangesReport, Overview
from poise.units import SECOND

MAX_JOBS = 1000
"""Maximum number of jobs in the picture; the oldest ended ones are dropped first."""

STEADY = 2.0
"""Seconds by which a computed instant may differ from the previous one and still count as the same."""

Delta = dict[str, dict[str, Any]]
"""The new record by part and key, or None for a removed one."""


class DeviceCell(msgspec.Struct, frozen=True, array_like=True):
    """One device: its holder, and why it is cordoned (both may be empty)."""

    index: int
    model: str
    held_by: str
    cordoned: str


class NodeCell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node. Units as in `NodeReport`; `busy` and `memory_busy` are its load in thousandths (-1: not known)."""

    name: str
    status: str
    cpu: int
    cpu_used: int
    memory: int
    memory_used: int
    running: int = 0
    queued: int = 0
    devices: tuple[DeviceCell, ...] = ()
    level: str = ""
    busy: int = -1
    memory_busy: int = -1
    zone: str = ""
    rack: str = ""
    model: str = ""
    unfit: str = ""
    failures: int = 0


class JobLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job, without its tasks. Times are seconds since 1970. `idle_since` and `suspended` as in `JobReport`."""

    id: str
    name: str
    tenant: str
    user: str
    status: str
    submitted: float
    counts: dict[str, int]
    command: str
    ended: float = 0.0
    exit_code: int | None = None
    hold: bool = False
    idle_since: float = 0.0
    suspended: bool = False


class WaitLine(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting unit: its place in the queue, the time since which it waits, and the first reason."""

    unit: str
    user: str
    priority: str
    place: int
    since: float
    why: str


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A task that holds resources; `since` is 0 until it runs, `expected` nanoseconds (0: unknown)."""

    task: str
    user: str
    status: str
    priority: str
    node: str
    devices: tuple[int, ...]
    cpus: tuple[int, ...]
    since: float
    expected: int
    command: str


class Picture:
    """All records by part (`head`, `nodes`, `jobs`, `waiting`, `running`) and key, and what has changed since the last
    `delta`.
    """

    def __init__(self) -> None:
        self._now: dict[str, dict[str, Any]] = {"head": {}, "nodes": {}, "jobs": {}, "waiting": {}, "running": {}}
        self._news: Delta = {part: {} for part in self._now}

    def head_is(self, **values: Any) -> None:
        self._put("head", values)

    def nodes_are(self, nodes: Iterable[NodeReport], after: str = "", until: str = "") -> None:
        """Replace the nodes with names after `after`, up to and with `until` ("": all that follow)."""
        told = {node.name: _node(node) for node in nodes}
        between = (name for name in self._now["nodes"] if name > after and (not until or name <= until))
        self._drop("nodes", [name for name in between if name not in told])
        self._put("nodes", told)

    def jobs_are(self, jobs: Iterable[JobReport]) -> None:
        """Replace all jobs."""
        self._replace("jobs", {job.id: _job(job) for job in jobs})

    def merge(self, changes: ChangesReport) -> None:
        """Apply changes."""
        self._put("nodes", {node.name: _node(node) for node in changes.nodes})
        self._put("jobs", {job.id: _job(job) for job in changes.jobs})
        self._drop("nodes", changes.gone_nodes)
        self._drop("jobs", changes.gone_jobs)
        jobs = self._now["jobs"]
        if (extra := len(jobs) - MAX_JOBS) > 0:
            ended = sorted((job for job in jobs.values() if job.ended), key=lambda job: job.ended)
            self._drop("jobs", [job.id for job in ended[:extra]])

    def overview_is(self, told: Overview, wall: float) -> None:
        """Replace the overview by that of `wall`, in seconds since 1970."""
        self.head_is(
            policy=told.policy,
            accepting=told.accepting,
            unfinished=told.unfinished,
            nodes_up=told.nodes_up,
            nodes_lost=told.nodes_lost,
            queue=told.queue,
            blocked=told.blocked,
            starts=told.starts,
            ends=told.ends,
            returns=told.returns,
            more_waiting=told.more_waiting,
            more_running=told.more_running,
        )
        waited, ran = self._now["waiting"], self._now["running"]
        waits = {
            unit.unit: WaitLine(
                unit=unit.unit,
                user=unit.user,
                priority=unit.priority,
                place=place,
                since=_since(waited.get(unit.unit), wall - unit.wait / SECOND),
                why=unit.why,
            )
            for place, unit in enumerate(told.waiting, start=1)
        }
        runs = {
            task.task: RunLine(
                task=task.task,
                user=task.user,
                status=task.status,
                priority=task.priority,
                node=task.node,
                devices=task.devices,
                cpus=task.cpus,
                since=_since(ran.get(task.task), wall - task.run / SECOND) if task.run else 0.0,
                expected=task.expected,
                command=task.command,
            )
            for task in told.running
        }

        self._replace("waiting", waits)
        self._replace("running", runs)

    def delta(self) -> Delta:
        """Return the changes since the last call; the first call returns everything."""
        found = {part: changed for part, changed in self._news.items() if changed}
        self._news = {part: {} for part in self._now}
        return found

    def _put(self, part: str, records: Mapping[str, Any]) -> None:
        now, news = self._now[part], self._news[part]
        for key, record in records.items():
            if key not in now or now[key] != record:
                now[key] = news[key] = record

    def _drop(self, part: str, keys: Iterable[str]) -> None:
        now, news = self._now[part], self._news[part]
        for key in keys:
            if now.pop(key, None) is not None:
                news[key] = None

    def _replace(self, part: str, records: Mapping[str, Any]) -> None:
        self._drop(part, [key for key in self._now[part] if key not in records])
        self._put(part, records)


def apply(state: dict[str, dict[str, Any]], delta: Delta) -> None:
    """Apply changes to a copy of the records."""
    for part, changed in delta.items():
        records = state.setdefault(part, {})
        for key, record in changed.items():
            if record is None:
                records.pop(key, None)
            else:
                records[key] = record


def _since(before: WaitLine | RunLine | None, instant: float) -> float:
    """Return the previous instant, unless the new one differs."""
    if before is not None and abs(before.since - instant) < STEADY:
        return before.since
    return round(instant, 1)


def _node(node: NodeReport) -> NodeCell:
    return NodeCell(
        name=node.name,
        status=node.status,
        cpu=node.cpu,
        cpu_used=node.cpu_used,
        memory=node.memory,
        memory_used=node.memory_used,
        running=node.running,
        queued=node.queued,
        devices=tuple(DeviceCell(of.index, of.model or of.kind, of.held_by, of.cordoned) for of in node.devices),
        level=node.level,
        busy=-1 if node.load is None else node.load.cpu,
        memory_busy=-1 if node.load is None else node.load.memory,
        zone=node.zone,
        rack=node.rack,
        model=node.model,
        unfit=node.unfit,
        failures=node.failures,
    )


def _job(job: JobReport) -> JobLine:
    return JobLine(
        id=job.id,
        name=job.name,
        tenant=job.tenant,
        user=job.user,
        status=job.status,
        submitted=job.submitted,
        ended=job.ended,
        exit_code=job.exit_code,
        counts=job.counts,
        command=job.command,
        hold=job.hold,
        idle_since=job.idle_since,
        suspended=job.suspended,
    )
