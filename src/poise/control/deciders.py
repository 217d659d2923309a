"""Who decides: the policy in charge, as the log has it, and one in shadow beside it."""

import logging
from collections.abc import Callable

from poise.control.decider import Answered, InlineDecider, WorkerDecider, decider_for, load
from poise.control.shadow import Shadow
from poise.drivers.plugins import Choice, check_needs, choice_of
from poise.errors import SpecError
from poise.model.decisions import Plan
from poise.model.events import Began
from poise.model.reports import ShadowReport
from poise.model.times import Times
from poise.model.views import Snapshot
from poise.policy.suites import SAFE_POLICY, ClusterPolicy, policy_named

_log = logging.getLogger("poise.control")


class Deciders:
    """The decider of the policy in charge, as the ledger has it: `began` tells that. Whatever the log says later, or
    goes back to, the next view goes to the policy that it names.
    """

    def __init__(self, began: Callable[[], Began | None], times: Times) -> None:
        self._began = began
        self._times = times
        self._label = ""
        self._current: InlineDecider | WorkerDecider = InlineDecider(policy_named(SAFE_POLICY))
        self._prepared: dict[str, WorkerDecider] = {}
        self._shadow: Shadow | None = None

    async def prepare(self, choice: Choice) -> None:
        """Load a policy that is about to be in charge, well or badly."""
        if choice.foreign and choice.label != self._label:
            decider = WorkerDecider(choice, self._times)
            await decider.ready()
            self._close_prepared()
            self._prepared[choice.label] = decider

    async def try_out(self, choice: Choice) -> None:
        """The same for one that somebody asks for. Raises `SpecError` where it cannot be loaded here."""
        check_needs(choice)
        if choice.foreign:
            await load(choice, self._times)
        await self.prepare(choice)

    def decide(self, view: Snapshot, answer: Answered, /) -> None:
        shadow = self._shadow
        if shadow is None:
            self._in_charge().decide(view, answer)
            return

        def told(plan: Plan) -> None:
            answer(plan)
            shadow.ask(view, plan)

        self._in_charge().decide(view, told)

    async def start_shadow(self, choice: Choice) -> None:
        """Ask this policy too from now on. Raises `SpecError` where it cannot be loaded here."""
        check_needs(choice)
        await load(choice, self._times)
        shadow = Shadow(choice, self._times)
        await shadow.ready()
        self.stop_shadow()
        self._shadow = shadow

    def stop_shadow(self) -> None:
        """Ask no policy but the one in charge."""
        if self._shadow is not None:
            self._shadow.close()
        self._shadow = None

    def shadow(self) -> ShadowReport:
        """What is known of the policy in shadow."""
        return self._shadow.report() if self._shadow is not None else ShadowReport()

    def imagined(self) -> ClusterPolicy:
        """The policy in charge, to be asked what if on another thread."""
        return self._in_charge().imagined()

    def close(self) -> None:
        """End what works for it."""
        self._close_prepared()
        self._current.close()
        self.stop_shadow()

    def _in_charge(self) -> "InlineDecider | WorkerDecider":
        began = self._began()
        if began is not None and began.policy != self._label:
            self._current.close()
            self._label, self._current = began.policy, self._prepared.pop(began.policy, None) or self._made(began)
        return self._current

    def _made(self, began: Began) -> "InlineDecider | WorkerDecider":
        try:
            return decider_for(choice_of(began), self._times)
        except SpecError as error:  # as where its package is not installed on this machine
            _log.error("policy %s cannot decide here: %s", began.policy, error)
            return InlineDecider(_Missing(began.policy, error))

    def _close_prepared(self) -> None:
        for decider in self._prepared.values():
            decider.close()
        self._prepared.clear()


class _Missing:
    """A policy that is not to be had here, and says so in each round."""

    def __init__(self, name: str, error: SpecError) -> None:
        self.name = name
        self._error = error

    def decide(self, view: Snapshot, /) -> Plan:
        raise self._error
