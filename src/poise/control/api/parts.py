"""The parts of the control plane that routes share, and questions to them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec

from poise.config import Home
from poise.control.chances import Chances
from poise.control.consoles import Attendance, Consoles
from poise.control.deciders import Deciders
from poise.control.gatekeeper import Gatekeeper
from poise.control.incidents import Incidents
from poise.control.lifetime import Lifetime
from poise.control.notices import Targets
from poise.control.plane import Plane
from poise.control.scrape import Scrape
from poise.control.shares import Turns
from poise.control.storehouse import Storehouse
from poise.control.substrates import Substrates
from poise.control.tally import Minutes
from poise.drivers.clusters import kept_clusters
from poise.drivers.security import caller_key, worker_key
from poise.drivers.series import Series
from poise.drivers.vault import Vault
from poise.errors import Denied
from poise.kernel import messages
from poise.kernel.explain import Question, question
from poise.kernel.find import Found, find
from poise.kernel.ledger import Ledger
from poise.model.messages import Attempt
from poise.model.tenants import Bearer, Role
from poise.model.views import Snapshot
from poise.policy.suites import ClusterPolicy

MAX_WAIT = 60.0
"""Maximum seconds that one request waits for a job; then the client asks again."""

MAX_LISTED = 1_000_000
"""Upper limit on the number of latest jobs, or latest log lines, that one request may return."""

MAX_REVISION = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

EVENT_PAGE = 1000

KEEP_ALIVE = 15.0

VIEWER, SUBMITTER, OPERATOR, ADMIN = Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN
"""The role that a route requires."""

Revision = Annotated[int, msgspec.Meta(le=MAX_REVISION)]

JobIds = Annotated[list[str], msgspec.Meta(max_length=100_000)]

Answered = TypeVar("Answered")


class Parts:
    """The parts of the control plane that routes use. `deciders` holds the active policy and answers what-if questions.
    `authority` is the certificate of this machine, if it listens to others. `chances` answers questions about
    deadlines, `incidents` about incidents. `log_limit` is the maximum size of the log in bytes; 0 means the space on
    its disk.
    """

    def __init__(
        self,
        plane: Plane,
        home: Home,
        token: str,
        lifetime: Lifetime,
        deciders: Deciders,
        *,
        authority: bytes,
        chances: Chances | None,
        log_limit: int,
        incidents: Incidents | None,
        files: Storehouse | None,
    ) -> None:
        self.plane, self.home, self.lifetime, self.deciders, self.authority = plane, home, lifetime, deciders, authority
        self._token = token
        self.gate, self.consoles, self.attendance = Gatekeeper(plane, token), Consoles(plane), Attendance(plane)
        self.series, self.targets, self.minutes = Series(home.series), Targets(home), Minutes(plane.intensities.valid)
        self.vault = Vault.of(home, lambda: plane.ledger.sealed_texts())
        self.chances = chances or Chances(plane, home)
        self.incidents = incidents or Incidents(plane, home)
        self.files = files or Storehouse(home.files)
        clusters = kept_clusters(home)
        self.of_clusters = [cluster.name for cluster in clusters if not cluster.is_here]
        self.substrates = Substrates(plane, [cluster.name for cluster in clusters if cluster.grows], self.of_clusters)
        self.scrape = Scrape(plane, home, self.gate, self.minutes, log_limit)
        self._deciding, self._turns = asyncio.Lock(), Turns()

    def key_of(self, attempt: Attempt) -> str:
        """Return the key of an attempt's worker."""
        return worker_key(self._token, attempt)

    def caller_key_of(self, job_id: str) -> str:
        """Return the key of a job's caller; empty if it serves no calls."""
        job = self.plane.ledger.jobs.get(job_id)
        return caller_key(self._token, job.id, job.tenant) if job is not None and job.calls is not None else ""

    def check_stands(self, bearer: Bearer) -> None:
        """Raises `Denied` if the token was revoked during a wait."""
        if not self.gate.stands(bearer):
            raise Denied("the token has been revoked", field="Authorization", hint="ask an admin for another one")

    async def settled_job(self, bearer: Bearer, name: str, task: str = "") -> tuple[Ledger, Found]:
        ledger = await self.plane.settled()
        return ledger, find(ledger, name, task, bearer)

    async def resume(self, bearer: Bearer, name: str) -> tuple[str, ...]:
        """Resume the suspended tasks of a job. Return why some of them still wait for resources."""
        waits: tuple[str, ...] = await self.plane.request(lambda request: messages.ResumeJob(request, name, bearer))
        return waits

    async def thought_about(
        self, bearer: Bearer, ask: Callable[[], Awaitable[Callable[[ClusterPolicy], Answered]]]
    ) -> Answered:
        """Answer a question that needs a run of the policy: one at a time, tenants in turn. `ask` reads the ledger on
        the loop; the function that it returns computes the answer on a thread.
        """
        async with self._turns.of(bearer.tenant), self._deciding:
            return await asyncio.to_thread(await ask(), self.deciders.imagined())

    async def asked_about(self, bearer: Bearer, name: str, everything: bool = False) -> tuple[Snapshot, Question]:
        ledger, found = await self.settled_job(bearer, name)
        controller = self.plane.controller
        view, idle = controller.snapshot(self.plane.clock.now()), controller.tellings.idle_since
        return view, question(ledger, found.job, view, units=found.units, everything=everything, idle=idle)
