"""One pilot on each machine of a substrate; machines are lent, lost, replaced and drained.

The substrate is in memory, and the control plane is a world in memory: pilots are what lies between them.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from poise.agent.pilots import (
    AGAIN_SECONDS,
    BEGIN_SECONDS,
    COMPARE_SECONDS,
    LEND_SECONDS,
    PREEMPT_SECONDS,
    Nodes,
    Pilots,
)
from poise.client import Client
from poise.client.link import Link
from poise.config import Home
from poise.control.substrates import LIVE, Substrates
from poise.errors import NotFound, PoiseError, StoreFull, Unreachable
from poise.kernel.demand import demand
from poise.model.reports.demand import Demand, DemandReport, Offer, Opening, Quote
from poise.model.reports.status import Request
from poise.model.resources import ALLOCATED, SUBSTRATE
from poise.policy.substrates import HERE
from poise.ports import Contact, Machine, Pilot
from poise.testing import World, node
from poise.units import SECOND
from unit.control.desk import Desk

T = TypeVar("T")


class LinkToDesk(Link):
    """A link to a world in memory. `lost` fails the next call of a path: Unreachable comes after the call is done."""

    def __init__(self, home: Home, desk: Desk) -> None:
        super().__init__(home, 0.0, None)
        self.desk = desk
        self.lost: dict[str, PoiseError] = {}

    def call(self, method: str, path: str, kind: type[T], body: Any = None, timeout: float = 0.0) -> T:
        failure = self.lost.pop(path, None)
        if failure is not None and not isinstance(failure, Unreachable):
            raise failure
        answer = self.desk.call(method, path, msgspec.to_builtins(body))
        assert answer.status < 400, answer.body
        if failure is not None:
            raise failure
        return msgspec.json.decode(answer.body, type=kind)


class AtDesk(Client):
    """A client of a world in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Home(folder))
        self.desk = Desk(World().nodes(2, cpu=1))
        self._link = link = LinkToDesk(self.home, self.desk)
        self.lost = link.lost

    def closed(self) -> list[str]:
        return [node.name for node in self.nodes() if node.status in ("drained", "emptying")]


@pytest.fixture
def client(tmp_path: Path) -> AtDesk:
    return AtDesk(tmp_path)


@pytest.fixture
def nodes(client: AtDesk, tmp_path: Path) -> Nodes:
    return Nodes(client, "yard", "yard", tmp_path / "emptied.json")


def test_a_node_that_a_person_drained_stays_drained_when_nobody_answers_a_lend(client: AtDesk, nodes: Nodes) -> None:
    client.drain("n1")
    client.lost["/v1/nodes/lend"] = Unreachable("no control plane answers")
    with pytest.raises(Unreachable):
        nodes.lend({"n1": "m1", "n2": "m2"})
    assert client.closed() == ["n1", "n2"], "the answer was lost after the second node was lent"
    nodes.open_but({})
    assert client.closed() == ["n1"]


@pytest.mark.parametrize("way", ["lend", "empty"])
def test_a_node_that_a_person_drains_after_a_refusal_stays_drained(way: str, client: AtDesk, nodes: Nodes) -> None:
    client.lost["/v1/nodes/lend"] = client.lost["/v1/nodes/n1/drain"] = StoreFull("the disk of the log is full")
    with pytest.raises(StoreFull):
        nodes.lend({"n1": "m1"}) if way == "lend" else nodes.empty({"n1": "m1"})
    client.lost.clear()
    client.drain("n1")
    nodes.open_but({})
    assert client.closed() == ["n1"]
    assert nodes.emptied == {}


def test_a_node_that_was_lent_is_opened_once_its_machine_stays(client: AtDesk, nodes: Nodes, tmp_path: Path) -> None:
    assert nodes.lend({"n1": "m1", "n2": "m2"}) == "n1"
    assert Nodes(client, "yard", "yard", tmp_path / "emptied.json").emptied == {"n1": "m1"}
    nodes.open_but({"n1": "m1"})
    assert client.closed() == ["n1"]
    nodes.open_but({})
    assert client.closed() == []


CONTACT = Contact("poise.lab:7718", "secret")
CPU = "cores"


