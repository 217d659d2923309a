"""Many nodes that fall silent together: the network has failed, and their work is not given to the first one back."""

from typing import Any

import pytest

from poise.kernel.controller import ROUND, contacts
from poise.kernel.messages import Crowded, GiveUp, Send
from poise.kernel.outage import Outage
from poise.model.events import NodeLost, NodeSuspected, NodeTrusted
from poise.model.messages import Beat, Heard, Report
from poise.testing import World, node
from poise.units import MILLISECOND, MINUTE, SECOND

AGAIN = {"when": ["lost"], "limit": 3}


def busy(nodes: int, **settings: Any) -> World:
    """A remote fleet in which every node runs a command."""
    world = World(dead_after=10 * SECOND, **settings).nodes(nodes, cpu=1)
    for number in range(nodes):
        world.job(f"a{number}", cpu=1, retry=AGAIN)
    world.after("1s")
    return world.start(*(f"a{number}" for number in range(nodes))).after("1s")


def cut(world: World, *names: str) -> World:
    """No word of these nodes arrives; their connections stand."""
    world.connected.difference_update(names or world.known)
    return world


def begun_anew(nodes: int) -> World:
    """A busy fleet whose control plane has just come up: no node has come back yet."""
    world = busy(nodes)
    world.connected.clear()
    return world.restart()


def lost(world: World) -> list[str]:
    return [event.name for event in world.log if isinstance(event, NodeLost)]


def suspected(world: World) -> list[str]:
    return [event.name for event in world.log if isinstance(event, NodeSuspected)]


def test_an_outage_of_the_network_costs_no_attempt_though_nodes_come_back_one_after_the_other() -> None:
    world = cut(busy(4)).after("12s")
    for name in ("n1", "n2", "n3", "n4"):
        world.connect(name).after("1s")
    world.after("2m")
    assert lost(world) == []
    assert [world.unit(f"a{number}").epoch for number in range(4)] == [1] * 4


def test_a_second_outage_is_held_for_as_long_as_the_first() -> None:
    world = cut(busy(4)).after("12s")
    for name in ("n1", "n2", "n3", "n4"):
        world.connect(name)
    cut(world.after("2m")).after("65s")
    assert lost(world) == []
    world.after("10s")
    assert sorted(lost(world)) == ["n1", "n2", "n3", "n4"]


def test_a_node_that_does_not_come_back_with_the_others_is_lost_some_seconds_after_them() -> None:
    world = cut(busy(4)).after("12s")
    for name in ("n1", "n2", "n3"):
        world.connect(name)
    back = world.now
    world.after("9s")
    assert lost(world) == []
    world.after("2s")
    assert lost(world) == ["n4"] and world.log[-1].at - back < 12 * SECOND


def test_an_outage_that_lasts_is_believed_in_the_end() -> None:
    world = cut(busy(4)).after("69s")
    assert lost(world) == []
    world.after("2s")
    assert sorted(lost(world)) == ["n1", "n2", "n3", "n4"]


def test_the_times_are_settings() -> None:
    assert sorted(lost(cut(busy(4, outage_hold=5 * SECOND)).after("16s"))) == ["n1", "n2", "n3", "n4"]
    assert sorted(lost(cut(busy(4, outage_hold=0)).after("11s"))) == ["n1", "n2", "n3", "n4"]
    world = cut(busy(4, outage_settle=3 * SECOND)).after("12s")
    for name in ("n1", "n2", "n3"):
        world.connect(name)
    assert lost(world.after("4s")) == ["n4"]


def test_a_large_fleet_that_comes_back_slowly_to_a_new_control_plane_is_awaited() -> None:
    """A control plane without much CPU needs longer than a minute for a thousand nodes."""
    outage = Outage(500, MINUTE, 10 * SECOND)
    outage.expect([f"n{number}" for number in range(1_000)], now=0)
    for number in range(998):
        now = number * 70 * MILLISECOND
        assert outage.held_until("n999", now, connected=False) > now
        outage.heard(f"n{number}", now)
    for name in ("n998", "n999"):
        assert outage.held_until(name, now + 9 * SECOND, connected=False)
        assert not outage.held_until(name, now + 10 * SECOND, connected=False)


