"""A rule fits memory limits to earlier peaks: it raises them soon, lowers them slowly, and restores them at its end."""

from typing import Any

from msgspec import structs

from poise.kernel.ledger import Ledger
from poise.kernel.messages import SetRules
from poise.model.events import JobChanged, RuleFired
from poise.model.messages import Beat
from poise.testing import World, node
from poise.units import DAY

GIB = 1 << 30
FIT: dict[str, Any] = {
    "name": "fit",
    "mode": "on",
    "trigger": "nodes_up > 0",
    "actions": [{"adjust_memory_limit": {"fit": "25%", "most": "32GiB", "class": "train"}}],
}


def loaded(rule: dict[str, Any] = FIT, **settings: Any) -> World:
    world = World().nodes(1, cpu=8, memory="64GiB", grows=True)
    return rules(world, rule, **settings)


def rules(world: World, *rule: dict[str, Any], **settings: Any) -> World:
    document = {"kind": "rules", "every": "5s", "budget": 100, "rules": list(rule)} | settings
    return world.ask(SetRules(world.request(), document))


def evaluated(world: World, every: str = "5s") -> World:
    for _ in range(2):
        world.hear("n1", Beat(number=1)).after(every)
    return world


def ran(world: World, count: int, peak: int, **fields: Any) -> World:
    """Run jobs of the class one after the other, each with this peak."""
    for _ in range(count):
        name = f"past{len(world.ledger.jobs)}"
        job(world, name, **fields).round().start(name).finish(name, peak=peak, limit=8 * GIB)
    return world


def job(world: World, name: str, **fields: Any) -> World:
    return world.job(name, **{"class": "train", "resources": {"memory": "8GiB"}} | fields)


def limit(world: World, name: str) -> int:
    unit = world.unit(name)
    return (unit.next_spec or unit.spec).shape.memory


def held_jobs(world: World, *names: str) -> World:
    """Submit jobs that wait, because they begin later."""
    for name in names:
        job(world, name, begin="90d")
    return world


def why_not(world: World) -> str:
    [report] = world.controller.ruling.report().rules
    return report.why_not


def adjusted(world: World) -> list[RuleFired]:
    return [event for event in world.log if isinstance(event, RuleFired) and event.outcome == "adjusted"]


def test_limits_are_lowered_to_the_peaks_of_the_class_and_restored_at_the_end() -> None:
    world = held_jobs(evaluated(ran(loaded(), 20, 2 * GIB)), "a")
    job(world, "other", begin="90d", **{"class": "eval"})
    evaluated(world)
    assert limit(world, "a") == 2560 << 20
    assert limit(world, "other") == 8 * GIB
    [fit] = adjusted(world)
    assert fit.before["adjust_memory_limit"] == {world.unit("a").id: [8 * GIB, 2560 << 20]}
    again = Ledger()
    for event in world.log:
        again.apply(event)
    assert again.encode() == world.ledger.encode()
    rules(world)
    assert limit(world, "a") == 8 * GIB


def test_few_attempts_lower_nothing() -> None:
    assert limit(evaluated(held_jobs(evaluated(ran(loaded(), 9, 2 * GIB)), "a")), "a") == 8 * GIB


def test_a_limit_follows_a_class_that_has_become_smaller_only_after_days() -> None:
    world = evaluated(held_jobs(ran(loaded(every="6h"), 20, 6 * GIB), "a"), "6h")
    before = limit(world, "a")
    evaluated(ran(world, 20, 2 * GIB), "6h")
    assert limit(world, "a") == before == 7680 << 20
    world.now += 14 * DAY  # without the heartbeats of that time
    evaluated(ran(world.connect("n1"), 20, 2 * GIB), "6h")
    assert limit(world, "a") == 2560 << 20
    [fit] = adjusted(world)
    assert fit.before["adjust_memory_limit"][world.unit("a").id][0] == 8 * GIB, "the limit before the first fit"


