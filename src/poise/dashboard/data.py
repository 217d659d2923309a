"""The data functions of the dashboard: `GET /data/NAME?…` calls the function of that name with a client of the viewer.

A view that needs more than the stream adds its function to `ROUTES`. The function asks the control plane, so it can
return only data that the token may see. The result is sent as JSON; errors are `PoiseError`s. Answers are cached for a
moment: browsers with the same token that send the same request share one answer (`Kept`).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import inf, isfinite
from threading import Condition
from typing import Any

import msgspec

from poise.client import Client
from poise.dashboard.mirror import SHARE
from poise.errors import NotFound, PoiseError, SpecError
from poise.model.decisions import Reason, Why
from poise.model.reports.jobs import JobReport, TaskReport
from poise.model.reports.streams import LogPiece
from poise.model.tenants import Bearer, Role

Asked = Mapping[str, str]
"""The parameters of a page's query."""

DataFunction = Callable[[Client, Asked], Any]

LEAST, MOST = 1.0, 10.0
"""Minimum and maximum seconds for which an answer is cached; between them, `SHARE` times the time that it took."""

MAX_KEPT, MAX_KEPT_BYTES = 512, 32 << 20

MAX_TASKS = 500
"""Maximum number of tasks of a job shown."""

MAX_INCIDENTS = 200
"""Maximum number of incidents listed."""

TAIL_LINES, TAIL_BYTES = 200, 64 << 10
"""Maximum size of a log's tail, in lines and bytes."""


class JobPage(msgspec.Struct, frozen=True):
    """A job, and the number of its tasks that are left out."""

    job: JobReport
    more_tasks: int


class LogTail(msgspec.Struct, frozen=True):
    """The end of a job's output, in order; `cut` if there is more before it."""

    text: str
    cut: bool


def job(client: Client, asked: Asked) -> JobPage:
    """`poise show JOB --json`. The first tasks, before them those that have not ended as wanted or still run."""
    told = client.job(needed(asked, "job"))
    tasks = sorted(told.tasks, key=_settled) if len(told.tasks) > MAX_TASKS else told.tasks
    return JobPage(msgspec.structs.replace(told, tasks=tuple(tasks[:MAX_TASKS])), max(0, len(tasks) - MAX_TASKS))


def explanation(client: Client, asked: Asked) -> Any:
    """`poise explain JOB --json`, with reasons as sentences."""
    return _worded(client.explain(needed(asked, "job")))


def log(client: Client, asked: Asked) -> LogTail:
    """`poise logs JOB --tail 200`."""
    data, length = bytearray(), 0
    for piece in client.logs(needed(asked, "job"), task=asked.get("task", ""), tail=TAIL_LINES):
        if isinstance(piece, LogPiece):  # lines may be long, and a job may have many tasks
            data += piece.data
            length += len(piece.data)
            del data[:-TAIL_BYTES]
    return LogTail(data.decode("utf-8", "replace"), length > TAIL_BYTES)


def incidents(client: Client, asked: Asked) -> Any:
    """`poise incidents --all --json`, the latest, without what only the page of one shows."""
    brief = {"timeline": (), "evidence": (), "done": (), "outputs": ()}
    return [msgspec.structs.replace(one, **brief) for one in client.incidents()[-MAX_INCIDENTS:]]


def incident(client: Client, asked: Asked) -> Any:
    """`poise incidents INCIDENT --json`."""
    return client.incident(needed(asked, "incident"))


def rules(client: Client, asked: Asked) -> Any:
    """`poise rules --json`."""
    return client.rules()


def budgets(client: Client, asked: Asked) -> Any:
    """`poise usage --budgets --json`."""
    return client.budgets()


def profile(client: Client, asked: Asked) -> Any:
    """`poise profile NODE --json`."""
    return client.profiles(needed(asked, "node"))


def why_not(client: Client, asked: Asked) -> Any:
    """`poise why-not JOB NODE --json`, with reasons as sentences."""
    return _worded(client.why_not(needed(asked, "job"), needed(asked, "node")))


def whoami(client: Client, asked: Asked) -> Any:
    """`poise whoami --json`."""
    return client.whoami()


def unblock(client: Client, asked: Asked) -> Any:
    """`poise unblock JOB --json`."""
    return client.unblock(needed(asked, "job"))