class Yard:
    """A substrate in memory: machines of one core each, and what others hold and wait for. A pilot starts and ends at
    once, except on machines that are `slow`, or whose pilots are `dead`.
    """

    def __init__(self, client: AtDesk, *names: str) -> None:
        self.client = client
        self.there = {f"m-{name}": name for name in names}
        self.held: dict[Pilot, float] = {}
        self.theirs: dict[str, float] = {}
        self.requests: list[dict[str, float]] = []
        self.drained: set[str] = set()
        self.slow: set[str] = set()
        self.dead: set[Pilot] = set()
        self.told: list[Pilot] = []
        self.restarted: list[Pilot] = []
        self.swept: list[str] = []
        self.stopped = False

    @property
    def nodes(self) -> list[str]:
        return sorted(pilot.node for pilot in self.held)

    def free(self, machine: str) -> float:
        mine = sum(of for pilot, of in self.held.items() if pilot.machine == machine)
        return 1.0 - mine - self.theirs.get(machine, 0.0)

    def address(self) -> str:
        return "127.0.0.1"

    def machines(self) -> Sequence[Machine]:
        return [
            Machine(of, name, {CPU: 1.0}, {CPU: self.free(of)}, self.free(of) >= 1, of in self.drained)
            for of, name in self.there.items()
        ]

    def pilots(self) -> Collection[Pilot]:
        return list(self.held)

    def waiting(self) -> Sequence[Mapping[str, float]]:
        return self.requests

    def start(self, machine: Machine, node: str, contact: Contact) -> None:
        assert contact == CONTACT
        assert not machine.leaving
        assert all(pilot.machine != machine.id for pilot in self.held), "a machine has one pilot"
        self.held[Pilot(node, machine.id)] = machine.free[CPU]

    def has_begun(self, pilot: Pilot) -> bool:
        return pilot.machine not in self.slow

    def tell(self, pilot: Pilot, contact: Contact) -> None:
        self.told.append(pilot)

    def restart(self, pilot: Pilot) -> None:
        self.restarted.append(pilot)

    def answering(self, pilots: Sequence[Pilot]) -> Collection[Pilot]:
        return [pilot for pilot in pilots if pilot not in self.dead]

    def release(self, pilots: Sequence[Pilot]) -> Collection[Pilot]:
        busy = {node.name for node in self.client.nodes() if node.running}
        ended = [pilot for pilot in pilots if pilot.node not in busy]
        for pilot in ended:
            self.remove(pilot)
        return ended

    def remove(self, pilot: Pilot) -> None:
        self.held.pop(pilot, None)

    def sweep(self, machines: Sequence[Machine]) -> bool:
        self.swept += [machine.name for machine in machines]
        return True

    def stop(self) -> None:
        self.stopped = True


class Keeper(Pilots):
    """Pilots by a clock that is set by hand."""

    def __init__(self, yard: Yard, nodes: Nodes) -> None:
        self.time = 1000.0
        super().__init__(yard, nodes, CONTACT, lambda: self.time)

    def after(self, seconds: float) -> None:
        self.time += seconds
        self.keep()


@pytest.fixture
def yard(client: AtDesk) -> Yard:
    return Yard(client, "n1", "n2")


@pytest.fixture
def keeper(yard: Yard, nodes: Nodes) -> Keeper:
    keeper = Keeper(yard, nodes)
    keeper.keep()
    keeper.after(1)
    return keeper


def statuses(client: AtDesk) -> dict[str, str]:
    return {node.name: node.status for node in client.nodes()}


def test_each_machine_has_one_pilot_that_holds_what_is_free(yard: Yard, keeper: Keeper) -> None:
    assert yard.held == {Pilot("n1", "m-n1"): 1.0, Pilot("n2", "m-n2"): 1.0}
    yard.there["m-n3"], yard.theirs["m-n3"] = "n3", 0.25
    keeper.after(1)
    assert yard.held[Pilot("n3", "m-n3")] == 0.75


def test_another_keeper_finds_the_pilots_and_tells_them_where_its_control_plane_is(
    yard: Yard, keeper: Keeper, nodes: Nodes
) -> None:
    assert yard.told == []
    before = dict(yard.held)
    Keeper(yard, nodes).keep()
    assert (yard.held, yard.told) == (before, sorted(before))


def test_a_machine_that_is_missing_is_a_lost_node(client: AtDesk, yard: Yard, keeper: Keeper) -> None:
    del yard.there["m-n2"]
    keeper.after(1)
    assert statuses(client) == {"n1": "up", "n2": "lost"}
    assert yard.nodes == ["n1"]
    yard.there["m-n2"] = "n2"
    keeper.after(1)
    assert yard.nodes == ["n1", "n2"]


