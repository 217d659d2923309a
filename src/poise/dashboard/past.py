"""The data functions of the dashboard that look back: the timeline, past decisions, and the state at a past moment.

They read the log of the home (`Chronicle`), limited to data that the viewer's token may see; `client` has that token.
`at`, `since` and `until` are seconds since 1970.
"""

import threading
import time
from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import Any

import msgspec

from poise.client import Client
from poise.config import Home
from poise.dashboard.chronicle import Book, Chronicle
from poise.dashboard.commands import printed_by
from poise.dashboard.courses import Course, course_of, heard_now
from poise.dashboard.data import Asked, DataFunction, bearer_of, needed, number
from poise.dashboard.picture import MAX_JOBS, Picture
from poise.drivers.past import Moment, Past, time_text
from poise.errors import Busy, Forbidden, SpecError
from poise.kernel.courses import POINTS
from poise.kernel.explain import job_report, node_report
from poise.kernel.find import find, found_report, listed
from poise.kernel.ledger import JobState
from poise.kernel.overview import Rates, overview
from poise.kernel.trace_events import trace
from poise.kernel.visible import Sight
from poise.model.reports.jobs import JobReport
from poise.model.rounds import Decided
from poise.model.tenants import Bearer
from poise.model.timeline import Slice, Timeline
from poise.policy.suites import POLICIES
from poise.units import SECOND

RECENT = 15 * 60.0
"""Default period of a timeline in seconds."""

MAX_COURSES, FEW_POINTS = 64, 60
"""Maximum number of units whose training is shown, and of points of each where there are several."""

MAX_HEARD, MAX_TASKS = 16, 256
"""Maximum number of jobs asked for their current training, and of tasks in such a job: larger reports are expensive."""

MOST_ROWS, MOST_PIXELS, MOST_ROUNDS = 400, 4000, 200

MOST_TRACED = 500_000
"""Maximum number of slices in a trace for a page; use `poise timeline` for larger ones."""

WHAT_IF_SECONDS = 5
"""Time limit for the simulation of a what-if scenario."""

MICROSECOND = 1000


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """A `Timeline` for a canvas: texts are indices into `texts`, times microseconds from `begins`. A row is its node,
    its name, the number of rows of its device above it, and its slices: since, until, phase, task, attempt, outcome,
    count.
    """

    begins: float
    length: int
    revision: int
    total: int
    first: int
    texts: list[str]
    rows: list[tuple[str, str, int, list[tuple[int, int, int, int, int, int, int]]]]
    levels: list[tuple[int, int, int]]
    names: dict[str, str]
    left_out: dict[str, int]


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """The range of moments that can be shown, in seconds since 1970."""

    since: float
    until: float
    revision: int


class PastJob(msgspec.Struct, frozen=True):
    """A job at a past moment; as `JobPage`."""

    job: JobReport
    more_tasks: int