def test_a_large_fleet_that_stays_away_is_believed_in_the_end() -> None:
    outage = Outage(500, MINUTE, 10 * SECOND)
    outage.expect([f"n{number}" for number in range(1_000)], now=0)
    for number in range(20):
        outage.heard(f"n{number}", number * 5 * SECOND)
    assert not outage.held_until("n999", 80 * SECOND, connected=False)


def test_half_of_a_fleet_that_is_gone_is_believed_at_once() -> None:
    world = cut(busy(4), "n1", "n2").after("11s")
    assert sorted(lost(world)) == ["n1", "n2"]


def test_idle_nodes_that_promised_to_be_silent_do_not_count_as_heard() -> None:
    """Of ten nodes two are busy; all are cut off. The idle ones were not to speak for ten seconds anyway."""
    world = World(dead_after=3 * SECOND).nodes(10, cpu=1).job("a", retry=AGAIN).job("b", retry=AGAIN).after("1s")
    world.start("a", "b").after("1s")
    [a], [b] = world.where("a"), world.where("b")
    for name in world.known.keys() - {a, b}:
        world.hear(name, Beat(every=10 * SECOND))
    assert lost(cut(world).after("30s")) == []


def test_idle_nodes_that_have_spoken_since_do() -> None:
    world = World(dead_after=10 * SECOND).nodes(10, cpu=1).job("a", retry=AGAIN).job("b", retry=AGAIN).after("1s")
    world.start("a", "b").after("1s")
    [a], [b] = world.where("a"), world.where("b")
    idle = sorted(world.known.keys() - {a, b})
    for name in idle:
        world.hear(name, Beat(every=10 * SECOND))
    cut(world)
    for name in idle:
        world.after("1s").hear(name, Beat(every=10 * SECOND))
    assert sorted(lost(world.after("4s"))) == sorted([a, b])


def test_what_runs_the_nodes_is_believed_of_one_and_not_of_all() -> None:
    """Ray's head has restarted, and knows no machine until it has come back to it."""
    world = busy(4)
    world.ask(GiveUp(world.request(), ("n1", "n2", "n3", "n4")))
    world.connected.clear()
    world.after("5s")
    for name in ("n1", "n2", "n3", "n4"):
        world.connect(name).after("1s")
    world.after("2m")
    assert lost(world) == []
    assert [world.unit(f"a{number}").epoch for number in range(4)] == [1] * 4
    world.ask(GiveUp(world.request(), ("n2",)))
    assert lost(world) == ["n2"]


def test_nodes_that_are_said_to_be_gone_and_do_not_come_back_are_lost_in_the_end() -> None:
    world = busy(4)
    world.ask(GiveUp(world.request(), ("n1", "n2", "n3", "n4")))
    world.connected.clear()
    assert lost(world.after("59s")) == []
    assert sorted(lost(world.after("2s"))) == ["n1", "n2", "n3", "n4"]


def test_a_control_plane_that_has_just_come_up_waits_as_long_as_nodes_come_back() -> None:
    """Less than half are missing for most of the time: they have not had their turn yet."""
    world = begun_anew(20)
    for number in range(1, 20):
        world.connect(f"n{number}").after("2s")
    assert lost(world) == []
    world.after("7s").connect("n20").after("1m")
    assert lost(world) == []


def test_a_control_plane_that_has_hung_up_on_all_since_its_disk_was_full_waits_as_long_as_nodes_come_back() -> None:
    world = busy(20).fail_disk()
    world.full_disk = False
    world.after("1s")
    for number in range(1, 20):
        world.connect(f"n{number}").after("2s")
    assert lost(world) == []
    world.after("7s").connect("n20").after("1m")
    assert lost(world) == []


def test_one_that_has_come_back_and_falls_silent_is_lost_while_others_still_come_back() -> None:
    world = begun_anew(20)
    for number in range(1, 12):
        world.connect(f"n{number}")
    cut(world, "n1")
    for number in range(12, 20):
        world.after("2s").connect(f"n{number}")
    assert lost(world) == ["n1"]


def test_one_that_does_not_come_back_is_lost_some_seconds_after_the_last_that_does() -> None:
    world = begun_anew(20)
    for number in range(1, 20):
        world.connect(f"n{number}")
    assert lost(world.after("9s")) == []
    assert lost(world.after("2s")) == ["n20"]