def test_a_machine_that_replaces_another_takes_its_name_once_that_does_not_answer(yard: Yard, keeper: Keeper) -> None:
    yard.there["m-new"] = "n2"
    keeper.after(1)
    assert sorted(yard.held) == [Pilot("n1", "m-n1"), Pilot("n2", "m-n2"), Pilot("n2-m-new", "m-new")]
    yard.remove(Pilot("n2-m-new", "m-new"))
    yard.dead.add(Pilot("n2", "m-n2"))
    keeper.after(1)
    assert sorted(yard.held) == [Pilot("n1", "m-n1"), Pilot("n2", "m-new")]


def test_an_idle_machine_for_which_others_wait_is_lent_until_they_have_what_they_asked_for(
    client: AtDesk, yard: Yard, keeper: Keeper
) -> None:
    yard.requests = [{CPU: 1.0}]
    keeper.after(1)
    assert yard.nodes == ["n2"], "one at a time"
    assert statuses(client) == {"n1": "lost", "n2": "up"}
    yard.theirs["m-n1"], yard.requests = 1.0, []
    keeper.after(1)
    assert yard.held[Pilot("n1", "m-n1")] == 0.0
    yard.theirs.clear()
    keeper.after(1)
    assert yard.held[Pilot("n1", "m-n1")] == 0.0, "it has been given back just now"
    keeper.after(LEND_SECONDS)
    keeper.after(1)
    assert yard.held[Pilot("n1", "m-n1")] == 1.0, "more is free than it held"


def test_a_machine_that_was_lent_is_left_to_those_who_wait(yard: Yard, keeper: Keeper) -> None:
    del yard.there["m-n2"]
    yard.requests = [{CPU: 1.0}]
    keeper.after(1)
    keeper.after(LEND_SECONDS - 1)
    assert yard.nodes == []
    keeper.after(2)
    assert yard.nodes == ["n1"]


def test_work_is_preempted_for_others_who_wait_long_enough_unless_it_may_not_be(
    client: AtDesk, yard: Yard, keeper: Keeper
) -> None:
    world = client.desk.world
    world.job("stays", cpu=1, preemptible=False).round().start("stays")
    world.job("moves", cpu=1).round().start("moves")
    (stays,), (moves,) = world.where("stays"), world.where("moves")
    yard.requests = [{CPU: 1.0}]
    keeper.after(1)
    keeper.after(PREEMPT_SECONDS)
    assert statuses(client) == {stays: "up", moves: "up"}
    keeper.after(1)
    assert statuses(client) == {stays: "up", moves: "emptying"}
    assert yard.nodes == ["n1", "n2"], "its work has not ended yet"
    world.finish("moves", outcome="stopped")
    keeper.after(1)
    assert yard.nodes == [stays]
    assert world.status("stays") == "running"


def test_a_machine_that_the_substrate_drains_is_emptied_and_released(
    client: AtDesk, yard: Yard, keeper: Keeper
) -> None:
    world = client.desk.world
    world.job("a", cpu=1).round().start("a")
    (node,) = world.where("a")
    yard.drained.add(f"m-{node}")
    keeper.after(1)
    keeper.open_again()
    assert statuses(client)[node] == "emptying"
    assert node in yard.nodes
    world.finish("a")
    keeper.after(1)
    assert node not in yard.nodes
    yard.drained.clear()
    keeper.after(1)
    keeper.open_again()
    assert node in yard.nodes
    assert client.closed() == []


def test_a_lost_node_gets_another_agent_and_another_pilot_where_that_does_not_answer(
    client: AtDesk, yard: Yard, keeper: Keeper
) -> None:
    client.give_up("n2")
    lost = Pilot("n2", "m-n2")
    yard.dead.add(lost)
    keeper.after(COMPARE_SECONDS)
    assert (yard.restarted, lost in yard.held) == ([lost], True)
    keeper.after(AGAIN_SECONDS + 1)
    assert lost not in yard.held
    keeper.after(1)
    assert lost in yard.held


def test_a_pilot_that_does_not_begin_is_started_again_with_what_is_free(yard: Yard, keeper: Keeper) -> None:
    yard.there["m-n3"] = "n3"
    yard.slow.add("m-n3")
    keeper.after(1)
    keeper.after(1)
    assert yard.held[Pilot("n3", "m-n3")] == 1.0
    yard.theirs["m-n3"] = 0.5
    keeper.after(BEGIN_SECONDS)
    keeper.after(1)
    assert yard.held[Pilot("n3", "m-n3")] == 0.5