class LookingBack:
    """The past of one home. `routes` are its data functions."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._chronicle = Chronicle(home)
        self._comparing = threading.Lock()
        self.routes: dict[str, DataFunction] = {
            "moments": self.moments,
            "timeline": self.timeline,
            "trace": self.trace,
            "decisions": self.decisions,
            "state": self.state,
            "past-job": self.past_job,
            "what-if": self.what_if,
            "training": self.training,
        }

    def moments(self, client: Client, asked: Asked) -> Moments:
        """The range of a time slider."""
        client.whoami()

        def told(book: Book) -> Moments:
            wall = book.ledger.leader.wall
            return Moments(since=wall(book.known_since), until=wall(book.now), revision=book.ledger.revision)

        return self._chronicle.ask(told)

    def timeline(self, client: Client, asked: Asked) -> Bars:
        """`poise timeline --since … --until …`, for a picture `pixels` wide; `count` rows from number `first` on."""
        return _bars(self._window(client, asked, least=1))

    def trace(self, client: Client, asked: Asked) -> dict[str, Any]:
        """`poise timeline --trace -`."""
        whole = {"first": "0", "count": "0", "pixels": "0"}
        told = self._window(client, dict(asked) | whole, least=0, most=MOST_TRACED)
        if sum(len(row.slices) for row in told.rows) > MOST_TRACED:
            raise _too_large()
        return trace(told)

    def decisions(self, client: Client, asked: Asked) -> list[Decided]:
        """`poise decisions`: the latest `count` rounds before a revision, of one `job` or `node` if it is named; the
        newest first.
        """
        bearer = bearer_of(client)
        count, before = _whole(asked, "count", 50, MOST_ROUNDS), _whole(asked, "before", 0, 2**53)

        def told(book: Book) -> list[Decided]:
            jobs = _jobs(book, asked, bearer)
            sight, node = Sight(book.ledger, bearer), asked.get("node", "")
            return book.rounds.latest(count, before=before, jobs=jobs, node=node, sight=sight)

        return self._chronicle.ask(told)

    def state(self, client: Client, asked: Asked) -> dict[str, Any]:
        """What the stream would have shown at the moment `at`; as `poise ls`, `nodes` and `top` with `--at`."""
        who, bearer = client.whoami(), bearer_of(client)
        past = self._at(asked)
        ledger, sight = past.ledger, Sight(past.ledger, bearer)
        picture = Picture()
        picture.head_is(
            condition="ok",
            trouble="",
            revision=ledger.revision,
            tenant=who.tenant,
            role=who.role,
            token=who.name or who.token,
            at=past.wall,
        )
        picture.nodes_are(sight.node(node_report(one, cordons=ledger.cordons)) for one in ledger.nodes.values())
        jobs = listed(sight.jobs(), latest=MAX_JOBS)
        picture.jobs_are(sight.only(job_report(ledger, job, past.now, tasks=False)) for job in jobs)
        told = overview(ledger, past.now, lambda node: None, Rates(), bearer, accepting=False)
        picture.overview_is(sight.only(told), past.wall)
        picture.head_is(starts=None, ends=None, returns=None)  # rates are not in the log
        return {"nodes": {}, "jobs": {}, "waiting": {}, "running": {}} | picture.delta()

    def past_job(self, client: Client, asked: Asked) -> PastJob:
        """`poise show JOB --at MOMENT`."""
        bearer, past = bearer_of(client), self._at(asked)
        found = find(past.ledger, needed(asked, "job"), bearer=bearer)
        return PastJob(Sight(past.ledger, bearer).only(found_report(past.ledger, found, past.now)), 0)

    def what_if(self, client: Client, asked: Asked) -> Any:
        """`poise what-if` with the flags that are given, in a process of its own that yields to all others."""
        if not bearer_of(client).sees_all:
            raise Forbidden("a what-if scenario simulates the work of all tenants", need="an operator's token")
        self._chronicle.ask(lambda book: None)  # raises if the log is damaged
        policy = asked.get("policy", "")
        if policy not in ("", *POLICIES):
            raise SpecError("there is no such policy", field="policy", have=policy[:80], need=", ".join(POLICIES))
        flags = [
            f"--{name}={one.strip()}"
            for name in ("policy", "add", "without", "priority")
            for one in filter(None, asked.get(name, "").split(","))
        ]
        if not self._comparing.acquire(blocking=False):
            raise Busy("another what-if scenario is being simulated", hint="wait")
        try:
            return printed_by(self._home, ["what-if", *flags, "--budget", f"{WHAT_IF_SECONDS}s", "--json"], last=True)
        finally:
            self._comparing.release()

    def training(self, client: Client, asked: Asked) -> list[Course]:
        """The training that the log has, the latest first, up to the moment `at` if it is given; of one `job`, with
        every point, if it is named. Of the present, jobs that run say how they are now, as for `poise show JOB`.
        """
        bearer, at = bearer_of(client), number(asked, "at", 0.0)

        def told(book: Book) -> tuple[list[Course], list[str]]:
            jobs, sight = _jobs(book, asked, bearer), Sight(book.ledger, bearer)
            shown = (one for one in book.courses.latest() if sight.shows(_job_of(one.unit)))
            chosen = (one for one in shown if not jobs or _job_of(one.unit) in jobs)
            courses = (course_of(one, book.ledger, at or inf, POINTS if jobs else FEW_POINTS) for one in chosen)
            found = list(islice(filter(None, courses), MAX_COURSES))
            running = dict.fromkeys(_job_of(one.unit) for one in found if one.runs)
            small = (job for job in running if _count_tasks(book.ledger.jobs[job]) <= MAX_TASKS)
            return found, list(islice(small, MAX_HEARD))

        found, running = self._chronicle.ask(told)
        if at:
            return found
        heard = {one.unit: one for job in running for one in client.job(job).training}
        return [heard_now(one, heard[one.unit]) if one.unit in heard else one for one in found]

    def _at(self, asked: Asked) -> Past:
        wall = max(0.0, number(asked, "at", time.time()))
        if wall > time.time():
            raise SpecError("this moment is still to come", field="at", have=time_text(wall), hint="`poise eta`")
        return self._chronicle.at(Moment(wall))

    def _window(self, client: Client, asked: Asked, *, least: int, most: int = 0) -> Timeline:
        """Return a timeline of at most `most` slices, if not 0; slices of all jobs are counted before they are made."""
        bearer, now = bearer_of(client), time.time()
        until = min(max(0.0, number(asked, "until", now)), now)
        since = min(max(0.0, number(asked, "since", until - RECENT)), until)
        pixels = _whole(asked, "pixels", 1000, MOST_PIXELS, least)
        first, count = _whole(asked, "first", 0, 2**31), _whole(asked, "count", 100, MOST_ROWS, least)

        def told(book: Book) -> Timeline:
            instant = book.now
            back = [instant - round((book.ledger.leader.wall(instant) - wall) * SECOND) for wall in (since, until)]
            jobs = _jobs(book, asked, bearer)
            if most and not jobs and book.count(*back) > most:
                raise _too_large()
            return book.window(instant, *back, pixels=pixels, first=first, count=count, jobs=jobs, bearer=bearer)

        return self._chronicle.ask(told)


def _too_large() -> Busy:
    return Busy("the trace is too large for a page", hint="`poise timeline --trace FILE`")


def _count_tasks(job: JobState) -> int:
    return sum(len(unit.tasks) for unit in job.units)


def _job_of(unit: str) -> str:
    return unit.partition(".")[0]


def _jobs(book: Book, asked: Asked, bearer: Bearer) -> list[str]:
    name = asked.get("job", "")
    return [find(book.ledger, name, bearer=bearer).job.id] if name else []


def _bars(told: Timeline) -> Bars:
    texts: dict[str, int] = {"": 0}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def bars(slices: Iterable[Slice]) -> list[tuple[int, int, int, int, int, int, int]]:
        return [
            (
                one.since // MICROSECOND,
                one.until // MICROSECOND,
                number(one.phase),
                number(one.task),
                one.epoch,
                number(one.outcome),
                one.count,
            )
            for one in slices
        ]

    return Bars(
        begins=told.begins,
        length=told.length // MICROSECOND,
        revision=told.revision,
        total=told.total,
        first=told.first,
        rows=[(row.node, row.name, row.beside, bars(row.slices)) for row in told.rows],
        texts=list(texts),
        levels=[(level.at // MICROSECOND, level.pending, level.active) for level in told.levels],
        names=told.names,
        left_out=told.left_out,
    )


def _whole(asked: Asked, name: str, otherwise: int, most: int, least: int = 0) -> int:
    return max(least, min(most, int(number(asked, name, otherwise))))