ROUTES: dict[str, DataFunction] = {
    "job": job,
    "explanation": explanation,
    "log": log,
    "incidents": incidents,
    "incident": incident,
    "rules": rules,
    "budgets": budgets,
    "profile": profile,
    "why-not": why_not,
    "unblock": unblock,
    "whoami": whoami,
}


class Kept:
    """A cache of the data functions: concurrent requests for the same answer are sent once. `answer` is thread-safe."""

    def __init__(self, routes: Mapping[str, DataFunction] = ROUTES) -> None:
        self._routes = routes
        self._bytes = 0
        self._changed = Condition()
        self._known: OrderedDict[tuple[str, ...], tuple[float, bytes | PoiseError]] = OrderedDict()
        self._asking: set[tuple[str, ...]] = set()

    def answer(self, name: str, token: str, asked: Asked, connect: Callable[[], Client]) -> bytes:
        """Return the answer as JSON. Raises `PoiseError`."""
        ask = self._routes.get(name)
        if ask is None:
            raise NotFound(f"there is no data function `{name}`", field="path", have=name, hint="reload the page")
        key = (token, name, *(text for pair in sorted(asked.items()) for text in pair))
        with self._changed:
            while key in self._asking:
                self._changed.wait()
            until, kept = self._known.get(key, (0.0, b""))
            if time.monotonic() < until:
                return _given(kept)
            self._asking.add(key)
        begun = time.monotonic()
        try:
            found = _asked(ask, asked, connect)
            with self._changed:
                took = time.monotonic() - begun
                self._drop(key)
                self._known[key] = time.monotonic() + min(MOST, max(LEAST, SHARE * took)), found
                self._bytes += _size(found)
                while len(self._known) > MAX_KEPT or self._bytes > MAX_KEPT_BYTES:
                    self._drop(next(iter(self._known)))
        finally:
            with self._changed:
                self._asking.discard(key)
                self._changed.notify_all()
        return _given(found)

    def forget(self, token: str) -> None:
        """Drop the cached answers of this token."""
        with self._changed:
            for key in [key for key in self._known if key[0] == token]:
                self._drop(key)

    def _drop(self, key: tuple[str, ...]) -> None:
        _, found = self._known.pop(key, (0.0, b""))
        self._bytes -= _size(found)


def _asked(ask: DataFunction, asked: Asked, connect: Callable[[], Client]) -> bytes | PoiseError:
    try:
        with connect() as client:
            return msgspec.json.encode(ask(client, asked))
    except PoiseError as error:
        return error


def _size(found: bytes | PoiseError) -> int:
    return len(found) if isinstance(found, bytes) else 0


def _given(found: bytes | PoiseError) -> bytes:
    if isinstance(found, PoiseError):
        raise found
    return found


def _worded(value: Any) -> Any:
    """Convert a report to JSON types, with reasons as sentences, like those of the command line."""
    if isinstance(value, Reason | Why):
        return value.sentence()
    if isinstance(value, msgspec.Struct):
        return {field: _worded(getattr(value, field)) for field in value.__struct_fields__}
    if isinstance(value, tuple):
        return [_worded(one) for one in value]
    return {key: _worded(one) for key, one in value.items()} if isinstance(value, dict) else value


def needed(asked: Asked, name: str) -> str:
    """Return a required parameter. Raises `SpecError`."""
    given = asked.get(name, "")
    if not given:
        raise SpecError("a parameter is missing", field=name, hint="reload the page")
    return given


def number(asked: Asked, name: str, otherwise: float) -> float:
    """Return a parameter that is a finite number. Raises `SpecError`."""
    given = asked.get(name, "")
    try:
        found = float(given) if given else otherwise
    except ValueError:
        found = inf
    if not isfinite(found):
        raise SpecError("the value is not a number", field=name, have=given[:40], hint="reload the page")
    return found


def bearer_of(client: Client) -> Bearer:
    """Return the owner of the token, as the control plane reports now."""
    who = client.whoami()
    return Bearer(who.tenant, Role[who.role.upper()])


def _settled(task: TaskReport) -> bool:
    """Return whether a task is of little interest: it is done, or has not started."""
    return task.status in ("done", "waiting", "pending", "cancelled", "skipped")
