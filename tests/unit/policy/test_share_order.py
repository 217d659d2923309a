"""The order of service by share is that of merging all shares unit by unit."""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from many import many

from poise.model.decisions import Decision, Hold, Plan
from poise.model.resources import Device, Node
from poise.model.share_tree import CPU, GPU, OTHERS, ShareNode, ShareTree, ShareView, borrowed_of
from poise.model.views import Candidate, Snapshot
from poise.policy import turns
from poise.policy.entitled import Standing, standing_of
from poise.policy.reclaim import Prices
from poise.policy.shared import Shared
from poise.policy.suite import base, blocked, deciding
from poise.policy.suites import Suite, policy_named
from poise.policy.turns import Turns, by_share
from poise.testing import World, node

MODELS = ("T4", "A100-80", "H100")
TENANTS = ("ada", "ben", "cat", "dan", "eve")


def merged(
    standing: Standing, view: Snapshot, ones: Sequence[Candidate], *, only_within: bool
) -> tuple[list[int], list[int]]:
    """Merge all shares with a heap in each node of the tree, each of the share that is served next. With `only_within`,
    set aside the units that are not within the guarantee of a node above them. Return the numbers of both.
    """
    waiting: dict[int, deque[int]] = {}
    for number, one in enumerate(ones):
        waiting.setdefault(standing.path(one.leaf)[-1], deque()).append(number)
    below: dict[int, list[int]] = {-1: []}
    for leaf in waiting:
        for above, place in pairwise((-1, *standing.path(standing.nodes[leaf].name))):
            children = below.setdefault(above, [])
            if place not in children:
                children.append(place)
    heaps: dict[int, list[tuple[tuple[bool, int, int], int]]] = {}
    taken: list[int] = []
    beyond: list[int] = []

    def is_left(number: int) -> bool:
        claim = standing.claim(ones[number], view.fleet)
        return only_within and not any(standing.is_within(place, claim.amounts) for place in standing.path(claim.leaf))

    def has_more(place: int) -> bool:
        if place not in waiting:
            return bool(heaps[place])
        while waiting[place] and is_left(waiting[place][0]):
            beyond.append(waiting[place].popleft())
        return bool(waiting[place])

    def key(place: int) -> tuple[bool, int, int]:
        number = waiting[place][0] if place in waiting else heaps[place][0][0][2]
        claim = standing.claim(ones[number], view.fleet)
        return not standing.is_within(place, claim.amounts), standing.level(place), number

    def build(place: int) -> None:
        for child in below[place]:
            if child not in waiting:
                build(child)
        heaps[place] = [(key(child), child) for child in below[place] if has_more(child)]
        heapify(heaps[place])

    build(-1)
    while heaps[-1]:
        down = [-1]
        while down[-1] not in waiting:
            down.append(heaps[down[-1]][0][1])
        number = waiting[down[-1]].popleft()
        if is_left(number):
            beyond.append(number)
        else:
            taken.append(number)
            standing.count(*standing.claim(ones[number], view.fleet))
        for above, place in zip(reversed(down[:-1]), reversed(down[1:]), strict=True):
            if has_more(place):
                heapreplace(heaps[above], (key(place), place))
            else:
                heappop(heaps[above])
    return taken, sorted(beyond)


def unit_by_unit(view: Snapshot, ordered: Sequence[Candidate], pressed: set[str]) -> list[Candidate]:
    """Merge each class twice: what is within a guarantee, then the rest."""
    assert view.shares is not None
    standing, in_order = Standing(view.shares), list[Candidate]()
    lanes: dict[int, list[Candidate]] = {}
    for one in ordered:
        lanes.setdefault(-1 if one.unit in pressed else one.priority, []).append(one)
    for number in sorted(lanes):
        ones = lanes[number]
        taken, beyond = merged(standing, view, ones, only_within=True)
        rest = [ones[place] for place in beyond]
        in_order += [ones[place] for place in taken]
        in_order += [rest[place] for place in merged(standing, view, rest, only_within=False)[0]]
    return in_order


