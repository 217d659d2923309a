"""Answers without a running control plane: the same reports, computed from the log on disk."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from poise import __version__
from poise.cli.moments import then
from poise.cli.nodes import declared_fleet
from poise.cli.render import say
from poise.config import Home
from poise.control.start import running
from poise.drivers import incidentfile
from poise.drivers.captures import captures_of
from poise.drivers.devices import probe_node
from poise.drivers.logfile import has_log, read_home
from poise.drivers.outputs import endings
from poise.drivers.past import Moment, Past, start_at, time_text
from poise.drivers.security import ensure_home, read_token, token_for
from poise.drivers.series import Series
from poise.drivers.system import Effort, boot_id
from poise.engine.host import load_ledger
from poise.errors import Conflict, NotFound
from poise.kernel.explain import job_report, node_report, question, schedule_report, status_report
from poise.kernel.find import find, find_node, found_report, listed, of_rank
from poise.kernel.incidents import Incidents
from poise.kernel.ledger import Ledger, NodeState
from poise.kernel.visible import Sight
from poise.model.calendar import CalendarEvent
from poise.model.document import near
from poise.model.events import Event, NodeJoined, decode_event
from poise.model.history import RunReport
from poise.model.hotspots import HotSpots, Order
from poise.model.incidents import IncidentReport
from poise.model.power import Rates
from poise.model.reports.jobs import JobReport, PartReport, ScheduleReport
from poise.model.reports.nodes import NodeReport
from poise.model.reports.questions import Explanation, PlanReport, UnblockReport, WhyNot
from poise.model.reports.services import LoadForecast
from poise.model.reports.status import StatusReport
from poise.model.reports.streams import LogLine
from poise.model.reports.tenants import UsageRow
from poise.model.rounds import Decided
from poise.model.tenants import Bearer, Role
from poise.model.timeline import Timeline
from poise.model.usage import PROFILED, NodeProfile
from poise.units import SECOND

if TYPE_CHECKING:
    from poise.kernel.controller import Controller
    from poise.kernel.explain import Question
    from poise.model.views import Snapshot
    from poise.policy.suites import ClusterPolicy


class Follows(Protocol):
    """A consumer of log events."""

    def add(self, event: Event, /) -> None: ...


Follower = TypeVar("Follower", bound=Follows)


def load(home: Home) -> Ledger:
    """Return the ledger from the log; an empty one without a log."""
    if not has_log(home):
        return Ledger()
    with closing(read_home(home, decode_event)) as log:
        return load_ledger(log)


def instant(ledger: Ledger) -> int:
    """Return the current time of the ledger's clock."""
    return ledger.leader.resume_at(boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())


def refuse_guest(home: Home, what: str, instead: str) -> None:
    """Raises `Conflict` for another user's control plane, and for a token other than the home's own, because the log
    has the work of all tenants. Raises `Denied` if a token cannot be read.
    """
    if home.elsewhere is not None:
        raise Conflict(
            f"{what} is read from the log, which belongs to the owner of the control plane",
            field=home.elsewhere_by,
            have=str(home.elsewhere),
            hint=f"`unset {home.elsewhere_by}` for one of your own home, or {instead}",
        )
    variable = next((name for name in ("POISE_TOKEN", "POISE_TOKEN_FILE") if os.environ.get(name, "").strip()), None)
    if variable is not None and not (home.token.exists() and token_for(home) == read_token(home)):
        raise Conflict(
            f"{what} is read from the log, which holds the work of all tenants",
            field=variable,
            need="the token of the home",
            hint=f"`unset {variable}` as the owner of the home, or {instead}",
        )


def known(home: Home, at: str | None) -> Past:
    """Return the state from the log: as of now, or at a past moment."""
    if at is not None:
        return then(home, at)
    ledger = load(home)
    return Past(ledger, instant(ledger))


def status(home: Home, at: str | None = None) -> StatusReport:
    """Return the status from the log and the declared fleet."""
    fleet = declared_fleet(home) if at is None else None
    return status_report(known(home, at).ledger, __version__, fleet=fleet.name if fleet else "", up=False)


