"""Deciders: the policy inline, or in a worker process with a time budget.

Shipped policies run on the loop's thread: their code is bounded, and a round costs what the policy costs. A policy with
third-party code runs in a worker (`python -m poise.control.decider`), which gets views and returns plans over a socket.
If it raises, exits, or returns no valid plan in time, it is killed and restarted, and `fifo` decides that round. After
three consecutive failures it rests for a minute. So a failing policy costs at most one round, and the loop never waits.

A frame is a four-byte big-endian length, one byte for the type, and the content.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from poise.control.plane import or_die
from poise.decoding import msgpack_decoder
from poise.drivers.plugins import Choice, build
from poise.drivers.views import Unsound, check_plan, decode_plan, decode_view, encode_plan, encode_view
from poise.errors import ErrorRecord, PoiseError, SpecError
from poise.model.decisions import Plan
from poise.model.fleet import Fleet
from poise.model.resources import Node
from poise.model.times import Times
from poise.model.views import Snapshot
from poise.policy.suites import ClusterPolicy, decide_safely
from poise.ports import Decider
from poise.units import SECOND, format_duration

FAILED = "POLICY_FAILED"
"""The logged reason why the safe policy decided."""

IN_A_ROW = 3
"""Consecutive failures before a policy rests: the first may be chance, and each one costs a round its time."""

MAX_FRAME = 16 * 2**20
"""Maximum bytes of one plan; a plan for 5,000 tasks has about 1 MB."""

ROOM = 2 * 2**30
"""Bytes of address space that a policy may use beyond its size after loading. A view of 10,000 nodes needs some tens of
MB."""

READY, PLAN, BROKEN, REFUSED = b"R", b"P", b"B", b"E"
_HEAD = 4
_STDERR = 2

_log = logging.getLogger("poise.control")
Answered = Callable[[Plan], None]


def decider_for(choice: Choice, times: Times) -> "InlineDecider | WorkerDecider":
    """Return an inline decider for a shipped policy, a worker for third-party code."""
    return WorkerDecider(choice, times) if choice.foreign else InlineDecider(build(choice))


def try_out(choice: Choice, times: Times) -> None:
    """Call `load` where no loop runs."""
    asyncio.run(load(choice, times))


async def load(choice: Choice, times: Times) -> None:
    """Load the policy in a temporary worker, where it can neither hang nor crash this process. Raises `SpecError`."""
    hint = "`docs/how-to/write-a-policy.md` shows one that works"
    try:
        async with asyncio.timeout(times.policy_start / SECOND):
            worker = await _Worker.start(choice)
    except TimeoutError:
        need = f"loaded and tried within {format_duration(times.policy_start)}"
        raise SpecError(f"policy `{choice.label}` does not load", field=choice.field, need=need, hint=hint) from None
    except _Failed as error:
        refused = SpecError(f"policy `{choice.label}` does not load: {error}", field=choice.field, hint=hint)
        if error.record is not None:
            refused.record = error.record
        raise refused from None
    worker.kill()


class InlineDecider:
    """Runs the policy on the loop's thread. If it raises, the safe policy decides and the plan records the failure."""

    def __init__(self, policy: ClusterPolicy) -> None:
        self._policy = policy

    async def ready(self) -> None:
        """Return at once: an inline policy is always ready."""

    def decide(self, view: Snapshot, answer: Answered, /) -> None:
        try:
            plan = self._policy.decide(view)
        except Exception as error:  # no policy error may stop the fleet
            _log.exception("policy %s failed", self._policy.name)
            plan = _decide_safely(view, f"{FAILED}: {type(error).__name__}: {error}")
        answer(plan)

    def imagined(self) -> ClusterPolicy:
        """Return the policy for what-if questions on another thread; it keeps no state between views."""
        return self._policy

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class WorkerDecider:
    """Runs the policy in a separate process. It decides one view at a time, in the order of arrival."""

    def __init__(self, choice: Choice, times: Times) -> None:
        self._choice = choice
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Snapshot, Answered]] = deque()
        self._deciding: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._worker: _Worker | None = None
        self._failures = 0
        self._not_before = 0.0
        self._untold = ""
        self._imagined: _Imagined | None = None
        self._start_if_due()

    async def ready(self) -> None:
        """Wait until the first start has succeeded or failed."""
        if self._starting is not None:
            await self._starting

    def decide(self, view: Snapshot, answer: Answered, /) -> None:
        self._waiting.append((view, answer))
        if self._deciding is None:
            self._deciding = self._loop.create_task(self._decide_all())

    def imagined(self) -> ClusterPolicy:
        """Return the policy for what-if questions on another thread, in a second worker: they delay no round, and their
        failures do not count here.
        """
        if self._imagined is None:
            self._imagined = _Imagined(WorkerDecider(self._choice, self._times), self._choice.label, self._loop)
        return self._imagined

    def close(self) -> None:
        """Kill the workers."""
        if self._imagined is not None:
            self._imagined.close()
        for task in (self._deciding, self._starting):
            if task is not None:
                task.cancel()
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    async def _decide_all(self) -> None:
        with or_die():
            while self._waiting:
                view, answer = self._waiting.popleft()
                answer(await self._decide(view))
            self._deciding = None

    async def _decide(self, view: Snapshot) -> Plan:
        worker, failed = self._worker, self._untold
        if worker is None:
            self._untold = ""
            self._start_if_due()
            return _decide_safely(view, failed)
        try:
            async with asyncio.timeout(self._times.decide / SECOND):
                plan = await worker.ask(view)
        except TimeoutError:
            failed = f"no plan within {format_duration(self._times.decide)}"
        except _Failed as error:
            failed = str(error)
        else:
            if view.candidates:  # an empty plan for a view without candidates proves nothing
                self._failures = 0
            return plan
        self._worker = None
        worker.kill()
        failed = self._count(failed)
        self._start_if_due()
        return _decide_safely(view, failed)

    def _start_if_due(self) -> None:
        if self._starting is None and self._loop.time() >= self._not_before:
            self._starting = self._loop.create_task(self._start())

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(self._times.policy_start / SECOND):
                self._worker = await _Worker.start(self._choice)
        except TimeoutError:
            self._untold = self._count(f"not loaded within {format_duration(self._times.policy_start)}")
        except _Failed as error:
            self._untold = self._count(str(error))
        finally:
            self._starting = None

    def _count(self, failed: str) -> str:
        """Count a failure; return the text for the log."""
        self._failures += 1
        if self._failures >= IN_A_ROW:
            self._not_before = self._loop.time() + self._times.policy_rest / SECOND
            failed += f" ({self._failures} times in a row: it rests for {format_duration(self._times.policy_rest)})"
        _log.error("policy %s failed: %s", self._choice.label, failed)
        return f"{FAILED}: {failed}"


