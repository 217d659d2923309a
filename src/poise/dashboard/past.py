"""The data functions of the dashboard that look back: the picture of time, decisions, and the state at a past moment.

They are answered from the log of the home (`Chronicle`), as far as the viewer's token may see: `client` says whose it
is. `at`, `since` and `until` are seconds since 1970.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from typing import Any

import msgspec

from poise.client import Client
from poise.config import Home
from poise.dashboard.chronicle import Book, Chronicle
from poise.dashboard.picture import MAX_JOBS, Picture
from poise.drivers.past import Moment, Past, time_text
from poise.errors import Busy, Fault, Forbidden, SpecError
from poise.kernel.explain import job_report, node_report
from poise.kernel.find import find, found_report, listed
from poise.kernel.overview import Rates, overview
from poise.kernel.trace_events import trace
from poise.kernel.visible import Sight
from poise.model.reports import JobReport
from poise.model.rounds import Decided
from poise.model.tenants import Bearer, Role
from poise.model.timeline import Slice, Timeline
from poise.policy.suites import POLICIES
from poise.units import SECOND

Asked = Mapping[str, str]

RECENT = 15 * 60.0
"""Seconds that a picture shows unless it is told since when."""

MOST_ROWS, MOST_PIXELS, MOST_ROUNDS = 400, 4000, 200

MOST_TRACED = 500_000
"""Slices of a trace that a page asks for; larger ones are for `poise timeline`."""

WHAT_IF_SECONDS, WHAT_IF_ENDS = 5, 60.0
"""What the simulation of a what-if may take, and after how long its process is ended."""

MICROSECOND = 1000

_PROGRAM = """import sys
from poise.drivers.system import give_way
give_way()
from poise.cli.main import main
sys.exit(main(sys.argv[1:]))"""
"""A command of Poise that runs when nothing else wants to."""


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """A `Timeline` for a canvas: texts are numbers of `texts`, times microseconds from `begins`. A row is its node, its
    name, how many rows of its device are above it, and its slices: since, until, phase, task, attempt, outcome, count.
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
    """Which moments can be shown, in seconds since 1970."""

    since: float
    until: float
    revision: int


class PastJob(msgspec.Struct, frozen=True):
    """A job as it was; as `JobPage`."""

    job: JobReport
    more_tasks: int


class LookingBack:
    """The past of one home. `routes` are its data functions."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._chronicle = Chronicle(home)
        self._comparing = threading.Lock()
        self.routes: dict[str, Callable[[Client, Asked], Any]] = {
            "moments": self.moments,
            "timeline": self.timeline,
            "trace": self.trace,
            "decisions": self.decisions,
            "state": self.state,
            "past-job": self.past_job,
            "what-if": self.what_if,
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
        """`poise decisions`: the latest `count` rounds before a revision, of one `job` if it is named; the newest
        first.
        """
        bearer = _bearer(client)
        count, before = _whole(asked, "count", 50, MOST_ROUNDS), _whole(asked, "before", 0, 2**53)

        def told(book: Book) -> list[Decided]:
            jobs = _jobs(book, asked, bearer)
            return book.rounds.latest(count, before=before, jobs=jobs, sight=Sight(book.ledger, bearer))

        return self._chronicle.ask(told)

    def state(self, client: Client, asked: Asked) -> dict[str, Any]:
        """What the stream would have shown at the moment `at`; as `poise ls`, `nodes` and `top` with `--at`."""
        who, bearer = client.whoami(), _bearer(client)
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
        bearer, past = _bearer(client), self._at(asked)
        found = find(past.ledger, _needed(asked, "job"), bearer=bearer)
        return PastJob(Sight(past.ledger, bearer).only(found_report(past.ledger, found, past.now)), 0)

    def what_if(self, client: Client, asked: Asked) -> Any:
        """`poise what-if` with the flags that are given, in a process of its own that yields to all others."""
        if not _bearer(client).sees_all:
            raise Forbidden("a what-if scenario simulates the work of all tenants", need="an operator's token")
        self._chronicle.ask(lambda book: None)  # raises what is wrong with the log
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
            return _run(self._home, ["what-if", *flags, "--budget", f"{WHAT_IF_SECONDS}s", "--json"])
        finally:
            self._comparing.release()

    def _at(self, asked: Asked) -> Past:
        wall = max(0.0, _number(asked, "at", time.time()))
        if wall > time.time():
            raise SpecError("this moment is still to come", field="at", have=time_text(wall), hint="`poise eta`")
        return self._chronicle.at(Moment(wall))

    def _window(self, client: Client, asked: Asked, *, least: int, most: int = 0) -> Timeline:
        """At `most` so many slices, where that is not 0: those of all jobs are counted before they are made."""
        bearer, now = _bearer(client), time.time()
        until = min(max(0.0, _number(asked, "until", now)), now)
        since = min(max(0.0, _number(asked, "since", until - RECENT)), until)
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


def _bearer(client: Client) -> Bearer:
    """Whose token it is, as the control plane says now."""
    who = client.whoami()
    return Bearer(who.tenant, Role[who.role.upper()])


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


def _run(home: Home, words: list[str]) -> Any:
    """What a command of Poise prints as JSON. Raises `SpecError` with what it refuses, and `Fault`."""
    environ = {name: value for name, value in os.environ.items() if name not in ("POISE_TOKEN", "POISE_TOKEN_FILE")}
    try:
        done = subprocess.run(  # noqa: S603 — our own program
            [sys.executable, "-c", _PROGRAM, *words],
            env=environ | {"POISE_HOME": str(home.root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WHAT_IF_ENDS,
            check=False,
        )
        told = msgspec.json.decode(done.stdout)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise Fault(f"`poise {words[0]}` has failed: {error}", hint=f"`poise {' '.join(words)}`") from None
    if done.returncode == 0:
        return told
    refused = told["error"]
    raise SpecError(refused["message"], field=refused.get("field", ""), have=refused.get("have", ""))


def _needed(asked: Asked, name: str) -> str:
    given = asked.get(name, "")
    if not given:
        raise SpecError("a parameter is missing", field=name, hint="reload the page")
    return given


def _number(asked: Asked, name: str, otherwise: float) -> float:
    given = asked.get(name, "")
    try:
        number = float(given) if given else otherwise
    except ValueError:
        number = inf
    if not isfinite(number):
        raise SpecError("the value is not a number", field=name, have=given[:40], hint="reload the page")
    return number


def _whole(asked: Asked, name: str, otherwise: int, most: int, least: int = 0) -> int:
    return max(least, min(most, int(_number(asked, name, otherwise))))