def jobs(home: Home, at: str | None = None, *, everything: bool, **wanted: Any) -> list[JobReport]:
    """Return the jobs as the control plane would list them; `wanted` are arguments of `listed`."""
    ledger, now = known(home, at)
    shown = listed(ledger.jobs.values() if everything else ledger.jobs.recent(20), **wanted)
    return [job_report(ledger, job, now, tasks=False) for job in shown]


def schedules(home: Home) -> list[ScheduleReport]:
    ledger = load(home)
    return [schedule_report(ledger, of) for of in ledger.schedules.values()]


def job(home: Home, name: str, at: str | None = None) -> JobReport:
    """Return a job; for the current state, with its captures."""
    ledger, now = known(home, at)
    found = find(ledger, name)
    kept = tuple(captures_of(home.logs, found.job.id)) if at is None else ()
    return msgspec.structs.replace(found_report(ledger, found, now), captures=kept)


def results(home: Home, name: str) -> Iterator[PartReport]:
    """Yield a row for each task of a job that is over."""
    from poise.drivers.results import rows_of
    from poise.kernel.results import Results, results_of

    ledger = load(home)
    of = find(ledger, name).job
    yield from (
        results_of(ledger, of, instant(ledger)) if of.array is None else rows_of(home, Results(ledger, of, of.array))
    )


def incidents(home: Home) -> list[IncidentReport]:
    """Return all incidents, as of the current log."""
    ledger = load(home)
    folded = _folded(home, ledger)
    return [folded.report(name, ledger.leader.wall) for name in folded.ids()]


def incident(home: Home, name: str) -> IncidentReport:
    """Return one incident. Raises NotFound."""
    ledger = load(home)
    folded = _folded(home, ledger)
    report = folded.report(name, ledger.leader.wall)
    return msgspec.structs.replace(report, outputs=endings(home.logs, folded.attempts(name)))


def _folded(home: Home, ledger: Ledger) -> Incidents:
    if not has_log(home):
        return Incidents()
    with closing(read_home(home, decode_event)) as log:
        folded, ahead = incidentfile.load(home.incidents, log, ledger)
        for revision, event in ahead:
            folded.take(revision, event)
    folded.tick(instant(ledger))
    return folded


def nodes(home: Home, at: str | None = None) -> list[NodeReport]:
    """Return the nodes from the log, or else this machine as it would join."""
    ledger = known(home, at).ledger
    if at is not None:
        return [node_report(state, cordons=ledger.cordons) for state in ledger.nodes.values()]
    ensure_home(home)  # it stores this machine's identity
    states = list(ledger.nodes.values()) or [NodeState(node=probe_node("this machine", home))]
    return [node_report(state, cordons=ledger.cordons) for state in states]


def profiles(home: Home, node: str, now: float) -> list[NodeProfile]:
    """Return the load history of the nodes in the log, or of one, as of `now` (seconds since 1970)."""
    known = load(home).nodes
    return Series(home.series).profiles([find_node(known, node)] if node else islice(known, PROFILED), now)


def explain(home: Home, name: str, at: str | None = None, *, everything: bool) -> Explanation:
    """Return what a new control plane with this log would explain about a job."""
    from poise.engine.lookahead import LookAhead
    from poise.kernel import whatif

    policy, controller = _resumed(known(home, at).ledger)
    view, asked = _asked(controller, name, everything=everything)
    ahead = LookAhead(controller.ledger, view.now, Effort())
    return whatif.explain(policy, view, asked, partial(ahead.starts, policy), everything=everything)


def why_not(home: Home, name: str, node: str) -> WhyNot:
    from poise.kernel import whatif

    policy, controller = _resumed(load(home))
    view, asked = _asked(controller, name)
    return whatif.why_not(policy, view, asked, node)


def unblock(home: Home, name: str) -> UnblockReport:
    from poise.kernel import whatif

    policy, controller = _resumed(load(home))
    view, asked = _asked(controller, name)
    return whatif.unblock(policy, view, asked)


