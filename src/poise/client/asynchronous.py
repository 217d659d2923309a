"""The client for programs with an event loop."""

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.client.client import Client
from poise.client.link import PATIENCE, T, current_home
from poise.client.submitting import new_key
from poise.config import Home
from poise.model.incidents import IncidentReport
from poise.model.reports.jobs import Changed, JobReport, JobStatus, ScheduleReport
from poise.model.reports.nodes import NodeReport
from poise.model.reports.questions import DeadlineForecast, Explanation, PlanReport, UnblockReport, WhyNot
from poise.model.reports.status import StatusReport
from poise.model.reports.streams import ExecLine, LogLine
from poise.model.usage import NodeProfile

if TYPE_CHECKING:
    from poise.drivers.giving import Source


class AsyncClient:
    """A `Client` for programs with an event loop: the same calls as coroutines, each on its own connection."""

    def __init__(self, home: Home | Path | str | None = None, *, patience: float = PATIENCE) -> None:
        self.home = home if isinstance(home, Home) else current_home(home)
        self._patience = patience

    async def _ask(self, question: Callable[[Client], T]) -> T:
        """Run a call in a thread, on its own connection, so that several can run at once."""
        import asyncio  # imported here: it is slow, and commands do not need it

        def ask() -> T:
            client = Client(self.home, patience=self._patience)
            try:
                return question(client)
            finally:
                client.close()

        return await asyncio.to_thread(ask)

    async def submit(
        self, spec: dict[str, Any], *, key: str = "", user: str = "", if_revision: int | None = None
    ) -> str:
        """Submit a job and return its id once the job is durable; see `Client.submit`."""
        key = key or new_key()
        return await self._ask(lambda client: client.submit(spec, key=key, user=user, if_revision=if_revision))

    async def jobs(
        self,
        *,
        everything: bool = False,
        statuses: Collection[JobStatus] = (),
        name: str = "",
        user: str = "",
        latest: int = 0,
    ) -> list[JobReport]:
        """List jobs in order of submission; see `Client.jobs`."""
        return await self._ask(
            lambda client: client.jobs(everything=everything, statuses=statuses, name=name, user=user, latest=latest)
        )

    async def job(self, name: str) -> JobReport:
        """Return one job by id or name; see `Client.job`."""
        return await self._ask(lambda client: client.job(name))

    async def wait(self, name: str, timeout: float | None = None) -> JobReport:  # noqa: ASYNC109 — as `Client.wait`
        """Wait until a job has finished, or until `timeout` seconds have passed; see `Client.wait`."""
        return await self._ask(lambda client: client.wait(name, timeout))

    async def feed(self, name: str, source: "Source | bytes", *, task: str = "") -> None:
        """Send the whole standard input of a task; see `Client.feed`."""
        await self._ask(lambda client: client.feed(name, source, task=task))

    async def exec(
        self,
        name: str,
        run: Sequence[str],
        *,
        task: str = "",
        rank: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[ExecLine]:
        """Run a command beside a running task, without input, and yield its output; see `Client.exec`."""
        import asyncio

        lines = Client(self.home, patience=self._patience).exec(name, run, task=task, rank=rank, env=env)
        try:
            while (line := await asyncio.to_thread(next, lines, None)) is not None:
                yield line
        finally:
            with contextlib.suppress(ValueError):  # an abandoned thread may still read it
                await asyncio.to_thread(lines.close)

    async def cancel(self, name: str) -> str:
        """Cancel a job, or some of its tasks; see `Client.cancel`."""
        return await self._ask(lambda client: client.cancel(name))

    async def hold(self, name: str) -> str:
        """Put a job on hold; see `Client.hold`."""
        return await self._ask(lambda client: client.hold(name))

    async def release(self, name: str) -> str:
        """Release a job that is on hold; see `Client.release`."""
        return await self._ask(lambda client: client.release(name))

    async def resume(self, name: str) -> list[str]:
        """Resume the suspended tasks of a job; see `Client.resume`."""
        return await self._ask(lambda client: client.resume(name))

    async def change(self, name: str, spec: dict[str, Any]) -> Changed:
        """Change fields of a job, or of some of its tasks; see `Client.change`."""
        return await self._ask(lambda client: client.change(name, spec))

    async def retry(self, name: str) -> str:
        """Submit the unfinished part of an ended job again; see `Client.retry`."""
        return await self._ask(lambda client: client.retry(name))

    async def remove(self, *jobs: str) -> list[str]:
        """Remove ended jobs; see `Client.remove`."""
        return await self._ask(lambda client: client.remove(*jobs))

    async def incidents(self) -> list[IncidentReport]:
        """List the incidents that this token may see; see `Client.incidents`."""
        return await self._ask(lambda client: client.incidents())

    async def incident(self, name: str) -> IncidentReport:
        """Return one incident by its id; see `Client.incident`."""
        return await self._ask(lambda client: client.incident(name))

    async def schedules(self) -> list[ScheduleReport]:
        """List schedules; see `Client.schedules`."""
        return await self._ask(lambda client: client.schedules())

    async def hold_schedule(self, name: str) -> str:
        """Pause a schedule; see `Client.hold_schedule`."""
        return await self._ask(lambda client: client.hold_schedule(name))

    async def release_schedule(self, name: str) -> str:
        """Resume a paused schedule; see `Client.release_schedule`."""
        return await self._ask(lambda client: client.release_schedule(name))

    async def remove_schedule(self, name: str) -> str:
        """Remove a schedule; its jobs stay. See `Client.remove_schedule`."""
        return await self._ask(lambda client: client.remove_schedule(name))

    async def explain(self, name: str, *, everything: bool = False) -> Explanation:
        """Explain why a job waits, or why it runs where it does; see `Client.explain`."""
        return await self._ask(lambda client: client.explain(name, everything=everything))

    async def deadline(self, name: str) -> DeadlineForecast:
        """Return the probability that a job, or some of its tasks, meet their deadlines; see `Client.deadline`."""
        return await self._ask(lambda client: client.deadline(name))

    async def why_not(self, name: str, node: str) -> WhyNot:
        """Return every reason why a job is not on a node; see `Client.why_not`."""
        return await self._ask(lambda client: client.why_not(name, node))

    async def unblock(self, name: str) -> UnblockReport:
        """Return the smallest changes that would let a waiting job start now; see `Client.unblock`."""
        return await self._ask(lambda client: client.unblock(name))

    async def plan(self, spec: dict[str, Any], *, user: str = "", everything: bool = False) -> PlanReport:
        """Report the effects of submitting a job now, without submitting it; see `Client.plan`."""
        return await self._ask(lambda client: client.plan(spec, user=user, everything=everything))

    async def nodes(self) -> list[NodeReport]:
        """List all nodes, sorted by name."""
        return await self._ask(lambda client: client.nodes())

    async def profiles(self, node: str = "") -> list[NodeProfile]:
        """Return the load history of one node, or of the first 256 nodes."""
        return await self._ask(lambda client: client.profiles(node))

    async def status(self) -> StatusReport:
        """Return the status of the control plane."""
        return await self._ask(lambda client: client.status())

    async def logs(
        self, name: str, *, task: str = "", follow: bool = False, tail: int = -1, since: float = 0.0, rank: int = -1
    ) -> AsyncIterator[LogLine]:
        """Yield the output of a job in pieces, then its end; see `Client.logs`."""
        import asyncio

        client = Client(self.home, patience=self._patience)
        pieces = client.logs(name, task=task, follow=follow, tail=tail, since=since, rank=rank)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
