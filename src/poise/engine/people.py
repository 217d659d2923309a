"""Simulated users and programs: they send requests to the control plane, and retry until it answers."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from poise.engine.scenario import Act
from poise.engine.timeline import WALL
from poise.errors import PoiseError
from poise.kernel.messages import Cancel, Configure, Drain, Message, Reply, SetQuota, Submit
from poise.model.quotas import Quota
from poise.model.resources import PLENTY
from poise.model.tenants import DEFAULT, HOME, Bearer, Role
from poise.units import SECOND

if TYPE_CHECKING:
    from poise.engine.simulation import Simulation

TRY_AGAIN = 1 * SECOND
ANSWER_WITHIN = 5 * SECOND


class People:
    """Sends requests and retries them until there is an answer; a submission always has the same key. Requests on one
    subject are sent in order: a node is opened only after the answer that it is drained.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._open: dict[str, deque[Act]] = {}
        self.jobs: dict[str, str] = {}

    @property
    def open(self) -> int:
        """Number of unanswered requests."""
        return sum(map(len, self._open.values()))

    def act(self, act: Act) -> None:
        line = self._open.setdefault(act.subject, deque())
        line.append(act)
        if len(line) == 1:
            self._try(act)

    def _done(self, act: Act) -> None:
        line = self._open[act.subject]
        line.popleft()
        if line:
            self._try(line[0])
        else:
            del self._open[act.subject]

    def _try(self, act: Act) -> None:
        simulation = self._simulation
        bearer = HOME if act.tenant == DEFAULT else Bearer(act.tenant, Role.SUBMITTER)
        make: Callable[[int], Message] | None = None
        answered = False
        host = simulation.home.host
        if act.act == "submit" and host is not None:
            try:
                after = {"after": [self.jobs[act.of]]} if act.of in self.jobs else {}
                compiled = host.controller.prepare(act.document | after, WALL, host.clock.now(), act.tenant)
            except PoiseError as error:
                simulation.tell(f"{act.key} is refused: {error}")
                self._done(act)
                return
            make = lambda request: Submit(request, compiled, act.key, bearer=bearer)  # noqa: E731
        elif act.act == "cancel":
            job = self.jobs.get(act.of)
            if job is None:  # a refused job needs no cancellation
                self._done(act)
                return
            make = lambda request: Cancel(request, job, bearer)  # noqa: E731
        elif act.act in ("drain", "empty", "undrain"):
            on, moves = act.act != "undrain", act.act == "empty"
            make = lambda request: Drain(request, act.of, on, moves=moves)  # noqa: E731
        elif act.act == "quota":
            make = lambda request: SetQuota(request, act.tenant, _quota_of(act))  # noqa: E731
        elif act.act == "policy":
            asked = WALL + simulation.timeline.now / SECOND
            make = lambda request: Configure(request, act.of, asked)  # noqa: E731

        def answer(reply: Reply) -> None:
            nonlocal answered
            if answered or simulation.network.random.random() < simulation.network.loss:
                return
            answered = True
            simulation.timeline.call_in(simulation.network.latency, self._heard, act, reply)

        def give_up() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._try(act)

        if make is None or not simulation.home.control.ask(make, answer):
            answered = True
            simulation.timeline.call_in(TRY_AGAIN, self._try, act)
        else:
            simulation.timeline.call_in(ANSWER_WITHIN, give_up)

    def _heard(self, act: Act, reply: Reply) -> None:
        simulation = self._simulation
        if reply.error is not None:
            if reply.error.status >= 500:
                simulation.timeline.call_in(TRY_AGAIN, self._try, act)
                return
            simulation.tell(f"{act.act} {act.key or act.of} is refused: {reply.error}")
        elif act.act == "submit":
            self.jobs[act.key] = reply.value
            simulation.catch_up()
            simulation.judge.accepted(act.tenant, act.key, reply.value)
            simulation.tell(f"{act.key} is acknowledged as {reply.value}")
        else:
            simulation.catch_up()
            self._is_done(act)
        self._done(act)

    def _is_done(self, act: Act) -> None:
        """Let the judge check that the log contains the acknowledged change."""
        judge = self._simulation.judge
        if act.act == "cancel":
            judge.cancelled(self.jobs[act.of])
        elif act.act == "quota":
            judge.bounded(act.tenant, _quota_of(act))
        elif act.act == "policy":
            judge.configured(act.of)
        elif ":" not in act.of:  # a device may have failed again since
            judge.drained(act.of, act.act != "undrain")


def _quota_of(act: Act) -> Quota | None:
    return Quota(act.amount, PLENTY, PLENTY) if act.amount else None