def test_one_attempt_without_enough_memory_raises_the_limits_of_what_waits_and_runs() -> None:
    world = evaluated(ran(loaded(), 20, 2 * GIB))
    job(world, "a", retry={"limit": 3, "when": ["oom"]})
    evaluated(job(world, "b").round().start("a", "b"))
    assert [limit(world, name) for name in ("a", "b")] == [2560 << 20] * 2, "at the next attempt"
    assert sorted(launch.shape.memory for launch in world.held["n1"].values()) == [8 * GIB] * 2, "none is killed"
    evaluated(world.finish("a", outcome="oom", peak=8 * GIB, limit=8 * GIB))
    assert [limit(world, name) for name in ("a", "b")] == [12 * GIB] * 2
    assert sorted(launch.shape.memory for launch in world.held["n1"].values())[-1] == 12 * GIB


def test_work_that_ran_out_of_memory_under_a_fitted_limit_gets_its_first_limit_again() -> None:
    world = evaluated(job(evaluated(ran(loaded(), 20, 2 * GIB)), "a", retry={"limit": 3, "when": ["oom"]}, begin="1m"))
    world.after("1m").round().start("a")
    assert [launch.shape.memory for launch in world.held["n1"].values()] == [2560 << 20]
    evaluated(world.finish("a", outcome="oom", peak=2560 << 20, limit=2560 << 20))
    assert limit(world, "a") == 8 * GIB
    assert limit(evaluated(world), "a") == 8 * GIB


def test_a_limit_that_a_user_has_set_stays() -> None:
    world = evaluated(held_jobs(evaluated(ran(loaded(), 20, 2 * GIB)), "a"))
    evaluated(world.change("a", resources={"memory": "4GiB"}))
    assert limit(world, "a") == 4 * GIB
    rules(world)
    assert limit(world, "a") == 4 * GIB


def test_each_fit_spends_an_action_and_shadow_changes_nothing() -> None:
    world = ran(evaluated(loaded(budget=2)), 20, 2 * GIB)
    for name in ("a", "b"):
        evaluated(held_jobs(world, name))
    assert [limit(world, name) for name in ("a", "b")] == [2560 << 20, 8 * GIB]
    world = evaluated(held_jobs(ran(loaded(FIT | {"mode": "shadow"}), 20, 2 * GIB), "a"))
    assert limit(world, "a") == 8 * GIB


def test_a_fit_of_too_many_units_changes_nothing_and_says_why() -> None:
    world = evaluated(ran(loaded(), 20, 2 * GIB))
    task = {"class": "train", "resources": {"cpu": 8, "memory": "8GiB"}}
    for number in range(11):
        world.graph(f"many{number}", tasks={f"t{place}": task for place in range(100)})
    evaluated(world)
    assert adjusted(world) == []
    assert why_not(world) == "adjust_memory_limit: the action concerns too many units"
    world.cancel("many0").cancel("many1")
    evaluated(world)
    assert len(adjusted(world)[-1].before["adjust_memory_limit"]) == 900
    assert why_not(world) == ""


def test_a_fit_that_no_node_can_run_says_why() -> None:
    rule = FIT | {"actions": [{"adjust_memory_limit": {"fit": "25%", "most": "128GiB", "class": "train"}}]}
    world = evaluated(held_jobs(evaluated(ran(loaded(rule), 20, 60 * GIB)), "a"))
    assert limit(world, "a") == 8 * GIB
    assert why_not(world).startswith(f"adjust_memory_limit of {world.unit('a').id} to 75 GiB: ")
    evaluated(world.join(node("large", cpu=8, memory="128GiB")))
    assert limit(world, "a") == 75 * GIB
    assert why_not(world) == ""


def test_a_fit_beyond_the_budget_says_why() -> None:
    world = evaluated(held_jobs(evaluated(ran(loaded(budget=1), 20, 2 * GIB)), "a"))
    assert limit(world, "a") == 8 * GIB
    assert why_not(world) == "the budget of 1 actions an hour is spent"


# --- while work runs -------------------------------------------------------------------------------------------------
FITTED = 2560 << 20


def running(world: World, name: str = "a", **fields: Any) -> World:
    """A running job whose limit should be lowered: the rule has fitted it to the peaks of its class."""
    evaluated(ran(world, 20, 2 * GIB))
    tasks = [f"{name}.main[{rank}]" for rank in range(fields["workers"])] if "workers" in fields else [name]
    return evaluated(job(world, name, **fields).round().start(*tasks))


def held(world: World) -> int:
    """Bytes that the ledger counts as held on the node."""
    return sum(unit.spec.shape.memory for unit, _ in world.ledger.active.on("n1"))


