"""Gangs that are spread by a label, or together by one."""

from typing import Any

import msgspec
import numpy as np
import pytest

from poise.errors import InputError
from poise.kernel.verify import verify_place
from poise.model.decisions import Place, Spot, Why
from poise.model.fleet import Fleet
from poise.model.resources import Node, Where
from poise.policy.feasible import grouped
from poise.policy.suites import POLICIES
from poise.testing import World, node

PLACES = {"n1": ("east", "r1"), "n2": ("east", "r1"), "n3": ("west", "r2"), "n4": ("west", "r2"), "n5": ("", "")}


def placed(name: str, cpu: float = 2, gpus: int = 0) -> Node:
    zone, rack = PLACES[name]
    return msgspec.structs.replace(node(name, cpu=cpu, gpus=gpus), zone=zone, rack=rack)


def world(policy: str = "poise", **offers: Any) -> World:
    """Two nodes in each of two zones, which are racks, and one nowhere."""
    made = World(policy)
    for name in PLACES:
        made.join(placed(name, **offers))
    return made


def test_the_room_of_a_gang_is_on_one_node_of_each_value() -> None:
    fleet, room = Fleet([placed(name) for name in PLACES]), np.array([3, 2, 0, 1, 9])
    assert grouped(fleet, Where(spread="zone"), room).tolist() == [0, 1, 0, 1, 0]
    assert grouped(fleet, Where(spread="node"), room).tolist() == [1, 1, 0, 1, 1]
    assert grouped(fleet, Where(together="rack"), room).tolist() == [3, 2, 0, 0, 0]
    assert grouped(fleet, Where(spread="node", together="zone"), room).tolist() == [1, 1, 0, 0, 0]
    assert not grouped(fleet, Where(spread="team", together="zone"), room).any()


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("gpus", [0, 1])
def test_each_task_of_a_gang_runs_where_it_has_to(policy: str, gpus: int) -> None:
    found = world(policy, gpus=gpus)
    found.job("apart", workers=2, cpu="0.5", gpu=gpus, spread="zone", priority="high").round()
    assert sorted(PLACES[name][0] for name in found.where("apart")) == ["east", "west"]
    found = world(policy, gpus=gpus)
    found.job("alone", workers=5, cpu="0.5", gpu=gpus, spread="node").round()
    assert sorted(found.where("alone")) == sorted(PLACES)
    found = world(policy, gpus=gpus)
    found.job("near", workers=2, cpu=2, gpu=gpus, together="rack").round()
    assert len({PLACES[name][1] for name in found.where("near")}) == 1
    assert len(set(found.where("near"))) == 2


def test_a_gang_that_cannot_be_spread_waits_and_says_over_what() -> None:
    found = world(cpu=1)
    found.job("first", node=["n3", "n4"], workers=2).round().start("first.main[0]", "first.main[1]")
    found.job("apart", workers=2, spread="zone").job("near", workers=3, cpu="0.3", together="zone").round()
    assert [reason.sentence() for reason in found.reasons("apart") if reason.code == "SPREAD"] == [
        "needs a different zone for each of 2 tasks: room on 1 of east, west"
    ]
    assert len({PLACES[name][0] for name in found.where("near")}) == 1, "there is room for all of it in one zone"
    found.finish("near.main[0]", "near.main[1]", "near.main[2]").finish("first.main[0]", "first.main[1]").round()
    assert sorted(PLACES[name][0] for name in found.where("apart")) == ["east", "west"]


@pytest.mark.parametrize(
    ("fields", "where", "have"),
    [
        ({"workers": 3, "spread": "zone"}, "resources.spread", "room for 2 (values of `zone`: east, west)"),
        ({"workers": 5, "together": "rack"}, "resources.together", "room for 4 (values of `rack`: r1, r2)"),
    ],
)
def test_what_can_never_be_spread_is_refused(fields: dict[str, Any], where: str, have: str) -> None:
    with pytest.raises(InputError, match="can never start whole") as caught:
        world().job("a", **fields)
    assert (caught.value.record.field, caught.value.record.have) == (where, have)


def test_a_label_that_no_node_has_is_named() -> None:
    with pytest.raises(InputError, match="no node has a label `team`") as caught:
        world().job("a", workers=2, spread="team")
    assert caught.value.record.field == "resources.spread"


INSTEAD = (
    "`--workers 4 --spread zone`, and each task finds its number in POISE_RANK; "
    "or one job for each zone: `--label zone=VALUE`"
)


@pytest.mark.parametrize(
    ("fields", "have", "hint"),
    [
        ({}, "workers: 1", "workers: 2"),
        ({"workers": "2..4"}, "workers: 2..4", "workers: 2"),
        ({"parts": 4}, "4 parts", INSTEAD),
        ({"sweep": {"lr": [0.1, 0.2], "seed": [1, 2]}}, "4 parts of a sweep", INSTEAD),
    ],
)
def test_only_a_gang_of_one_size_is_spread(fields: dict[str, Any], have: str, hint: str) -> None:
    with pytest.raises(InputError, match="`spread` is for a gang that keeps its size") as caught:
        world().job("a", spread="zone", **fields)
    assert (caught.value.record.have, caught.value.record.hint) == (have, hint)


def test_urgent_work_that_is_spread_makes_room_over_the_label() -> None:
    found = world(cpu=1, gpus=1)
    for number in range(5):
        found.job(f"low{number}", priority="low", gpu=1, cpu="0.1", expect="1h", checkpoint="1s")
    found.round()
    found.start(*(f"low{number}" for number in range(5))).after("20m")
    ran = {f"low{number}": found.where(f"low{number}")[0] for number in range(5)}
    found.job("apart", priority="urgent", workers=2, gpu=1, cpu="0.1", spread="zone", expect="1m").round()
    left = [place for name, place in ran.items() if not found.where(name)]
    assert sorted(PLACES[place][0] for place in left) == ["east", "west"]
    found.round()
    assert sorted(PLACES[name][0] for name in found.where("apart")) == ["east", "west"]


def test_a_plan_that_breaks_it_is_refused() -> None:
    found = world().job("apart", workers=2, spread="zone").job("near", workers=2, together="zone")

    def against(job: str, *names: str) -> list[str]:
        place = Place(unit=f"{found.state(job).id}.main", spots=tuple(map(Spot, names)), why=Why(policy="theirs"))
        refused = verify_place(found.ledger, place, found.now)
        return [reason.sentence() for reason in getattr(refused, "reasons", ())]

    assert against("apart", "n1", "n3") == against("near", "n1", "n2") == []
    assert against("apart", "n1", "n2") == ["2 tasks of the gang on one zone: east"]
    assert against("near", "n1", "n3") == ["the tasks of the gang on more than one zone: east, west"]
    assert against("near", "n1", "n5")[0].startswith("n5: is not an allowed node")