def any_view(chance: Random, *, flat: bool = False) -> Snapshot:
    """Tenants with and without guarantees, some in a group and some with users; work of several sizes and classes. If
    `flat`, no share is in another one, and guarantees name no model.
    """
    models = chance.sample(MODELS, chance.choice([1, 1, 2]))
    cards = tuple(Device(index=index, memory=2**36, model=models[index % len(models)]) for index in range(8))
    world = World().join(Node(name="n1", incarnation="1", cpu=64_000, memory=2**40, devices=cards))
    shares: list[dict[str, Any]] = [] if flat else [{"group": "lab"}]
    for tenant in TENANTS[: chance.randint(2, 5)]:
        shares.append({"tenant": tenant} | ({"in": "lab"} if not flat and chance.random() < 0.3 else {}))
        if not flat and chance.random() < 0.3:
            shares += [{"user": user, "name": f"{tenant}-{user}", "in": tenant} for user in ("x", "y")]
    world.shares(*shares, **({"prices": {chance.choice(models): 0}} if chance.random() < 0.2 else {}))
    for number in range(chance.randint(5, 40)):
        resources: dict[str, Any] = {"gpu": chance.choice([0, 1, 1, 1, 2, 4]), "cpu": chance.choice([1, 2])}
        if resources["gpu"] and chance.random() < 0.2:
            resources["gpu_model"] = chance.choice(models)
        world.submit(
            {
                "run": "true",
                "name": f"work-{number}",
                "priority": chance.choice(["high", "medium"]),
                "resources": resources,
            },
            tenant=chance.choice(TENANTS),
            user=chance.choice("xyz"),
        )
    view = world.controller.snapshot(world.now)
    assert view.shares is not None
    named, most = ((CPU,), 12) if flat else (models, 6)
    return msgspec.structs.replace(view, shares=any_shares(chance, view.shares.tree, models, named, most))


def any_shares(chance: Random, tree: ShareTree, models: Sequence[str], named: Sequence[str], most: int) -> ShareView:
    """The tree with guarantees of up to `most` devices of `named` models or of any, weights, debts, and what all nodes
    hold: at least what those below them do.
    """

    def any_node(node: ShareNode) -> ShareNode:
        guarantees = range(chance.choice([0, 1, 1, 2]))
        guaranteed = {chance.choice([GPU, GPU, *named]): 1000 * chance.randint(1, most) for _ in guarantees}
        return msgspec.structs.replace(node, weight=1000 * chance.choice([0, 1, 1, 2, 3]), guaranteed=guaranteed)

    tree = msgspec.structs.replace(tree, nodes=tuple(map(any_node, tree.nodes)))
    held: list[dict[str, int]] = [{} for _ in tree.nodes]
    for place in range(len(tree.nodes)):
        for model in (*models, CPU) if chance.random() < 0.6 else ():
            amount, above = 1000 * chance.randint(0, 3), place
            while amount and above >= 0:
                held[above][model] = held[above].get(model, 0) + amount
                above = tree.nodes[above].parent
    debts = tuple(chance.choice([0, 0, chance.randint(0, 10**11)]) for _ in tree.nodes)
    return ShareView(tree, tuple(held), debts)


@pytest.mark.parametrize("flat", [False, True])
@settings(max_examples=many(15, 30))
@given(st.randoms(use_true_random=True))
def test_each_share_by_itself_gives_the_order_of_merging_them_unit_by_unit(flat: bool, chance: Random) -> None:
    view = any_view(chance, flat=flat)
    ordered = list(view.candidates)
    chance.shuffle(ordered)
    pressed = {one.unit for one in ordered if chance.random() < 0.1}
    found = list(by_share(view, ordered, pressed))
    assert [one.unit for one in found] == [one.unit for one in unit_by_unit(view, ordered, pressed)]
    assert sorted(one.unit for one in found) == sorted(one.unit for one in ordered)


def crowded(chance: Random, then: str = "10m") -> Snapshot:
    """Work of three tenants on all devices of a small fleet, started a while ago, and more of it that waits."""
    world = World()
    for number in range(3):
        world.join(node(f"n{number}", cpu=64, gpus=4))
    guaranteed = {"ada": chance.randint(4, 5), "ben": chance.randint(1, 4), "cat": chance.randint(1, 3)}
    world.shares(*({"tenant": name, "guaranteed": {"gpu": amount}} for name, amount in guaranteed.items()))
    for number in range(40):
        fields = {"expect": chance.choice(["5m", "1h", "9h"]), "gpu": 1}
        world.job(f"work-{number}", tenant=TENANTS[min(2, number % 5)], **fields)
        if number == 14:
            world.round().after(then)
    return world.controller.snapshot(world.now)