class _Imagined:
    """A policy that decides in a worker, with a blocking call. Call it from a thread that may wait."""

    def __init__(self, decider: WorkerDecider, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._decider = decider
        self._loop = loop

    def decide(self, view: Snapshot, /) -> Plan:
        """Return the policy's plan, or the safe policy's if it fails, as in a real round."""
        return asyncio.run_coroutine_threadsafe(self._ask(view), self._loop).result()

    async def _ask(self, view: Snapshot) -> Plan:
        await self._decider.ready()
        plan: asyncio.Future[Plan] = self._loop.create_future()
        self._decider.decide(view, plan.set_result)
        return await plan

    def close(self) -> None:
        self._decider.close()


class _Failed(Exception):
    """An error of a policy or its worker; `record` is set if the worker sent one."""

    def __init__(self, message: str, record: ErrorRecord | None = None) -> None:
        super().__init__(message)
        self.record = record


class _Worker:
    """One worker process and this side of its socket."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._nodes: tuple[Node, ...] | None = None

    @classmethod
    async def start(cls, choice: Choice) -> "_Worker":
        """Start a worker and wait until it has loaded the policy. Raises `_Failed`."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _begin(theirs.fileno())
        worker = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            worker = cls(process, reader, writer)
            await worker._send(msgspec.msgpack.encode(choice))
            await worker._receive(READY)
        except BaseException:
            if worker is not None:
                worker.kill()
            else:
                _end(process)
            raise
        return worker

    async def ask(self, view: Snapshot) -> Plan:
        """Return the plan for a view. Raises `_Failed`."""
        await self._send(encode_view(view, self._nodes))
        self._nodes = view.fleet.nodes
        answer = await self._receive(PLAN)
        try:
            return decode_plan(answer, view)
        except Unsound as error:
            raise _Failed(str(error)) from None

    def kill(self) -> None:
        """Kill the process and its children."""
        self._writer.transport.abort()
        _end(self._process)

    async def _send(self, content: bytes) -> None:
        self._writer.write(len(content).to_bytes(_HEAD, "big"))
        self._writer.write(content)
        with contextlib.suppress(ConnectionError):  # then the read fails too, and says more
            await self._writer.drain()

    async def _receive(self, expected: bytes) -> bytes:
        """Return the content of the next frame, which must be of this type."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_HEAD), "big")
            if not 1 <= size <= MAX_FRAME:
                raise _Failed(f"it answered with {size} bytes")
            frame = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _Failed(await self._how_it_ended()) from None
        kind, content = frame[:1], frame[1:]
        if kind == REFUSED:
            record = msgpack_decoder(ErrorRecord).decode(content)
            raise _Failed(record.message, record)
        if kind != expected:
            raise _Failed(content.decode("utf-8", "replace") if kind == BROKEN else f"it answered with {kind!r}")
        return content

    async def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = await asyncio.to_thread(self._process.wait, 1.0)
            return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with code {code}"
        return "its process hung up"


def _begin(descriptor: int) -> subprocess.Popen[bytes]:
    """Start a worker that serves the socket with this descriptor; its output goes to the control plane's stderr."""
    return subprocess.Popen(  # noqa: S603 — our own program
        [sys.executable, "-m", "poise.control.decider", str(descriptor), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=_STDERR,
        pass_fds=(descriptor,),
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its session, and reap it without waiting here."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: nothing is left to reap it
            asyncio.get_running_loop().run_in_executor(None, process.wait)


def _decide_safely(view: Snapshot, failed: str) -> Plan:
    return msgspec.structs.replace(decide_safely(view), failed=failed)


# --- the worker ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Decide on each view until the socket closes."""
    _die_with(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    with socket.socket(fileno=int(sys.argv[1])) as sock, sock.makefile("rwb") as stream:
        first = _read(stream)
        if first is None:
            return 0
        try:
            policy = build(msgpack_decoder(Choice).decode(first))
        except PoiseError as error:
            _write(stream, REFUSED, msgspec.msgpack.encode(error.record))
            return error.exit_code
        _limit_memory()
        _write(stream, READY, b"")
        before: Fleet | None = None
        while (frame := _read(stream)) is not None:
            view = decode_view(frame, before)
            before = view.fleet
            try:
                kind, content = PLAN, encode_plan(policy.decide(view))
                check_plan(decode_plan(content, view), view)  # checked here, to save the control plane's loop the time
            except Unsound as error:
                kind, content = BROKEN, str(error).encode("utf-8", "replace")
            except Exception as error:
                _log.exception("policy %s failed", policy.name)
                kind, content = BROKEN, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
            _write(stream, kind, content)
    return 0


def _read(stream: Any) -> bytes | None:
    head = stream.read(_HEAD)
    if len(head) < _HEAD:
        return None
    content: bytes = stream.read(int.from_bytes(head, "big"))
    return content


def _write(stream: Any, kind: bytes, content: bytes) -> None:
    stream.write((1 + len(content)).to_bytes(_HEAD, "big") + kind + content)
    stream.flush()


def _die_with(parent: int) -> None:
    """Exit when the control plane exits, however it exits (prctl(2), PR_SET_PDEATHSIG)."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the control plane has already exited
        os._exit(0)


def _limit_memory() -> None:
    """Limit this process's address space, and make it the first victim of the out-of-memory killer."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + ROOM
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    with contextlib.suppress(OSError):  # if /proc is not writable
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["Decider", "InlineDecider", "WorkerDecider", "decider_for"]
