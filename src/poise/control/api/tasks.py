"""Routes to running tasks: their output and input, commands and connections beside them, captures, files."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from poise.control.api.parts import KEEP_ALIVE, MAX_LISTED, MAX_REVISION, SUBMITTER, VIEWER, Parts
from poise.control.captures import capture
from poise.control.consoles import running_tasks, takes_input
from poise.control.results import results_of_job
from poise.control.routes import Content, Routes, Stream
from poise.drivers.captures import captures_of, read_capture
from poise.drivers.joblogs import Wanted, follow_job
from poise.drivers.session import SSH_KEY
from poise.errors import Conflict, NotFound, SpecError
from poise.kernel.find import FEW, Found, of_rank
from poise.kernel.ledger import Ledger, UnitState, attempt_of
from poise.kernel.owners import check_enter
from poise.model.captures import LASTS, LONGEST, Capture, CaptureKind
from poise.model.document import some
from poise.model.fields import Quantity, parse_or_raise
from poise.model.job_fields import terminal
from poise.model.messages import Piece
from poise.model.reports.streams import InputReport
from poise.model.spec import command_of, variable_of
from poise.model.tenants import Bearer
from poise.units import SECOND, parse_duration

INPUT_SECONDS, INPUT_POLL = 10.0, 0.03
"""How long input waits for its task to start, and how often the wait checks for that."""

_log = logging.getLogger("poise.control")

Place = Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)]


class InputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of standard input: base64 `data` that starts at byte `at` of the input of attempt `epoch`; `end` marks
    the last piece. If another attempt runs, the input is discarded, and the answer names the running one. `task` is
    required if several tasks take input. `size` is the terminal size, `ROWSxCOLUMNS`. After `hold` seconds without
    another piece the terminal hangs up, and a job that still waits is cancelled. With `hang_up` the terminal hangs up
    now.
    """

    task: str = ""
    epoch: Place = 0
    at: Place = 0
    data: Annotated[bytes, msgspec.Meta(max_length=2**20)] = b""
    end: bool = False
    size: str = ""
    hold: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    hang_up: bool = False

    def piece(self, epoch: int) -> Piece:
        """Return the part of the request that concerns the attempt of this epoch."""
        size, hold = terminal(self.size, "size") if self.size else 0, round(self.hold * SECOND)
        if self.epoch != epoch:
            return Piece(size=size, hold=hold, hang_up=self.hang_up)
        return Piece(at=self.at, data=self.data, end=self.end, size=size, hold=hold, hang_up=self.hang_up)


class ExecRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command to run beside a task. `task` is required if several tasks run; for a gang, `rank` selects one (default
    0). `env` extends the task's environment. With `stdin` the command gets input; `tty` is the size of its terminal,
    `ROWSxCOLUMNS`.
    """

    run: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None
    env: dict[str, str] = {}
    stdin: bool = False
    tty: str = ""


class ConnectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A connection to a TCP `port` on the node of a running task or, with a public `key`, to an SSH server that accepts
    it. `task` is required if several tasks run; for a gang, `rank` selects one (default 0).
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    key: Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[^\x00-\x1f]*$(?!\n)")] = ""
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None


class CaptureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A capture of a running task, of the given `kind`. `task` is required if several tasks run; for a gang, `rank`
    selects one (default 0). `lasts` is a duration; the default is 10 s for stacks, 2 s for a trace.
    """

    kind: CaptureKind = "stacks"
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None
    lasts: Quantity | None = None


class FilesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or folder, by its `path` in the folder of a job. `task` is required if the job has several; for a gang,
    `rank` selects one (default 0).
    """

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    task: str = ""
    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)] | None = None


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, home = parts.plane, parts.home
    consoles, attendance = parts.consoles, parts.attendance

    def in_lines(bearer: Bearer, pieces: AsyncIterator[Any]) -> Stream:
        return Stream(_lines(pieces, lambda: parts.gate.stands(bearer)), "application/x-ndjson")

    async def to_enter(bearer: Bearer, name: str, task: str) -> tuple[Ledger, Found]:
        """Return tasks that the bearer wants to enter. Raises `Forbidden`."""
        plane.check_leading()
        ledger, found = await parts.settled_job(bearer, name, task)
        check_enter(ledger, found.job.account, bearer)
        return ledger, found

    async def woken(bearer: Bearer, unit: UnitState) -> None:
        """Resume a suspended unit before somebody runs a command in it. Raises `Conflict` if its resources are not
        free.
        """
        if unit.suspended is not None and (waits := await parts.resume(bearer, unit.id)):
            what, hint = f"{unit.id} is suspended, and its resources are not free", "retry once they are"
            raise Conflict(what, field="job", have="; ".join(waits), hint=hint)

    @routes.get(
        "/v1/jobs/{name}/logs",
        summary="The output of a job with its times, as lines of JSON; `follow` until it ends, from the last `tail` "
        "lines on, or from a time on (`since`, in seconds since 1970); of a gang all, or one `rank`",
        role=VIEWER,
    )
    async def logs(
        bearer: Bearer,
        name: str,
        follow: bool = False,
        task: str = "",
        tail: Annotated[int, msgspec.Meta(ge=-1, le=MAX_LISTED)] = -1,
        since: Annotated[float, msgspec.Meta(ge=0, le=MAX_REVISION)] = 0.0,
        rank: Annotated[int, msgspec.Meta(ge=-1, le=MAX_REVISION)] = -1,
    ) -> Stream:
        _, found = await parts.settled_job(bearer, name, task)
        tasks, wanted = of_rank(found, rank), Wanted(tail, since)
        job, rest = found.job.id, partial(plane.ends, found.job.id)
        pieces = follow_job(home.logs, lambda: plane.ledger, job, tasks, follow=follow, wanted=wanted, rest=rest)
        return in_lines(bearer, pieces)

    @routes.get(
        "/v1/jobs/{name}/results",
        summary="Lines of JSON: the parameters, status, node, times, exit code and result of each task that is over",
        role=VIEWER,
    )
    async def results(bearer: Bearer, name: str) -> Stream:
        ledger, found = await parts.settled_job(bearer, name)
        rows = results_of_job(home, ledger, found.job, plane.clock.now())
        return in_lines(bearer, rows)

    @routes.post(
        "/v1/jobs/{name}/input",
        summary="Send a task a piece of its standard input; the answer says how much was accepted",
        status=200,
        role=SUBMITTER,
    )
    async def give_input(bearer: Bearer, name: str, data: InputRequest) -> InputReport:
        ledger, found = await to_enter(bearer, name, data.task)
        unit, index = the_one_that_takes_input(found)
        if data.hold and unit.spec.tty:
            attendance.heard(found.job.id, data.hold, bearer)
        until = asyncio.get_running_loop().time() + INPUT_SECONDS
        while unit.tasks[index].status != "running":
            if ledger.jobs.is_over(unit.id):
                attendance.done(found.job.id)
                return InputReport(epoch=unit.epoch_of(index), wanted=False, over=True)
            if asyncio.get_running_loop().time() > until:
                return InputReport()
            await asyncio.sleep(INPUT_POLL)
            ledger = await plane.settled()
            unit = ledger.jobs.unit(unit.id) or unit
        attempt = attempt_of(unit, index)
        if data.data and unit.suspended is not None:  # if its resources are not free, the input waits for them
            await parts.resume(bearer, unit.id)
        fed = await consoles.feed(unit.tasks[index].node, attempt, data.piece(attempt.epoch))
        if fed is None:
            return InputReport(epoch=attempt.epoch)
        attendance.done(found.job.id)
        return InputReport(epoch=attempt.epoch, taken=fed.taken, wanted=fed.wanted)

    @routes.post(
        "/v1/jobs/{name}/exec",
        summary="Run a command beside a running task, and stream its output as lines of JSON; it ends with the request",
        status=200,
        role=SUBMITTER,
    )
    async def execute(bearer: Bearer, name: str, data: ExecRequest) -> Stream:
        ledger, found = await to_enter(bearer, name, data.task)
        unit, index = the_one_that_runs(found, ledger, data.rank)
        tty = terminal(data.tty, "tty") if data.tty else 0
        argv = command_of(list(data.run), "run")
        env = {variable: variable_of(variable, value, f"env.{variable}") for variable, value in data.env.items()}
        await woken(bearer, unit)
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        _log.info("%s of %s runs `%s` beside %s", bearer.name or "somebody", bearer.tenant, argv[0], attempt)
        pieces = consoles.run(node, attempt, bearer, argv, env, stdin=data.stdin, tty=tty)
        return in_lines(bearer, pieces)

    @routes.post(
        "/v1/jobs/{name}/connect",
        summary="Connect to a port of a running task, or to an SSH server beside it; what it sends comes as lines of "
        "JSON, as for `exec`",
        status=200,
        role=SUBMITTER,
    )
    async def connect(bearer: Bearer, name: str, data: ConnectRequest) -> Stream:
        ledger, found = await to_enter(bearer, name, data.task)
        unit, index = the_one_that_runs(found, ledger, data.rank)
        if bool(data.port) == bool(data.key):
            raise SpecError("a connection is to a port, or by SSH", field="port", need="`port` or `key`")
        session = ("port", str(data.port)) if data.port else ("ssh",)
        await woken(bearer, unit)
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        _log.info("%s of %s connects to %s: %s", bearer.name or "somebody", bearer.tenant, attempt, " ".join(session))
        env = {SSH_KEY: data.key} if data.key else {}
        pieces = consoles.run(node, attempt, bearer, (), env, stdin=True, session=session)
        return in_lines(bearer, pieces)

    @routes.post(
        "/v1/jobs/{name}/capture",
        summary="Capture what a running task does: stacks by py-spy, or a trace of PyTorch; answers in lines of JSON",
        status=200,
        role=SUBMITTER,
    )
    async def take_capture(bearer: Bearer, name: str, data: CaptureRequest) -> Stream:
        ledger, found = await to_enter(bearer, name, data.task)
        unit, index = the_one_that_runs(found, ledger, data.rank)
        lasts = LASTS[data.kind]
        if data.lasts is not None:
            lasts = parse_or_raise(parse_duration, data.lasts, "lasts", LONGEST)
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        _log.info("%s of %s captures %s of %s", bearer.name or "somebody", bearer.tenant, data.kind, attempt)
        pieces = capture(consoles, home.logs, node, attempt, bearer, data.kind, lasts)
        return in_lines(bearer, pieces)

    @routes.post(
        "/v1/jobs/{name}/files",
        summary="Get a file or a folder that a task has left on its node, as a tar archive in lines of JSON",
        status=200,
        role=SUBMITTER,
    )
    async def get_files(bearer: Bearer, name: str, data: FilesRequest) -> Stream:
        _, found = await to_enter(bearer, name, data.task)
        unit, index = the_one_that_ran(found, data.rank)
        tree = found.job.tree
        node, attempt = unit.tasks[index].node, attempt_of(unit, index)
        folder, within = found.job.folder, tree.folder if tree is not None else ""
        account = found.job.account
        pieces = consoles.get(node, attempt, bearer, data.path, folder=folder, within=within, account=account)
        return in_lines(bearer, pieces)

    @routes.get("/v1/jobs/{name}/captures", summary="Stored captures of a job", role=VIEWER)
    async def captures(bearer: Bearer, name: str) -> list[Capture]:
        _, found = await parts.settled_job(bearer, name)
        return await asyncio.to_thread(captures_of, home.logs, found.job.id)

    @routes.get("/v1/jobs/{name}/captures/{capture}", summary="The file of a capture", role=VIEWER)
    async def one_capture(bearer: Bearer, name: str, capture: str) -> Content:
        _, found = await parts.settled_job(bearer, name)
        data = await asyncio.to_thread(read_capture, home.logs, found.job.id, capture)
        if data is None:
            hint = f"`poise capture {found.job.id} --list`"
            raise NotFound("the job has no such capture", field="capture", have=capture[:100], hint=hint)
        return Content(data, "application/octet-stream")

    @routes.post(
        "/v1/exec/{name}/input",
        summary="Send a command beside a task a piece of its standard input",
        status=200,
        role=SUBMITTER,
    )
    async def give_exec_input(bearer: Bearer, name: str, data: InputRequest) -> InputReport:
        running = consoles.known(name, bearer)
        if running is None:
            raise NotFound(f"no command `{name}` runs beside a task", field="exec", have=name)
        fed = await consoles.feed(running.node, name, data.piece(data.epoch))
        return InputReport(epoch=1) if fed is None else InputReport(epoch=1, taken=fed.taken, wanted=fed.wanted)


def the_one_that_takes_input(found: Found) -> tuple[UnitState, int]:
    """Return the unit of the only selected task that takes input, and the task's index in it. Raises `SpecError`."""
    tasks = takes_input(found)
    if not tasks:
        hint = "`poise run -i`, `poise submit -i`, or `stdin: true` in the file"
        raise SpecError(f"{found.name} takes no input", field="job", have=found.name, hint=hint)
    return _only_one(found, tasks, "take input")


