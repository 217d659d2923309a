"""Relays interactive input to commands, and the output of commands that run beside tasks.

All state is transient: nothing is in the ledger, and it is lost when the control plane exits. Input has byte positions,
so a client asks the next control plane how much was accepted. A command beside a task ends with the connection of its
node.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator

from poise.control.plane import Plane
from poise.errors import Busy, PoiseError
from poise.kernel.find import Found
from poise.kernel.ledger import Ledger, UnitState
from poise.kernel.messages import Cancel
from poise.model.messages import Attempt, Credit, Exec, Fed, Feed, FromConsole, Get, Leave, Left, Piece, Said
from poise.model.reports.streams import ExecEnd, ExecLine, ExecOutput, ExecStarted
from poise.model.tenants import Bearer

FED_SECONDS = 5.0
"""How long to wait for a node to confirm input; then the client asks again."""

MOST = 1024
"""Maximum number of commands beside tasks, with captures. A tenant gets at most half of what others leave."""

MOST_UNREAD = 1 << 20
"""Maximum unread bytes of one command; more than the node has credit for."""


STOOD_STILL = 1.0
"""A timer later than this shows that this process was paused."""

_log = logging.getLogger("poise.control")


class Running:
    """A command beside an attempt: its node, its owner, and its queued output."""

    def __init__(self, name: str, node: str, bearer: Bearer) -> None:
        self.name = name
        self.node = node
        self.bearer = bearer
        self.said: asyncio.Queue[Said | Left] = asyncio.Queue()
        self.unread = 0


class Consoles:
    """Input and commands in progress."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._fed: dict[tuple[str, Attempt | str], set[asyncio.Future[Fed]]] = {}
        self._running: dict[str, Running] = {}

    async def feed(self, node: str, whose: Attempt | str, piece: Piece) -> Fed | None:
        """Send a piece of input to a command on this node. Return how much it has accepted once it is ready for more,
        or None if the node does not answer in time.
        """
        key = (node, whose)
        waiting = self._fed.setdefault(key, set())
        future: asyncio.Future[Fed] = asyncio.get_running_loop().create_future()
        waiting.add(future)
        try:
            self._plane.tell(node, Feed(whose=whose, piece=piece))
            return await asyncio.wait_for(future, FED_SECONDS)
        except TimeoutError:
            return None
        finally:
            waiting.discard(future)
            if not waiting and self._fed.get(key) is waiting:
                del self._fed[key]

    def known(self, name: str, bearer: Bearer) -> Running | None:
        """Return the command of this name if it belongs to the bearer's tenant and account."""
        found = self._running.get(name)
        theirs = found is not None and bearer.sees(found.bearer.tenant) and bearer.may_enter(found.bearer.account)
        return found if theirs else None

    async def run(
        self,
        node: str,
        attempt: Attempt,
        bearer: Bearer,
        argv: tuple[str, ...],
        env: dict[str, str],
        *,
        stdin: bool = False,
        tty: int = 0,
        capture: tuple[str, ...] = (),
        session: tuple[str, ...] = (),
    ) -> AsyncGenerator[ExecLine]:
        """Run a command beside an attempt on this node, or the node's program for captures or for connections with the
        arguments `capture` or `session`. It runs as long as its output is read. Raises `Busy`.
        """
        running = self._new(node, bearer)
        order = Exec(
            name=running.name,
            attempt=attempt,
            argv=argv,
            env=env,
            stdin=stdin,
            tty=tty,
            capture=capture,
            session=session,
        )
        async with contextlib.aclosing(self._said(running, order)) as lines:
            async for line in lines:
                yield line

    async def get(
        self, node: str, attempt: Attempt, bearer: Bearer, path: str, *, folder: str, within: str, account: str
    ) -> AsyncGenerator[ExecLine]:
        """Return a file or folder of an attempt from this node as a tar archive. Raises `Busy`."""
        running = self._new(node, bearer)
        order = Get(name=running.name, attempt=attempt, path=path, folder=folder, within=within, account=account)
        async with contextlib.aclosing(self._said(running, order)) as lines:
            async for line in lines:
                yield line

    def _new(self, node: str, bearer: Bearer) -> Running:
        theirs = sum(one.bearer.tenant == bearer.tenant for one in self._running.values())
        left = MOST - (len(self._running) - theirs)
        if theirs >= left // 2:
            raise Busy(
                f"too many commands of tenant `{bearer.tenant}` run beside tasks",
                need=f"at most half of the {left} that others leave",
                have=str(theirs),
                hint="end some of them",
            )
        running = Running(f"x{secrets.token_hex(12)}", node, bearer)
        self._running[running.name] = running
        return running

    async def _said(self, running: Running, order: Exec | Get) -> AsyncGenerator[ExecLine]:
        """Yield what a node sends for a command, until the reader stops."""
        node = running.node
        if not self._plane.tell(node, order):
            running.said.put_nowait(Left(name=running.name, code=126, note=f"node {node} is not connected"))
        try:
            yield ExecStarted(running.name)
            while True:
                message = await running.said.get()
                if isinstance(message, Left):
                    yield ExecEnd(message.code, message.note)
                    return
                yield ExecOutput(message.stream, message.data)
                running.unread -= len(message.data)
                self._plane.tell(node, Credit(name=running.name, bytes=len(message.data)))
        finally:
            del self._running[running.name]
            self._plane.tell(node, Leave(name=running.name))

    def hear(self, node: str, message: FromConsole) -> None:
        """Process a message of a node. A node is heard only on commands that run there."""
        if isinstance(message, Fed):
            for future in self._fed.get((node, message.whose), ()):
                if not future.done():
                    future.set_result(message)
            return
        running = self._running.get(message.name)
        if running is None or running.node != node:
            return
        if isinstance(message, Said):
            running.unread += len(message.data)
            if running.unread > MOST_UNREAD:
                message = Left(name=running.name, code=137, note=f"node {node} sends more than it may")
        running.said.put_nowait(message)

    def gone(self, node: str) -> None:
        """End all commands on a node whose connection was lost."""
        for running in self._running.values():
            if running.node == node:
                running.said.put_nowait(
                    Left(name=running.name, code=137, note=f"the connection to node {node} was lost")
                )


