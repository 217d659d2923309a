"""Another policy is set while the control plane is up."""

from typing import Any

import msgspec

from poise.cli.policy import decides
from poise.kernel.audit import audit_report
from poise.kernel.controller import ROUND, Settings, with_latest_policy
from poise.kernel.explain import policy_report
from poise.kernel.messages import Configure, Decide, Decided
from poise.kernel.replay import replay as decide_again
from poise.model.decisions import Plan
from poise.model.events import Configured, Placed, Remembered, Round
from poise.model.reports.policies import TrialReport
from poise.model.selection import Selection
from poise.policy.recipe import compile_recipe
from poise.policy.split import split_settings
from poise.policy.suites import policy_named
from poise.testing import World, replay
from poise.units import SECOND


def configure(world: World, policy: str, **fields: object) -> None:
    world.ask(Configure(world.request(), policy, asked=1_000.0, **fields))  # type: ignore[arg-type]


def test_the_next_decision_is_the_new_policys_and_the_log_replays() -> None:
    world = World("fifo").nodes(1, cpu=2)
    world.job("first", cpu=2).round().job("long", expect="1h", cpu=2).job("short", expect="1m", cpu=2).round()
    world._policy = policy_named("sjf")
    configure(world, "sjf")
    world.finish("first").after("1s")
    placed = [(event.unit, event.why.policy) for event in world.log if isinstance(event, Placed)]
    assert placed == [(world.state("first").units[0].id, "fifo"), (world.state("short").units[0].id, "sjf")]
    assert replay(world.log).encode() == world.ledger.encode()
    told = decide_again(list(world.log))
    assert told.same, told.difference
    assert (told.rounds > 1, told.left_out) == (True, {})


def test_a_plan_that_the_old_policy_was_making_does_not_count() -> None:
    world = World("fifo", poll=ROUND).nodes(1).job("waits").after("1s")
    world.job("next")
    world.now += SECOND
    old = next(effect for effect in world.controller.tick(world.now) if isinstance(effect, Decide))
    configure(world, "srtf")
    rounds = sum(isinstance(event, Round) for event in world.log)
    world.say(Decided(policy_named("fifo").decide(old.view), old.view))
    assert sum(isinstance(event, Round | Remembered) for event in world.log) == rounds


def test_the_memory_of_the_old_policy_is_forgotten_and_kept_when_it_is_set_again() -> None:
    world = World("fifo")
    world.say(Decided(Plan(base=0, policy="fifo", memory={"seen": 1})))
    configure(world, "fifo")
    assert world.ledger.leader.memory == {"seen": 1}
    configure(world, "srtf")
    assert world.ledger.leader.memory == {}


def settings_of(policy: str) -> dict[str, Any]:
    return {"policy": policy, "recipe": {}, "code": ""}


def test_a_trial_on_a_part_of_the_nodes_is_no_policy_to_go_back_to() -> None:
    """First for one node, then for half of them, then for all: `rollback` ends it at each stage."""
    world = World("fifo").nodes(4)
    stages = [Selection(names=("n1",)), Selection(share=500)]
    parts = [split_settings(settings_of("srtf"), settings_of("fifo"), nodes) for nodes in stages]
    for part in (*parts, settings_of("srtf")):
        configure(world, **part)
        assert world.ledger.leader.before == settings_of("fifo")
    configure(world, **parts[1])
    configure(world, **settings_of("fifo"))
    assert world.ledger.leader.before == parts[1], "a second rollback goes on with the trial"
    assert replay(world.log).encode() == world.ledger.encode()
    told = [audit_report(world.ledger, 2, event).what for event in world.log if isinstance(event, Configured)]
    assert told == [
        "let srtf decide for node n1, and fifo for the rest",
        "let srtf decide for 50 % of the nodes, and fifo for the rest",
        "set the policy to srtf",
        "let srtf decide for 50 % of the nodes, and fifo for the rest",
        "set the policy to fifo",
    ]


def test_a_trial_is_reported_with_its_nodes_and_why_it_is_paused() -> None:
    world = World("poise").nodes(4, cpu=4)
    assert policy_report(world.ledger)().trial is None
    configure(world, **split_settings(settings_of("srtf"), settings_of("poise"), Selection(names=("n1", "n2"))))
    told = policy_report(world.ledger)().trial
    assert told is not None
    assert (told.policy, told.rest, told.on, told.paused) == ("srtf", "poise", ("n1", "n2"), "")
    gang = world.job("gang", workers=4, cpu=4).unit("gang").id
    told = policy_report(world.ledger)().trial
    assert told is not None
    assert (told.on, told.paused) == ((), f"{gang} needs nodes of both parts")
    assert decides(told) == "srtf decides for nodes n1, n2, and poise for the rest"
    shared = TrialReport(policy="srtf", rest="poise", nodes="50 % of the nodes", on=("n1", "n3"))
    assert decides(shared) == "srtf decides for 50 % of the nodes (n1, n3), and poise for the rest"


def test_the_triggers_of_a_trial_are_those_of_the_policy_for_the_rest() -> None:
    recipe = msgspec.to_builtins(compile_recipe({"kind": "policy", "name": "ours", "triggers": {"failed_checks": 9}}))
    world = World("fifo").nodes(4)
    before = world.controller.watch.patience
    rest = {"policy": "ours@1", "recipe": recipe, "code": ""}
    configure(world, **split_settings(settings_of("srtf"), rest, Selection(share=500)))
    assert world.controller.watch.patience == 3 * before


def test_its_triggers_count_from_then_on() -> None:
    recipe = compile_recipe({"kind": "policy", "name": "ours", "triggers": {"failed_checks": 9}})
    world = World("fifo")
    before = world.controller.watch.patience
    configure(world, "ours@1", recipe=msgspec.to_builtins(recipe))
    assert world.controller.watch.patience == 3 * before
    configure(world, "fifo")
    assert world.controller.watch.patience == before


def test_whoever_takes_the_log_next_goes_on_with_what_was_asked_for_last() -> None:
    world = World("fifo")
    configure(world, "srtf")
    began = world.ledger.leader.began
    assert with_latest_policy(Settings(policy="poise"), began).policy == "srtf"
    assert with_latest_policy(Settings(policy="poise", asked=999.0), began).policy == "srtf"
    assert with_latest_policy(Settings(policy="poise", asked=1_001.0), began).policy == "poise"


def test_it_is_audited() -> None:
    world = World("fifo")
    configure(world, "srtf")
    configured = next(event for event in world.log if isinstance(event, Configured))
    assert audit_report(world.ledger, 2, configured).what == "set the policy to srtf"
