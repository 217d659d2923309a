"""The work that waits, by what it asks for."""

import msgspec

from poise.kernel.demand import COUNTED, KINDS, backlog, demand, key_of, quotes_here
from poise.kernel.messages import Drain, GiveUp
from poise.model.reports.demand import Opening
from poise.model.resources import ALLOCATED
from poise.model.tenants import HOME
from poise.testing import World, node
from poise.units import MINUTE, SECOND


def test_work_that_asks_for_the_same_is_one_entry_with_its_expected_time() -> None:
    world = World()
    world.job("a", cpu=2, expect="10s").job("b", cpu=2, expect="20s")
    world.job("gang", cpu=2, workers=3, expect="1m")
    plain, gang = demand(world.ledger, world.now).waits
    assert (plain.tasks, plain.together, plain.cpu, plain.work, plain.unknown) == (2, 1, 2000, 30 * SECOND, 0)
    assert plain.longest > 20 * SECOND, "what nearly all stay under, not the mean"
    assert (gang.tasks, gang.together, gang.work) == (3, 3, 3 * MINUTE)


def test_a_time_that_nobody_knows_counts_as_none_and_is_said_to_be_unknown() -> None:
    world = World().job("a", cpu=2)
    [entry] = demand(world.ledger, world.now).waits
    assert (entry.tasks, entry.work, entry.longest, entry.unknown) == (1, 0, 0, 1)


def test_what_runs_and_what_waits_for_others_is_not_told() -> None:
    world = World().nodes(2, cpu=1).job("a", cpu=1, expect="1h").round().start("a").after("10m")
    found = demand(world.ledger, world.now)
    assert found.waits == ()
    [node] = world.where("a")
    assert found.busy.keys() == {node}
    assert 45 * MINUTE <= found.busy[node] <= 50 * MINUTE


def test_what_a_drained_node_shall_hand_over_waits_for_another_one() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).round().start("a")
    world.ask(Drain(world.request(), "n1", True, HOME, moves=True))
    [entry] = demand(world.ledger, world.now).waits
    assert entry.tasks == 1


def test_a_long_class_says_nothing_of_a_brief_one_of_the_same_shape() -> None:
    world = World().job("a", cpu=1, expect="1s").job("b", cpu=1, expect="1h", **{"class": "long"})
    brief, long = sorted(demand(world.ledger, world.now).waits, key=lambda entry: entry.work)
    assert (brief.work, long.work) == (SECOND, 60 * MINUTE)
    assert brief.longest < MINUTE < long.longest


def test_what_a_lost_node_held_waits_for_another_one() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).round().start("a")
    world.ask(GiveUp(world.request(), ("n1",)))
    found = demand(world.ledger, world.now)
    assert ([entry.tasks for entry in found.waits], found.busy) == ([1], {})


def test_work_behind_the_first_of_a_long_queue_counts_as_the_last_that_was_looked_at() -> None:
    world = World()
    for number in range(12):
        world.job(f"a{number}", cpu=2, expect="1s")
    whole = demand(world.ledger, world.now)
    assert demand(world.ledger, world.now, counted=3) == whole


def test_kinds_beyond_the_limit_count_as_the_mean_of_those_with_their_request() -> None:
    world = World()
    for number in range(KINDS + 8):
        world.job(f"a{number}", cpu=2, expect=f"{1 + 2 * (number % 2)}s", **{"class": f"class{number}"})
    world.job("large", cpu=4, expect="2s", **{"class": "large"})
    entries = demand(world.ledger, world.now).waits
    assert len(entries) == KINDS + 1
    assert sum(entry.tasks for entry in entries if entry.cpu == 2000) == KINDS + 8
    assert sum(entry.work for entry in entries if entry.cpu == 2000) == (KINDS + 8) * 2 * SECOND
    assert sum(entry.tasks for entry in entries if entry.cpu == 4000) == 1


def test_work_that_may_not_begin_yet_needs_no_machine_however_much_waits() -> None:
    world = World()
    for number in range(KINDS + 1):
        world.job(f"a{number}", cpu=2, **{"class": f"class{number}"})
    for number in range(3):
        world.job(f"later{number}", cpu=2, begin="90d", **{"class": "class0"})
        world.job(f"other{number}", cpu=2, begin="90d", **{"class": f"other{number}"})
    for counted in (COUNTED, 1):
        assert sum(entry.tasks for entry in demand(world.ledger, world.now, counted).waits) == KINDS + 1


def test_work_that_is_larger_than_an_allocated_node_is_taken_since_a_larger_one_may_be_allocated() -> None:
    allocated = msgspec.structs.replace(node("n1", cpu=1), labels={ALLOCATED: "17"})
    world = World().join(allocated).job("a", cpu=2).round()
    [entry] = demand(world.ledger, world.now).waits
    assert entry.cpu == 2000
    assert not any(reason.fixable == "never" and reason.code == "NOWHERE" for reason in world.reasons("a"))


def test_the_backlog_is_one_number_for_what_waits_and_for_what_is_unfinished() -> None:
    world = World().job("b", cpu=1, **{"class": "long"}).job("gang", cpu=2, workers=3).job("a", cpu=2, priority="high")
    world.nodes(1, cpu=2).round().start("a")
    assert backlog(world.ledger, HOME) == 5
    assert backlog(world.ledger, HOME, state="waiting") == 4
    assert backlog(world.ledger, HOME, of="cpu", state="waiting") == 7000
    assert backlog(world.ledger, HOME, class_="long") == 1
    assert backlog(world.ledger, HOME, tenant="nobody") == 0


def test_the_backlog_of_a_service_has_its_replicas_alone() -> None:
    world = World().job("a", cpu=1).job("r", cpu=1, serves="gateway serves digits: more requests")
    assert backlog(world.ledger, HOME, service="digits") == 1


def test_nodes_that_are_there_have_room_when_their_work_has_ended_and_allocated_ones_are_not_counted() -> None:
    world = World().nodes(2, cpu=2).join(msgspec.structs.replace(node("allocated", cpu=2), labels={ALLOCATED: "17"}))
    for name in "abc":
        world.job(name, cpu=2, expect="1h")
    world.round().start(*"abc").after("10m").job("next", cpu=1, expect="1m").job("large", cpu=4).round()
    waits = demand(world.ledger, world.now).waits
    quotes = quotes_here(world.ledger, waits, world.now)
    key = key_of(world.ledger.jobs["j4"].units[0])
    assert quotes.keys() == {key}, "no node is large enough for the other"
    assert {work.cpu for work in waits if work.key == key} == {1000}
    openings = quotes[key].openings
    assert [one.slots for one in openings] == [1, 1], "no more than wait"
    assert all(isinstance(one, Opening) and one.asked and 45 * MINUTE <= one.delay <= 50 * MINUTE for one in openings)


def test_work_that_no_node_can_run_is_taken_where_other_systems_allocate_nodes() -> None:
    world = World().nodes(1, cpu=1)
    world.ledger.columns.grows = True
    world.job("a", cpu=2).round()
    assert [entry.cpu for entry in demand(world.ledger, world.now).waits] == [2000]
