"""Compare the forecast with a what-if scenario: another policy, more or fewer nodes, or other priorities.

From the current state, many pairs of futures are simulated. Both futures of a pair have the same run times, so every
difference is due to the change. From a recorded log, the workload is run once as it was and once changed.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

import msgspec

from poise.control.forecast import Target
from poise.drivers.logfile import open_log
from poise.engine.futures import UNCHANGED, Change, Happened
from poise.engine.host import ledger_at
from poise.engine.lookahead import BOUNDS, Bounds, Futures, Range, followed, range_of
from poise.errors import InputError, SpecError
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.calendar import CalendarEvent
from poise.model.catalogue import CATALOGUE, device_of, models_named
from poise.model.document import near
from poise.model.events import Began, Configured, Event, NodeForgotten, NodeJoined, configured, decode_event
from poise.model.resources import Device, Node
from poise.policy.suites import ClusterPolicy
from poise_lab.measures import Measures
from poise_lab.traces.options import Options
from poise_lab.traces.poiselog import LOG, read
from poise_lab.trial import remarks, simulate

PAIRS = 50
"""Default number of pairs of futures."""

MOST_ADDED = 1000
"""Maximum number of devices or nodes to add at once."""

Measure = Literal["time", "count"]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: as it is, changed, and the difference of each pair. Nanoseconds from now, or a count."""

    figure: str
    of: Measure
    now: Range
    then: Range
    difference: Range


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Effect of a change. `changes` describes it; `futures` is the number of pairs, `units` the number of simulated
    units. `events` of a calendar change the rate of the jobs that arrive in both futures of a pair.
    """

    revision: int
    at: float
    policy: str
    changes: tuple[str, ...]
    futures: int
    asked: int
    seconds: float
    units: int
    figures: tuple[Compared, ...]
    left_out: int = 0
    events: tuple[str, ...] = ()


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of a change on a recorded log: figures of both runs, with the same submissions and run times. `skipped`
    counts the log entries that were left out, by reason. `remarks` are sentences on jobs of the changed run that were
    refused or have not ended.
    """

    log: str
    policy: str
    changes: tuple[str, ...]
    nodes: int
    now: Measures
    then: Measures
    skipped: dict[str, int] = {}
    remarks: tuple[str, ...] = ()


def what_if(
    ledger: Ledger,
    settings: Settings,
    now: int,
    policies: tuple[ClusterPolicy, ClusterPolicy],
    change: Change,
    changes: Sequence[str],
    targets: Sequence[Target],
    *,
    bounds: Bounds = BOUNDS,
    seed: int = 0,
    events: Sequence[CalendarEvent] = (),
) -> WhatIf:
    """Simulate pairs of futures: unchanged under the first policy, and changed under the second, both with the events
    of a calendar. Raises `InputError` if not even one pair finishes within the time limit.
    """
    began = time.monotonic()
    keep = [target.job.id for target in targets]

    def make(most: int) -> Futures:
        joined = change.joined
        return Futures(
            ledger, settings, now, time.monotonic, seed=seed, most=most, keep=keep, joined=joined, events=events
        )

    def follow(futures: Futures, number: int, deadline: float) -> tuple[Happened, Happened] | None:
        as_is = futures.follow(policies[0], number, deadline)
        changed = futures.follow(policies[1], number, deadline, change=change) if as_is is not None else None
        return (as_is, changed) if as_is is not None and changed is not None else None

    futures, pairs = followed(make, follow, bounds, "pair of futures", time.monotonic)
    return WhatIf(
        revision=ledger.revision,
        at=ledger.leader.wall(now),
        policy=policies[0].name,
        changes=tuple(changes),
        futures=len(pairs),
        asked=bounds.futures,
        seconds=time.monotonic() - began,
        units=futures.units,
        left_out=futures.left_out,
        events=futures.events if futures.arriving else (),
        figures=tuple(_figures(ledger, futures, pairs, targets)),
    )