class Attendance:
    """Jobs that wait to run in a user's terminal. A job is cancelled when its terminal's heartbeats stop, because its
    `poise run` was killed or its machine is gone. Once the command runs, the node hangs up its terminal instead.
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._cancelling: set[asyncio.Task[object]] = set()

    def heard(self, job: str, hold: float, bearer: Bearer) -> None:
        """The terminal of this job was heard; it must be heard again within `hold` seconds."""
        self.done(job)
        loop = asyncio.get_running_loop()
        due = loop.time() + hold
        self._timers[job] = loop.call_at(due, self._silent, job, hold, bearer, due)

    def done(self, job: str) -> None:
        """Stop the timer: the command has started, or the job is over."""
        if timer := self._timers.pop(job, None):
            timer.cancel()

    def _silent(self, job: str, hold: float, bearer: Bearer, due: float) -> None:
        if asyncio.get_running_loop().time() > due + STOOD_STILL:  # this process was paused and heard nobody
            self.heard(job, hold, bearer)
            return
        del self._timers[job]
        _log.info("cancelling %s: its terminal was not heard for %g s", job, hold)
        cancelling: asyncio.Task[object] = asyncio.create_task(self._cancel(job, bearer))
        self._cancelling.add(cancelling)
        cancelling.add_done_callback(self._cancelling.discard)

    async def _cancel(self, job: str, bearer: Bearer) -> None:
        with contextlib.suppress(PoiseError):  # the job is over, or another control plane leads
            await self._plane.request(lambda request: Cancel(request, job, bearer))


def takes_input(found: Found) -> list[tuple[UnitState, int]]:
    """Return the selected tasks that take input: the first of each unit with `stdin` or `tty`."""
    firsts = ((unit, 0) for unit in found.units if unit.spec.stdin or unit.spec.tty)
    return [(unit, index) for unit, index in firsts if unit.spec.tasks[index].name in found.tasks]


def running_tasks(found: Found, ledger: Ledger) -> list[tuple[UnitState, int]]:
    """Return the selected tasks that run now."""
    units = (ledger.jobs.unit(unit.id) or unit for unit in found.units)
    return [
        (unit, index)
        for unit in units
        for index, (spec, state) in enumerate(zip(unit.spec.tasks, unit.tasks, strict=True))
        if spec.name in found.tasks and state.status == "running"
    ]
