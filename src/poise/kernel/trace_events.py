"""Convert a timeline to a trace for Perfetto and Chrome: the JSON of the Trace Event Format.

A node is a process, a row of it a thread, a slice a complete event. The numbers of waiting and running units are
counters. An arrow leads from an attempt to the next one of its task. Times are microseconds from the beginning of the
timeline.

The format: Google, *Trace Event Format*, 2016
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from collections.abc import Iterator
from typing import Any

from poise.model.jobs import FAILED
from poise.model.timeline import Row, Slice, Timeline

UNITS = "units"
"""Name of the counter for all nodes."""

ALL = "all nodes"

MICROSECOND = 1000


def trace(told: Timeline) -> dict[str, Any]:
    """Return the trace, to be written as JSON. Slices are cut at the beginning and the end of the timeline."""
    data = {"begins": told.begins, "revision": told.revision, "by": "Poise"}
    return {"displayTimeUnit": "ms", "otherData": data, "traceEvents": list(_events(told))}


def _events(told: Timeline) -> Iterator[dict[str, Any]]:
    processes = {name: number for number, name in enumerate(dict.fromkeys(["", *(row.node for row in told.rows)]), 1)}
    for node, number in processes.items():
        yield _named("process", number, 0, node or ALL)
    for level in told.levels:
        counts = {"waiting": level.pending, "running": level.active}
        yield {"ph": "C", "name": UNITS, "pid": 1, "tid": 0, "ts": level.at / MICROSECOND, "args": counts}
    ends: dict[str, tuple[int, int, int, float]] = {}
    flows = 0
    for thread, row in enumerate(told.rows, 1):
        yield _named("thread", processes[row.node], thread, row.name)
    for thread, one in sorted(_slices(told), key=lambda of: of[1].since):
        row = told.rows[thread - 1]
        event = _slice(told, row, thread, one, processes[row.node])
        yield event
        if not one.task or one.phase == "waiting":
            continue
        before = ends.get(one.task)
        if before is not None and before[0] < one.epoch:
            flows += 1
            yield _arrow("s", flows, *before[1:])
            yield _arrow("f", flows, event["pid"], thread, event["ts"]) | {"bp": "e"}
        if before is None or before[0] <= one.epoch:
            ends[one.task] = (one.epoch, event["pid"], thread, event["ts"])


def _slices(told: Timeline) -> Iterator[tuple[int, Slice]]:
    for thread, row in enumerate(told.rows, 1):
        for one in row.slices:
            if one.until > 0 and one.since < told.length:
                yield thread, one


def _slice(told: Timeline, row: Row, thread: int, one: Slice, process: int) -> dict[str, Any]:
    since, until = max(one.since, 0), min(one.until, told.length)
    job = one.task.partition(".")[0]
    about = {
        "phase": one.phase,
        "job": job,
        "name": told.names.get(job, ""),
        "attempt": one.epoch,
        "outcome": one.outcome,
        "priority": one.priority,
        "why": one.why,
        "note": one.note,
        "count": one.count if one.count > 1 else 0,
    }
    event = {
        "ph": "X",
        "name": one.task or (f"{one.count} attempts" if one.count > 1 else "work of another tenant"),
        "cat": one.phase,
        "pid": process,
        "tid": thread,
        "ts": since / MICROSECOND,
        "dur": (until - since) / MICROSECOND,
        "args": {name: value for name, value in about.items() if value},
    }
    return event | ({"cname": "terrible"} if one.outcome in FAILED else {})


def _arrow(kind: str, number: int, process: int, thread: int, at: float) -> dict[str, Any]:
    return {"ph": kind, "cat": "attempts", "name": "again", "id": number, "pid": process, "tid": thread, "ts": at}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}