def _figures(
    ledger: Ledger, futures: Futures, pairs: Sequence[tuple[Happened, Happened]], targets: Sequence[Target]
) -> Iterable[Compared]:
    now = futures.now
    jobs = [job for job in map(ledger.jobs.__getitem__, futures.kept) if job.calls is None]
    units = [unit for job in jobs for unit in job.units if not unit.over]
    waiting = [unit.id for unit in units if not any(task.started for task in unit.tasks)]
    every = [unit.id for unit in units]
    due = {unit.id: ledger.jobs[unit.job].submitted + unit.spec.deadline for unit in units if unit.spec.deadline}

    def compared(figure: str, of: Measure, value: Callable[[Happened], float]) -> Compared:
        values = [(value(as_is), value(changed)) for as_is, changed in pairs]
        differences = [then - was if then != was else 0.0 for was, then in values]
        was, then = (range_of(side) for side in zip(*values, strict=True))
        return Compared(figure=figure, of=of, now=was, then=then, difference=range_of(differences))

    for target in targets:
        asked = [name for name in target.units if name in set(every)]
        if not set(asked).isdisjoint(waiting):
            yield compared(f"{target.job.name or target.called} starts in", "time", partial(_starts_in, asked, now))
        yield compared(f"{target.job.name or target.called} ends in", "time", partial(_ends_in, asked, now))
    if not every:
        return
    if waiting:
        yield compared("mean start of what waits", "time", lambda of: _mean(of.started, waiting) - now)
    yield compared("mean end of all", "time", lambda of: _mean(of.ended, every) - now)
    yield compared("all has ended in", "time", partial(_ends_in, every, now))
    if due:
        yield compared("deadlines missed", "count", partial(_missed, due))
    yield compared("orders to yield", "count", lambda of: of.preempted)


def _missed(due: Mapping[str, int], of: Happened) -> int:
    """Return the number of units that are not done by their deadline."""
    return sum(of.ended.get(unit, inf) > at or unit in of.failed for unit, at in due.items())


def _starts_in(units: Sequence[str], now: int, of: Happened) -> float:
    return min((of.started.get(unit, inf) for unit in units), default=inf) - now


def _ends_in(units: Sequence[str], now: int, of: Happened) -> float:
    return max((of.ended.get(unit, inf) for unit in units), default=inf) - now


def _mean(instants: Mapping[str, int], units: Sequence[str]) -> float:
    return sum(instants.get(unit, inf) for unit in units) / len(units)


# --- a log -----------------------------------------------------------------------------------------------------------


class Recorded(msgspec.Struct, kw_only=True):
    """State recorded in a log: the last version of each node, and the last `Began` event."""

    nodes: dict[str, Node] = {}
    began: Began | None = None


def recorded(events: Iterable[Event], start: Ledger | None = None) -> Recorded:
    """Collect the recorded state from the events of a log."""
    found = Recorded()
    if start is not None:
        found.nodes = {name: state.node for name, state in start.nodes.items()}
        found.began = start.leader.began
    for event in events:
        if isinstance(event, NodeJoined):
            found.nodes[event.node.name] = event.node
        elif isinstance(event, NodeForgotten):
            found.nodes.pop(event.name, None)
        elif isinstance(event, Began):
            found.began = event
        elif isinstance(event, Configured) and found.began is not None:
            found.began = configured(found.began, event)
    return found


def recorded_in(path: Path) -> Recorded:
    """Collect it from a state directory or a log. Raises `PoiseError` for a file that is not such a log or is
    unreadable.
    """
    with open_log(path / LOG if path.is_dir() else path, decode_event) as recording:
        return recorded(recording.events, ledger_at(recording.start, lambda: recording.written_by))