def the_one_that_runs(found: Found, ledger: Ledger, rank: int | None) -> tuple[UnitState, int]:
    """Return the unit of the only selected task that runs, with this rank if given, and the task's index in it. If all
    of them belong to one gang, choose its first. Raises `SpecError`.
    """
    tasks = running_tasks(found, ledger)
    if rank is not None:
        tasks = [(unit, index) for unit, index in tasks if unit.spec.tasks[index].rank == rank]
    if not tasks:
        which = "nothing" if rank is None else f"no rank {rank}"
        hint = f"`poise show {found.job.id}` tells what it does"
        raise SpecError(f"{which} of {found.name} runs now", field="job", have=found.name, hint=hint)
    if len({unit.id for unit, _ in tasks}) == 1:
        return tasks[0]
    return _only_one(found, tasks, "run")


def the_one_that_ran(found: Found, rank: int | None) -> tuple[UnitState, int]:
    """Return the unit of the only selected task that has been on a node, with this rank if given, and the task's index
    in it. If all of them belong to one gang, choose its first. Raises `SpecError`.
    """
    tasks = [
        (unit, index)
        for unit in found.units
        for index, (spec, state) in enumerate(zip(unit.spec.tasks, unit.tasks, strict=True))
        if spec.name in found.tasks and state.node and (rank is None or spec.rank == rank)
    ]
    if not tasks:
        which = "nothing" if rank is None else f"no rank {rank}"
        hint = f"`poise show {found.job.id}` tells what it does"
        raise SpecError(f"{which} of {found.name} has run yet", field="job", have=found.name, hint=hint)
    if len({unit.id for unit, _ in tasks}) == 1:
        return tasks[0]
    return _only_one(found, tasks, "have run")


def _only_one(found: Found, tasks: list[tuple[UnitState, int]], what: str) -> tuple[UnitState, int]:
    if len(tasks) > 1:
        names = [f"{found.job.id}.{unit.spec.tasks[index].name}" for unit, index in tasks]
        raise SpecError(
            f"{len(tasks)} tasks of {found.name} {what}",
            field="job",
            need="one of them",
            have=some(names, FEW),
            hint=f"name one: `{names[0]}`",
        )
    return tasks[0]


async def _lines(pieces: AsyncIterator[Any], stands: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Encode one piece per line while the token is valid. Send an empty line as a keep-alive."""
    source = aiter(pieces)
    upcoming = asyncio.ensure_future(anext(source, None))
    try:
        while True:
            done, _ = await asyncio.wait((upcoming,), timeout=KEEP_ALIVE)
            if not stands():
                return
            if not done:
                yield b"\n"
                continue
            piece = upcoming.result()
            if piece is None:
                return
            yield msgspec.json.encode(piece) + b"\n"
            upcoming = asyncio.ensure_future(anext(source, None))
    finally:
        upcoming.cancel()