def test_at_the_end_all_is_released_but_where_commands_go_on(client: AtDesk, yard: Yard, keeper: Keeper) -> None:
    client.desk.world.job("a", cpu=1).round().start("a")
    (busy,) = client.desk.world.where("a")
    yard.there["m-bare"] = "bare"
    assert not keeper.end()
    assert (yard.nodes, yard.swept) == ([busy], ["bare"])
    client.desk.world.finish("a")
    assert keeper.end()
    assert yard.nodes == []


NAMES = ("near", "far")
UNMET = [Request(text="7 is to come")]


class Growing(Yard):
    """It gets machines when it is asked to: any number, after a delay in seconds."""

    def __init__(self, client: AtDesk, delay: int = 20) -> None:
        super().__init__(client)
        self.delay = delay
        self.wanted: list[DemandReport] = []

    def quote(self, work: Sequence[Demand]) -> Sequence[Quote]:
        opening = Opening(slots=100, delay=self.delay * SECOND, late=3 * self.delay * SECOND)
        return [Quote(key=one.key, openings=(opening,)) for one in work]

    def want(self, demand: DemandReport) -> Sequence[Request]:
        self.wanted.append(demand)
        return UNMET


def test_a_substrate_that_grows_is_told_what_waits_and_its_machines_that_ended_meanwhile_are_lost(
    client: AtDesk, nodes: Nodes
) -> None:
    world = client.desk.world
    for name, substrate in (("n3", "yard"), ("n4", "yard"), ("other", "far")):
        labels = {ALLOCATED: "7", SUBSTRATE: substrate}
        world.join(msgspec.structs.replace(node(name, cpu=1), labels=labels))
    yard = Growing(client)
    yard.there["m-n3"] = "n3"
    yard.held[Pilot("n3", "m-n3")] = 1.0
    world.job("a", cpu=2)
    assert Keeper(yard, nodes).keep() == UNMET
    assert statuses(client) == {"n1": "up", "n2": "up", "n3": "up", "n4": "lost", "other": "up"}
    [wanted] = yard.wanted
    assert [entry.cpu for entry in wanted.waits] == [2000]


@pytest.fixture
def clusters(client: AtDesk, tmp_path: Path) -> tuple[Growing, Growing, Pilots, Pilots]:
    """A near cluster, where machines come after 20 s, and a far one, after ten minutes; and their keepers."""
    client.desk.world.ledger.columns.grows = True
    near, far = Growing(client, 20), Growing(client, 600)
    near_keeper, far_keeper = (
        Pilots(yard, Nodes(client, name, name, tmp_path / name), CONTACT)
        for name, yard in (("near", near), ("far", far))
    )
    for keeper in (near_keeper, far_keeper):
        keeper.keep()
    return near, far, near_keeper, far_keeper


def test_of_two_clusters_the_one_where_work_ends_first_is_asked_and_both_are_explained(
    client: AtDesk, clusters: tuple[Growing, Growing, Pilots, Pilots]
) -> None:
    near, far, near_keeper, far_keeper = clusters
    client.desk.world.job("large", cpu=2, expect="1m").round()
    near_keeper.keep()
    assert not near.wanted[-1].waits, "the other one has not said yet what it has"
    far_keeper.keep()
    near_keeper.keep()
    assert [entry.tasks for entry in near.wanted[-1].waits] == [1]
    assert not far.wanted[-1].waits
    told = client.explain("large").prospects
    assert [(one.substrate, one.chosen, one.start, one.end) for one in told] == [
        ("far", False, 600 * SECOND, 660 * SECOND),
        ("near", True, 20 * SECOND, 80 * SECOND),
    ]


def test_the_share_of_a_cluster_that_is_silent_goes_to_the_other_one(
    client: AtDesk, clusters: tuple[Growing, Growing, Pilots, Pilots]
) -> None:
    _, far, near_keeper, far_keeper = clusters
    client.desk.world.job("large", cpu=2, expect="1m").round()
    far_keeper.keep()
    near_keeper.keep()
    client.desk.world.after(f"{LIVE // SECOND - 1}s")
    far_keeper.keep()
    assert not far.wanted[-1].waits
    client.desk.world.after("2s")
    far_keeper.keep()
    assert [entry.tasks for entry in far.wanted[-1].waits] == [1]
    assert client.explain("large").prospects == (), "there is no choice any more"