def replay_changed(
    log: Path,
    known: Recorded,
    policies: tuple[ClusterPolicy, ClusterPolicy],
    change: Change,
    changes: Sequence[str],
) -> Rerun:
    """Run the workload of a log to its end, once as it was and once changed. All nodes are present from the start."""
    settings = Settings()
    if known.began is not None:
        settings = Settings(seed=known.began.seed, throughputs=known.began.throughputs)
    workload = read(log, Options(information="estimated", speeds=settings.throughputs))
    nodes = list(known.nodes.values())
    changed = [node for node in nodes if node.name not in change.lost] + list(change.joined)
    if not changed:
        raise InputError("no node is left", field="--without", hint="keep one, or add some with `--add`")
    was, then = (
        simulate(workload, fleet, policy, settings) for fleet, policy in zip((nodes, changed), policies, strict=True)
    )
    return Rerun(
        log=workload.name,
        policy=policies[0].name,
        changes=tuple(changes),
        nodes=len(nodes),
        now=was.measures,
        then=then.measures,
        skipped=dict(workload.skipped),
        remarks=tuple(remarks(then)),
    )


# --- added nodes -----------------------------------------------------------------------------------------------------


def more_nodes(text: str, nodes: Sequence[Node], number: int) -> list[Node]:
    """Return the nodes to add. `2xA100-80` adds one node with two devices of that model, like the nodes that have such
    devices; `2xNAME` adds two nodes like an existing node. `number` distinguishes several additions. Raises
    `SpecError`.
    """
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*[x*]\s*(\S+)\s*", text)
    if match is None or not 1 <= int(match[1]) <= MOST_ADDED:
        raise SpecError(
            "the addition cannot be read",
            field="--add",
            need=f"a number (1 to {MOST_ADDED}) of a model or of a node",
            have=text[:80],
            hint="--add 2xA100-80",
        )
    count, what = int(match[1]), match[2]
    alike = next((node for node in nodes if node.name == what), None)
    if alike is not None:
        return [_like(alike, f"added-{number}-{place}", alike.devices) for place in range(1, count + 1)]
    here = [device for node in nodes for device in node.devices if what.lower() in (device.model.lower(), device.kind)]
    if here:
        model = here[0]
        devices = tuple(_device(model, place, number) for place in range(count))
        host = max(nodes, key=lambda node: sum(device.model == model.model for device in node.devices))
        return [_sized(host, f"added-{number}", devices)]
    entries = models_named(what)
    if len(entries) != 1:
        known = [*dict.fromkeys(device.model for node in nodes for device in node.devices if device.model)]
        known += [entry.name for entry in CATALOGUE] + [node.name for node in nodes]
        raise SpecError(
            f"`{what}` is {'several models' if entries else 'no model and no node that is known'}",
            field="--add",
            have=what,
            need=", ".join(entry.name for entry in entries) or "a model of `poise catalogue`, or a node",
            hint=f"--add {count}x{entries[0].name}" if entries else near(what, known) or "`poise catalogue`",
        )
    devices = tuple(device_of(what, place, uuid=f"added-{number}-{place}") for place in range(count))
    host = max(
        nodes, key=lambda node: (len(node.devices), node.cpu), default=Node(name="", incarnation="", cpu=0, memory=0)
    )
    return [_sized(host, f"added-{number}", devices)]


def _device(like: Device, place: int, number: int) -> Device:
    return msgspec.structs.replace(like, index=place, uuid=f"added-{number}-{place}", failed="")


def _sized(host: Node, name: str, devices: tuple[Device, ...]) -> Node:
    """Return a node with the host's CPU and memory per device; with all of them if the host has no devices."""
    share = len(devices) / len(host.devices) if host.devices else 1.0
    made = _like(host, name, devices)
    return msgspec.structs.replace(made, cpu=int(host.cpu * share), memory=int(host.memory * share), links=())


def _like(node: Node, name: str, devices: tuple[Device, ...]) -> Node:
    renamed = tuple(
        msgspec.structs.replace(device, uuid=f"{name}-{place}", failed="") for place, device in enumerate(devices)
    )
    return msgspec.structs.replace(node, name=name, incarnation="added", devices=renamed)


__all__ = [
    "UNCHANGED",
    "Compared",
    "Recorded",
    "Rerun",
    "WhatIf",
    "more_nodes",
    "recorded",
    "recorded_in",
    "replay_changed",
    "what_if",
]