def test_what_running_work_does_not_need_is_free_for_other_work() -> None:
    world = running(loaded())
    attempt = next(iter(world.held["n1"]))
    assert world.shrinks == {attempt: FITTED}, "its node is asked to lower the limit"
    assert held(world) == 8 * GIB, "until it has done so, the room is taken"
    world.job("large", memory="60GiB", **{"class": "eval"}).round()
    assert world.status("large") == "pending"
    world.sized("a", 2 * GIB).round()
    unit = world.unit("a")
    assert (unit.spec.shape.memory, unit.next_spec, held(world)) == (FITTED, None, FITTED + 60 * GIB)
    assert world.status("large") != "pending"
    [rule] = world.controller.ruling.report().rules
    assert f"{unit.id} runs with 2.5 GiB now: it has used at most 2 GiB so far" in rule.firings[0].have
    lowered = [event for event in world.log if isinstance(event, JobChanged)][-1]
    assert (lowered.grow, lowered.by) == ((unit.id,), "rule:fit")
    again = Ledger()
    for event in world.log:
        again.apply(event)
    assert again.encode() == world.ledger.encode()


def test_a_lowered_limit_that_is_too_low_is_raised_at_once() -> None:
    world = running(loaded()).sized("a", 2 * GIB)
    world.sized("a", 2400 << 20, short=True)
    assert held(world) == world.unit("a").spec.shape.memory == 2880 << 20, "a fifth more than it uses"
    [launch] = world.held["n1"].values()
    assert launch.shape.memory == 2880 << 20, "its node has raised it"
    assert limit(evaluated(world), "a") == 2880 << 20, "the rule leaves it alone"


def test_a_lowered_limit_is_raised_no_further_than_before_the_rule_and_only_where_there_is_room() -> None:
    world = running(loaded()).sized("a", 2 * GIB)
    world.job("large", memory="62900MiB", **{"class": "eval"}).round().start("large")
    world.sized("a", 2500 << 20, short=True)
    assert limit(world, "a") == FITTED, "there is no room"
    world.finish("large").sized("a", 7900 << 20, short=True)
    assert limit(world, "a") == 8 * GIB


def test_a_limit_that_was_raised_while_its_node_lowered_it_is_raised_there_too() -> None:
    world = running(loaded())
    attempt = next(iter(world.held["n1"]))
    world.change("a", memory="12GiB")
    assert world.held["n1"][attempt].shape.memory == 12 * GIB
    world.sized("a", 2 * GIB)
    assert world.held["n1"][attempt].shape.memory == 12 * GIB == held(world)


def test_a_node_that_comes_back_is_asked_again() -> None:
    world = running(loaded())
    attempt = next(iter(world.held["n1"]))
    world.shrinks.clear()
    world.sync().restart()
    assert world.shrinks == {attempt: FITTED}


def test_gangs_containers_and_nodes_that_cannot_do_it_keep_their_limits() -> None:
    world = running(loaded(), workers=2)
    assert (limit(world, "a"), world.shrinks) == (FITTED, {})
    other = World().nodes(1, cpu=8, memory="64GiB")
    assert (limit(running(rules(other, FIT)), "a"), other.shrinks) == (FITTED, {})


def test_a_user_lowers_the_limit_of_running_work() -> None:
    world = World().nodes(1, cpu=8, memory="64GiB", grows=True)
    world.job("a", memory="8GiB").round().start("a").change("a", memory="4GiB")
    assert list(world.shrinks.values()) == [4 * GIB]
    assert world.sized("a", GIB).unit("a").spec.shape.memory == 4 * GIB


def lowered_by_its_user() -> World:
    """A running job of 8 GiB whose user has lowered its limit to 4 GiB."""
    world = World().nodes(1, cpu=8, memory="64GiB", grows=True)
    return world.job("a", memory="8GiB").round().start("a").change("a", memory="4GiB").sized("a", GIB)