@settings(max_examples=many(5, 10))
@given(st.randoms(use_true_random=True))
def test_the_decisions_are_those_of_the_whole_order(chance: Random) -> None:
    """Once all devices are held and no more are taken back, the rest comes in the order of the policy."""
    view, came = crowded(chance), list[bool]()

    class All(Turns):
        def __iter__(self) -> Iterator[Candidate]:
            yield from list(super().__iter__())
            came.append(self.settled)

    with pytest.MonkeyPatch.context() as patch:
        for module in (base, blocked, deciding):
            for name, value in (("WEIGHED", 0), ("TAKE_BACKS", 1), ("YIELD_SEARCHES", 1)):
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        found = policy_named("poise").decide(view)
        patch.setattr(turns, "Turns", All)
        patch.setattr(deciding, "Turns", All)
        whole = policy_named("poise").decide(view)

    def told(plan: Plan) -> tuple[list[Decision], set[Hold]]:
        holds = {one for one in plan.decisions if isinstance(one, Hold)}
        return [one for one in plan.decisions if not isinstance(one, Hold)], holds

    assert told(found) == told(whole) and found.until == whole.until
    assert came == [True]


@settings(max_examples=many(5, 20))
@given(st.randoms(use_true_random=True))
def test_a_standing_is_updated_where_shares_hold_other_amounts(chance: Random) -> None:
    view = any_view(chance)
    assert view.shares is not None
    tree, held, debts = view.shares.tree, view.shares.held, view.shares.debts
    for _ in range(3):
        place = chance.randrange(len(held))
        held = (*held[:place], {chance.choice(MODELS): 1000 * chance.randint(0, 9)}, *held[place + 1 :])
        shares = ShareView(tree, held, debts)
        found, fresh = standing_of(view, shares), Standing(shares)
        for one in range(len(held)):
            assert (found.held[one], found.level(one)) == (fresh.held[one], fresh.level(one))
        found.count(tree.nodes[place].name, {"T4": 1000})
        copied = found.copy()
        before = dict(copied.held[place])
        found.count(tree.nodes[place].name, {"T4": 1000})
        assert copied.held[place] == before and standing_of(view, shares).held[place] == held[place]


@given(st.randoms(use_true_random=True))
def test_the_rate_is_the_price_of_what_is_borrowed(chance: Random) -> None:
    nodes = (*(ShareNode(name=name, kind="tenant", of=name) for name in TENANTS), ShareNode(name=OTHERS, kind="others"))
    standing = Standing(any_shares(chance, ShareTree(nodes=nodes), MODELS, chance.choice([(CPU,), MODELS]), 6))
    price = standing.tree.price

    def cost(place: int, held: dict[str, int]) -> int:
        over = borrowed_of(held, standing.nodes[place].guaranteed, price)
        return sum(amount * price(model) for model, amount in over.items())

    for place, (of, model) in enumerate(zip(nodes, chance.choices(MODELS, k=len(nodes)), strict=True)):
        held, guaranteed = standing.held[place], standing.nodes[place].guaranteed
        assert standing.rate(place) == cost(place, held)
        if held.get(model):
            less = held | {model: held[model] - 1000}
            kept = bool(guaranteed) and cost(place, held) <= cost(place, less)
            assert standing.was_within(place, {model: 1000}) == kept
        each = standing.each_borrows(place, {model: 1000}) if standing.is_plain(of.name) else None
        for times in (1, 2) if each is not None else ():
            assert each is not None
            assert cost(place, held | {model: held.get(model, 0) + 1000 * times}) == standing.rate(place) + times * each


@settings(max_examples=many(5, 20))
@given(st.randoms(use_true_random=True))
def test_the_prices_of_all_units_that_may_be_preempted_are_those_found_one_by_one(chance: Random) -> None:
    view = crowded(chance, then="30s" if chance.random() < 0.5 else "10m")
    policy = policy_named("poise")
    assert isinstance(policy, Suite)
    draft, _ = policy.ordered(view)
    prices = Prices(np.array([chance.choice([1.0, 2.0, inf]) for _ in draft.running.units.number]), draft)
    for one in chance.sample(view.candidates, 5):
        together, each = Shared(draft), Shared(draft)
        spared = each.spared(one)
        units = [unit for unit, price in prices.by_unit().items() if price < inf and unit in spared]
        assert together.lawful(one, prices).of.tolist() == prices.without(units).of.tolist()
        assert together.young == each.young
