"""What was decided is decided again from its log alone, and what differs is found."""

from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from typing import Any

import msgspec
import pytest

from poise.kernel.ledger import Ledger
from poise.kernel.messages import Decided
from poise.kernel.replay import UNRECORDED, UNSEEN, replay
from poise.model.decisions import Hold, Place, Plan
from poise.model.events import Event, Held, NodeLost, Placed, Preempted, Remembered, Round, decode_event, encode_event
from poise.model.selection import Selection
from poise.model.views import Snapshot
from poise.policy.divided import Split
from poise.policy.recipe import compile_recipe
from poise.policy.split import split_settings
from poise.policy.suites import POLICIES, ClusterPolicy, Suite, decide_safely, policy_named
from poise.testing import World

SPEEDS = {"train": 4.0, "train@gpu": 40.0}


def busy(policy: str | ClusterPolicy = "poise", *, seed: int = 1, steps: int = 28, **settings: Any) -> World:
    """Gangs and single tasks of two tenants in all classes, a node that is lost and comes back, a drain, a quota, a
    restart, a full disk.
    """
    chance = Random(seed)  # noqa: S311 — a world, and no secrets
    world = World(policy, check=False, seed=seed, throughputs=SPEEDS, **settings).nodes(3, cpu=4, gpus=4)
    world.nodes(2, cpu=8)
    for step in range(steps):
        tenant = chance.choice(["default", "ann"])
        shape = chance.choice([{"cpu": 1}, {"cpu": 2}, {"cpu": 1, "gpu": 2}, {"cpu": 1, "gpu": 1, "workers": 4}])
        priority = chance.choice(["high", "medium", "low"])
        world.job(f"w{step}", tenant=tenant, priority=priority, preemptible=True, **shape)
        world.after(chance.choice(["10ms", "300ms", "1s", "6s"]))
        held = sorted(attempt for of_node in world.held.values() for attempt in of_node)
        for attempt in held:
            if chance.random() < 0.5 and attempt not in world.started:
                world.start(attempt.task)
            elif chance.random() < 0.3 and any(attempt in of_node for of_node in world.held.values()):
                world.finish(attempt.task, run=f"{chance.choice([1, 20, 900])}s")
        match step:
            case 5:
                world.quota("ann", cpu=5)
            case 9:
                world.lose("n1")
            case 12:
                world.connect("n1")
            case 14:
                world.drain("n2")
            case 17:
                world.drain("n2", on=False)
            case 20:
                world.restart(from_checkpoint=True)
            case 23:
                world.fail_disk()
                world.full_disk = False
                world.after("2s")
                for name in ("n1", "n2", "n3"):
                    world.connect(name)
    return world


@cache
def log_of(policy: str) -> tuple[Event, ...]:
    return tuple(as_read(busy(policy).log))


def as_read(log: Iterable[Event]) -> list[Event]:
    """As they come from a disk."""
    return [decode_event(encode_event(event)) for event in log]


class Changed:
    """A policy with a bug in it: from one view on it places on another node, forgets, raises …"""

    def __init__(self, policy: ClusterPolicy, change: Callable[[Plan, Snapshot], Plan]) -> None:
        self.name = policy.name
        self._policy = policy
        self._change = change

    def decide(self, view: Snapshot, /) -> Plan:
        return self._change(self._policy.decide(view), view)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_decides_the_same_again(policy: str) -> None:
    log = log_of(policy)
    told = replay(log)
    assert told.same, told.difference
    assert (told.first, told.last, told.left_out) == (1, len(log), {})
    made = [event for event in log if isinstance(event, Placed | Preempted | Held)]
    assert told.decisions == len(made) > 20
    assert told.rounds == sum(isinstance(event, Round) for event in log) > 10


def test_two_policies_decide_the_same_again_each_for_its_nodes() -> None:
    parts: list[dict[str, Any]] = [{"policy": name, "recipe": {}, "code": ""} for name in ("max-min", "round-robin")]
    nodes = Selection(names=("n1", "n3"))
    told = split_settings(parts[0], parts[1], nodes)
    world = busy(Split(told["policy"], POLICIES["max-min"], POLICIES["round-robin"], nodes), recipe=told["recipe"])
    again = replay(as_read(world.log))
    assert again.same, again.difference
    assert (again.rounds > 10, again.left_out) == (True, {})
    by = {event.why.policy for event in world.log if isinstance(event, Placed)}
    assert by == {"max-min", "round-robin"}
    assert {"trial", "rest"} in [set(event.memory) for event in world.log if isinstance(event, Remembered)]