def test_a_node_that_is_expected_is_suspect_only_after_the_last_that_comes_back() -> None:
    """Thousands come back for longer than a node may be silent: each would be suspect, and trusted again at once."""
    world = begun_anew(20)
    for number in range(1, 20):
        world.connect(f"n{number}").after("300ms")
    assert suspected(world) == []
    world.after("1500ms")
    assert suspected(world) == []
    world.after("500ms")
    assert suspected(world) == ["n20"]


def test_waiting_for_nodes_that_come_back_has_an_end() -> None:
    """One that has not come within the hold is lost, though others still come."""
    world = begun_anew(20)
    began = world.now
    for number in range(1, 16):
        world.after("5s").connect(f"n{number}")
    first = next(event.at for event in world.log if isinstance(event, NodeLost))
    assert MINUTE <= first - began <= MINUTE + 12 * SECOND


def test_work_of_a_node_that_left_in_an_outage_keeps_its_place_when_a_stranger_joins() -> None:
    world = cut(busy(4)).after("12s").join(node("n5", cpu=1)).after("5s")
    assert [world.unit(f"a{number}").epoch for number in range(4)] == [1] * 4


def test_nodes_that_are_turned_away_are_waited_for() -> None:
    """A few of many, which have lost their connection and wait for their turn."""
    world = busy(10).disconnect("n1").disconnect("n2")
    world.say(Crowded(world.now + 8 * SECOND)).after("9s").say(Crowded(world.now + 8 * SECOND))
    assert lost(world.after("17s")) == []
    assert sorted(lost(world.after("2s"))) == ["n1", "n2"]


def test_a_node_that_is_connected_and_silent_does_not_wait_for_its_turn() -> None:
    world = cut(busy(10), "n1")
    world.say(Crowded(world.now + 8 * SECOND))
    assert lost(world.after("11s")) == ["n1"]


def test_waiting_for_those_who_are_turned_away_has_an_end() -> None:
    world = busy(10).disconnect("n1")
    for _ in range(80):
        world.say(Crowded(world.now + 2 * SECOND)).after("1s")
    assert lost(world) == ["n1"]


def test_a_herd_that_joins_causes_few_rounds() -> None:
    """Each node used to cause a round, which looks at all nodes: five hundred nodes took five hundred rounds."""
    world = World(check=False, poll=ROUND)
    for number in range(500):
        world.join(node(f"n{number}")).tick()
        world.now += MILLISECOND
    assert 1 <= len(world.plans) <= 100
    assert world.after("1s").plans[-1].base >= 500, "the last of them is seen as well"


def test_a_herd_that_is_trusted_again_causes_few_rounds() -> None:
    world = World(check=False, poll=ROUND).nodes(500).after("1s")
    world.connected.clear()
    world.after("5s")
    before = len(world.plans)
    for name in world.known:
        world.hear(name, Beat()).tick()
        world.now += MILLISECOND
    assert sum(isinstance(event, NodeTrusted) for event in world.log) == 500
    assert 1 <= len(world.after("1s").plans) - before <= 20


def test_in_a_large_fleet_fewer_heartbeats_are_asked_for_and_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts, "PER_BEAT", SECOND // 2)
    world = busy(5)
    assert world.hear("n1", Beat(number=1)).sent[-1] == Send("n1", Heard(beat=1, pace=5 * SECOND // 2))
    monkeypatch.setattr(contacts, "PER_BEAT", SECOND)
    assert world.hear("n1", Beat(number=2)).sent[-1] == Send("n1", Heard(beat=2, pace=3 * SECOND)), "no longer"
    cut(world)
    for _ in range(20):
        for name in world.known:
            world.hear(name, Beat(every=3 * SECOND))
        world.after("3s")
    assert suspected(world) == []
    for name in world.known.keys() - {"n1"}:
        world.hear(name, Beat(every=3 * SECOND))
    world.hear("n1", Report(serial=9)).after("3s")
    assert suspected(world) == [], "nor is more expected after a report"
    for _ in range(4):
        for name in world.known.keys() - {"n1"}:
            world.hear(name, Beat(every=3 * SECOND))
        world.after("3s")
    assert lost(world) == ["n1"]