def plan(home: Home, spec: dict[str, Any], *, user: str, everything: bool) -> PlanReport:
    """Plan on the nodes in the log, or else on this machine as it would join."""
    from poise.engine.lookahead import LookAhead
    from poise.kernel import whatif

    ledger = load(home)
    if not ledger.nodes:
        ensure_home(home)  # it stores this machine's identity
        ledger.apply(NodeJoined(at=max(1, ledger.now), node=probe_node("this machine", home)))
    policy, controller = _resumed(ledger)
    compiled = controller.prepare(spec, time.time(), ledger.now)
    job = controller.jobs.would_submit(compiled, user)
    proposal = whatif.propose(ledger, job, ledger.now)
    view = controller.snapshot(ledger.now)
    ahead = LookAhead(ledger, ledger.now, Effort(), job=job)
    return whatif.plan(policy, view, proposal, partial(ahead.starts, policy), note=compiled.note, everything=everything)


class Followed(NamedTuple, Generic[Follower]):
    """A consumer that has read the log; `since` and `now` are ledger times. `now` is the current time if a control
    plane runs, else the end of the log.
    """

    by: Follower
    since: int
    now: int


def followed(home: Home, what: str, since: float, make: Callable[[Ledger], Follower]) -> Followed[Follower]:
    """Feed a home's log to a consumer, from a time in seconds since 1970 (0: from its start). Raises `Conflict` for a
    guest, with `what` in the message, and `NotFound` without a log.
    """
    refuse_guest(home, what, "`poise ls --all`")
    if not has_log(home):
        hint = "`poise run -- echo hello`, or POISE_HOME"
        raise NotFound(f"there is no log for {what}", field=str(home.root), hint=hint)
    with closing(read_home(home, decode_event)) as reader:
        ledger = start_at(reader, Moment(since), plans=False)
        begins, begun = ledger.leader.wall(ledger.now), ledger.revision
        follower = make(ledger)
        for _, event in reader.read(ledger.revision):
            follower.add(event)
    if begins > since:
        say(f"poise: earlier records are no longer kept; this begins at revision {begun}, {time_text(begins)}")
    now = instant(ledger) if running(home) else ledger.now
    return Followed(follower, max(0, now - round((ledger.leader.wall(now) - since) * SECOND)), now)


def report(home: Home, names: Sequence[str], since: float, until: float, tenant: str, rates: Rates) -> RunReport:
    """Return a report of the log between two times in seconds since 1970; with `tenant`, only of that tenant, and
    without the names of other tenants' work. `rates` are those of electricity. Raises NotFound.
    """
    from poise.kernel.history import History

    history, begin, now = followed(home, "a report", since, History)
    end = min(now, now - round((history.ledger.leader.wall(now) - until) * SECOND))
    made = history.report(now, names=names, since=begin, until=end, tenant=tenant, version=__version__, rates=rates)
    if not tenant:
        ends = made.begins + made.length / SECOND
        met = tuple(one for one in incidents(home) if one.opened <= ends and (one.closed or ends) >= made.begins)
        return msgspec.structs.replace(made, incidents=met)
    if not any(one.tenant == tenant for one in made.tenants):
        raise NotFound("this tenant had no job in this time", field="--tenant", have=tenant, hint="`poise report`")
    return Sight(history.ledger, Bearer(tenant, Role.VIEWER)).only(made, *(line.id for line in made.jobs))


def usage(home: Home, since: float, by: Sequence[str], tenant: str, rates: Rates) -> list[UsageRow]:
    """Return the usage since a time in seconds since 1970, by these fields; with `tenant`, only that tenant's. `rates`
    are those of electricity.
    """
    from poise.kernel.accounts import Accounts

    told = followed(home, "a list of usage", since, Accounts)
    return told.by.usage(told.since, told.now, by, tenant, rates)