@pytest.mark.parametrize("policy", ["poise", "srtf"])
def test_a_change_in_the_policy_is_found_at_the_first_round_that_it_decides_otherwise(policy: str) -> None:
    log = log_of(policy)
    rounds = [(at, event) for at, event in enumerate(log, start=1) if isinstance(event, Round)]
    wanted, record = rounds[len(rounds) // 2]

    def late(plan: Plan, view: Snapshot) -> Plan:
        return plan if view.now < record.asked else msgspec.structs.replace(plan, decisions=(), memory=None)

    told = replay(log, choose=lambda _: Changed(policy_named(policy), late))
    assert not told.same and told.difference is not None
    assert (told.difference.revision, told.difference.base, told.difference.asked) == (
        wanted,
        record.base,
        record.asked,
    )
    assert told.difference.recorded and not told.difference.now
    assert told.different == len(rounds) - len(rounds) // 2
    assert told.rounds == len(rounds)


def test_both_plans_are_shown_side_by_side() -> None:
    world = World("fifo").nodes(2, cpu=2).job("a", cpu=1).job("b", cpu=1).round()

    def elsewhere(plan: Plan, view: Snapshot) -> Plan:
        moved = [
            msgspec.structs.replace(decision, spots=(decision.spots[0].__class__("n2"),)) if index else decision
            for index, decision in enumerate(plan.decisions)
            if isinstance(decision, Place)
        ]
        return msgspec.structs.replace(plan, decisions=tuple(moved))

    told = replay(as_read(world.log), choose=lambda _: Changed(policy_named("fifo"), elsewhere))
    assert told.difference is not None
    assert [made.spots[0].node for made in told.difference.recorded if isinstance(made, Placed)] == ["n1", "n1"]
    assert [made.spots[0].node for made in told.difference.now if isinstance(made, Placed)] == ["n1", "n2"]
    assert (told.rounds, told.different) == (1, 1)


def test_other_reasons_are_a_difference_too() -> None:
    world = World("fifo").nodes(1, cpu=2).job("a", cpu=2).round().job("b", cpu=2).round()

    def vague(plan: Plan, view: Snapshot) -> Plan:
        kept = (replaced(decision) if isinstance(decision, Hold) else decision for decision in plan.decisions)
        return msgspec.structs.replace(plan, decisions=tuple(kept))

    def replaced(hold: Hold) -> Hold:
        return msgspec.structs.replace(hold, reasons=hold.reasons[:1] * 2)

    told = replay(as_read(world.log), choose=lambda _: Changed(policy_named("fifo"), vague))
    assert told.different == 1 and told.difference is not None
    assert isinstance(told.difference.now[0], Held)


def test_a_policy_that_raises_now_differs_and_says_how() -> None:
    world = World("fifo").nodes(1).job("a").round()

    def broken(plan: Plan, view: Snapshot) -> Plan:
        raise ZeroDivisionError("division by zero")

    told = replay(as_read(world.log), choose=lambda _: Changed(policy_named("fifo"), broken))
    assert told.difference is not None
    assert told.difference.failed == "ZeroDivisionError: division by zero"


def test_what_was_refused_then_is_refused_again() -> None:
    """A plan on an older view: one of its jobs was cancelled before it came back."""
    world = World("fifo").nodes(1, cpu=4).job("a", cpu=1).job("b", cpu=1)
    view = world.controller.snapshot(world.now)
    plan = policy_named("fifo").decide(view)
    world.cancel("a").job("c", cpu=1).say(Decided(plan, view))
    assert [event.unit for event in world.log if isinstance(event, Placed)] == ["j2.main"]
    told = replay(as_read(world.log))
    assert told.same and (told.rounds, told.decisions) == (1, 1)


def test_a_round_in_which_the_safe_policy_stood_in_is_decided_by_it_again() -> None:
    world = World("poise").nodes(2).job("a").job("b", priority="high")
    view = world.controller.snapshot(world.now)
    plan = msgspec.structs.replace(decide_safely(view), failed="POLICY_FAILED: it hung")
    world.say(Decided(plan, view))
    assert [event.policy for event in world.log if isinstance(event, Round)] == ["fifo"]
    assert replay(as_read(world.log)).same


def test_a_plan_that_says_it_is_of_another_policy_is_left_out() -> None:
    world = World("poise").nodes(2).job("a")
    view = world.controller.snapshot(world.now)
    world.say(Decided(msgspec.structs.replace(policy_named("poise").decide(view), policy="liar"), view))
    told = replay(as_read(world.log))
    assert (told.rounds, told.left_out) == (0, {"decided by `liar` in the place of another": 1})


def test_a_plan_for_what_the_log_has_lost_is_dropped() -> None:
    world = World("fifo").nodes(1, cpu=4).job("a")
    world.slow_disk = True
    world.job("b")
    view = world.controller.snapshot(world.now)
    plan = policy_named("fifo").decide(view)
    world.fail_disk()
    world.full_disk = False
    world.slow_disk = False
    before = len(world.log)
    assert len(world.say(Decided(plan, view)).log) == before
    world.after("2s").connect("n1").after("1s")
    told = replay(as_read(world.log))
    assert told.same and told.rounds == 1 and not told.left_out


def test_a_policy_of_ones_own_is_in_the_log_with_all_that_it_needs() -> None:
    document = {"kind": "policy", "name": "ours", "extends": "poise", "order": {"urgency": 0.5, "thrift": 0.5}}
    ours = Suite(compile_recipe(document))
    told = replay(as_read(busy(ours, steps=15, recipe=msgspec.to_builtins(ours.recipe)).log))
    assert told.same and told.rounds and not told.left_out


def test_what_cannot_be_compared_is_counted_by_its_reason() -> None:
    """A policy of others; records from before there were rounds; a log that begins at a checkpoint."""
    world = World("fifo").nodes(1, cpu=4).job("a").round().job("b").round()
    log = as_read(world.after("1s").job("c").round().log)
    began = msgspec.structs.replace(log[0], policy="theirs@12345678")
    told = replay([began, *log[1:]])
    assert (told.rounds, told.left_out) == (0, {"decided by `theirs@12345678`, which does not ship with Poise": 3})
    told = replay([event for event in log if not isinstance(event, Round)])
    assert (told.rounds, told.left_out) == (0, {UNRECORDED: 2})  # two were at one instant
    first = next(at for at, event in enumerate(log, start=1) if isinstance(event, Round))
    ledger = Ledger()
    for event in log[: first - 1]:
        ledger.apply(event)
    told = replay(log[first - 1 :], ledger=Ledger.decode(ledger.encode()))
    assert (told.first, told.last, told.rounds, told.left_out) == (first, len(log), 2, {UNSEEN: 1})


def test_only_what_is_asked_for_is_compared() -> None:
    world = World("fifo").nodes(1, cpu=4).job("a").round().job("b").round()
    log = as_read(world.log)
    first = next(at for at, event in enumerate(log, start=1) if isinstance(event, Round))
    assert (replay(log, after=first).rounds, replay(log[:first]).rounds) == (1, 1)


def test_another_policy_is_asked_of_each_round_as_it_was() -> None:
    told = replay(log_of("poise"), instead=policy_named("random"))
    assert 0 < told.different < told.rounds
    assert told.policy == "random"
    again = replay(log_of("poise"), instead=policy_named("poise"))
    assert again.same and again.rounds == told.rounds


def test_what_a_policy_remembers_is_compared() -> None:
    world = World("round-robin").nodes(3).job("a").round().job("b").round()
    assert any(isinstance(event, Remembered) for event in world.log)
    assert replay(as_read(world.log)).same

    def forgetful(plan: Plan, view: Snapshot) -> Plan:
        return msgspec.structs.replace(plan, memory=None)

    assert replay(as_read(world.log), choose=lambda _: Changed(policy_named("round-robin"), forgetful)).different == 2


def test_it_goes_on_through_a_lost_node_and_a_later_control_plane() -> None:
    world = (
        World("poise")
        .nodes(2, gpus=2)
        .job("a", gpu=2, retry={"limit": 2, "when": ["lost"]})
        .round()
        .start("a")
        .lose("n1")
        .after("1s")
    )
    assert any(isinstance(event, NodeLost) for event in world.log)
    world.restart(policy="poise", seed=3).job("b", gpu=1).after("1s")
    told = replay(as_read(world.log))
    assert told.same and told.rounds >= 2


def test_what_is_shown_of_long_queues_does_not_depend_on_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues come in another order from a checkpoint than from all events: one of them had an earlier unit back."""
    monkeypatch.setattr("poise.kernel.ledger.queues.SHOWN", 40)
    monkeypatch.setattr("poise.kernel.ledger.queues.HEAD", 4)
    retry = {"limit": 2, "when": ["killed"], "backoff": "0s"}
    world = World("fifo", check=False).nodes(1, cpu=1).job("back", cpu=1, retry=retry, **{"class": "a"}).round()
    for count, kind in ((12, "b"), (40, "a")):
        for _ in range(count):
            world.job(cpu=1, **{"class": kind})
    world.job(cpu=1, priority="low").start("back").finish("back", outcome="killed")
    again = Ledger.decode(world.ledger.encode())
    shown = world.ledger.snapshot(world.now).candidates
    assert shown == again.snapshot(world.now).candidates
    assert sum(candidate.kind == "a" for candidate in shown) > sum(candidate.kind == "b" for candidate in shown) == 12
