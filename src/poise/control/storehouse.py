"""The control plane's side of the files of jobs: a separate process keeps them (`drivers/blobs.py`).

The process starts at the first request about files. If it is killed, it is restarted and pending requests are repeated,
which is safe for each of them.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.blobs import DAMAGED, LENGTH, LIMIT, Asked, Told
from poise.errors import Fault, SpecError, from_record
from poise.kernel.ledger import JobState, Ledger
from poise.model.jobs import Job
from poise.model.spec import Compiled
from poise.model.trees import CODE, Tree, owner_of

AT_ONCE = 8
"""Maximum number of unanswered requests to the process; each holds at most a few MiB."""

TRIES = 3

_told = msgpack_decoder(Told)


def trees_of(ledger: Ledger) -> list[tuple[str, Tree]]:
    """Return the trees of all known jobs and schedules, with their owners: each may run again."""
    jobs: list[JobState | Job] = [*ledger.jobs.values(), *(of.job for of in ledger.schedules.values())]
    return [(owner_of(job.tenant, job.account), job.tree) for job in jobs if job.tree is not None]


class Storehouse:
    """The store of files of one control plane."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self._limit = limit
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Told]] = {}

    @property
    def has_files(self) -> bool:
        """Return whether files were ever stored here."""
        return self._process is not None or self.path.exists()

    async def ask(self, deed: str, owner: str = "", tree: bytes = b"", data: bytes = b"") -> bytes:
        """Send a request to the process and return its answer; retry if the process dies. Raises PoiseError."""
        async with self._room:
            for _ in range(TRIES):
                with contextlib.suppress(ConnectionError):
                    told = await self._ask(deed, owner, tree, data)
                    if told.error is not None:
                        raise from_record(told.error, told.status)
                    return told.data
        what, hint = "the process that keeps the files of jobs does not stay up", "`poise doctor`, and see poise.log"
        raise Fault(what, code=DAMAGED, field=str(self.path), hint=hint)

    async def _ask(self, deed: str, owner: str, tree: bytes, data: bytes) -> Told:
        process = await self._running()
        if process.stdin is None:
            raise ConnectionError
        self._number += 1
        number = self._number
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            frame = msgspec.msgpack.encode(Asked(number, deed, owner, tree, data))
            process.stdin.write(LENGTH.pack(len(frame)) + frame)
            await process.stdin.drain()
            return await future
        finally:
            self._waiting.pop(number, None)

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None or self._reading is None:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "poise.drivers.blobs",
                    str(self.path),
                    str(self._limit),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    start_new_session=True,  # shields it from signals to the control plane's group
                )
                self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                    told = _told.decode(await process.stdout.readexactly(length))
                    if (future := self._waiting.get(told.number)) is not None and not future.done():
                        future.set_result(told)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            self._reading = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionError("the process has ended"))

    async def admit(self, compiled: Compiled, account: str) -> Compiled:
        """Return the job if its files are stored for its tenant and this account. Raises SpecError and NotFound."""
        if compiled.tree is None:
            return compiled
        if not compiled.tree.hash:
            what, hint = "the files of the job were not sent", "`poise submit` and `Client.submit` send them"
            raise SpecError(what, code=CODE, field="sync", hint=hint)
        await self.ask("pieces", owner_of(compiled.tenant, account), bytes.fromhex(compiled.tree.hash))
        return compiled

    async def tidy(self, ledger: Ledger) -> None:
        """Remove files that no job or schedule of the ledger needs."""
        if self.has_files:
            data = msgspec.msgpack.encode([(owner, bytes.fromhex(tree.hash)) for owner, tree in trees_of(ledger)])
            await self.ask("tidy", data=data)

    async def close(self) -> None:
        """Kill the process: everything that it has acknowledged is on disk."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
