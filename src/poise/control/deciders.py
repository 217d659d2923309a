"""The active policy, as the log records it, and the policies in shadow."""

import logging
from collections.abc import Callable, Iterable

from poise.control.decider import Answered, InlineDecider, WorkerDecider, decider_for, load
from poise.control.shadow import Shadow
from poise.drivers.plugins import Choice, check_needs, choice_of
from poise.drivers.worlds import Asked
from poise.errors import Conflict, NotFound, PoiseError, SpecError
from poise.model.decisions import Plan
from poise.model.document import near
from poise.model.events import Began
from poise.model.reports.policies import ShadowReport
from poise.model.times import Times
from poise.model.views import Snapshot
from poise.policy.suites import POLICIES, SAFE_POLICY, ClusterPolicy, policy_named

MOST_SHADOWS = 3
"""Maximum number of policies in shadow: each may use a twentieth of the loop's time."""

_log = logging.getLogger("poise.control")


class Deciders:
    """The decider of the active policy, which `began` reads from the ledger. If the log changes or is rolled back, the
    next view goes to the policy that it names then.
    """

    def __init__(self, began: Callable[[], Began | None], times: Times) -> None:
        self._began = began
        self._times = times
        self._label = ""
        self._current: InlineDecider | WorkerDecider = InlineDecider(policy_named(SAFE_POLICY))
        self._prepared: dict[str, WorkerDecider] = {}
        self._shadows: dict[str, Shadow] = {}

    async def prepare(self, choice: Choice) -> None:
        """Load a policy before it becomes active; a failure to load is not raised."""
        if choice.foreign and choice.label != self._label:
            decider = WorkerDecider(choice, self._times)
            await decider.ready()
            self._close_prepared()
            self._prepared[choice.label] = decider

    async def try_out(self, choice: Choice) -> None:
        """Load a requested policy. Raises `SpecError` if it cannot be loaded here."""
        check_needs(choice)
        if choice.foreign:
            await load(choice, self._times)
        await self.prepare(choice)

    def decide(self, view: Snapshot, answer: Answered, /) -> None:
        if not self._shadows:
            self._in_charge().decide(view, answer)
            return

        def told(plan: Plan) -> None:
            answer(plan)
            for shadow in self._shadows.values():
                shadow.ask(view, plan)

        self._in_charge().decide(view, told)

    async def start_shadow(self, choice: Choice, since: float) -> None:
        """Put this policy in shadow; `since` is when it was requested. Raises `SpecError` if it cannot be loaded here,
        and `Conflict` if there are too many.
        """
        if len(self._shadows.keys() | {choice.label}) > MOST_SHADOWS:
            have = ", ".join(self._shadows)
            what, hint = "too many policies are in shadow", f"poise shadow stop {next(iter(self._shadows))}"
            raise Conflict(what, need=f"at most {MOST_SHADOWS}", have=have, hint=hint)
        check_needs(choice)
        await load(choice, self._times)
        shadow = Shadow(choice, self._times, since)
        await shadow.ready()
        self.stop_shadow(choice.label)
        self._shadows[choice.label] = shadow

    async def resume(self, asked: Iterable[Asked]) -> None:
        """Restart the shadows of an earlier control plane of this home. Log and skip a policy that is not available."""
        for one in asked:
            try:
                await self.start_shadow(one.choice, one.since)
            except PoiseError as error:
                _log.error("policy %s cannot be in shadow: %s", one.choice.label, error)

    def stop_shadow(self, label: str) -> None:
        """Take this policy out of shadow."""
        shadow = self._shadows.pop(label, None)
        if shadow is not None:
            shadow.close()

    def shadows(self) -> list[ShadowReport]:
        """Return the reports of the policies in shadow."""
        return [shadow.report() for shadow in self._shadows.values()]

    def shadow(self, name: str) -> Choice:
        """Return the policy in shadow with this label or name. Raises `NotFound`."""
        for label, shadow in self._shadows.items():
            if name in (label, label.partition("@")[0]):
                return shadow.choice
        have = ", ".join(self._shadows) or "none"
        hint = near(name, self._shadows) or f"`poise shadow {f'start {name}' if name in POLICIES else 'ls'}`"
        raise NotFound(f"the policy `{name}` is not in shadow", field="policy", have=have, hint=hint)

    def imagined(self) -> ClusterPolicy:
        """Return the active policy for what-if questions on another thread."""
        return self._in_charge().imagined()

    def close(self) -> None:
        """End all processes of policies."""
        self._close_prepared()
        self._current.close()
        for label in list(self._shadows):
            self.stop_shadow(label)

    def _in_charge(self) -> "InlineDecider | WorkerDecider":
        began = self._began()
        if began is not None and began.policy != self._label:
            self._current.close()
            self._label, self._current = began.policy, self._prepared.pop(began.policy, None) or self._made(began)
        return self._current

    def _made(self, began: Began) -> "InlineDecider | WorkerDecider":
        try:
            return decider_for(choice_of(began), self._times)
        except SpecError as error:  # for example, its package is not installed on this machine
            _log.error("policy %s cannot decide here: %s", began.policy, error)
            return InlineDecider(_Missing(began.policy, error))

    def _close_prepared(self) -> None:
        for decider in self._prepared.values():
            decider.close()
        self._prepared.clear()


class _Missing:
    """A policy that is not available here. Each round fails with the reason."""

    def __init__(self, name: str, error: SpecError) -> None:
        self.name = name
        self._error = error

    def decide(self, view: Snapshot, /) -> Plan:
        raise self._error
