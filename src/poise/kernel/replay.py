"""Repeat the decisions in a log and compare them.

    told = replay(events)
    assert told.same, told.difference

The events build the ledger, one by one. At each `Round` the policy decides again, on the view of that time. Each
decision of its plan is checked against the ledger of that time and compared with the committed events. So refused
decisions must be refused again, and recorded reasons must be the same.

State can always be replayed. Decisions are compared only if the caller has the policy that made them (`Choose`).
Another policy can decide instead, on each recorded round. The result is how many rounds it would have decided
differently, without their consequences. Pure: a log is passed as its events, and iterated twice side by side.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from poise.decoding import convert
from poise.kernel.ledger import Ledger
from poise.kernel.verify import verify
from poise.model.decisions import NO_POLICY, Plan, Rejection
from poise.model.events import Began, Configured, Event, Held, Placed, Preempted, Remembered, Resized, Round
from poise.policy.divided import Split
from poise.policy.learned import policy_of
from poise.policy.recipe import Recipe
from poise.policy.split import PolicySettings, split_in
from poise.policy.suites import POLICIES, SAFE_POLICY, ClusterPolicy, decide_safely

Made = Placed | Preempted | Resized | Held | Remembered
"""Events that a round commits; those with `NO_POLICY` come from the control plane itself."""

Choose = Callable[[Began], ClusterPolicy | str]
"""Returns the policy that decided under this control plane, or the reason why it is not available."""

UNRECORDED = "decided before rounds were recorded, or as its record was lost"
UNSEEN = "decided on a view from before the first record that is kept"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A round with a different result now: the committed and the new events, in order. `revision` is that of its
    record, `base` that of its view, `asked` the instant of the view and `wall` the same in seconds since 1970. `failed`
    is the error of the policy now.
    """

    revision: int
    base: int
    asked: int
    wall: float
    recorded: tuple[Made, ...]
    now: tuple[Made, ...]
    failed: str = ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay of revisions `first` to `last`: the compared rounds, the `decisions` in them, the number of
    `different` ones and the first of these. `left_out` counts rounds that were not compared, by reason. `policy` is the
    policy used in place of the recorded ones, if any.
    """

    first: int
    last: int
    rounds: int = 0
    decisions: int = 0
    different: int = 0
    difference: Difference | None = None
    left_out: dict[str, int] = {}
    policy: str = ""

    @property
    def same(self) -> bool:
        """Whether all compared rounds have the recorded result."""
        return not self.different


def shipped(began: Began | PolicySettings) -> ClusterPolicy | str:
    """Return the policy that decided, if it ships with Poise (in any version); else the reason why it is not
    available.
    """
    if began.policy in POLICIES:
        return POLICIES[began.policy]
    try:
        if (split := split_in(began.recipe)) is not None:
            trial, rest = shipped(split.trial), shipped(split.rest)
            if isinstance(trial, str) or isinstance(rest, str):
                return trial if isinstance(trial, str) else rest
            return Split(began.policy, trial, rest, split.nodes)
        return policy_of(convert(began.recipe, Recipe))
    except (msgspec.ValidationError, KeyError, ValueError):
        return f"decided by `{began.policy}`, which does not ship with Poise"


def replay(
    events: Iterable[Event],
    *,
    ledger: Ledger | None = None,
    choose: Choose = shipped,
    instead: ClusterPolicy | None = None,
    after: int = 0,
) -> Replayed:
    """Replay the events that follow the state of `ledger` (None: all from the first), and apply them to it.

    `events` is iterated twice. Rounds up to revision `after` are not compared. Raises what `Ledger.apply` raises for
    impossible events.
    """
    return _Replay(ledger if ledger is not None else Ledger(), choose, instead, after).run(events)


class _Round:
    """A repeated round: the committed events, and those of the new plan. With `strict`, order and reasons must be the
    same; otherwise only placements and preemptions.
    """

    def __init__(self, expected: Iterator[Made], failed: str, *, strict: bool) -> None:
        self.recorded: list[Made] = []
        self.now: list[Made] = []
        self.failed = failed
        self._expected = expected
        self._strict = strict
        self._differs = bool(failed)

    def take(self, event: Made) -> None:
        """Add the next committed event before the ledger applies it: the new decision is verified on the same
        ledger.
        """
        self.recorded.append(event)
        if not self._strict or self._differs:
            self._show_all()
            return
        made = next(self._expected, None)
        if made is not None:
            self.now.append(made)
        if made != event:
            self._differs = True
            self._show_all()

    def close(self) -> bool:
        """End the round. Return whether anything differs."""
        before = len(self.now)
        self._show_all()
        if self._strict:
            return self._differs or len(self.now) > before
        return self._differs or _acts(self.now) != _acts(self.recorded)

    def _show_all(self) -> None:
        """Add the remaining new events, each verified by itself."""
        self.now.extend(self._expected)


def _is_own(event: Made) -> bool:
    return isinstance(event, Preempted | Resized) and event.why.policy == NO_POLICY


class _Replay:
    """One pass over the events. `_open` is the current round after its view, if it is compared."""

    def __init__(self, ledger: Ledger, choose: Choose, instead: ClusterPolicy | None, after: int) -> None:
        self._ledger = ledger
        self._first = ledger.revision + 1
        self._choose = choose
        self._instead = instead
        self._after = after
        self._policy: ClusterPolicy | str = (
            choose(ledger.leader.began) if ledger.leader.began is not None else UNRECORDED
        )
        self._open: _Round | None = None
        self._unrecorded_at = 0
        self._left_out: dict[str, int] = {}
        self._rounds = self._decisions = self._different = 0
        self._difference: Difference | None = None

    def run(self, events: Iterable[Event]) -> Replayed:
        ledger = self._ledger
        ahead = ((at, event) for at, event in enumerate(events, start=self._first) if isinstance(event, Round))
        revision, coming = next(ahead, (0, None))
        for event in events:
            if coming is not None and ledger.revision == coming.base and revision > self._after:
                self._open = self._begin(coming)
            if isinstance(event, Made) and not _is_own(event):
                self._take(event, coming)
            elif isinstance(event, Round):
                self._close(event)
                revision, coming = next(ahead, (0, None))
            ledger.apply(event)
            if isinstance(event, Began | Configured) and ledger.leader.began is not None:
                self._policy = self._choose(ledger.leader.began)
        return Replayed(
            first=self._first,
            last=ledger.revision,
            rounds=self._rounds,
            decisions=self._decisions,
            different=self._different,
            difference=self._difference,
            left_out=self._left_out,
            policy=self._instead.name if self._instead is not None else "",
        )

    def _begin(self, coming: Round) -> _Round | None:
        """Decide on the current ledger, which is the one that the next round saw."""
        began, chosen = self._ledger.leader.began, self._instead or self._policy
        if began is None or isinstance(chosen, str) or (self._instead is None and _impostor(coming, chosen)):
            return None
        view = self._ledger.snapshot(coming.asked, began.seed, began.throughputs, coming.fired)
        stood_in = self._instead is None and coming.policy == SAFE_POLICY
        try:
            plan = decide_safely(view) if stood_in else chosen.decide(view)
        except Exception as error:  # any error of a policy is a result
            return _Round(iter(()), f"{type(error).__name__}: {error}", strict=self._instead is None)
        return _Round(_made(self._ledger, plan, coming.at), "", strict=self._instead is None)

    def _take(self, event: Made, coming: Round | None) -> None:
        if coming is not None and coming.at == event.at and coming.base <= self._ledger.revision:
            if self._open is not None:
                self._open.take(event)
        elif event.at != self._unrecorded_at:
            self._unrecorded_at = event.at
            self._leave_out(UNRECORDED)

    def _close(self, event: Round) -> None:
        again, self._open = self._open, None
        ledger = self._ledger
        revision = ledger.revision + 1
        if again is None:
            if revision > self._after:
                self._leave_out(self._why_not(event))
            return
        self._rounds += 1
        self._decisions += sum(not isinstance(made, Remembered) for made in again.recorded)
        if not again.close():
            return
        self._different += 1
        if self._difference is None:
            self._difference = Difference(
                revision=revision,
                base=event.base,
                asked=event.asked,
                wall=ledger.leader.wall(event.asked),
                recorded=tuple(again.recorded),
                now=tuple(again.now),
                failed=again.failed,
            )

    def _why_not(self, event: Round) -> str:
        if isinstance(self._policy, str):
            return self._policy
        return f"decided by `{event.policy}` in the place of another" if _impostor(event, self._policy) else UNSEEN

    def _leave_out(self, why: str) -> None:
        self._left_out[why] = self._left_out.get(why, 0) + 1


def _impostor(event: Round, chosen: ClusterPolicy) -> bool:
    """Return whether the plan came from neither the policy in charge nor the safe one."""
    return event.policy not in ("", SAFE_POLICY, chosen.name)


def _made(ledger: Ledger, plan: Plan, at: int) -> Iterator[Made]:
    """Yield the events of a plan. Each decision is verified on request, after the earlier ones have been applied."""
    for decision in plan.decisions:
        made = verify(ledger, decision, at)
        if made is not None and not isinstance(made, Rejection):
            yield made
    if plan.memory is not None:
        yield Remembered(at=at, memory=msgspec.msgpack.decode(msgspec.msgpack.encode(plan.memory)))  # as decoded


def _acts(made: Iterable[Made]) -> set[tuple[object, ...]]:
    """Return the effects on units, without reasons and order."""
    found: set[tuple[object, ...]] = set()
    for event in made:
        if isinstance(event, Placed):
            found.add((event.unit, event.spots, event.queued, event.variant))
        elif isinstance(event, Preempted):
            found.add((event.unit, event.cause, event.to))
        elif isinstance(event, Resized):
            found.add((event.unit, event.leaves, event.joins, event.to))
    return found