def short_again_and_again(world: World) -> World:
    for _ in range(20):
        [launch] = world.held["n1"].values()
        world.sized("a", launch.shape.memory * 9 // 10, short=True)
    return world


def test_a_limit_that_its_user_has_lowered_is_raised_no_further_than_before() -> None:
    world = short_again_and_again(lowered_by_its_user())
    assert held(world) == limit(world, "a") == 8 * GIB
    world = short_again_and_again(lowered_by_its_user().change("a", memory="6GiB"))
    assert held(world) == 8 * GIB
    world = short_again_and_again(lowered_by_its_user().change("a", memory="12GiB"))
    assert held(world) == 12 * GIB, "it is not lowered any more"


def test_a_larger_limit_that_waits_for_room_is_kept_when_a_lowered_limit_is_raised() -> None:
    world = lowered_by_its_user().job("large", memory="58GiB").round().start("large").change("a", memory="12GiB")
    assert (held(world), limit(world, "a")) == (62 * GIB, 12 * GIB), "there is no room"
    world.sized("a", 3900 << 20, short=True)
    assert (world.unit("a").spec.shape.memory, limit(world, "a")) == (4680 << 20, 12 * GIB)
    world.finish("large").sized("a", 4600 << 20, short=True)
    world.finish("a", outcome="lost").after("20s").round()
    assert world.unit("a").spec.shape.memory == limit(world, "a") == 12 * GIB
    again = Ledger()
    for event in world.log:
        again.apply(event)
    assert again.encode() == world.ledger.encode()


def test_a_limit_that_a_user_has_set_since_is_not_recorded_as_that_of_the_rule() -> None:
    world = running(loaded()).change("a", memory="4GiB")
    before = len(adjusted(world))
    world.sized("a", GIB)
    assert [event for event in world.log if isinstance(event, JobChanged)][-1].by == "control plane"
    world.sized("a", 3700 << 20, short=True)
    assert [event for event in world.log if isinstance(event, JobChanged)][-1].by == "control plane"
    assert (limit(world, "a"), len(adjusted(world))) == (4440 << 20, before)


def test_a_limit_that_was_raised_again_is_still_that_of_the_rule() -> None:
    """Work that runs out of memory under it, and the end of the rule, bring back the limit from before the rule."""
    retry = {"limit": 3, "when": ["oom", "lost"]}
    world = running(loaded(), retry=retry).sized("a", 2 * GIB).sized("a", 2400 << 20, short=True)
    assert adjusted(world)[-1].have == f"{world.unit('a').id} runs with 2.8 GiB now: it uses 2.3 GiB"
    evaluated(world.finish("a", outcome="lost").after("20s").round().start("a"))
    assert limit(world, "a") == 2880 << 20, "the rule leaves it alone"
    evaluated(world.finish("a", outcome="oom", peak=2880 << 20, limit=2880 << 20))
    assert limit(world, "a") == 8 * GIB

    world = running(loaded()).sized("a", 2 * GIB).sized("a", 2400 << 20, short=True)
    rules(world)
    assert held(world) == limit(world, "a") == 8 * GIB


def test_a_limit_that_its_node_has_lowered_and_the_ledger_has_not_is_raised_to_what_the_ledger_holds() -> None:
    """The node lowers the limit to 4 GiB, while the wanted one falls again."""
    world = World().nodes(1, cpu=8, memory="64GiB", grows=True)
    world.job("a", memory="8GiB").round().start("a").change("a", memory="4GiB")
    [attempt] = under_way = dict(world.shrinks)
    world.change("a", memory="2GiB")
    world.shrinks = under_way
    world.sized("a", 3 * GIB)
    assert (held(world), world.held["n1"][attempt].shape.memory) == (8 * GIB, 4 * GIB)
    world.sized("a", 3900 << 20, short=True)
    assert (held(world), world.held["n1"][attempt].shape.memory) == (8 * GIB, 8 * GIB)
    assert limit(world, "a") == 2 * GIB, "at the next attempt"


def test_a_lowered_limit_that_is_too_low_before_its_node_could_report_it_is_raised() -> None:
    """The node is disconnected: it reports only the latest of both."""
    world = World().nodes(1, cpu=8, memory="64GiB", grows=True)
    world.job("a", memory="8GiB").round().start("a").change("a", memory="4GiB")
    [attempt] = world.shrinks
    launch = world.held["n1"][attempt]
    world.held["n1"][attempt] = structs.replace(launch, shape=structs.replace(launch.shape, memory=4 * GIB))
    world.sized("a", 3900 << 20, short=True)
    assert (held(world), world.held["n1"][attempt].shape.memory) == (8 * GIB, 8 * GIB)