def load_forecasts(
    home: Home, window: int, horizon: int, by: str, counted: str, names: Sequence[str], events: Sequence[CalendarEvent]
) -> list[LoadForecast]:
    """Forecast the load by window (nanoseconds) from the log, for these subjects or all, with the events of a calendar.
    Raises NotFound.
    """
    from poise.control.load import load_forecasts as forecasts
    from poise.kernel.loads import Loads

    told = followed(home, "a forecast", 0.0, partial(Loads, window=window, by=by, counted=counted))
    if not running(home):
        ends = told.by.ledger.leader.wall(told.now)
        say(f"poise: no control plane is running; the forecast begins where the log ends, {time_text(ends)}")
    known = told.by.subjects()
    for name in names:
        if name not in known:
            hint = near(name, known) or f"known: {', '.join(known[:8]) or 'none'}"
            raise NotFound(f"there is no load of {by} `{name}`", field=by, have=name, hint=hint)
    return forecasts(told.by, told.now, window, horizon, by, counted, names, events)


def decisions(home: Home, jobs: Collection[str], since: float, limit: int, node: str) -> list[Decided]:
    """Return the latest rounds, newest first, since a time in seconds since 1970, that decided something; or something
    about `jobs` or a `node` (also a former one). Raises NotFound.
    """
    from poise.kernel.decided import Rounds

    rounds = followed(home, "a list of decisions", since, Rounds).by
    found = [find(rounds.ledger, name).job.id for name in jobs]
    told = rounds.latest(limit, since=since, jobs=found, node=node)
    if told or not node:
        return told
    return rounds.latest(limit, since=since, jobs=found, node=find_node(rounds.ledger.nodes, node))


def timeline(home: Home, since: float, until: float, jobs: Collection[str]) -> Timeline:
    """Return all attempts between two times in seconds since 1970, or those of `jobs`. Raises NotFound."""
    from poise.kernel.slices import Slices

    told = followed(home, "a timeline", since, partial(Slices, reasons=True))
    ledger, now = told.by.ledger, told.now
    end = min(now, told.since + round((until - since) * SECOND))
    return told.by.window(now, told.since, end, jobs=[find(ledger, name).job.id for name in jobs])


def hot_spots(home: Home, since: int, order: Order, most: int) -> HotSpots:
    """Return where the time of jobs that ended after `since` (ns since 1970) went. Raises `Conflict` for a guest."""
    from poise.kernel.hotspots import HotSpotFinder

    if not has_log(home):
        return HotSpotFinder(Ledger()).report(order, most)
    told = followed(home, "a list of hot spots", since / SECOND, partial(HotSpotFinder, since=since))
    return told.by.report(order, most)


def _resumed(ledger: Ledger) -> "tuple[ClusterPolicy, Controller]":
    """Return the last policy, if it ships with Poise, and a control plane that has not started."""
    from poise.kernel.controller import Controller, Settings
    from poise.policy.suites import POLICIES, policy_named

    settings = Settings(policy=ledger.leader.policy) if ledger.leader.policy in POLICIES else Settings()
    if ledger.leader.policy not in ("", settings.policy):
        say(f"poise: `{ledger.leader.policy}` decides only on its own machine; this is the plan of `{settings.policy}`")
    return policy_named(settings.policy), Controller(ledger, settings)


def _asked(controller: "Controller", name: str, *, everything: bool = False) -> "tuple[Snapshot, Question]":
    ledger = controller.ledger
    view = controller.snapshot(ledger.now)
    found = find(ledger, name)
    return view, question(ledger, found.job, view, units=found.units, everything=everything)


def logs(home: Home, name: str, task: str, *, tail: int, since: float, rank: int) -> Iterator[LogLine]:
    """Yield the output of a job that the home has."""
    import asyncio

    from poise.drivers.joblogs import Wanted, follow_job

    ledger = load(home)
    found = find(ledger, name, task)
    tasks, wanted = of_rank(found, rank), Wanted(tail, since)

    async def gather() -> list[LogLine]:
        pieces = follow_job(home.logs, lambda: ledger, found.job.id, tasks, follow=False, wanted=wanted)
        return [line async for line in pieces]

    yield from asyncio.run(gather())