def test_no_machine_is_requested_for_work_that_ends_sooner_on_nodes_that_are_there(
    client: AtDesk, clusters: tuple[Growing, Growing, Pilots, Pilots]
) -> None:
    near, _, near_keeper, far_keeper = clusters
    world = client.desk.world
    world.job("a", cpu=1, expect="8s").job("b", cpu=1, expect="8s").round().start("a", "b")
    world.job("next", cpu=1, expect="1m").round()
    for keeper in (near_keeper, far_keeper, near_keeper):
        keeper.keep()
    assert not near.wanted[-1].waits
    [here] = [one for one in client.explain("next").prospects if one.chosen]
    assert here.substrate == HERE


def test_work_for_which_nobody_has_room_is_refused_by_one_of_them(
    client: AtDesk, clusters: tuple[Growing, Growing, Pilots, Pilots], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far, near_keeper, far_keeper = clusters
    monkeypatch.setattr(Growing, "quote", lambda self, work: [Quote(key=one.key, why="it is full") for one in work])
    client.desk.world.job("large", cpu=2, expect="1m").round()
    for keeper in (near_keeper, far_keeper, near_keeper):
        keeper.keep()
    assert [len(yard.wanted[-1].waits) for yard in (near, far)] == [0, 1]
    assert [one.why for one in client.explain("large").prospects] == ["it is full"] * 2


def test_after_a_restart_of_the_control_plane_the_shares_are_the_same_once_all_have_been_heard(
    client: AtDesk, clusters: tuple[Growing, Growing, Pilots, Pilots]
) -> None:
    world = client.desk.world.job("large", cpu=2, expect="1m").round()
    [work] = demand(world.ledger, world.now).waits
    near, far = (
        Offer(substrate=name, quotes=tuple(yard.quote([work]))) for name, yard in zip(NAMES, clusters[:2], strict=True)
    )
    substrates = Substrates(client.desk.plane, NAMES)
    assert not substrates.share(world.ledger, near).waits, "the other one may still be starting"
    assert not substrates.share(world.ledger, far).waits
    assert [entry.tasks for entry in substrates.share(world.ledger, near).waits] == [1]
    alone = Substrates(client.desk.plane, NAMES)
    world.after(f"{LIVE // SECOND}s")
    assert [entry.tasks for entry in alone.share(world.ledger, far).waits] == [1], "the other one has not started"


@pytest.mark.parametrize("field", ["slots", "delay", "late"])
@pytest.mark.parametrize("value", [-1, 10**400], ids=["negative", "huge"])
def test_a_quote_that_is_no_room_is_refused_and_changes_no_share(
    field: str, value: int, client: AtDesk, clusters: tuple[Growing, Growing, Pilots, Pilots]
) -> None:
    near, _, near_keeper, far_keeper = clusters
    world = client.desk.world.job("large", cpu=2, expect="1m").round()
    [work] = demand(world.ledger, world.now).waits
    opening = {"slots": 1, "delay": 1, "late": 1, field: value}
    forged = {"substrate": "far", "quotes": [{"key": work.key, "openings": [opening]}]}
    assert client.desk.call("POST", "/v1/demand", forged).status == 422
    for keeper in (near_keeper, far_keeper, near_keeper):
        keeper.keep()
    assert [entry.tasks for entry in near.wanted[-1].waits] == [1]


def test_only_substrates_that_are_kept_get_a_share(client: AtDesk) -> None:
    client.desk.world.ledger.columns.grows = True
    world = client.desk.world.job("large", cpu=2, expect="1m").round()
    substrates = Substrates(client.desk.plane, [], NAMES)
    [work] = demand(world.ledger, world.now).waits
    forged = Quote(key=work.key, openings=(Opening(slots=9, delay=0, late=0, asked=True),))
    with pytest.raises(NotFound, match="does not use the substrate `other`"):
        substrates.share(world.ledger, Offer(substrate="other", quotes=(forged,)))
    assert client.desk.call("POST", "/v1/demand", {"substrate": "", "quotes": []}).status == 422
    true = Offer(substrate=NAMES[0], quotes=(Quote(key=work.key, openings=(Opening(slots=1, delay=9, late=9),)),))
    assert [entry.tasks for entry in substrates.share(world.ledger, true).waits] == [1]


def test_machines_with_the_same_name_are_nodes_of_their_own(client: AtDesk, nodes: Nodes) -> None:
    yard = Yard(client, "n1")
    Pilots(yard, nodes, CONTACT, prefix="far-").keep()
    assert yard.nodes == ["far-n1"]
