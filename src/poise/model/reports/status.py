"""Reports of the control plane, and of everything at a glance."""

import msgspec

from poise.model.load import Load
from poise.model.reports.jobs import JobReport
from poise.model.reports.nodes import NodeReport
from poise.units import SECOND, format_duration


class PhaseTimes(msgspec.Struct, frozen=True):
    """Recent durations of a phase, in nanoseconds, over `count` rounds or commits: median, 99th percentile and maximum
    (`most`).
    """

    count: int
    p50: int
    p99: int
    most: int


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the control plane. `unfinished` counts jobs, `pending` units that could be placed, and `active` units
    that hold resources. `policy` is the current scheduling policy. `fleet` is the declared fleet, empty for this
    machine. Without `up`, no control plane of the home runs, and the status comes from another control plane, or else
    from the log. With `stands_by`, this is a standby that shows the state written by the leader. `leader` is the
    address of the leader, if another control plane leads and the address is known. `held` counts nodes that have
    exceeded the heartbeat timeout but are not given up yet, because most of the fleet is missing or nodes are still
    coming back. `elsewhere` counts nodes that joined with their own token and see the files of another machine; nodes
    of the substrate of `--on` do not count. `phases` has the recent durations of the phases of a round (`view`,
    `decide`, `wait`, `apply`) and of a commit (`append`, `sync`).
    """

    version: str
    policy: str
    term: int
    revision: int
    accepting: bool
    unfinished: int
    pending: int
    active: int
    nodes: int
    lost: int = 0
    held: int = 0
    elsewhere: int = 0
    fleet: str = ""
    up: bool = True
    stands_by: bool = False
    leader: str = ""
    phases: dict[str, PhaseTimes] = {}


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """A node and its use, in the units of `NodeReport`. `devices_used` counts devices that are held, also in part."""

    name: str
    status: str
    level: str
    load: Load | None
    cpu: int
    cpu_used: int
    memory: int
    memory_used: int
    devices: int
    devices_used: int
    running: int
    queued: int


class TaskUse(msgspec.Struct, frozen=True, kw_only=True):
    """A task that holds resources: its node and devices, how long it has run, and its expected run time, in nanoseconds
    (0: unknown). `pid` is its process, once it has one.
    """

    task: str
    user: str
    status: str
    priority: str
    node: str
    devices: tuple[int, ...]
    cpus: tuple[int, ...]
    pid: int | None
    run: int
    expected: int
    command: str


class UnitWait(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that waits for resources: its waiting time in nanoseconds, and the first reason."""

    unit: str
    user: str
    priority: str
    wait: int
    why: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for machines that a substrate has made of its system, or cannot make: its text and state. It is
    expected to be met at `starts` (seconds since 1970; 0: unknown). If it is `refused`, it will not be met unless
    something changes. It may be for one `job` alone: its id, or the name of an object that is no job yet.
    """

    text: str
    job: str = ""
    starts: int = 0
    refused: bool = False

    def sentence(self, now: float) -> str:
        """Return the text, with the time until it is expected to be met."""
        left = round(self.starts - now)
        return f"{self.text}, expected to start in {format_duration(left * SECOND)}" if left > 0 else self.text


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `poise top`. `queue` counts units that wait for resources, by class; `blocked` counts those that
    wait for other units.

    `starts`, `ends` and `returns` are the recent rates of placed tasks, ended tasks and returned calls, per second. The
    lists are limited: they have the fullest nodes, the oldest tasks and the waiting units that are served first. The
    `more_` fields count the others.
    """

    policy: str
    revision: int
    accepting: bool
    unfinished: int
    nodes_up: int
    nodes_lost: int
    queue: dict[str, int]
    blocked: int
    starts: float
    ends: float
    returns: float
    nodes: tuple[NodeUse, ...]
    running: tuple[TaskUse, ...]
    waiting: tuple[UnitWait, ...]
    more_nodes: int = 0
    more_running: int = 0
    more_waiting: int = 0


class ChangesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and jobs, without tasks, that have changed up to `revision`. The `gone_` ones are no longer known. `whole`
    means that too much has changed to list, so the lists are empty; request everything instead.
    """

    revision: int
    whole: bool = False
    nodes: tuple[NodeReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    gone_jobs: tuple[str, ...] = ()
